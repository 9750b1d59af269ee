"""Checks of algorithms that need no network, each with its bound and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check; the figure is computed in `programs.checks`.

    Args:
        name: in records. what: in tables.
        at_most: its bound.
        source: where the bound comes from.
    """

    name: str
    what: str
    at_most: float
    source: str


CHECKS: tuple[Check, ...] = (  # what takes no time first
    Check(
        name="alone",
        what="DiLoCo, 1 member, H 1, outer rate 1, no momentum: apart from AdamW",
        at_most=0.0,
        source="the arithmetic is the same, to the bit",
    ),
    Check(
        name="as DDP",
        what="DiLoCo, 4 members, H 1, the same, SGD inside: parameters, apart from DDP's",
        at_most=1e-6,
        source="ten steps, each of which rounds to 24 bits",
    ),
    Check(
        name="merged norm",
        what="AsyncDiLoCo's merge of 2 to 16 orthogonal changes: norm, apart from theirs",
        at_most=0.05,
        source="the merge is made for that (arXiv 2604.21428)",
    ),
    Check(
        name="ring of 8",
        what="A2CiD2, a ring of 8 under noise: distance to the mean, of plain gossip's",
        at_most=1.0,
        source="the method is for that (arXiv 2306.08289)",
    ),
    Check(name="ring of 16", what="the same, a ring of 16", at_most=1.0, source="the same"),
    Check(
        name="sum",
        what="the same: what an exchange changes of the sum",
        at_most=1e-6,
        source="float32 has 24 bits",
    ),
    Check(
        name="DiLoCo 30",
        what="DiLoCo, 2 members, H 30: loss of DDP's",
        at_most=1.01,
        source="1.009 with 35 M parameters (arXiv 2501.18512)",
    ),
    Check(
        name="DiLoCo 100",
        what="DiLoCo, 4 members, H 100: loss of DDP's",
        at_most=1.04,
        source="1.037 (the same)",
    ),
    Check(
        name="streaming 1",
        what="StreamingDiLoCo, 2 members, H 30, overlap 1: loss of DiLoCo's with the same outer rate",
        at_most=1.005,
        source="0.2 % with up to 10 steps of overlap (the same)",
    ),
    Check(
        name="streaming 5",
        what="the same, overlap 5",
        at_most=1.005,
        source="the same",
    ),
    Check(
        name="4 bit",
        what="StreamingDiLoCo with 4 bits: loss of the one with float32",
        at_most=1.003,
        source="no difference was found (the same)",
    ),
    Check(
        name="half dropped",
        what="DiLoCo, 8 members, H 30, half of the parts dropped: perplexity of that with all",
        at_most=1.03,
        source="1.021 with as many members (arXiv 2311.08105)",
    ),
    Check(
        name="bits",
        what="DiLoCo, a member comes or goes each 5 rounds: commits with different bits",
        at_most=0.0,
        source="all members apply the same",
    ),
    Check(
        name="coming and going",
        what="the same: loss of that of 4 members after as much compute",
        at_most=1.02,
        source="only the total matters (arXiv 2311.08105)",
    ),
)
BY_NAME: Mapping[str, Check] = {check.name: check for check in CHECKS}

"""The native engine's packets cross a delayed link with offload in lumps, as they cross a network card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lab_traffic import FRAME_BYTES, piece_bytes
from patience import most_of

from tools.bench import contenders, pairs
from tools.bench.flows import ends
from tools.lab import Lab

RATE_BITS_PER_S = 400_000_000
LUMP_BYTES_MIN = 4 * FRAME_BYTES
"""On average: the engine hands over 8 to 12 packets at once there."""


@pytest.mark.parametrize("contender", [contenders.NATIVE], ids=["native"])
def test_a_flow_crosses_the_relay_in_lumps(
    lab_factory: Callable[..., Lab], tmp_path: Path, contender: contenders.Contender
) -> None:
    (tmp_path / "logs").mkdir()
    pairs.identities(tmp_path)
    lab = lab_factory("lumps")
    lab.host("a")
    lab.host("b")
    lab.link("a", "b", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.001, carrier="relay", offload=True)
    lab.up()
    second = pairs.Flow(seconds=1.0, bytes_max=10**9, message_bytes=2**20, outstanding=8)
    with pairs.made(contender, *ends(lab), folder=tmp_path, tag="lumps") as pair:
        most_of(lambda: piece_bytes(lab["b"], lambda: pair.flow(second)), lambda found: found >= LUMP_BYTES_MIN)

"""Ranks on a path that doubles, reorders, cuts and spoils packets: every result is right, and no connection ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_cases import ALL
from moving_ranks import running

from tools.lab import Lab
from tools.lab.spoil import Spoiling

SPOILING = Spoiling(doubled=0.02, late=0.02, cut=0.01, flipped=0.01)
"""Every hundredth packet is as good as lost, and every fiftieth comes too late for what was sent behind it."""
EACH_MIN = 20
"""So many of each kind and way: a path that spoils nothing does not pass for one that does."""
RANKS = ["a native, b native"]
if ALL:
    RANKS += ["a native, b aioquic", "a aioquic, b native"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ranks", RANKS)
def test_collectives_are_right_and_connections_live_where_packets_are_doubled_late_cut_and_spoiled(
    lab_factory: Callable[..., Lab], tmp_path: Path, ranks: str
) -> None:
    lab = lab_factory("spoiled")
    lab.host("a")
    lab.host("b")
    link = lab.link("a", "b", rate_bits_per_s=100_000_000, delay_s=0.002, carrier="relay")
    lab.up()
    places = [(host, engine) for host, engine in (one.split() for one in ranks.split(", "))]
    with running(lab, tmp_path, places) as programs:
        link.set_spoiling(SPOILING)

        def spoiled_least() -> int:
            return min(count for end in link.spoiled().values() for count in end.values())

        while spoiled_least() < EACH_MIN:
            for one in programs:
                one.rounds(1)  # each is checked, number by number
        link.set_spoiling(Spoiling())
        for one in programs:
            one.rounds(1)
        found = [one.end() for one in programs]
    for figures in found:
        assert figures["after"].keys() == figures["before"].keys(), "a connection ended"

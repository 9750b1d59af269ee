"""A cgroup's path is found in slices, and one that is gone is not looked for all day."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from broker.measure.socket_owners import CGROUPS_WALK_S, LOST_S, CgroupPaths

COUNT = 400


class Cgroups:
    """Directories by number, which take `each_s` of the processor to look at."""

    def __init__(self, *, each_s: float = 0.0) -> None:
        self.each_s, self.looked, self.there = each_s, 0, set(range(1, COUNT + 1))
        self.paths = CgroupPaths("/mount", walk=self.walk)

    def walk(self, _: str) -> Iterator[tuple[str, int]]:
        for number in sorted(self.there):
            self.looked += 1
            until_s = time.thread_time() + self.each_s
            while time.thread_time() < until_s:
                pass
            yield f"/{number}", number

    def look(self, *wanted: int, from_s: float, for_s: float) -> None:
        for tick in range(round(for_s * 10)):
            self.paths.look(frozenset(wanted), now_s=from_s + tick / 10)


def test_one_that_is_gone_costs_a_walk_a_minute_and_others_are_found_all_the_same() -> None:
    cgroups = Cgroups()
    cgroups.look(7, COUNT + 9, from_s=0.0, for_s=LOST_S - 1)
    assert cgroups.looked == COUNT
    assert (cgroups.paths.path_of(7), cgroups.paths.path_of(COUNT + 9)) == ("/7", None)
    cgroups.there.add(COUNT + 1)
    cgroups.look(7, COUNT + 9, COUNT + 1, from_s=LOST_S - 1, for_s=0.5)
    assert cgroups.paths.path_of(COUNT + 1) == f"/{COUNT + 1}"
    walks = cgroups.looked
    cgroups.look(COUNT + 9, from_s=LOST_S + 2 * CGROUPS_WALK_S, for_s=LOST_S - 1)
    assert cgroups.looked - walks == COUNT + 1


def test_a_walk_over_many_holds_no_tick_up() -> None:
    cgroups = Cgroups(each_s=0.0005)
    looked = []
    for tick in range(3 * COUNT):
        before = cgroups.looked
        cgroups.paths.look(frozenset({COUNT}), now_s=tick / 10)
        looked.append(cgroups.looked - before)
    assert max(looked) <= 8  # of 2 ms
    assert cgroups.paths.path_of(COUNT) == f"/{COUNT}"
    assert cgroups.looked == COUNT


@pytest.mark.parametrize("mount", [None, "/mount"])
def test_without_a_mount_or_a_number_nothing_is_walked(mount: str | None) -> None:
    cgroups = Cgroups()
    cgroups.paths = CgroupPaths(mount, walk=cgroups.walk)
    cgroups.look(0, *([5] if mount is None else []), from_s=0.0, for_s=20.0)
    assert (cgroups.looked, cgroups.paths.path_of(5)) == (0, None)

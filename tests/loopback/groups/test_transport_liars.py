"""Ranks that lie, of another or of their own link: nobody is given up, nobody hangs, and no sum is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from patience import LIMIT_S, wait_until

from hive_qos.errors import CancelledError
from transport import Group, MemoryRendezvous, Settings
from transport.collectives.planning.link_rates import LinkReport

ACCUSED, LIAR = 2, 3
HONEST = (0, 1)


@pytest.fixture
def groups(chosen_engine: str) -> Iterator[list[Group]]:
    """Four ranks over loopback, the last of which will lie."""
    store = MemoryRendezvous()
    settings = Settings(
        listen="127.0.0.1", broker="off", engine=os.environ["HIVE_ENGINE"], job_secret=b"secret of the test"
    )
    with ThreadPoolExecutor(4) as pool:

        def connect(rank: int) -> Group:
            return Group.connect(store, rank=rank, world_size=4, settings=settings, timeout_s=60.0)

        connected = list(pool.map(connect, range(4)))
        yield connected
        list(pool.map(Group.close, connected))


def say(groups: list[Group], message: dict[str, Any]) -> None:
    """The liar tells the honest ranks."""
    runtime = groups[LIAR]._runtime
    for rank in HONEST:
        runtime._loop.call(lambda rank=rank: runtime._endpoint.control(rank, message))


def all_agree(groups: list[Group]) -> None:
    """Everybody still counts everybody in."""
    tensors = [np.full(100_000, rank + 1.0, "f4") for rank in range(4)]
    for work in [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]:
        work.wait(LIMIT_S)
    assert all((tensor == 10).all() for tensor in tensors)
    assert [group.lost_ranks() for group in groups] == [{}] * 4


def test_a_rank_that_is_said_to_be_dead_and_answers_is_given_up_by_nobody(
    groups: list[Group], caplog: pytest.LogCaptureFixture
) -> None:
    say(groups, {"op": "dead", "rank": ACCUSED, "reason": "nothing heard for 2.1 s"})
    said = f"rank {LIAR} says that it lost rank {ACCUSED}, which still answers this rank"
    wait_until(lambda: caplog.text.count(said) == len(HONEST), what=lambda: (caplog.text, groups[0].lost_ranks()))
    all_agree(groups)


@pytest.mark.parametrize("begun", [True, False], ids=["under way", "not begun"])
def test_a_collective_that_is_given_up_for_the_loss_of_a_rank_that_answers_names_both(
    groups: list[Group], caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    def begin() -> list[Any]:
        return [group.allreduce(np.ones(100_000, "f4")) for group in groups[:LIAR]]

    works = begin() if begun else []
    groups[LIAR]._runtime._in_flight._groups["default"].next_number += 1  # it takes no part in this one
    groups[LIAR]._runtime._in_flight._groups["default"].begun += 1
    say(groups, {"op": "abort", "group": "default", "step": 0, "reason": "cable cut", "lost": ACCUSED})
    if not begun:
        wait_until(lambda: all(group._runtime._in_flight._given_up for group in groups[:2]))
        works = begin()
    for rank, work in enumerate(works):
        with pytest.raises(CancelledError, match="gave up") as caught:
            work.wait(LIMIT_S)
        said = f"rank {LIAR} gave up: it says that it lost rank {ACCUSED}, which still answers this rank: cable cut"
        assert said in str(caught.value), f"rank {rank}"
    all_agree(groups)


@pytest.mark.parametrize(
    "report",
    [
        LinkReport(1, 1, 1, 1, rtt_us=dict.fromkeys(range(4), 1)),
        LinkReport(2**62, 2**62, 2**62, 2**62, rtt_us={0: 2**62, 1: -(2**62)}),
        LinkReport(-5, -(2**63), 0, 1, rtt_us={}),
    ],
    ids=["slow", "fast", "negative"],
)
@pytest.mark.parametrize("site", ["", "on the moon"])
def test_a_rank_that_lies_about_its_link_or_site_changes_everybodys_plan_alike_and_no_result(
    groups: list[Group], report: LinkReport, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = groups[LIAR]._runtime
    monkeypatch.setattr(liar._rates, "report", lambda far: report)
    planner = liar._in_flight._groups["default"].planner
    assert planner is not None
    planner._site = site
    all_agree(groups)
    first = groups[0].explain()["network"]

    def has_changed() -> bool:
        all_agree(groups)
        return groups[0].explain()["network"] != first

    planner._rows = ()  # it begins an agreement with its next operation
    wait_until(has_changed)
    all_agree(groups)
    assert all(group.explain()["network"] == groups[0].explain()["network"] for group in groups)
    inputs = [np.arange(40_000, dtype="f4") + rank for rank in range(4)]
    outputs = [np.empty(10_000, "f4") for _ in range(4)]
    for work in [group.reduce_scatter(out, given) for group, out, given in zip(groups, outputs, inputs, strict=True)]:
        work.wait(LIMIT_S)
    assert np.array_equal(np.concatenate(outputs), 4 * np.arange(40_000, dtype="f4") + 6)

"""Collectives that one rank gives up, by its timeout, by abort or by leaving: all others learn it, and go on."""

from __future__ import annotations

import time

import numpy as np
import pytest
from patience import LIMIT_S, most_of, wait_until
from test_transport_agreement_weather import with_links_that_change

from hive_qos.errors import CancelledError, MisuseError, TimedOutError
from transport.collectives.membership import GROUP_BYTES_MAX


def test_a_timeout_says_what_was_done_and_for_whom_it_waits(make_world):
    timeouts_s = iter((0.2, 1.0, 5.0))

    def bytes_done_in_time() -> int:
        timeout_s = next(timeouts_s)
        work = make_world(3).groups[0].allreduce(np.zeros(30_000, "f4"), timeout_s=timeout_s)
        with pytest.raises(TimedOutError, match=r"allreduce 0 of group w, waiting for rank 1, 2") as caught:
            work.wait(30)
        assert caught.value.timeout_s == timeout_s
        return caught.value.bytes_done

    # Its parts of the others' shards are sent, in milliseconds or else in the next attempt; nothing ever comes.
    most_of(bytes_done_in_time, lambda found: found == 80_000, windows=3)


def test_a_rank_that_gives_up_takes_the_others_with_it(make_world):
    """So large that nobody ends it without the results of the others, who have given up: the first word may be late."""
    world = make_world(3)
    second = world.groups[1].allreduce(np.zeros(30_000), timeout_s=60.0)
    third = world.groups[2].allreduce(np.zeros(30_000), timeout_s=0.2)
    with pytest.raises(TimedOutError):
        third.wait(30)
    with pytest.raises(CancelledError, match=r"rank 2 gave up: .*; this rank waited for rank 0, 2$"):
        second.wait(30)
    # The late rank learns it at once, although it had not begun.
    with pytest.raises(CancelledError, match="rank 2 gave up"):
        world.groups[0].allreduce(np.zeros(30_000), timeout_s=60.0).wait(30)


def test_a_group_works_on_after_an_operation_that_failed_everywhere(make_world):
    world = make_world(2, algorithm="direct")
    with pytest.raises(TimedOutError):
        world.groups[0].allreduce(np.zeros(30_000), timeout_s=0.1).wait(30)
    with pytest.raises(CancelledError):
        world.groups[1].allreduce(np.zeros(30_000)).wait(30)
    results = world.results(lambda group: [tensor := np.ones(3), group.allreduce(tensor).wait(30)])
    assert [result[0].tolist() for result in results] == [[2.0] * 3] * 2


def test_abort_ends_what_is_under_way_on_all_ranks(make_world):
    world = make_world(2, algorithm="direct")
    mine = world.groups[0].allreduce(np.zeros(30_000))
    world.groups[0].abort("a test")
    with pytest.raises(CancelledError, match="a test"):
        mine.wait(30)
    with pytest.raises(CancelledError, match="a test"):
        world.groups[1].allreduce(np.zeros(30_000)).wait(30)


@pytest.mark.parametrize("letter", ["a", "é", "错", "\U0001f41d", '"', "\x1b", "\ud800"])
def test_a_reason_of_any_letters_and_length_reaches_all_ranks(make_world, letter):
    """A control message that is too long would be received by nobody."""
    world = make_world(2, algorithm="direct")
    group = world.groups[0].subgroup(range(2), name="x" * GROUP_BYTES_MAX)
    other = world.groups[1].subgroup(range(2), name="x" * GROUP_BYTES_MAX)
    mine = group.allreduce(np.zeros(30_000))
    group.abort(5000 * letter)
    for work in (mine, other.allreduce(np.zeros(30_000))):
        with pytest.raises(CancelledError):
            work.wait(30)


def test_closing_ends_what_is_under_way_and_further_use_is_misuse(make_world):
    world = make_world(2)
    work = world.groups[0].allreduce(np.zeros(4))
    world.groups[0].close()
    with pytest.raises(CancelledError, match="closed"):
        work.wait(30)
    with pytest.raises(MisuseError, match="closed"):
        world.groups[0].barrier()
    world.groups[0].close()


def test_an_operation_that_is_held_back_hears_that_it_was_given_up_although_a_later_one_is_over(make_world):
    world = make_world(3, algorithm="weighted", timeout_s=LIMIT_S)
    groups = [with_links_that_change(group, 1) for group in world.groups]
    in_flight = world.groups[0]._runtime._in_flight

    def more(group):
        return group.allreduce(np.ones(20_000, "f4"))

    world.results(lambda group: [more(group).wait(LIMIT_S) for _ in range(20)])
    time.sleep(1.0)  # by then the next operation begins an agreement
    for rank in (1, 2):
        world.network.hold("rank-0", f"rank-{rank}")  # they hear of no agreement
    works = [[more(groups[0])], [], []]
    wait_until(lambda: in_flight._agreements.is_holding("w") or works[0].append(more(groups[0])), pause_s=0.05)
    held = len(works[0]) - 1
    groups[0].give_up("it has nothing to send")  # the place after that, which is over here at once
    for _ in range(held):
        works[1].append(more(groups[1]))
    groups[1].give_up("it cannot")
    wait_until(lambda: any(key[1] == 20 + held for key in in_flight._given_up))
    for rank in (1, 2):
        world.network.release("rank-0", f"rank-{rank}")
    for _ in range(held + 1):
        works[2].append(more(groups[2]))
    for rank, mine in enumerate(works):
        for work in mine[:held]:
            work.wait(LIMIT_S)
        if rank != 1:
            with pytest.raises(CancelledError, match=r"rank 1 gave up: .*it cannot"):
                mine[held].wait(10.0)

"""Connections that break and ranks that die or leave: what comes back goes on, and who is lost is named by all."""

from __future__ import annotations

import time

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import CancelledError, ConnectionLostError, TimedOutError
from transport import Group
from transport.mesh.inbox import GRACE_S
from transport.mesh.peers import Phase


def test_a_lost_connection_is_made_again_and_the_collective_goes_on(make_world):
    world = make_world(3, chunk_bytes=1024, reconnect_s=30.0)
    world.network.hold("rank-1", "rank-0")
    tensors = [np.full(20_000, r + 1, "f4") for r in range(3)]
    works = [group.allreduce(tensor) for group, tensor in zip(world.groups, tensors, strict=True)]
    world.network.cut("rank-0", "rank-1")
    world.network.release("rank-1", "rank-0")
    for work in works:
        work.wait(30)
    assert all((tensor == 6).all() for tensor in tensors)


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_a_rank_that_dies_is_named_by_all_others(make_world, when):
    world = make_world(3, chunk_bytes=1024)
    if when == "before":
        world.network.kill("rank-2")
    if when == "in":
        world.network.hold("rank-2", "rank-0")
    works = [group.allreduce(np.ones(20_000, "f4")) for group in world.groups[: 2 if when == "before" else 3]]
    if when == "in":
        world.network.kill("rank-2")
    if when == "after":
        for work in works:
            work.wait(30)
        world.network.kill("rank-2")
        works = [group.allreduce(np.ones(20_000, "f4")) for group in world.groups[:2]]
    for work in works[:2]:
        with pytest.raises(ConnectionLostError, match="rank 2") as caught:
            work.wait(30)
        assert caught.value.rank == 2
    # From now on every operation that needs it raises at once, and those that do not still work.
    with pytest.raises(ConnectionLostError):
        world.groups[0].barrier(timeout_s=60.0).wait(30)
    with pytest.raises(ConnectionLostError):
        world.groups[1].barrier(timeout_s=60.0).wait(30)
    pair = [group.subgroup([0, 1]) for group in world.groups[:2]]
    for work in [group.barrier() for group in pair]:
        work.wait(30)
    assert world.groups[0].lost_ranks().keys() == {2}


@pytest.mark.parametrize("silence_ends", [True, False])
def test_a_silent_rank_may_come_back_unless_silence_ends_it(make_world, silence_ends):
    world = make_world(3, reconnect_s=60.0, silence_ends=silence_ends)
    world.network.kill("rank-2")
    work = world.groups[0].allreduce(np.ones(20_000, "f4"), timeout_s=5.0)
    with pytest.raises(ConnectionLostError if silence_ends else TimedOutError):
        work.wait(30)


def test_the_first_use_of_a_subgroup_after_a_death_raises_at_once(make_world):
    world = make_world(3)
    subs = [group.subgroup([0, 1, 2], name="late") for group in world.groups]
    world.network.kill("rank-1")
    for sub in (subs[0], subs[2]):
        with pytest.raises(ConnectionLostError, match="rank 1"):
            sub.allreduce(np.zeros(4), timeout_s=60.0).wait(30)


@pytest.mark.parametrize(("members", "dead"), [((1, 2, 3), 3), ((2, 3, 4), 4), ((4, 3, 1), 3), ((3, 1, 0), 1)])
def test_a_subgroup_names_a_lost_member_by_its_rank_in_it_on_every_other_member(make_world, members, dead):
    world = make_world(5, reconnect_s=30.0)
    subs = {rank: world.groups[rank].subgroup(members, name="s") for rank in members}
    works = {rank: subs[rank].allreduce(np.ones(10, "f4"), timeout_s=20.0) for rank in members if rank != dead}
    # One member knows it first, and says so; the others have lost the connection, and would wait for another.
    world.network.kill(f"rank-{dead}")
    first = subs[next(iter(works))]._runtime
    first._loop.call(lambda: first._endpoint.report_gone(first._endpoint.peers.dead(dead, "cable cut")))
    for work in works.values():
        with pytest.raises(ConnectionLostError, match="cable cut") as caught:
            work.wait(30)
        assert caught.value.rank == members.index(dead)
        assert caught.value.peer == f"rank-{dead}"


def test_a_death_that_one_rank_notices_reaches_those_who_do_not_talk_to_the_dead(make_world):
    world = make_world(3, reconnect_s=0.1)
    with world.network.lock:
        world.network.engines["rank-1"].dead = True
    world.network.hold("rank-2", "rank-1")
    world.network.cut("rank-0", "rank-1")
    # Rank 2's own connection to rank 1 is not known to be lost yet, but nothing is acknowledged.
    receiving = world.groups[2].recv(np.zeros(3), 1, timeout_s=60.0)
    wait_until(lambda: 1 in world.groups[0].lost_ranks())
    endpoint = world.groups[2]._runtime._endpoint
    wait_until(lambda: endpoint.liveness._waiting)
    endpoint.peers._reconnect_s = 60.0  # what ends the wait is the word of rank 0
    world.network.cut("rank-2", "rank-1")
    with pytest.raises(ConnectionLostError, match="noticed by rank 0"):
        receiving.wait(30)


def test_a_rank_that_is_said_to_be_lost_and_does_not_answer_counts_as_there_while_it_is_heard(make_world, monkeypatch):
    monkeypatch.setattr("transport.mesh.liveness.CHECK_S", 0.2)
    world = make_world(3)
    world.network.hold("rank-1", "rank-2")
    work = world.groups[1].barrier(timeout_s=60.0)
    liar = world.groups[0]._runtime
    abort = {"op": "abort", "group": "w", "step": 0, "reason": "cable cut", "lost": 2}
    liar._loop.call(lambda: liar._endpoint.control(1, abort))
    with pytest.raises(CancelledError, match="rank 0 gave up: it says that it lost rank 2, which still answers"):
        work.wait(30)
    assert not world.groups[1].lost_ranks()


def test_the_lost_rank_is_named_and_not_the_one_that_noticed_first_and_left(make_world):
    world = make_world(3)
    world.network.hold("rank-2", "rank-1")  # rank 2 gets no answer from rank 1, and has not lost its connection yet
    first, second = world.groups[0]._runtime, world.groups[2]._runtime
    work = world.groups[2].allreduce(np.ones(20_000, "f4"), timeout_s=60.0)
    first._loop.call(lambda: first._endpoint.report_gone(first._endpoint.peers.dead(1, "its process has ended")))
    with pytest.raises(ConnectionLostError, match="rank 1"):
        world.groups[0].allreduce(np.ones(20_000, "f4"), timeout_s=60.0).wait(30)
    world.groups[0].close()
    peers = second._endpoint.peers
    wait_until(lambda: peers.peers[0].phase is Phase.LEFT)
    later_s = time.monotonic() + 2 * GRACE_S
    second._loop.call(lambda: second._endpoint.tick(later_s))
    world.groups[1].send(np.ones(3), 2)
    world.groups[2].recv(np.zeros(3), 1).wait(30)  # comes behind what the engine was asked to do then
    with world.network.lock:
        world.network.engines["rank-1"].dead = True
    world.network.cut("rank-2", "rank-1")
    with pytest.raises(ConnectionLostError, match="rank 1") as caught:
        work.wait(30)
    assert caught.value.rank == 1


def test_a_rank_that_leaves_after_its_part_is_done_harms_nobody(make_world):
    world = make_world(3)

    def body(group: Group) -> np.ndarray:
        tensor = np.ones(70_000, "f4")
        work = group.allreduce(tensor)
        work.wait(30)
        if group.rank == 1:
            group.send(np.arange(3), 0).wait(30)
            group.close()
        return tensor

    results = world.results(body)
    assert all((tensor == 3).all() for tensor in results)
    assert world.groups[0].recv(None, 1).wait(30).tolist() == [0, 1, 2]  # sent before it left
    with pytest.raises(ConnectionLostError, match="has left the group"):
        world.groups[0].recv(None, 1, timeout_s=60.0).wait(30)


def test_a_rank_whose_leaving_is_interrupted_has_left_all_the_same(make_world, monkeypatch):
    world = make_world(2)
    leaver = world.groups[0]._runtime
    work = world.groups[1].allreduce(np.ones(10, "f4"), timeout_s=60.0)

    def interrupted(_timeout_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaver._endpoint.collectives, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.groups[0].close()
    with pytest.raises(ConnectionLostError, match="it has left the group"):
        work.wait(30)
    assert not leaver._loop._thread.is_alive()

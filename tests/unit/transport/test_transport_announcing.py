"""When a collective is announced, by whom, and that each announcement has an end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import CancelledError, ConnectionLostError, MisuseError, PeerError, TimedOutError
from transport import Group, ReduceOp
from transport.broker.session import BrokerSession
from transport.collectives import calls
from transport.collectives.aborts import RemoteAbort
from transport.collectives.in_flight import InFlight
from transport.mesh.peers import Phase


class Heard:
    """Listens to what a rank tells its link to the broker, but for the ends of agreements."""

    def __init__(self, group: Group) -> None:
        self.begun: list[tuple[str, Mapping[str, int]]] = []
        self.ended, self._group = 0, group.name
        link = group._runtime._broker
        assert link is not None
        self._link: BrokerSession = link
        self._begins, self._ends = self._link.collective_begins, self._link.collective_ends
        self._link.collective_begins = self._begin  # type: ignore[method-assign, assignment]
        self._link.collective_ends = self._end  # type: ignore[method-assign]

    def _begin(self, now_s: float, collective: Hashable, size_bytes: Mapping[str, int]) -> None:
        self.begun.append((threading.current_thread().name, size_bytes))
        self._begins(now_s, collective, size_bytes)

    def _end(self, now_s: float, collective: Hashable) -> None:
        assert isinstance(collective, tuple)
        self.ended += collective[0] == self._group
        self._ends(now_s, collective)

    def under_way(self) -> int:
        return len(self._link._bursts._open)


def running(tasks: InFlight) -> list[int]:
    """The numbers of the operations of group w that are under way; its agreement may be as well."""
    return [number for group, number in tasks._running if group == "w"]


def within(seconds: float, body: Callable[[], object]) -> object:
    """What `body` returns or raises, in a thread of its own: it must not hang."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(body())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, "it hangs"
    return outcome[0]


def works_and_is_announced(world, heard: Heard) -> bool:
    """Whether the burst before is over, a collective works on all ranks, and its own burst is announced and ends."""
    bursts = heard._link._bursts
    wait_until(lambda: not bursts._running, what=lambda: bursts)
    before, step = len(heard.begun), bursts.step
    world.results(lambda group: group.allreduce(np.ones(30_000)).wait(60))
    wait_until(lambda: not bursts._running, what=lambda: bursts)
    return (len(heard.begun), bursts.step) == (before + 1, step + 1)


def test_who_calls_announces_before_the_transport_s_own_thread_has_woken(make_world):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])
    released = threading.Event()
    world.groups[0]._runtime._loop.call(lambda: released.wait(60))  # it is held up
    work = world.groups[0].allreduce(np.ones(30_000))
    assert [name for name, _ in heard.begun] == [threading.current_thread().name]
    assert sum(heard.begun[0][1].values()) == 240_000
    released.set()
    world.groups[1].allreduce(np.ones(30_000)).wait(60)
    work.wait(60)
    wait_until(lambda: heard.ended == 1, what=lambda: heard.ended)
    assert heard.under_way() == 0


def test_an_operation_that_never_begins_ends_its_announcement(make_world):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])
    runtime = world.groups[0]._runtime
    released = threading.Event()
    runtime._loop.call(lambda: released.wait(60))  # so that the word comes between announcement and beginning
    runtime._loop.call(lambda: runtime._in_flight.given_up_by(("w", 0), RemoteAbort(1, "a test")))
    work = world.groups[0].allreduce(np.ones(30_000))
    assert (len(heard.begun), heard.under_way()) == (1, 1)
    released.set()
    with pytest.raises(CancelledError, match="rank 1 gave up: a test"):
        work.wait(60)
    assert heard.under_way() == 0


def test_what_another_rank_has_given_up_is_not_announced(make_world):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])
    with pytest.raises(TimedOutError):
        world.groups[1].allreduce(np.ones(30_000), timeout_s=0.1).wait(60)
    wait_until(lambda: bool(world.groups[0]._runtime._in_flight._given_up), what=lambda: "rank 1 has given up")
    with pytest.raises(CancelledError, match="rank 1 gave up"):
        world.groups[0].allreduce(np.ones(30_000)).wait(60)
    assert (heard.begun, heard.under_way()) == ([], 0)
    assert works_and_is_announced(world, heard)


def test_a_group_without_one_of_its_ranks_announces_nothing_more(make_world):
    world = make_world(3)
    heard = Heard(world.groups[0])
    pair = world.groups[0].subgroup([0, 1])
    world.network.kill("rank-2")
    wait_until(lambda: 2 in world.groups[0].lost_ranks(), what=world.groups[0].lost_ranks)
    for _ in range(3):
        with pytest.raises(ConnectionLostError):
            world.groups[0].allreduce(np.ones(30_000)).wait(60)
    assert (heard.begun, heard.under_way()) == ([], 0)
    work = pair.allreduce(np.ones(30_000))
    world.groups[1].subgroup([0, 1]).allreduce(np.ones(30_000)).wait(60)
    work.wait(60)
    assert len(heard.begun) == 1


def test_what_is_to_raise_an_earlier_disagreement_or_comes_after_the_goodbye_is_not_announced(make_world):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])
    other = world.groups[0].subgroup([0, 1], algorithm="direct")
    tasks = world.groups[0]._runtime._in_flight
    tasks._found_late["w"] = PeerError("rank 1", "a test")
    with pytest.raises(PeerError, match="a test"):
        world.groups[0].allreduce(np.ones(30_000)).wait(60)
    tasks._endpoint.closing = True
    with pytest.raises(CancelledError, match="closed"):
        other.allreduce(np.ones(30_000)).wait(60)
    assert (heard.begun, heard.under_way()) == ([], 0)


def test_an_interrupt_while_it_is_announced_gives_the_operation_up(make_world, monkeypatch):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(heard._link._session, "announce", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.groups[0].allreduce(np.ones(30_000))
    monkeypatch.undo()
    assert (len(heard.begun), heard.under_way()) == (1, 0)
    with pytest.raises(CancelledError, match=r"rank 0 gave up: .*the call was interrupted"):
        world.groups[1].allreduce(np.ones(30_000)).wait(60)
    assert works_and_is_announced(world, heard)


def test_an_interrupt_at_any_call_of_a_start_leaves_no_number_that_nobody_is_told_of(make_world):
    """Python looks for signals when a call of C's returns, `next` among them: this does at one after another."""
    turns = 0
    while is_interrupted(make_world(2, algorithm="direct"), at=turns):
        turns += 1
    assert turns >= 3, "there are such calls"


def is_interrupted(world: Any, *, at: int) -> bool:
    """Whether a start makes so many calls of C's; it is interrupted when that one returns, and all goes well."""
    runtime = world.groups[0]._runtime
    start = type(runtime)._start.__code__
    left = at

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if frame.f_code is start and event == "c_return":
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work = world.groups[0].allreduce(np.ones(30_000))
    except KeyboardInterrupt:
        work = None
    finally:
        sys.setprofile(None)
    if work is None and runtime._in_flight._groups["w"].next_number == 0:
        work = world.groups[0].allreduce(np.ones(30_000))  # it had no number yet
    other = world.groups[1].allreduce(np.ones(30_000))
    with nullcontext() if work is not None else suppress(CancelledError):  # it may have begun all the same
        other.wait(5)
    return left < 0


def test_an_interrupt_after_the_operation_was_handed_over_ends_it(make_world, monkeypatch):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])
    runtime = world.groups[0]._runtime
    call = runtime._loop.call

    def interrupted(item: Callable[[], None]) -> None:
        monkeypatch.undo()
        call(item)
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime._loop, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.groups[0].allreduce(np.ones(30_000))
    tasks = runtime._in_flight
    wait_until(lambda: tasks._groups["w"].begun == 1 and not running(tasks), what=lambda: tasks._running)
    assert heard.under_way() == 0
    with pytest.raises(CancelledError, match=r"rank 0 gave up: .*the call was interrupted"):
        world.groups[1].allreduce(np.ones(30_000)).wait(60)
    assert works_and_is_announced(world, heard)


@pytest.mark.parametrize("at", [1, 2])
def test_of_several_collectives_that_start_together_an_interrupt_ends_all_and_frees_their_tensors(
    make_world, monkeypatch, at
):
    world = make_world(2, algorithm="direct")
    runtime = world.groups[0]._runtime
    real, left = runtime._call_open, at

    def interrupted(item: Callable[[], None]) -> None:
        nonlocal left
        real(item)
        if not (left := left - 1):
            raise KeyboardInterrupt

    tensors = [np.ones(30_000), np.ones(30_000)]
    prepared = [calls.allreduce(world.groups[0].site, tensor, ReduceOp.SUM) for tensor in tensors]
    monkeypatch.setattr(runtime, "_call_open", interrupted)
    runtime._loop.call(lambda: threading.Event().wait(0.2))  # it is held up, so that only who waits finds all ended
    with pytest.raises(KeyboardInterrupt):
        world.groups[0].start(prepared)
    monkeypatch.undo()
    assert (runtime._in_flight._groups["w"].begun, running(runtime._in_flight)) == (2, [])
    before = [tensor.copy() for tensor in tensors]
    for _ in tensors:
        with pytest.raises(CancelledError, match=r"rank 0 gave up: .*the call was interrupted"):
            world.groups[1].allreduce(np.ones(30_000)).wait(60)
    world.results(lambda group: group.allreduce(np.ones(3)).wait(60))
    assert all((now == then).all() for now, then in zip(tensors, before, strict=True))


def test_an_interrupt_while_an_interrupted_call_is_given_up_keeps_nobody_waiting(make_world, monkeypatch):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(heard._link._session, "announce", interrupted)
    monkeypatch.setattr(world.groups[0]._runtime._in_flight, "end_announcement", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.groups[0].allreduce(np.ones(30_000))
    monkeypatch.undo()
    with pytest.raises(CancelledError, match=r"rank 0 gave up: .*the call was interrupted"):
        world.groups[1].allreduce(np.ones(30_000)).wait(5)


@pytest.mark.parametrize("handed_over", [False, True])
def test_an_interrupt_while_a_rank_gives_up_leaves_no_number_that_nobody_is_told_of(
    make_world, monkeypatch, handed_over
):
    world = make_world(2, algorithm="direct")
    runtime = world.groups[0]._runtime
    real = runtime._call_open

    def interrupted(item: Callable[[], None]) -> None:
        if handed_over:
            real(item)
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "_call_open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.groups[0].give_up("a test")
    monkeypatch.undo()
    with pytest.raises(CancelledError, match=r"rank 0 gave up: .*a test"):
        world.groups[1].allreduce(np.ones(30_000)).wait(5)
    world.results(lambda group: group.allreduce(np.ones(3)).wait(60))  # which has a number of its own


def test_an_announcement_that_fails_fails_its_operation_and_no_other(make_world, monkeypatch):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])

    def fails(**_: object) -> None:
        raise MemoryError("a test")

    monkeypatch.setattr(heard._link._session, "announce", fails)
    with pytest.raises(Exception, match="a test"):
        world.groups[0].allreduce(np.ones(30_000)).wait(60)
    monkeypatch.undo()
    assert (len(heard.begun), heard.under_way()) == (1, 0)
    with pytest.raises(CancelledError, match="rank 0 gave up"):
        world.groups[1].allreduce(np.ones(30_000)).wait(60)
    assert works_and_is_announced(world, heard)


def test_a_signal_s_handler_may_close_the_group_while_a_collective_is_announced(make_world, monkeypatch):
    """It runs in the thread that announces. The others still see a departure, and what runs beside it ends."""
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])
    beside = world.groups[0].allreduce(np.ones(30_000))
    monkeypatch.setattr(heard._link._session, "announce", lambda **_: world.groups[0].close(timeout_s=120.0))
    outcome = within(50.0, lambda: world.groups[0].allreduce(np.ones(60_000)))
    assert isinstance(outcome, MisuseError)
    with pytest.raises(CancelledError, match="closed"):
        beside.wait(60)
    assert heard.under_way() == 0
    peers = world.groups[1]._runtime._endpoint.peers.peers
    wait_until(lambda: peers[0].phase is Phase.LEFT, what=lambda: peers[0].phase)


@pytest.mark.parametrize("operation", ["barrier", "send", "recv", "give_up"])
def test_what_is_handed_over_to_a_thread_that_has_ended_raises_instead_of_waiting_for_ever(
    make_world, monkeypatch, operation
):
    group = make_world(2, algorithm="direct").groups[0]
    calls: dict[str, Callable[[], object]] = {
        "barrier": group.barrier,
        "send": lambda: group.send(np.ones(3), 1),
        "recv": lambda: group.recv(np.ones(3), 1),
        "give_up": lambda: group.give_up("a test"),
    }
    loop = group._runtime._loop
    call = loop.call

    def closed_before(item: Callable[[], None]) -> None:
        monkeypatch.undo()
        group.close(timeout_s=120.0)
        call(item)

    monkeypatch.setattr(loop, "call", closed_before)
    assert isinstance(within(50.0, calls[operation]), MisuseError)


def test_the_transport_s_own_thread_does_not_wait_for_who_announces(make_world):
    link: BrokerSession = make_world(2, algorithm="direct").groups[0]._runtime._broker
    link.collective_begins(time.monotonic(), "a test", {"10.0.0.2": 30_000})
    with link._announcing:
        within(50.0, lambda: link.collective_ends(time.monotonic(), "a test"))
        long_after_s = time.monotonic() + 60.0
        assert within(50.0, lambda: link.tick(long_after_s, None)) == pytest.approx(long_after_s, abs=1.0)
        assert link._bursts._running
    wait_until(lambda: not link._bursts._running, what=lambda: link._bursts)


def test_one_that_cannot_be_made_fails_and_is_not_announced(make_world, monkeypatch):
    world = make_world(2, algorithm="direct")
    heard = Heard(world.groups[0])

    def no_room(*_: object) -> dict[str, int]:
        raise MemoryError("a test")

    monkeypatch.setattr(world.groups[0]._runtime._in_flight, "_bytes_by_destination", no_room)
    with pytest.raises(Exception, match="a test"):
        world.groups[0].allreduce(np.ones(30_000)).wait(60)
    assert (heard.begun, heard.under_way()) == ([], 0)
    monkeypatch.undo()
    with pytest.raises(CancelledError, match="rank 0 gave up"):
        world.groups[1].allreduce(np.ones(30_000)).wait(60)

"""Mistakes and full memory: what they hit ends with an error, and everything else goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from memory_engine import MemoryNetwork
from patience import LIMIT_S, wait_until

from hive_qos.errors import CancelledError, PeerError, TimedOutError, TransportError
from transport import MemoryRendezvous, Settings, TensorView
from transport.bootstrap.connect import Bootstrap
from transport.collectives import in_flight as in_flight_module
from transport.collectives import python_executor as executor_module
from transport.collectives.membership import agreement_group
from transport.collectives.planning.planner import LAG
from transport.engine.base import ConnectionUp, SendDone
from transport.mesh.endpoint import HELLO_RANK, Endpoint
from transport.runtime import Runtime


def once(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, where: Callable[..., bool] = lambda *_: True
) -> None:
    """Let a function fail at its first call with such arguments."""
    real = getattr(module, name)
    calls: list[tuple[Any, ...]] = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        if where(*args) and not calls:
            calls.append(args)
            raise MemoryError("no memory")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, failing)


def of_group(name: str) -> Callable[..., bool]:
    """Whether an executor is for a call of this group."""
    return lambda call, *_: call.context.group == name


@pytest.mark.parametrize(
    ("module", "name", "where"),
    [(executor_module, "reduce_into", lambda *_: True), (in_flight_module, "PythonExecutor", of_group("w"))],
    ids=["step", "start"],
)
def test_an_operation_that_fails_unexpectedly_ends_on_all_ranks_and_the_next_one_works(
    make_world, monkeypatch, module, name, where
):
    world = make_world(2, algorithm="direct")
    once(monkeypatch, module, name, where=where)
    results = world.run(lambda group: group.allreduce(np.ones(30_000, "f4"), timeout_s=60.0).wait(30))
    assert {TransportError, CancelledError} <= {type(one) for one in results}
    assert all("MemoryError: no memory" in str(one) for one in results)
    assert world.run(lambda group: group.allreduce(np.ones(30_000, "f4")).wait(30)) == [None, None]
    # The broker was told that each began; one that is never over would hold storage back until its deadline.
    wait_until(lambda: all(not group._runtime._broker._bursts._open for group in world.groups))


def test_an_agreement_that_cannot_begin_holds_no_operation_back(make_world, monkeypatch):
    world = make_world(3)
    once(monkeypatch, in_flight_module, "PythonExecutor", where=of_group(agreement_group("w")))
    for _ in range(LAG + 3):
        assert world.run(lambda group: group.allreduce(np.ones(3)).wait(30)) == [None] * 3
    assert all(group.explain()["network"]["number"] > 0 for group in world.groups), "the next one was agreed"


def test_a_result_that_cannot_be_unpacked_ends_its_operation(make_world, monkeypatch):
    world = make_world(1)
    whole = np.ones((4, 4))
    once(monkeypatch, TensorView, "write_back")
    with pytest.raises(TransportError, match=r"unpacking .* MemoryError"):
        world.groups[0].allreduce(whole[:, 0]).wait(30)
    world.groups[0].allreduce(whole[:, 0]).wait(30)


def test_one_event_that_cannot_be_handled_does_not_take_the_others_with_it(make_world, caplog):
    world = make_world(2)
    runtime = world.groups[0]._runtime
    receiving = world.groups[0].recv(None, 1)
    world.network.hold("rank-0", "rank-1")
    sending = world.groups[0].send(np.ones(3), 1)

    class Strange(SendDone):
        @property
        def operation(self) -> int:
            raise ValueError("a mistake")

    strange = object.__new__(Strange)
    runtime._events([strange])
    world.groups[1].send(np.ones(3), 0).wait(30)
    receiving.wait(30)
    world.network.release("rank-0", "rank-1")
    sending.wait(30)
    assert "could not be handled" in caplog.text


def test_timeouts_pass_although_other_periodic_work_fails(make_world, monkeypatch):
    world = make_world(2)

    def failing(_now_s: float) -> float:
        raise ValueError("a mistake")

    monkeypatch.setattr(world.groups[0]._runtime._endpoint, "tick", failing)
    collective = world.groups[0].barrier(timeout_s=0.1)
    message = world.groups[0].recv(None, 1, timeout_s=0.1)
    for work in (collective, message):
        with pytest.raises(TimedOutError):
            work.wait(30)


def test_tensors_of_a_failed_operation_are_the_callers_when_the_engine_has_let_go_of_them(
    make_world, monkeypatch, caplog
):
    monkeypatch.setattr(in_flight_module, "RETURN_S_MAX", 0.01)
    world = make_world(2)
    engine = world.network.engines["rank-0"]
    held: list[int] = []
    holds = "allreduce 0 of group w has failed, but the engine still holds its tensors"
    monkeypatch.setattr(engine, "cancel", held.append)
    with caplog.at_level(logging.WARNING):
        work = world.groups[0].allreduce(np.ones(30_000, "f4"), timeout_s=0.02)
        wait_until(lambda: holds in caplog.text)
        with pytest.raises(TimedOutError):
            work.wait(0.1)  # it has failed, and still has not ended
    assert not work.done()
    assert caplog.text.count(holds) == 1
    monkeypatch.undo()
    for operation in held:
        engine.cancel(operation)
    with pytest.raises(TimedOutError, match="waiting for rank 1"):
        work.wait(30)


def test_a_receive_into_nothing_allocates_no_more_than_it_may_and_says_so_to_both(make_world):
    world = make_world(2, receive_bytes_max=100_000)
    sending = world.groups[0].send(np.zeros(200_000, "u1"), 1)
    with pytest.raises(PeerError, match=r"announces 200000 bytes; .* at most 100000"):
        world.groups[1].recv(None, 0).wait(30)
    world.groups[0].send(np.ones(100_000, "u1"), 1)
    assert np.asarray(world.groups[1].recv(None, 0).wait(30)).sum() == 100_000
    large = np.zeros(200_000, "u1")
    world.groups[0].send(np.ones(200_000, "u1"), 1)
    world.groups[1].recv(large, 0).wait(30)
    assert large.sum() == 200_000
    assert sending.bytes_total == 200_000


def test_a_message_for_which_there_is_no_memory_ends_and_the_next_one_arrives(make_world, monkeypatch):
    world = make_world(2)
    once(monkeypatch, TensorView, "allocate")
    receiving = [world.groups[1].recv(None, 0) for _ in range(2)]
    for _ in receiving:
        world.groups[0].send(np.ones(100_000, "u1"), 1)
    with pytest.raises(TransportError, match="MemoryError: no memory"):
        receiving[0].wait(30)
    assert np.asarray(receiving[1].wait(30)).sum() == 100_000


def test_a_message_that_cannot_be_unpacked_ends(make_world, monkeypatch):
    world = make_world(2)
    once(monkeypatch, TensorView, "write_back")
    world.groups[0].send(np.ones(4), 1)
    with pytest.raises(TransportError, match=r"unpacking .* MemoryError"):
        world.groups[1].recv(np.zeros((4, 4))[:, 0], 0).wait(30)


def test_an_operation_that_a_rank_cannot_begin_fails_on_the_others_and_the_next_one_is_matched_rightly(make_world):
    world = make_world(2)
    waiting = world.groups[0].allreduce(np.ones(3), timeout_s=60.0)
    world.groups[1].give_up("the GPU failed")
    with pytest.raises(CancelledError, match=r"rank 1 gave up: .*the GPU failed"):
        waiting.wait(30)
    assert world.run(lambda group: group.allreduce(np.ones(3)).wait(30)) == [None, None]


@pytest.mark.parametrize("missing", ["engine", "endpoint"])
def test_connecting_in_vain_leaves_no_thread_and_no_socket(missing, monkeypatch):
    sockets: list[Any] = []
    factories = MemoryNetwork().factories()

    def fail(*_arguments: Any) -> Any:
        raise RuntimeError("it cannot be had")

    def open_sockets(settings: Settings, hint: str) -> Any:
        sockets.append(factories.open_sockets(settings, hint))
        return sockets[-1]

    factories = replace(factories, make_engine=fail) if missing == "engine" else factories
    if missing == "endpoint":
        monkeypatch.setattr("transport.bootstrap.connect.Bootstrap.serve", fail)
    with pytest.raises(RuntimeError, match="cannot be had"):
        Runtime.connect(
            MemoryRendezvous(),
            rank=0,
            world_size=1,
            name="w",
            timeout_s=5.0,
            settings=Settings(broker="off"),
            factories=replace(factories, open_sockets=open_sockets),
        )
    wait_until(
        lambda: not any(one.name.startswith(("hive-transport", "memory-engine")) for one in threading.enumerate())
    )
    assert [(one.compute.closed, one.bulk.closed) for (one,) in sockets] == [(True, True)]


def test_a_peer_that_dials_before_its_events_can_be_taken_is_connected_all_the_same(make_world, monkeypatch, caplog):
    dialled = threading.Event()
    serve, handle = Bootstrap.serve, Endpoint.handle

    def serve_and_be_held_up(bootstrap: Bootstrap, engine: Any, hello: Any) -> list[tuple[int, int]]:
        numbers = serve(bootstrap, engine, hello)
        if hello[HELLO_RANK] == 1:
            assert dialled.wait(LIMIT_S)
        return numbers

    def watched_handle(endpoint: Endpoint, events: Any) -> None:
        handle(endpoint, events)
        if endpoint.rank == 1 and any(isinstance(event, ConnectionUp) for event in events):
            dialled.set()

    monkeypatch.setattr(Bootstrap, "serve", serve_and_be_held_up)
    monkeypatch.setattr(Endpoint, "handle", watched_handle)
    world = make_world(2)
    assert world.results(lambda group: group.allreduce(np.ones(3)).wait(30)) == [None, None]
    assert "could not be handled" not in caplog.text

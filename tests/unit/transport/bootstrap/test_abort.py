"""A rank that cannot connect says why, and the others believe it where they would believe its entry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from memory_engine import MemoryNetwork
from patience import LIMIT_S, wait_until

from hive_qos.errors import (
    CancelledError,
    ConfigurationError,
    ConnectionLostError,
    PeerError,
    TimedOutError,
    TransportError,
)
from transport import MemoryRendezvous, Settings
from transport.bootstrap.abort import REASON_CHARS_MAX, THREAD_NAME, BootstrapAbort
from transport.bootstrap.connect import Factories
from transport.bootstrap.rank_info import RUN_BYTES, Run
from transport.runtime import Runtime

OPEN = Settings(broker="off", job="j")
SECRET = replace(OPEN, job_secret=b"secret of the test")
KEY = "hive/w/withdrawal"
RUN = Run("w", 3, bytes(RUN_BYTES))


@pytest.fixture(autouse=True)
def nobody_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves the store is this process, which does not end."""
    monkeypatch.setattr("transport.bootstrap.abort.LINGER_S", 0.0)


def failing(*_arguments: Any) -> Any:
    raise ConfigurationError("HIVE_KEY", "x.pem", "it is another certificate's")


def connect_all(
    settings: Settings,
    of_ranks: list[Factories],
    store: MemoryRendezvous | None = None,
    *,
    timeout_s: float = 600.0,
) -> list[Any]:
    """What became of each rank; the time is far beyond what a test may take."""
    store = store or MemoryRendezvous()

    def one(rank: int) -> Any:
        try:
            return Runtime.connect(
                store,
                rank=rank,
                world_size=len(of_ranks),
                name="w",
                timeout_s=timeout_s,
                settings=settings,
                factories=of_ranks[rank],
            )
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(len(of_ranks)) as pool:
        results = list(pool.map(one, range(len(of_ranks))))
    for result in results:
        if isinstance(result, Runtime):
            result.close(timeout_s=5.0)
    return results


@pytest.mark.parametrize("settings", [OPEN, SECRET], ids=["open", "secret"])
@pytest.mark.parametrize("part", ["check_engine", "own_identity", "open_sockets", "make_engine"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_cannot_go_on_is_heard_by_all_others_at_once(settings: Settings, part: str, rank: int) -> None:
    of_ranks = [MemoryNetwork().factories()] * 3
    of_ranks[rank] = replace(of_ranks[rank], **{part: failing})
    results = connect_all(settings, of_ranks)
    assert isinstance(results.pop(rank), ConfigurationError)
    for result in results:
        assert isinstance(result, PeerError)
        assert str(result).startswith(f"[peer] peer rank {rank}: it gave up connecting: [configuration] HIVE_KEY")


@pytest.mark.parametrize("part", ["check_engine", "own_identity"])
def test_what_is_wrong_with_a_rank_itself_is_found_before_it_waits_for_anybody(part: str) -> None:
    met: list[str] = []

    class Store(MemoryRendezvous):
        def get(self, key: str, timeout_s: float) -> bytes:
            met.append(key)
            return super().get(key, timeout_s)

    spoiled: dict[str, Any] = {part: lambda *_: (met.append("checked"), failing())}
    factories = replace(MemoryNetwork().factories(), **spoiled)
    (result,) = connect_all(OPEN, [factories], Store())
    assert isinstance(result, ConfigurationError)
    assert met == ["checked"]


def made(settings: Settings, *, rank: int = 1, run: Run | None = RUN, store: MemoryRendezvous) -> BootstrapAbort:
    abort = BootstrapAbort(store, rank=rank, world="w", world_size=3, settings=settings)
    abort.run = run
    return abort


def said(settings: Settings, error: Exception, *, store: MemoryRendezvous, run: Run | None = RUN) -> None:
    with pytest.raises(type(error)), made(settings, run=run, store=store).published_on_failure():
        raise error


def test_an_abort_that_is_not_the_jobs_own_changes_nothing_where_there_is_a_secret(caplog) -> None:
    """Unsigned, signed with another secret, of another run, changed, or no abort at all: all ranks connect."""
    forgers: list[Callable[[MemoryRendezvous], None]] = [
        lambda store: said(OPEN, ValueError("x"), store=store),
        lambda store: said(replace(SECRET, job_secret=b"another of the test"), ValueError("x"), store=store),
        lambda store: said(replace(SECRET, job="k"), ValueError("x"), store=store),
        lambda store: said(SECRET, ValueError("x"), run=replace(RUN, nonce=b"x" * RUN_BYTES), store=store),
        lambda store: store.set(KEY, b"[" * 60_000),
        lambda store: store.set(KEY, b"\xff"),
    ]
    for forge in forgers:
        store = MemoryRendezvous()
        forge(store)
        made(SECRET, rank=0, store=store).check()
    assert caplog.text.count("not credibly") == len(forgers) - 1, "one is of another run, and that is usual"


@pytest.mark.parametrize("is_known", [False, True])
def test_a_cancelled_attempt_is_told_of_once_others_may_know_it(is_known: bool) -> None:
    store = MemoryRendezvous()
    abort = made(OPEN, run=RUN if is_known else None, store=store)
    with pytest.raises(CancelledError), abort.published_on_failure():
        raise CancelledError("the caller has cancelled it")
    with pytest.raises(PeerError, match=r"rank 1.*gave up connecting.*cancelled") if is_known else nullcontext():
        made(OPEN, rank=0, store=store).check()


@pytest.mark.parametrize("change", [{"rank": 2}, {"reason": "y"}, {"mac": ""}, {"mac": 5}, {"v": 2}, {"run": ""}])
def test_an_abort_that_was_changed_is_not_believed(change: dict[str, object]) -> None:
    store = MemoryRendezvous()
    said(SECRET, ValueError("x"), store=store)
    listener = made(SECRET, rank=0, store=store)
    with pytest.raises(PeerError, match="rank 1: it gave up connecting: x"):
        listener.check()
    store.set(KEY, json.dumps(json.loads(store.get(KEY, 0.0)) | change).encode())
    listener.check()


def test_without_a_secret_one_of_an_earlier_run_is_not_believed_either() -> None:
    store = MemoryRendezvous()
    said(OPEN, ValueError("x"), store=store, run=replace(RUN, nonce=b"x" * RUN_BYTES))
    made(OPEN, rank=0, store=store).check()


def test_a_forged_abort_does_not_keep_ranks_with_a_secret_from_connecting() -> None:
    store = MemoryRendezvous()
    said(OPEN, ValueError("x"), store=store)
    results = connect_all(SECRET, [MemoryNetwork().factories()] * 3, store)
    assert all(isinstance(result, Runtime) for result in results), results


def test_a_reason_is_bounded_and_fit_for_a_terminal() -> None:
    store = MemoryRendezvous()
    said(SECRET, ValueError("\x1b[31m\n" + "x" * 100_000), store=store)
    with pytest.raises(PeerError) as caught:
        made(SECRET, rank=0, store=store).check()
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) < REASON_CHARS_MAX + 50


def test_the_first_to_give_up_is_the_one_that_is_named() -> None:
    store = MemoryRendezvous()
    said(SECRET, ValueError("first"), store=store)
    with pytest.raises(PeerError), made(SECRET, rank=2, store=store).published_on_failure():
        raise PeerError("rank 1", "heard")
    with pytest.raises(PeerError, match="rank 1: it gave up connecting: first"):
        made(SECRET, rank=0, store=store).check()


def test_a_rank_whose_time_is_over_says_nothing_so_that_each_names_whom_it_missed() -> None:
    store = MemoryRendezvous()
    said(OPEN, TimedOutError("connecting: nothing from rank 2", timeout_s=1.0), store=store)
    with pytest.raises(TimedOutError):
        store.get(KEY, 0.0)


def test_a_rank_that_fails_before_rank_0_is_there_waits_for_the_run_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryRendezvous()
    monkeypatch.setattr("transport.bootstrap.abort.RUN_WAIT_S", 0.01)
    said(SECRET, ValueError("x"), store=store, run=None)
    monkeypatch.setattr("transport.bootstrap.abort.RUN_WAIT_S", LIMIT_S)
    with ThreadPoolExecutor(1) as pool:
        saying = pool.submit(said, SECRET, ValueError("x"), store=store, run=None)
        store.set("hive/w/run", RUN.nonce)
        saying.result(LIMIT_S)
    with pytest.raises(PeerError, match="gave up"):
        made(SECRET, rank=0, store=store).check()


def test_a_store_that_is_gone_matters_to_those_alone_whom_rank_0_has_not_reached() -> None:
    class Gone(MemoryRendezvous):
        def get(self, key: str, timeout_s: float) -> bytes:
            raise TransportError("the store is gone")

    listener = made(OPEN, rank=1, store=Gone())
    listener.check(missing=[2])
    with pytest.raises(ConnectionLostError, match=r"rank 0.*the store is gone"):
        listener.check(missing=[0, 2])


def test_a_store_that_does_not_answer_keeps_nobody_from_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    class Silent(MemoryRendezvous):
        def get(self, key: str, timeout_s: float) -> bytes:
            answer.wait(LIMIT_S)
            return super().get(key, timeout_s)

    monkeypatch.setattr("transport.bootstrap.abort.TELL_S_MAX", 0.01)
    said(OPEN, ValueError("x"), store=Silent())
    assert not answer.is_set()
    answer.set()
    wait_until(lambda: THREAD_NAME not in [one.name for one in threading.enumerate()])

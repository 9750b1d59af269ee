"""A register takes one successor of each view, and believes nothing that was not written with the job's secret."""

from __future__ import annotations

import threading
import time

import pytest
from patience import wait_until

from hive_qos.errors import PeerError, RegisterLostError, TimedOutError
from transport.volatile.protocol.commit import Frozen, Wish
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View, decode, encode
from transport.volatile.register import register as register_module
from transport.volatile.register.register import MemoryStore, Register

A, B = Member("a", 1), Member("b", 2**61)
FIRST = View(1, (A,), 0, bytes(DIGEST_BYTES))
SECOND = View(2, (A, B), 3, b"d" * DIGEST_BYTES, (B,), 4, 2, pause=True)


def register(store: MemoryStore, *, job: str = "job", secret: bytes = b"0123456789abcdef") -> Register:
    return Register(store, job=job, secret=secret)


def test_of_two_successors_the_first_holds_and_both_hear_of_it() -> None:
    store = MemoryStore()
    one, other = register(store), register(store)
    assert one.view() is None
    assert one.advance(FIRST, None) == FIRST
    assert other.advance(View(1, (B,), 0, bytes(DIGEST_BYTES)), None) == FIRST
    assert one.advance(SECOND, FIRST) == SECOND
    assert other.advance(View(2, (B,), 0, bytes(DIGEST_BYTES)), FIRST) == SECOND
    assert other.view() == SECOND


def test_a_view_of_another_secret_or_job_is_not_believed() -> None:
    store = MemoryStore()
    register(store).advance(FIRST, None)
    with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
        register(store, secret=b"another secret!!").view()
    assert register(store, job="other").view() is None


@pytest.mark.parametrize("place", range(0, 60, 3))
def test_a_changed_byte_of_the_register_is_noticed(place: int) -> None:
    store = MemoryStore()
    register(store).advance(SECOND, None)
    key = "hive/volatile/job/view"
    held = bytearray(store.get(key) or b"")
    held[place] ^= 1
    store.set(key, bytes(held))
    with pytest.raises(PeerError):
        register(store).view()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xa0",
        b"\xff" * 40,
        encode(View(1, (B, A), 0, bytes(DIGEST_BYTES))),
        encode(View(0, (A,), 0, b"d" * 16)),
        encode(View(1, (A, B), 0, b"d" * 16, (A, B))),
    ],
)
def test_what_is_no_view_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError, match="holds no view"):
        decode(data)


def test_notes_and_requests_come_back_as_they_were_written() -> None:
    notes = register(MemoryStore())
    wish = Wish(frozenset({B}), frozenset({A}), 3, 2, pause=True)
    stand = Frozen(7, 5, b"c" * DIGEST_BYTES, b"p" * DIGEST_BYTES, (A, B), frozenset({A}), wish)
    notes.say_frozen(A, stand)
    assert notes.frozen(7, A) == stand
    assert notes.frozen(8, A) is None
    assert notes.ask_to_join(A) == 1
    assert notes.ask_to_join(B) == notes.asked() == 2
    assert [notes.request(number) for number in (1, 2, 3)] == [A, B, None]
    assert notes.beat(A) is None
    notes.say_waiting(A, 5, 3)
    assert (notes.beat(A), notes.beat(B)) == ((5, 3), None)
    assert notes.last_mesh() == 1
    assert notes.plan_mesh(7, (A, B)) == notes.last_mesh() == 2
    assert notes.mesh(2) == (7, (A, B))
    assert notes.mesh(3) is None


def test_ranks_of_a_mesh_do_not_meet_those_of_another() -> None:
    notes = register(MemoryStore())
    notes.rendezvous(1).set("rank-0", b"here")
    assert notes.rendezvous(1).get("rank-0", 0.0) == b"here"
    with pytest.raises(TimedOutError):
        notes.rendezvous(2).get("rank-0", 0.0)


def test_a_register_that_has_forgotten_its_view_takes_no_successor() -> None:
    store = MemoryStore()
    register(store).advance(FIRST, None)
    with pytest.raises(RegisterLostError, match="has forgotten it"):
        register(MemoryStore()).advance(SECOND, FIRST)


def test_a_store_that_does_not_answer_is_lost_in_time_and_asked_again_when_it_has_answered() -> None:
    answers = threading.Event()

    class Silent(MemoryStore):
        def get(self, key: str) -> bytes | None:
            answers.wait()
            return None

    notes = Register(Silent(), job="job", timeout_s=0.01)
    try:
        with pytest.raises(RegisterLostError, match="no answer within"):
            notes.view()
        with pytest.raises(RegisterLostError, match="has not answered since"):
            notes.last_mesh()
    finally:
        answers.set()
    wait_until(lambda: not notes.store._stuck)  # type: ignore[attr-defined]
    assert notes.view() is None
    assert notes.last_mesh() == 1


def test_a_store_that_is_slow_and_not_out_of_reach_is_waited_for_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each answer came too late, a view would never change."""
    monkeypatch.setattr(register_module, "HURRIED", 2)
    ended = threading.Semaphore(0)

    class Slow(MemoryStore):
        def get(self, key: str) -> bytes | None:
            time.sleep(0.1)
            ended.release()
            return None

    notes = Register(Slow(), job="job").within(0.01)
    for _ in range(2):
        with pytest.raises(RegisterLostError, match=r"no answer within 0\.01 s"):
            notes.view()
        assert ended.acquire(timeout=10.0)
        wait_until(lambda: not notes.store._stuck)  # type: ignore[attr-defined]
    assert notes.view() is None
    with pytest.raises(RegisterLostError, match="no answer within"):  # it is in a hurry again
        notes.view()

"""A state comes in pieces from whoever holds it: the faster give more, and a lost holder costs nothing that is here."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hive_qos.errors import CancelledError, PeerError
from transport import Settings
from transport.volatile.control import Control
from transport.volatile.following import Follower, Pace
from transport.volatile.protocol.messages import Ask
from transport.volatile.protocol.view import DIGEST_BYTES, Member
from transport.volatile.register.register import MemoryStore, Register
from transport.volatile.transfer import fetch as fetch_module
from transport.volatile.transfer import manifest
from transport.volatile.transfer import shelf as shelf_module
from transport.volatile.transfer.fetch import AHEAD, Fetch, Holder, agreed, ask_all
from transport.volatile.transfer.manifest import STATE, Absent, Manifest, piece_digests, read_answer
from transport.volatile.transfer.shelf import Shelf
from transport.work import Work

MEMBERS = [Member(name, 1) for name in "abc"]
DIGEST = b"d" * DIGEST_BYTES
DATA = bytes(range(256)) * 40
RESULT = [memoryview(b"x" * 300), memoryview(b""), memoryview(b"y" * 100)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "PIECE_BYTES", 1000)


def manifest_of(step: int, tensors: list[memoryview]) -> Manifest:
    lengths = tuple(one.nbytes for one in tensors)
    return Manifest(step, DIGEST, tuple(MEMBERS), lengths, piece_digests(tensors))


class Served:
    """A holder over a shelf; it answers at once, or with what `spoil` makes.

    Never for a piece if `silent`, and to nothing if `dead`. With `takes_s` one piece leaves after the other.
    """

    def __init__(
        self,
        member: Member,
        shelf: Shelf,
        *,
        lost_after: int = 10**9,
        silent: bool = False,
        dead: bool = False,
        spoil: Callable[[bytes], bytes] = bytes,
        takes_s: float = 0.0,
    ) -> None:
        self.holder = Holder(member, self._question)
        self._shelf, self._lost_after, self._silent, self._spoil = shelf, lost_after, silent, spoil
        self._dead, self._takes_s, self._free_s = dead, takes_s, 0.0
        self._answers = itertools.count()
        self.asked: list[int] = []

    def _question(self, step: int, index: int | None) -> Work:
        work = Work("a piece")
        if self._dead:
            return work
        if index is not None:
            self.asked.append(index)
            if self._silent:
                return work
        answer = bytes(self._shelf.answer(Ask(step, index, 0)))
        if next(self._answers) >= self._lost_after:
            work.finish(error=CancelledError("gone"))
        else:
            said = np.frombuffer(answer if index is None else self._spoil(answer), np.uint8)
            self._free_s = max(self._free_s, time.monotonic()) + (0.0 if index is None else self._takes_s)
            if index is None or not self._takes_s:
                work.finish(said)
            else:
                threading.Timer(self._free_s - time.monotonic(), work.finish, (said,)).start()
        return work


def shelf_with(step: int = 5, data: bytes = DATA) -> Shelf:
    shelf = Shelf()
    shelf.put_state(step, DIGEST, data)
    return shelf


def fetch_from(*served: Served) -> tuple[Fetch, bool]:
    holders = [one.holder for one in served]
    best = agreed(ask_all(holders, STATE))
    assert best is not None
    fetch = Fetch(best[0], state=True)
    return fetch, fetch.run([one for one in holders if one.member in best[1]], stop=lambda: False)


def test_a_state_comes_whole_from_several_holders_and_each_gives_some() -> None:
    fetch, done = fetch_from(*(Served(one, shelf_with()) for one in MEMBERS))
    assert done
    assert bytes(fetch.data) == DATA
    assert fetch.what.step == 5
    assert set(fetch.given) == set(MEMBERS)


def test_a_faster_holder_gives_more() -> None:
    data = DATA * 4
    slow = Served(MEMBERS[0], shelf_with(data=data), takes_s=0.05)
    fetch, done = fetch_from(slow, Served(MEMBERS[1], shelf_with(data=data), takes_s=0.005))
    assert done
    assert bytes(fetch.data) == data
    assert fetch.given[MEMBERS[1]] > 2 * fetch.given[MEMBERS[0]] > 0


def test_a_piece_is_asked_of_one_holder_and_of_another_where_that_one_is_late() -> None:
    served = [Served(one, shelf_with(data=DATA[:2000])) for one in MEMBERS[:2]]
    _, done = fetch_from(*served)
    assert done
    assert [one.asked for one in served] == [[0], [1]]
    silent = Served(MEMBERS[0], shelf_with(), silent=True)
    other = Served(MEMBERS[1], shelf_with())
    fetch, done = fetch_from(silent, other)
    assert done
    assert bytes(fetch.data) == DATA
    assert len(silent.asked) == AHEAD
    assert sorted(other.asked) == list(range(len(fetch.what.pieces)))


def test_pieces_of_lost_or_spoiled_holders_come_from_the_others() -> None:
    spoiled = Served(MEMBERS[0], shelf_with(), spoil=lambda data: data[::-1])
    lost = Served(MEMBERS[1], shelf_with(), lost_after=3)
    fetch, done = fetch_from(spoiled, lost, Served(MEMBERS[2], shelf_with()))
    assert done
    assert bytes(fetch.data) == DATA
    assert MEMBERS[0] not in fetch.given


def test_a_fetch_goes_on_where_it_was_when_all_holders_were_lost() -> None:
    fetch, done = fetch_from(Served(MEMBERS[0], shelf_with(), lost_after=5))
    assert not done
    left = len(fetch._missing)
    assert 0 < left < len(fetch.what.pieces)
    again = Served(MEMBERS[1], shelf_with())
    assert fetch.run([again.holder], stop=lambda: False)
    assert bytes(fetch.data) == DATA
    assert fetch.given[MEMBERS[1]] == left


def test_who_holds_another_state_than_most_is_named_and_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    odd = Served(MEMBERS[1], shelf_with(data=DATA[::-1]))
    with caplog.at_level(logging.WARNING):
        fetch, done = fetch_from(Served(MEMBERS[0], shelf_with()), odd, Served(MEMBERS[2], shelf_with()))
    assert done
    assert bytes(fetch.data) == DATA
    assert "b hold another state than a, c" in caplog.text


def test_a_state_of_nothing_is_whole_at_once_and_one_beyond_memory_is_refused() -> None:
    fetch, done = fetch_from(Served(MEMBERS[0], shelf_with(data=b"")))
    assert done
    assert bytes(fetch.data) == b""
    with pytest.raises(PeerError, match="for which this process has no memory"):
        Fetch(Manifest(1, DIGEST, (), (2**61,), ()), state=True)


def test_a_shelf_gives_results_and_knows_which_are_gone_and_which_will_come() -> None:
    shelf = shelf_with()
    shelf.put_result(manifest_of(6, RESULT), RESULT)
    (held,) = ask_all([Served(MEMBERS[0], shelf).holder], 6).values()
    assert isinstance(held, Manifest)
    fetch = Fetch(held, state=False)
    assert fetch.run([Served(MEMBERS[0], shelf).holder], stop=lambda: False)
    assert fetch.tensors() == RESULT
    for step, gone in ((4, True), (7, False)):
        assert read_answer(bytes(shelf.answer(Ask(step, None, 0))), sender="a") == Absent(gone)
    assert bytes(shelf.answer(Ask(7, 0, 0))) == bytes(shelf.answer(Ask(6, 99, 0))) == b""
    assert (shelf.digest_after(5), shelf.digest_after(6), shelf.digest_after(7)) == (DIGEST, DIGEST, None)


def test_who_has_died_is_not_waited_for_where_another_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a holder is known after seconds, in which those that answered may be lost, too."""
    monkeypatch.setattr(fetch_module, "PATIENCE_S", 0.05)
    dead, other = Served(MEMBERS[0], shelf_with(), dead=True), Served(MEMBERS[1], shelf_with())
    for step, kind in ((STATE, Manifest), (6, Absent)):
        (held,) = ask_all([dead.holder, other.holder], step).values()
        assert isinstance(held, kind)
    monkeypatch.setattr(fetch_module, "UNANSWERED_S", 0.2)
    began_s = time.monotonic()
    assert ask_all([dead.holder, other.holder], 4) == {MEMBERS[1]: Absent(gone=True)}, "the other one may have it"
    assert time.monotonic() - began_s >= 0.2
    assert ask_all([dead.holder], STATE) == {}


def test_a_state_goes_when_a_result_after_it_has_given_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "RESULTS_MAX", 3)
    shelf = shelf_with()
    for step in range(6, 9):
        shelf.put_result(manifest_of(step, RESULT), RESULT)
    assert shelf.has_state()
    shelf.put_result(manifest_of(9, RESULT), RESULT)
    assert not shelf.has_state()
    assert not shelf.wanted
    shelf.answer(Ask(STATE, None, 0))
    assert shelf.wanted


def test_results_are_bounded_in_bytes_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "RESULT_BYTES_MAX", 900)
    shelf = shelf_with()
    for step in range(6, 9):
        shelf.put_result(manifest_of(step, RESULT), RESULT)
    assert [shelf.digest_after(step) for step in range(6, 9)] == [None, DIGEST, DIGEST]
    large = [memoryview(bytes(5000))]
    shelf.put_result(manifest_of(9, large), large)
    assert [shelf.digest_after(step) for step in range(6, 10)] == [None, None, None, DIGEST]


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xa0", b"\xa1\x00\x01", Manifest(1, DIGEST, (), (5,), ()).encode()])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        read_answer(data, sender="a")


def test_a_fetch_under_way_says_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, and by its member to `hive-qos job`."""
    monkeypatch.setattr(fetch_module, "SAY_S", 0.0)
    held = agreed(ask_all([Served(MEMBERS[0], shelf_with()).holder], STATE))
    assert held is not None
    fetch = Fetch(held[0], state=True)
    assert not fetch.run([Served(MEMBERS[0], shelf_with(), lost_after=4).holder], stop=lambda: False)
    assert "0 B of 10 KiB of the state after step 5 is here" in caplog.text
    control = Control(Register(MemoryStore(), job="j"), MEMBERS[1], settings=Settings(), without_register_s=0.0)
    control.fetches = fetch
    assert control.what_is_shown() == f"it has {fetch.progress()}"
    assert fetch.progress() == "3.906 KiB of 10 KiB of the state after step 5"


def test_who_does_not_come_nearer_is_too_slow_and_who_does_is_not() -> None:
    def lags(lag: int) -> Manifest:
        return Manifest(1, DIGEST, (), (400,), (), 1 + lag)

    nearer, slower = Pace(), Pace()
    assert {nearer.followed(lags(40 - place // 2)) for place in range(40)} == {""}
    assert [one for one in (slower.followed(lags(10 + place)) for place in range(9)) if one] == [
        "17 steps behind, 10 before the last 8 results"
    ]


@pytest.mark.parametrize(("head", "state_bytes", "why"), [(5, 2000, "made 5 steps"), (3, 2000, ""), (5, 2001, "")])
def test_who_fetched_the_state_no_faster_than_the_others_made_results_is_waited_for(
    head: int, state_bytes: int, why: str
) -> None:
    """A state that was on the shelf already when it asked may be older, which says nothing of how fast it is."""
    pace = Pace()
    pace.learned(Manifest(6, DIGEST, (), (state_bytes,), (), 10))
    found = [pace.followed(Manifest(7 + place, DIGEST, (), (400,), (), 10 + head)) for place in range(2)]
    assert found[1] == ""
    assert why in found[0] if why else not found[0]


def test_a_result_that_is_larger_than_any_that_this_member_makes_is_refused_before_it_is_fetched() -> None:
    shelf = Shelf()
    shelf.put_result(manifest_of(1, RESULT), RESULT)
    holders = [Served(MEMBERS[0], shelf).holder]
    control = SimpleNamespace(links=SimpleNamespace(holders=lambda _members: holders), is_over=lambda: False)

    def fetched(*, own_bytes: int) -> object:
        follower = Follower(
            cast(Control, control), get_state=bytes, set_state=print, apply_result=print, state_bytes_max=399
        )
        return follower._fetch_result(1, MEMBERS, own_bytes)

    assert isinstance(fetched(own_bytes=400), Fetch)
    with pytest.raises(PeerError, match="its result of step 1 has 400 bytes, and this process takes at most 399"):
        fetched(own_bytes=0)

"""Who asks to join is connected beside the steps, and no candidate that died or cannot be reached keeps others out."""

from __future__ import annotations

from collections.abc import Iterable

from transport.volatile.protocol.admission import (
    BEAT_S,
    DOUBT_S,
    HOLE_S,
    LOOK_S,
    READ_BACK_MAX,
    READ_MAX,
    SILENT_S,
    Admission,
    LetIn,
    MakePlan,
    Plan,
)
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View

A, B, C, D, E = (Member(name, 1) for name in "abcde")
CONNECT_S = 10.0


class First:
    """The first worker of a view of `A` and `B`, in virtual time, with what it does by the word of its `Admission`."""

    def __init__(self) -> None:
        self.view = View(1, (A, B), 0, bytes(DIGEST_BYTES))
        self.admission = Admission()
        self.requests: dict[int, Member | None] = {}
        self.living: set[Member] = set()
        self.now_s = 0.0
        self.plan: Plan | None = None
        self.newest = 1
        self.plans: list[frozenset[Member]] = []
        self.let_in: LetIn | None = None

    def ask(self, *members: Member, lives: bool = True) -> None:
        for one in members:
            self.requests[len(self.requests) + 1] = one
            if lives:
                self.living.add(one)

    def connected(self, *members: Member) -> None:
        """Those have the connections of the last plan."""
        assert self.plan is not None
        for one in members:
            self.admission.connected(self.plan.number, one)
            if one == A:
                self.newest = self.plan.number

    def look(self) -> MakePlan | LetIn | None:
        numbers = self.admission.to_read(self.view, len(self.requests))
        self.admission.hear({one: self.requests[one] for one in numbers}, self.view, self.now_s)
        for one in self.admission.doubted(self.now_s):
            self.admission.beat(one, (int(self.now_s / BEAT_S), -1) if one in self.living else None, self.now_s)
        found = self.admission.next(
            frozenset(self.view.members), plan=self.plan, newest=self.newest, newest_lost=(), now_s=self.now_s
        )
        if isinstance(found, MakePlan):
            self.plan = Plan(len(self.plans) + 2, found.members, self.now_s + CONNECT_S + LOOK_S)
            self.plans.append(found.members)
            self.admission.plan(self.plan.number, self.now_s)
        if isinstance(found, LetIn):
            self.let_in = found
        return found

    def until(self, end_s: float, *, reachable: Iterable[Member] = ()) -> None:
        """Look now and then. A plan connects a second after it was made, if all in it live and can be reached."""
        able = {*self.view.members, *reachable} & {*self.view.members, *self.living}
        while self.now_s < end_s and self.let_in is None:
            self.look()
            self.now_s += LOOK_S
            if (
                self.plan is not None
                and self.plan.members <= able
                and self.now_s >= self.plan.give_up_s - CONNECT_S + 0.5
            ):
                self.connected(*self.plan.members)


def test_all_who_ask_are_let_in_together_once_everybody_is_connected() -> None:
    first = First()
    first.ask(C)
    first.ask(D)
    assert first.look() == MakePlan(frozenset({A, B, C, D}))
    first.connected(A, B, C)
    assert first.look() is None
    first.connected(D)
    assert first.look() == LetIn(frozenset({C, D}), 2)


def test_a_candidate_that_died_is_given_up_within_seconds_and_the_others_are_let_in() -> None:
    first = First()
    first.ask(C, lives=False)
    first.ask(D)
    first.until(60.0, reachable={D})
    assert first.plans == [frozenset({A, B, C, D}), frozenset({A, B, D})]
    assert first.let_in is not None
    assert first.let_in.joining == {D}
    assert first.now_s <= DOUBT_S + SILENT_S + 2.5


def test_who_lives_and_is_slow_to_connect_is_not_given_up() -> None:
    first = First()
    first.ask(C)
    first.until(CONNECT_S - LOOK_S)
    assert first.plans == [frozenset({A, B, C})]
    first.connected(A, B, C)
    assert isinstance(first.look(), LetIn)


def test_who_lives_and_cannot_be_reached_is_tried_after_the_others_and_does_not_keep_them_out() -> None:
    first = First()
    first.ask(C, D)
    first.until(CONNECT_S + 2 * LOOK_S, reachable={D})
    first.ask(E)  # while the first is tried alone
    first.until(60.0, reachable={D, E})
    assert first.let_in is not None
    assert first.let_in.joining == {E}
    assert first.now_s <= CONNECT_S + 4.0
    first.view, first.let_in = View(2, (A, B, E), 0, bytes(DIGEST_BYTES), mesh=first.newest), None
    first.admission.forget(first.view.members)
    first.until(60.0, reachable={D})
    assert first.let_in is not None
    assert first.let_in.joining == {D}


def test_nobody_is_connected_anew_before_those_who_are_connected_have_been_let_in() -> None:
    first = First()
    first.ask(C)
    first.look()
    first.connected(A, B, C)
    assert first.look() == LetIn(frozenset({C}), 1)
    first.now_s = 2 * CONNECT_S  # a step takes so long
    first.ask(D)
    assert first.look() == LetIn(frozenset({C}), 2)
    first.view = View(2, (A, B, C), 1, bytes(DIGEST_BYTES), (C,))
    first.admission.forget({C})
    assert first.look() == MakePlan(frozenset({A, B, C, D}))


def test_a_later_process_of_the_same_name_takes_the_place_of_the_one_before() -> None:
    first = First()
    again = Member("c", 2)
    first.ask(C, lives=False)
    first.look()
    first.ask(again)
    assert first.look() == MakePlan(frozenset({A, B, again}))


def test_those_behind_a_request_that_was_never_written_are_seen_and_it_is_not_waited_for_for_ever() -> None:
    first = First()
    first.requests[1] = None
    first.ask(C)
    assert first.look() == MakePlan(frozenset({A, B, C}))
    assert first.admission.asked == 0  # whoever is first next reads it again
    first.now_s = HOLE_S - 0.1
    first.look()
    assert first.admission.to_read(first.view, 2) == [1]
    first.now_s = HOLE_S
    first.look()
    assert first.admission.to_read(first.view, 2) == []
    assert first.admission.asked == 2


def test_of_many_old_requests_the_newest_are_read_some_at_a_time() -> None:
    first, read = First(), list[int]()
    while numbers := first.admission.to_read(first.view, 10_000):
        assert len(numbers) <= READ_MAX
        first.admission.hear(dict.fromkeys(numbers, C), first.view, 0.0)
        read += numbers
    assert read == list(range(10_001 - READ_BACK_MAX, 10_001))


def test_a_request_that_is_written_late_is_heard() -> None:
    first = First()
    first.requests[1] = None
    first.ask(C)
    first.look()
    first.requests[1] = D
    assert first.look() is None  # the plan under way comes first
    first.connected(A, B, C)
    assert first.look() == LetIn(frozenset({C}), 2)


def test_nobody_is_put_last_because_a_member_was_lost_while_all_connected() -> None:
    admission = Admission()
    admission.hear({1: C, 2: D}, View(1, (A, B), 0, bytes(DIGEST_BYTES)), 0.0)
    failed = Plan(2, frozenset({A, B, C, D}), 1.0)
    anew = admission.next(frozenset({A}), plan=failed, newest=1, newest_lost=(), now_s=2.0)
    assert anew == MakePlan(frozenset({A, C, D}))


def test_who_has_replaced_the_newest_connections_is_connected_anew() -> None:
    """As where it made newer ones just before the first worker was lost, and the next one did not."""
    admission, view = Admission(), View(1, (A, B), 0, bytes(DIGEST_BYTES))
    admission.hear({1: C}, view, 0.0)
    for one in (A, B, C):
        admission.connected(2, one)
    found = admission.next(frozenset(view.members), plan=None, newest=2, newest_lost={B}, now_s=0.0)
    assert found == MakePlan(frozenset({A, B, C})), "views that name other connections let nobody in, again and again"


def test_who_could_not_connect_to_all_others_is_connected_anew_when_it_asks_again() -> None:
    """The first worker reached everybody, and B and C not each other: both have left what the first one made."""
    admission, view = Admission(), View(1, (A, B), 0, bytes(DIGEST_BYTES))
    living = frozenset(view.members)
    admission.hear({1: C}, view, 0.0)
    admission.plan(2, 0.0)
    admission.connected(2, A)
    made = Plan(2, frozenset({A, B, C}), CONNECT_S)
    assert admission.next(living, plan=made, newest=2, newest_lost={B, C}, now_s=1.0) is None
    admission.hear({2: C}, view, CONNECT_S + 1.0)
    found = admission.next(living, plan=made, newest=2, newest_lost={B, C}, now_s=CONNECT_S + 1.0)
    assert found == MakePlan(frozenset({A, B, C}))

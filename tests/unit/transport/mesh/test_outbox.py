"""What may be sent next: urgent first, in order, and no more than may be under way."""

from __future__ import annotations

from transport.engine.base import HOLDS_MAX, Hold, Priority
from transport.mesh.holds import Holds
from transport.mesh.outbox import AHEAD, IN_FLIGHT_BYTES_MAX, SHORT_BYTES, Outbox, Sending
from transport.wire.header import Header, Kind

HALF, LONG = IN_FLIGHT_BYTES_MAX // 2, SHORT_BYTES + 1


def sending(name: int, *, priority: Priority = Priority.GRADIENT, size: int = 1) -> Sending:
    header = Header(kind=Kind.COLLECTIVE, bucket=name, length=size)
    return Sending(1, header, None, priority, lambda _error: None, False)


def names(outbox: Outbox) -> list[int]:
    """Hand out everything that may go; what went, in order."""
    out = []
    while (one := outbox.pop()) is not None:
        outbox.handed_over(one, operation=one.header.bucket)
        out.append(one.header.bucket)
    return out


def test_urgent_sends_overtake_and_equals_keep_their_order():
    outbox = Outbox()
    outbox.push(sending(1), (5, 0))
    outbox.push(sending(2), (4, 9))
    outbox.push(sending(3), (4, 1))
    outbox.push(sending(4, priority=Priority.CONTROL), (9, 9))
    outbox.push(sending(5, priority=Priority.BULK), (0, 0))
    outbox.push(sending(6), AHEAD)
    assert names(outbox) == [4, 6, 3, 2, 1, 5]


def test_what_is_under_way_is_bounded_and_room_is_used_at_once():
    outbox = Outbox()
    for name in range(4):
        outbox.push(sending(name, size=HALF), (0, name))
    assert names(outbox) == [0, 1]
    outbox.ended(0)
    assert names(outbox) == [2]


def test_of_long_messages_one_that_is_larger_than_the_bound_goes_alone():
    outbox = Outbox()
    outbox.push(sending(1, size=3 * IN_FLIGHT_BYTES_MAX), (0, 0))
    outbox.push(sending(2, size=LONG), (0, 1))
    assert names(outbox) == [1]
    outbox.ended(1)
    assert names(outbox) == [2]


def test_a_short_message_waits_for_no_long_one_of_its_priority_but_for_room_among_short_ones():
    outbox = Outbox()
    outbox.push(sending(1, size=3 * IN_FLIGHT_BYTES_MAX), (0, 0))
    outbox.push(sending(2, size=LONG), (0, 1))
    for name in range(3, 40):
        outbox.push(sending(name, size=SHORT_BYTES), (0, name))
    room = IN_FLIGHT_BYTES_MAX // SHORT_BYTES
    assert names(outbox) == [1, *range(3, 3 + room)]
    outbox.ended(3)
    assert names(outbox) == [3 + room]
    outbox.ended(1)
    assert names(outbox) == [2], "nor does a long one wait until no short one is under way"


def test_control_messages_do_not_wait_for_room():
    outbox = Outbox()
    outbox.push(sending(1, size=IN_FLIGHT_BYTES_MAX), (0, 0))
    outbox.push(sending(2, size=LONG), (0, 1))
    assert names(outbox) == [1]
    outbox.push(sending(3, priority=Priority.CONTROL), (9, 9))
    assert names(outbox) == [3]


def test_what_has_ended_is_not_sent_and_what_waits_can_be_taken_out():
    outbox = Outbox()
    ended = sending(1)
    for one in (ended, sending(3), sending(2)):
        outbox.push(one, (0, one.header.bucket))
    ended.ended = True
    assert [one.header.bucket for one in outbox.drain()] == [1, 2, 3]
    outbox.push(ended, (0, 0))
    assert names(outbox) == []


def test_a_more_urgent_send_flies_whatever_less_urgent_ones_are_under_way():
    outbox = Outbox()
    outbox.push(sending(1, size=3 * IN_FLIGHT_BYTES_MAX), (0, 0))
    assert names(outbox) == [1]
    outbox.push(sending(2, size=3 * IN_FLIGHT_BYTES_MAX, priority=Priority.ACTIVATION), (9, 9))
    outbox.push(sending(3, priority=Priority.ACTIVATION, size=LONG), (9, 10))
    assert names(outbox) == [2]
    outbox.push(sending(4, priority=Priority.ACTIVATION_GRADIENT, size=LONG), (9, 9))
    assert names(outbox) == [4]
    outbox.ended(2)
    assert names(outbox) == [3]


def test_what_is_held_back_is_set_aside_and_leaves_its_room_to_others():
    outbox = Outbox()
    outbox.push(sending(1, size=2 * HALF), (0, 1))
    assert names(outbox) == [1]
    outbox.push(sending(2, size=LONG), (0, 2))
    outbox.push(sending(3, size=LONG), (0, 3), held=True)
    assert names(outbox) == []
    outbox.sort_out(1, lambda header: header.bucket != 2)
    assert names(outbox) == [2]
    outbox.ended(1)
    outbox.sort_out(0, lambda _header: False)
    assert names(outbox) == [3]
    outbox.push(sending(4), (0, 4), held=True)
    assert [one.header.bucket for one in outbox.drain()] == [4]
    outbox.sort_out(3, lambda _header: False)
    for number in range(5, 8):
        outbox.push(sending(number, size=HALF // 2), (0, number))
    outbox.ended(2)
    outbox.ended(3)
    assert names(outbox) == [5]


def test_a_hold_is_of_an_operation_and_later_ones_and_ends_with_its_connection():
    holds = Holds()

    def held(step: int, group: str = "g", connection: int = 1, kind: Kind = Kind.COLLECTIVE) -> bool:
        return holds.hold([connection, 7], Header(kind=kind, group=group, step=step))

    for step in (5, 7):
        holds.heard(Hold(1, "g", step, True))
    holds.heard(Hold(1, "g", 4, False))
    assert [held(step) for step in (4, 5, 6)] == [False, True, True]
    assert not any((held(5, group="h"), held(5, connection=2), held(5, kind=Kind.POINT_TO_POINT)))
    holds.heard(Hold(1, "g", 5, False))
    assert [held(step) for step in (6, 7)] == [False, True]
    for step in range(2 * HOLDS_MAX, 0, -1):
        holds.heard(Hold(1, "g", step, True))
    assert held(7)
    assert not held(6)
    assert holds.forget(1)
    assert not held(7)
    assert not holds.forget(1)

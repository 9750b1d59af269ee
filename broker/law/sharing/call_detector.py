"""Whether somebody is on a call, from the counters of the people's class alone: how many packets it sent, how large.

A call sends all the time: 20 to 50 packets a second of speech, up to some hundreds with pictures, every half second,
of 100 to 1300 bytes on average. What else people's machines send does not: an upload fills its packets (1514 bytes),
a download sends acknowledgements (54 to 90 bytes), pages and keys come in bursts with gaps, housekeeping now and then.

    a slot of 0.5 s looks like a call    20..1000 packets a second, 100..1300 bytes on average
    present                              9 of the last 10 slots do, the busiest with at most 5 times the packets of
                                         the median: a call is steady
    not present any more                 for 30 s not present as above: a pause, or a silent speaker

The cost is a division a tick. What it cannot see: a call beside a bulk transfer of the same class (the averages mix),
a call whose silence is suppressed, typing, reading. What it mistakes: any other steady stream of small packets, for
example telemetry. So its effect is mild, policy decides on it, and it is off unless that says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from broker.law.state import PresenceState
from broker.model.reasons import Because, Reason
from broker.model.values import ClassSample, PresenceAllocation
from broker.policy.types import ClassPolicy, PresencePolicy, Share

SLOT_S = 0.5
SLOTS = 10
SLOTS_NEEDED = 9
"""Five seconds: as long as it takes until people notice, longer than a page takes to load. One slot may be missing: a
late tick, a lost second of Wi-Fi."""
PACKETS_PER_S_MIN, PACKETS_PER_S_MAX = 20, 1000
"""Speech is sent every 20 ms (RFC 3551), in some programs every 40 or 60 ms with what came together; 1000 packets of
1200 bytes are 9.6 Mbit/s, more than a picture of 1080 lines takes."""
PACKET_BYTES_MIN, PACKET_BYTES_MAX = 100, 1300
"""With Ethernet, IP, UDP and RTP headers (54 bytes for IPv4) speech is 100 to 250 bytes; pictures are cut to 1200 and
less (RFC 8831's default MTU), mixed with speech. A TCP acknowledgement is 66 bytes, in IPv6 86; full packets 1514."""
BUSIEST_FACTOR = 5
ABSENT_S = 30.0
"""People fall silent, mute themselves, fetch coffee: half a minute of that is no end of a call."""

PEOPLE, BACKGROUND = "other", "storage"
"""Whom a call is in, and who makes room for it."""


def follow(state: PresenceState, sample: ClassSample | None, *, read_s: float | None, now_s: float) -> PresenceState:
    """Take in the people's class at one interface.

    Args:
        state: as of the last tick.
        sample: its counters, None where they are not known.
        read_s: when they were read, on the clock of `now_s`.
        now_s: the tick's time.
    """
    if sample is not None and sample.sent_packets is not None and read_s is not None:
        if state.counted_s is None or read_s > state.counted_s:
            state = _counted(state, sample, sample.sent_packets, read_s)
    else:
        state = replace(state, counted_s=None)  # what comes next is no difference
    if state.counted_s is not None and looks_like_a_call(state.slots[1:]):
        state = replace(state, call_s=now_s, present=True)
    elif state.present and (state.call_s is None or now_s - state.call_s >= ABSENT_S):
        state = replace(state, present=False)
    return state


def looks_like_a_call(slots: Sequence[tuple[int, int]]) -> bool:
    """Whether whole slots, of (packets, bytes), look like a call."""
    if len(slots) < SLOTS:
        return False
    fitting = [packets for packets, size in slots[:SLOTS] if _fits(packets, size)]
    counts = sorted(packets for packets, _ in slots[:SLOTS])
    return len(fitting) >= SLOTS_NEEDED and counts[-1] <= BUSIEST_FACTOR * counts[SLOTS // 2]


def gentler(entry: ClassPolicy, policy: PresencePolicy, *, capacity_bits_per_s: int) -> ClassPolicy:
    """A class while somebody is on a call: promises to people only grow, ceilings of storage only fall."""
    if entry.name == PEOPLE:
        return replace(entry, guarantee=_larger(entry.guarantee, policy.other_guarantee, capacity_bits_per_s))
    if entry.name == BACKGROUND:
        return replace(entry, ceiling=_smaller(entry.ceiling, policy.storage_ceiling, capacity_bits_per_s))
    return entry


def shown(state: PresenceState, *, now_s: float) -> PresenceAllocation:
    """What people see of it."""
    whole = state.slots[1 : SLOTS + 1] if state.counted_s is not None else ()
    packets, size = sum(slot[0] for slot in whole), sum(slot[1] for slot in whole)
    packets_per_s = int(packets / (len(whole) * SLOT_S)) if whole else None
    packet_bytes = size // packets if packets else None
    reason: Reason = Because.NO_CALL()
    if state.present and state.call_s is not None:
        reason = Because.CALL_NOT_OVER(for_s=now_s - state.call_s)
        if state.call_s == now_s:
            reason = Because.ON_A_CALL(packets_per_s=packets_per_s or 0, packet_bytes=packet_bytes or 0)
    elif state.counted_s is None:
        reason = Because.PRESENCE_UNKNOWN()
    return PresenceAllocation(state.present, packets_per_s, packet_bytes, reason)


def _counted(state: PresenceState, sample: ClassSample, sent_packets: int, read_s: float) -> PresenceState:
    counted = replace(state, sent_packets=sent_packets, sent_bytes=sample.sent_bytes, counted_s=read_s)
    packets, size = sent_packets - state.sent_packets, sample.sent_bytes - state.sent_bytes
    gap_s = read_s - state.counted_s if state.counted_s is not None else SLOTS * SLOT_S
    if gap_s >= SLOTS * SLOT_S or packets < 0 or size < 0:  # nothing to compare with: anew
        return replace(counted, slots=((0, 0),), slot_end_s=read_s + SLOT_S)
    (before_packets, before_size), *older = state.slots
    slots = ((before_packets + packets, before_size + size), *older)
    if read_s < state.slot_end_s:
        return replace(counted, slots=slots)
    return replace(counted, slots=_closed(slots, late_s=read_s - state.slot_end_s), slot_end_s=read_s + SLOT_S)


def _closed(slots: tuple[tuple[int, int], ...], *, late_s: float) -> tuple[tuple[int, int], ...]:
    """Close the first slot. One that got long, because a tick was late, counts as the several that it is."""
    parts = 1 + int(late_s / SLOT_S + 0.5)
    packets, size = slots[0]
    each = (packets // parts, size // parts)
    return ((0, 0), *([each] * parts), *slots[1:])[: SLOTS + 1]


def _fits(packets: int, size_bytes: int) -> bool:
    if not PACKETS_PER_S_MIN * SLOT_S <= packets <= PACKETS_PER_S_MAX * SLOT_S:
        return False
    return PACKET_BYTES_MIN <= size_bytes / packets <= PACKET_BYTES_MAX


def _larger(one: Share, other: Share, capacity_bits_per_s: int) -> Share:
    return other if other.of(capacity_bits_per_s) > one.of(capacity_bits_per_s) else one


def _smaller(one: Share, other: Share, capacity_bits_per_s: int) -> Share:
    return other if other.of(capacity_bits_per_s) < one.of(capacity_bits_per_s) else one

"""Account for the hosts that send storage to us: what each brings, what it is held to, and what it makes of that.

TCP counts storage where it arrives, some time ago. The interface counts everything, now. The difference is training and
the rest. What storage has brought since its last count is taken at its last rate, at most as much as it was allowed:

    beside(t) = all that arrived - storage that arrived - storage since its last count        bits

What storage may send is divided among its senders by max-min. A sender that uses clearly less than its part for a
second leaves it to the others. What no sender uses is spread over all, so that a new one finds room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from broker.law.inbound_state import IngressState, SenderState
from broker.law.sharing.promises import LENDER
from broker.law.sharing.water_filling import Claim, allocate
from broker.model.values import BrokerThere, SenderSample

WIRE_PER_PAYLOAD = 1.05
"""Wire bytes per delivered byte of TCP in frames of 1514 bytes: 1514 / 1448, and a little for retransmissions."""
SMOOTHING_S = 0.3
MOST_S = 2.0
"""A sender's highest rate decays in two seconds: longer than a burst in which it was held."""
EXTRAPOLATED_S_MAX = 0.3
"""The longest for which a sender's last rate is assumed to go on."""
FRESH_S = 0.02
"""Counts of storage that are no older are as new as the interface's."""
FORGET_SENDER_S = 5.0
REFUSED_S_MAX = 2.0
"""A broker that has refused for longer than a lease lasts counts as none."""
SENDERS_MAX = 256
LIMITED = 0.8
"""A sender that uses this part of its allowance would use more."""
MODEST_S, MODEST_ROOM, MODEST_PART = 1.0, 1.6, 0.1
"""A sender that used less for a second keeps 1.6 times its highest rate, and at least a tenth of an equal part."""
HOLDS_MAX = 64
HOLD_BITS_PER_S_MIN = 64_000
UP_BAND, DOWN_BAND = 0.05, 0.02
"""Changes too small for a message: the headroom absorbs them."""


def count(
    state: IngressState, samples: Sequence[SenderSample], *, received_bytes: int | None, now_s: float
) -> IngressState:
    """Add a tick's readings.

    Args:
        state: the interface's state of the last tick.
        samples: the hosts that send to us; those of other classes than storage count as the rest.
        received_bytes: the interface's counter, None where it was not read.
        now_s: the tick's time.
    """
    arrived = 0.0
    if received_bytes is not None and state.received_bytes is not None:
        arrived = 8 * max(0, received_bytes - state.received_bytes)
    known = {entry.address: entry for entry in state.senders}
    stored, unaccounted, brokerless_s = state.storage_bits, arrived, state.brokerless_s
    for sample in sorted(storage_of(samples), key=lambda entry: entry.address):
        before = known.get(sample.address)
        if before is None:
            # Counted as the rest, which is remembered, a new sender's bytes would make training's bursts look small.
            brought = min(unaccounted, WIRE_PER_PAYLOAD * 8 * sample.received_bytes)
            unaccounted -= brought
            entry = SenderState(sample.address, now_s, sample.received_bytes, now_s - sample.age_s)
        else:
            entry, brought = _counted(before, sample, now_s=now_s)
        stored += brought
        refused_s = (now_s if entry.refused_s is None else entry.refused_s) if sample.refused else None
        unheld = sample.broker is BrokerThere.NO or (refused_s is not None and now_s - refused_s > REFUSED_S_MAX)
        if unheld and entry.rate_bits_per_s > 0:
            brokerless_s = now_s
        known[sample.address] = replace(entry, seen_s=now_s, refused_s=refused_s)
    kept = sorted(
        (entry for entry in known.values() if now_s - entry.seen_s <= FORGET_SENDER_S),
        key=lambda entry: (-entry.rate_bits_per_s, entry.address),
    )[:SENDERS_MAX]
    return replace(
        state,
        received_bytes=received_bytes,
        received_bits=state.received_bits + arrived,
        storage_bits=stored,
        senders=tuple(sorted(kept, key=lambda entry: entry.address)),
        brokerless_s=brokerless_s,
    )


def storage_of(samples: Sequence[SenderSample]) -> list[SenderSample]:
    """Those of class storage."""
    return [sample for sample in samples if sample.traffic_class == LENDER]


def beside_bits(state: IngressState, *, now_s: float) -> float:
    """All that has arrived beside storage, since the state began."""
    since = 0.0
    for entry in state.senders:
        rate = entry.last_bits_per_s
        if entry.allowed_bits_per_s:
            rate = min(rate, entry.allowed_bits_per_s)
        since += rate * min(EXTRAPOLATED_S_MAX, max(0.0, now_s - entry.read_s))
    return state.received_bits - state.storage_bits - since


def are_fresh(state: IngressState, *, now_s: float) -> bool:
    """Whether all counts of storage are as new as the interface's."""
    return all(now_s - entry.read_s <= FRESH_S for entry in state.senders)


def limited(sender: SenderState) -> bool:
    """Whether a sender would use a higher allowance."""
    used = max(sender.last_bits_per_s, sender.rate_bits_per_s)
    return sender.allowed_bits_per_s > 0 and used >= LIMITED * sender.allowed_bits_per_s


def rate_bits_per_s(state: IngressState) -> float:
    """What all senders bring."""
    return math.fsum(entry.rate_bits_per_s for entry in state.senders)


def judge(state: IngressState, *, elapsed_s: float) -> tuple[SenderState, ...]:
    """Record for how long each sender has used less than it was allowed."""
    return tuple(
        replace(entry, modest_s=0.0 if limited(entry) else entry.modest_s + elapsed_s)
        if entry.allowed_bits_per_s
        else entry
        for entry in state.senders
    )


def allow(state: IngressState, allowed: Mapping[str, int], *, now_s: float) -> tuple[SenderState, ...]:
    """Record the rate of each sender from now on."""
    senders = [replace(entry, allowed_bits_per_s=allowed.get(entry.address, 0)) for entry in state.senders]
    return tuple(replace(entry, held_s=now_s) if limited(entry) else entry for entry in senders)


def divide(
    state: IngressState, reported: Mapping[str, SenderSample], *, allowance_bits_per_s: int, floor_bits_per_s: int
) -> Mapping[str, int]:
    """Divide storage's allowance among its senders.

    Args:
        state: the interface's state.
        reported: this tick's samples of storage, by address; who is not in them is not held.
        allowance_bits_per_s: of all storage.
        floor_bits_per_s: kept for these senders, whatever those without a broker take.

    Returns:
        The rate of each sender that has, or may have, a broker.
    """
    present = [entry for entry in state.senders if entry.address in reported]
    free = [entry for entry in present if reported[entry.address].broker is BrokerThere.NO]
    held = sorted(
        (entry for entry in present if reported[entry.address].broker is not BrokerThere.NO),
        key=lambda entry: (-entry.rate_bits_per_s, entry.address),
    )[:HOLDS_MAX]
    if not held:
        return {}
    taken = sum(int(entry.rate_bits_per_s) for entry in free)
    room = max(min(floor_bits_per_s, allowance_bits_per_s), allowance_bits_per_s - taken)
    least = room // len(held)
    claims = []
    for entry in held:
        granted = reported[entry.address].granted_bits_per_s or 0
        modest = max(int(MODEST_ROOM * entry.most_bits_per_s), int(MODEST_PART * least))
        wants = modest if entry.modest_s >= MODEST_S else room
        owed = min(granted, room) if granted > entry.allowed_bits_per_s > 0 else 0  # its broker grants it more
        claims.append(Claim(1.0, owed, owed, room, max(wants, owed)))
    shares = allocate(claims, capacity_bits_per_s=room)
    spare = (room - sum(shares)) // len(held)
    return {
        entry.address: _steady(entry.allowed_bits_per_s, max(HOLD_BITS_PER_S_MIN, share + spare))
        for entry, share in zip(held, shares, strict=True)
    }


def _counted(entry: SenderState, sample: SenderSample, *, now_s: float) -> tuple[SenderState, float]:
    """A known sender after a reading, and the bits on the wire since the one before."""
    read_s = now_s - sample.age_s
    elapsed_s = read_s - entry.read_s
    if elapsed_s <= 0:
        return entry, 0.0
    after = replace(entry, received_bytes=sample.received_bytes, read_s=read_s)
    if sample.received_bytes < entry.received_bytes:
        return after, 0.0
    bits = WIRE_PER_PAYLOAD * 8 * (sample.received_bytes - entry.received_bytes)
    last = bits / elapsed_s
    part = min(1.0, elapsed_s / SMOOTHING_S)
    return replace(
        after,
        last_bits_per_s=last,
        rate_bits_per_s=entry.rate_bits_per_s + part * (last - entry.rate_bits_per_s),
        most_bits_per_s=max(last, entry.most_bits_per_s * max(0.0, 1 - elapsed_s / MOST_S)),
    ), bits


def _steady(last: int, now: int) -> int:
    """The last figure where the new one differs little."""
    close = last <= now <= last * (1 + UP_BAND) or now <= last <= now * (1 + DOWN_BAND)
    return last if last and close else now

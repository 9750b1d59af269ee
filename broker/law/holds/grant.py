"""The sender's side of holds: decide how far to grant what other brokers ask of us.

A peer whose link we flood asks us to hold storage back towards it. It knows its link; we know storage's guarantee. So a
lease is kept within these bounds, whatever the peer asks:

    what      storage alone, towards the address from which the peer asks, for as long as the lease lasts
    floor     the floor's share of the smaller of both links, at every moment
    window    storage's guarantee of the smaller of both links, over its window: when it is at risk, more is sent than
              was asked for, until nothing is owed (`broker.law.sharing.guarantee`)

We cannot see how a peer uses the time, and need not. Its own broker ends the hold when a burst does not come
(`broker.law.holds.request`). A peer that lies takes 3 % of a window once, then no more than the guarantee leaves.

The guarantee counts only while packets wait to go there. A peer may name a rate below its link's, to owe us less. So
the link counts at least as the highest recent rate to it: delivered before the lease, or sent during it. That rate
decays while no lease is in force; during one, the hold itself would make the link look slow. It also decays where our
own connections find the link full for 0.3 s, down to the rate that the peer names, or to a quarter. Otherwise storage's
repayment would flood a link that became slower.

What comes of a lease follows from what holds now, whatever came of it before:

    not storage, no valid lease, or too many destinations    REFUSED    nobody is held
    nobody asks any more                                     OVER       storage's ceiling
    objects at risk, and the guarantee is more than is asked RAISED     the guarantee
    storage is owed more than is asked                       RAISED     what repays it
    the floor is more than is asked                          RAISED     the floor
    else                                                     GRANTED    what is asked

Each destination has its own account. So a sender with a faster link is not judged by the peer's, and a held
destination's backlog does not count as a backlog of our own link.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity import signals
from broker.law.capacity.flow_delay import REPORT
from broker.law.capacity.state import SignalState
from broker.law.inbound_state import HeldState
from broker.law.sharing import guarantee
from broker.law.sharing.demand import BACKLOG_BYTES_MIN
from broker.law.sharing.promises import Promises, promises
from broker.model.leases import HELD_CLASS, LEASE_S_MAX, HoldOutcome, Lease
from broker.model.reasons import Because, Reason
from broker.model.values import DestinationAllocation, DestinationSample, FlowSample
from broker.policy.types import ClassPolicy

DESTINATIONS_MAX = 8
"""Leaves for destinations that the kernel side keeps ready; of more leases the oldest keep theirs."""
LINGER_S = 5.0
"""How long a leaf outlives its lease: what waits in it leaves in order, and the next burst finds it there."""
RATE_BITS_PER_S_MIN = 64_000
READ_S_MIN = 0.05
"""A rate over a shorter time would measure single bursts of the shaper."""
MOST_DECAY_S = 60.0
"""The highest rate to a destination decays over a minute without a lease."""
FULL_S, FULL_FOR_S, FULL_AGE_S = 0.06, 0.3, 0.3
"""A link is full when our connections' round trips exceed their minimum by 60 ms, without our own leaf's delay. That is
twice what counts as a queue elsewhere, because TCP smooths over some round trips. Measured at a fall from 100 to 30
Mbit/s: 130 to 250 ms for half a second. Older samples do not count."""
LEAF_S = 0.5
"""The leaf's delay of so long ago may still be in TCP's smoothed round trip."""
LEFT_AT_ONCE = 0.25
"""The lowest part of the highest rate that a fall goes to at once; a deeper fall counts where the queue stays. A host
with false claims has to keep a real queue in front of its link for as long, each time."""


class Grant(enum.Enum):
    """What comes of a lease, or of its end; the table above says when."""

    REFUSED = enum.auto()
    OVER = enum.auto()
    RAISED = enum.auto()
    GRANTED = enum.auto()


class Holding(Struct, frozen=True):
    """The decision on one interface's leases."""

    states: tuple[HeldState, ...]
    destinations: tuple[DestinationAllocation, ...]
    verdicts: tuple[HoldOutcome, ...]


def decide_held(
    *, now_s: float, states: Sequence[HeldState], leases: Sequence[Lease], samples: Sequence[DestinationSample],
    read_s: float | None, delivered_bits_per_s: Mapping[str, float], storage: ClassPolicy, capacity_bits_per_s: int,
    replicas: int, late_s: Mapping[str, float],
) -> Holding:  # fmt: skip
    """Decide about the leases of one interface.

    Args:
        now_s: the tick's time.
        states: of the last tick.
        leases: in force, in any order.
        samples: counters of the destinations that have leaves, read at `read_s` (None: never).
        delivered_bits_per_s: from `delivered`.
        storage: the class' policy.
        capacity_bits_per_s: of our own link, outbound.
        replicas: objects at risk that count now (`broker.law.sharing.storage_needs`).
        late_s: from the function of that name.
    """
    valid: dict[str, list[Lease]] = {}
    verdicts = []
    for lease in sorted(leases, key=lambda entry: (entry.address, entry.peer, entry.number)):
        if (refusal := _refusal(lease)) is None:
            valid.setdefault(lease.address, []).append(lease)
        else:
            verdicts.append(_verdict(lease, capacity_bits_per_s, refusal, Grant.REFUSED))
    known = {entry.address: entry for entry in states}
    lingering = {entry.address for entry in states if now_s - entry.seen_s <= LINGER_S}
    order = sorted(
        valid.keys() | lingering, key=lambda address: (address not in valid, address not in known, address)
    )  # fmt: skip
    for address in order[DESTINATIONS_MAX:]:
        full = Because.HOLD_REFUSED(why=f"{DESTINATIONS_MAX} destinations are held back already")
        for lease in valid.get(address, ()):
            verdicts.append(_verdict(lease, capacity_bits_per_s, full, Grant.REFUSED))
    counters = {entry.address: entry for entry in samples if entry.traffic_class == HELD_CLASS}
    after, destinations = [], []
    for address in sorted(order[:DESTINATIONS_MAX]):
        there = _Destination(
            lease=min(valid.get(address, ()), key=lambda lease: lease.rate_bits_per_s, default=None),
            sample=counters.get(address) if read_s is not None else None,
            storage=storage,
            capacity_bits_per_s=capacity_bits_per_s,
        )
        entry = known.get(address) or HeldState(address, now_s)
        most = max(entry.sent_bits_per_s_max, delivered_bits_per_s.get(address, 0.0))
        entry = replace(entry, sent_bits_per_s_max=most)
        entry = _ask_the_link(entry, there, late_s=late_s.get(address), now_s=now_s)
        entry = _count(entry, there, read_s=read_s)
        grant, rate, why = _rate(entry, there, replicas=replicas)
        own = there.promises(entry)
        destinations.append(
            DestinationAllocation(
                address, HELD_CLASS, max(1, min(rate, own.floor)), max(1, rate), why,
                guarantee_bits_per_s=own.guarantee if grant is not Grant.OVER else None,
            )
        )  # fmt: skip
        for lease in valid.get(address, ()):
            verdicts.append(_verdict(lease, rate, why, grant))
        seen_s = entry.seen_s if grant is Grant.OVER else now_s
        after.append(replace(entry, seen_s=seen_s, rate_bits_per_s=rate))
    remembered_s = max(LINGER_S, storage.guarantee_window_s)
    for address in known.keys() - set(order[:DESTINATIONS_MAX]):
        if now_s - known[address].seen_s <= remembered_s:
            after.append(known[address])
    return Holding(
        states=tuple(sorted(after, key=lambda entry: entry.address)),
        destinations=tuple(destinations),
        verdicts=tuple(sorted(verdicts, key=lambda entry: (entry.peer, entry.address, entry.number))),
    )


class _Destination(Struct, frozen=True):
    """What is known of one destination now: the strictest lease, the leaf's counters, and what storage is promised."""

    lease: Lease | None
    sample: DestinationSample | None
    storage: ClassPolicy
    capacity_bits_per_s: int

    def promises(self, entry: HeldState) -> Promises:
        """Of the smaller of both links, where the peer's counts at least as the highest recent rate to it."""
        claimed = self.lease.capacity_bits_per_s if self.lease is not None else 0
        return promises(self.storage, min(self.capacity_bits_per_s, max(claimed, int(entry.sent_bits_per_s_max))))


def _refusal(lease: Lease) -> Reason | None:
    if lease.traffic_class != HELD_CLASS:
        return Because.HOLD_REFUSED(why=f"only {HELD_CLASS} may be held back from outside")
    if not 0 < lease.remaining_s <= LEASE_S_MAX or lease.rate_bits_per_s < 0 or lease.capacity_bits_per_s <= 0:
        return Because.HOLD_REFUSED(why=f"a lease has a rate, a capacity, and at most {LEASE_S_MAX:g} s")
    return None


def _verdict(lease: Lease, rate: int, why: Reason, grant: Grant) -> HoldOutcome:
    kept = grant is not Grant.REFUSED
    return HoldOutcome(lease.peer, lease.address, lease.number, kept, rate, why)


def _ask_the_link(entry: HeldState, there: _Destination, *, late_s: float | None, now_s: float) -> HeldState:
    """Lower the highest rate where our own connections find the link full: it may be as slow as its host reports."""
    if there.sample is None:
        return entry
    wait_s = 8 * there.sample.backlog_bytes / entry.rate_bits_per_s if entry.rate_bits_per_s else 0.0
    waits = (*(one for one in entry.leaf_waits if one[0] > now_s - LEAF_S), (now_s, wait_s))
    entry = replace(entry, leaf_waits=waits)
    if there.lease is None or late_s is None or late_s - max(seconds for _, seconds in waits) < FULL_S:
        return replace(entry, full_s=None)
    if entry.full_s is None:
        return replace(entry, full_s=now_s)
    if now_s - entry.full_s < FULL_FOR_S:
        return entry
    most = entry.sent_bits_per_s_max
    left = min(most, max(float(there.lease.capacity_bits_per_s), LEFT_AT_ONCE * most))
    return replace(entry, full_s=now_s, sent_bits_per_s_max=left)


def _count(entry: HeldState, there: _Destination, *, read_s: float | None) -> HeldState:
    """Account for what was sent there since the last reading."""
    sample = there.sample
    if sample is None or read_s is None:
        return replace(entry, counter_s=None)
    if entry.counter_s is None or sample.sent_bytes < entry.sent_bytes:
        return replace(entry, counter_s=read_s, sent_bytes=sample.sent_bytes)
    elapsed_s = read_s - entry.counter_s
    if elapsed_s <= 0:
        return entry
    sent_bits = 8 * (sample.sent_bytes - entry.sent_bytes)
    most = entry.sent_bits_per_s_max
    if there.lease is None:
        most *= max(0.0, 1 - elapsed_s / MOST_DECAY_S)
    elif elapsed_s >= READ_S_MIN and entry.seen_s >= entry.counter_s:
        # Without a hold packets may wait elsewhere.
        most = max(most, sent_bits / elapsed_s)
    entry = replace(entry, counter_s=read_s, sent_bytes=sample.sent_bytes, sent_bits_per_s_max=most)
    if there.lease is None:
        return entry
    account = guarantee.account(
        entry.account, received_bits=sent_bits, guarantee_bits_per_s=there.promises(entry).guarantee,
        window_s=there.storage.guarantee_window_s, elapsed_s=elapsed_s,
        waiting=sample.backlog_bytes >= BACKLOG_BYTES_MIN, now_s=read_s,
    )  # fmt: skip
    return replace(entry, account=account)


def _rate(entry: HeldState, there: _Destination, *, replicas: int) -> tuple[Grant, int, Reason]:
    """The outcome of a destination's lease, the rate for the destination, and the reason: the highest claim counts."""
    ceiling = promises(there.storage, there.capacity_bits_per_s).ceiling
    lease, own, window_s = there.lease, there.promises(entry), there.storage.guarantee_window_s
    if lease is None:
        return Grant.OVER, ceiling, Because.HOLD_OVER()
    asked, floor = lease.rate_bits_per_s, max(own.floor, RATE_BITS_PER_S_MIN)
    due = guarantee.repay_rate_bits_per_s(entry.account, guarantee_bits_per_s=own.guarantee, window_s=window_s)
    at_risk = own.guarantee if replicas else 0
    rate = max(asked, floor, due, at_risk)
    grant = Grant.RAISED
    why: Reason
    if rate == asked:
        grant, why = Grant.GRANTED, Because.HELD_FOR_PEER(peer=lease.peer, rate_bits_per_s=asked)
    elif rate == floor:
        why = Because.HELD_AT_FLOOR(peer=lease.peer, asked_bits_per_s=asked, floor_bits_per_s=floor)
    elif rate == due:
        why = Because.HOLD_RAISED(
            peer=lease.peer, asked_bits_per_s=asked, promise_bits_per_s=own.guarantee, window_s=window_s
        )
    else:
        why = Because.HOLD_RAISED_AT_RISK(
            peer=lease.peer, asked_bits_per_s=asked, promise_bits_per_s=own.guarantee, replicas=replicas
        )
    return grant, min(rate, ceiling), why


def leased(leases: Sequence[Lease]) -> frozenset[str]:
    """The addresses for which a lease limits us."""
    return frozenset(lease.address for lease in leases if _refusal(lease) is None)


def waiting_bytes(samples: Sequence[DestinationSample], addresses: Collection[str]) -> int:
    """The backlog for held destinations, which our own link does not cause."""
    return sum(entry.backlog_bytes for entry in samples if entry.address in addresses)


def not_held(flows: Sequence[FlowSample], addresses: Collection[str]) -> tuple[FlowSample, ...]:
    """The connections whose delay measures the path: those that no lease delays."""
    return tuple(flow for flow in flows if flow.traffic_class != HELD_CLASS or flow.peer not in addresses)


def delivered(
    flows: Sequence[FlowSample], leases: Sequence[Lease], measured: SignalState | None, *, now_s: float
) -> Mapping[str, float]:
    """The delivery rate to each address of a lease over the last second, by its connections' reports."""
    addresses = leased(leases)
    if not addresses or measured is None:
        return {}
    sent = signals.delivered_by_flow(measured, now_s=now_s)
    found = dict.fromkeys(addresses, 0.0)
    for flow in flows:
        if flow.traffic_class == HELD_CLASS and flow.peer in found:
            found[flow.peer] += sent.get(flow.key, 0.0)
    return found


def late_s(flows: Sequence[FlowSample], leases: Sequence[Lease]) -> Mapping[str, float]:
    """The median excess of storage's round trips to each address of a lease over their minimum, in seconds.

    Only connections that our kernel measures count: by false reports a program could take what others are owed.
    """
    addresses = leased(leases)
    waits: dict[str, list[float]] = {}
    for flow in flows if addresses else ():
        if flow.traffic_class != HELD_CLASS or flow.peer not in addresses or flow.age_s > FULL_AGE_S:
            continue
        if flow.source == REPORT:
            continue
        if flow.rtt_s is not None and flow.rtt_s_min is not None:
            waits.setdefault(flow.peer, []).append(flow.rtt_s - flow.rtt_s_min)
    return {address: sorted(found)[(len(found) - 1) // 2] for address, found in waits.items()}

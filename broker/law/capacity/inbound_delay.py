"""Find which senders see a queue in front of our link, by the delay of their packets over its baseline.

Three series show it:

    way/     the transport's clocks: a message carries its send time (transport.mesh.one_way_delay). One-way, ten times
             a second or more; only changes mean anything
    broker/  the round trip to the sender's broker. Its packets have priority at both ends, so its delay is a queue on
             the path, in either direction
    tcp/     the receiver's side of storage's TCP (tcpi_rcv_rtt). While a hold of ours limits the sender it includes the
             queue that the hold makes, and is ignored

The queue of our own IFB is subtracted. So is the outbound queue from round trips, where outbound signals show it;
where they do not and our outbound link is loaded, round trips are ignored.

A sender cannot tell its own slow link from ours. So two senders have to see a queue, and none may surely see none. What
TCP and the broker measured of a sender precedes what programs report of it, because programs may invent peers:

    queue   two senders see one and none surely sees none; at least one of them is measured. Two measured ones are
            enough, whatever programs report
    clear   a measured sender surely sees none, no measured one's last sample is late, and fewer than two measured ones
            see a queue. Where nothing is measured, no program's report may show a queue

Otherwise nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from broker.law.capacity.delivery_rate import FRESH_S
from broker.law.capacity.flow_delay import MINIMUM_S, NEW_S, QUEUE_TRUSTED_S, over, with_sample
from broker.law.capacity.quorum import OF, SLOW_S, VOTE_S, median_of_voters, voting
from broker.law.capacity.state import InboundSignalState, SenderDelayState, Series, SignalState, SourceState
from broker.law.sharing.promises import LENDER
from broker.model.fair_share import in_turns
from broker.model.values import FlowSample, SenderSample

Entry = TypeVar("Entry")

REPORTED = "way/"
"""The prefix of the keys of series that programs report."""
SENDERS_MIN = 2
"""One sender's own slow link looks like ours."""
LOADED = 0.5
"""Above this outbound load, a round trip is ignored unless outbound signals show the outbound queue."""
SOURCES_MAX, REMEMBERED = 64, 8
HELD_FOR_S = 0.5
"""For so long after a hold, the sender's own queue is still in TCP's round trip, which is smoothed."""


class OutboundLoad(Struct, frozen=True):
    """The other direction: its capacity, the part of it in use, and the queueing delay there, None if not measured."""

    bits_per_s: int
    load: float = 0.0
    excess_s: float | None = None


class Verdict(Struct, frozen=True):
    """The senders' combined evidence.

    Fields: `queue` whether there is one in front of our link, `clear` whether there is surely none; `disputed` whether
    any sender or program sees one, or saw one in half of its last samples (programs do not count where two measured
    senders surely see none); `excess_s` the median delay of those that see one; `since_s` and `until_s` the time in
    which all of them saw it; `seen_by` how many see one; `reporting` how many report at all.
    """

    queue: bool
    clear: bool
    disputed: bool
    excess_s: float
    since_s: float
    until_s: float
    seen_by: int
    reporting: int


def outbound_queue_s(state: SignalState | None, *, now_s: float) -> float | None:
    """The outbound queueing delay, cross traffic included, by one-way signals alone.

    Two-way signals would include the inbound direction.
    """
    if state is None:
        return None
    fresh = [entry for entry in state.destinations if not entry.two_way and entry.excess[-1][0] > now_s - VOTE_S]
    return median_of_voters((entry, entry.excess[-1][1] + entry.cross_s) for entry in fresh)


def observe(
    state: InboundSignalState, *, flows: Sequence[FlowSample], senders: Sequence[SenderSample], held: frozenset[str],
    out: OutboundLoad, now_s: float, here: Mapping[str, float],
) -> InboundSignalState:  # fmt: skip
    """Add a tick's samples to the state.

    Args:
        held: the addresses that a hold of ours has limited lately.
        here: class to how long its packets wait in our IFB.
    """
    samples: list[tuple[str, str, float, float, float, int | None]] = []  # key, sender, when, value, other delay, uid
    for flow in flows:
        waits_s = here.get(flow.traffic_class, 0.0)
        if flow.inbound_s is None or flow.inbound_age_s is None or flow.age_s >= FRESH_S or waits_s > QUEUE_TRUSTED_S:
            continue
        at_s = now_s - flow.age_s - flow.inbound_age_s
        samples.append((f"{REPORTED}{flow.key}", flow.peer, at_s, flow.inbound_s, waits_s, flow.uid))
    explained = out.excess_s if out.excess_s is not None else 0.0 if out.load < LOADED else None
    for sender in senders:
        if explained is None or sender.traffic_class != LENDER:
            continue
        if sender.broker_rtt_s is not None:
            at_s = now_s - sender.broker_rtt_age_s
            samples.append((f"broker/{sender.address}", sender.address, at_s, sender.broker_rtt_s, explained, None))
        waits_s = here.get(LENDER, 0.0)
        if sender.receive_rtt_s is not None and sender.address not in held and waits_s <= QUEUE_TRUSTED_S:
            at_s = now_s - sender.age_s
            else_s = explained + waits_s
            samples.append((f"tcp/{sender.address}", sender.address, at_s, sender.receive_rtt_s, else_s, None))
    known = {entry.key: entry for entry in state.sources}
    reported: dict[str, tuple[float, float]] = {}
    measured: dict[str, tuple[float, float]] = {}
    samples.sort(key=lambda sample: sample[0])
    chosen = _chosen(samples, key=lambda sample: sample[0], user=lambda sample: sample[5])
    for key, sender_of, at_s, value_s, else_s, uid in chosen:
        before = known.get(key)
        if before is not None and (at_s <= before.at_s + NEW_S or value_s == before.value_s):
            continue  # the same sample as before: two measurements never agree to the last digit
        entry = _with(before, key, uid, at_s=at_s, value_s=value_s)
        known[key] = entry
        if before is None or at_s < state.ignore_before_s:
            continue
        over_s = max(0.0, over(entry.least_s, value_s) - else_s)
        excess = reported if key.startswith(REPORTED) else measured
        last = excess.get(sender_of, (at_s, over_s))
        excess[sender_of] = (max(at_s, last[0]), min(over_s, last[1]))  # a sender's least wait counts
    latest = sorted(known.values(), key=lambda entry: (-entry.at_s, entry.key))
    kept = _chosen(latest, key=lambda entry: entry.key, user=lambda entry: entry.uid)
    fresh = tuple(entry for entry in kept if now_s - entry.at_s <= MINIMUM_S)
    return replace(
        state,
        sources=tuple(sorted(fresh, key=lambda entry: entry.key)),
        sender_delays=_sender_delays(state, reported, measured, now_s=now_s),
    )


def _chosen(
    entries: Sequence[Entry], *, key: Callable[[Entry], str], user: Callable[[Entry], int | None]
) -> list[Entry]:  # fmt: skip
    """The entries that are followed: the measured ones first, then the same number of each user's, in their order."""
    measured = [entry for entry in entries if not key(entry).startswith(REPORTED)]
    reported = in_turns([entry for entry in entries if key(entry).startswith(REPORTED)], of=user)
    return [*measured, *reported][:SOURCES_MAX]


def verdict(state: InboundSignalState, *, threshold_s: float, now_s: float) -> Verdict:
    """Combine the senders' evidence."""
    reported, measured = _Votes(), _Votes()
    for sender_delay in state.sender_delays:
        sees = _sees(sender_delay.measured, threshold_s=threshold_s, now_s=now_s)
        votes, series = (reported, sender_delay.reported) if sees is None else (measured, sender_delay.measured)
        if sees is None:
            sees = _sees(sender_delay.reported, threshold_s=threshold_s, now_s=now_s)
        if sees:
            votes.high.append(series)
        elif sees is not None:
            votes.low += 1
            votes.late += series[-1][1] > threshold_s
    enough = len(measured.high) >= SENDERS_MIN
    high = measured.high if enough else [*measured.high, *reported.high]
    low = measured.low + (0 if enough else reported.low)
    nobody = not measured.high and not reported.high and reported.low > 0 and not reported.late
    clear = not enough and not measured.late if measured.low else nobody
    sure = measured.low - measured.late >= SENDERS_MIN
    doubtful = any(
        _is_doubtful(series, threshold_s=threshold_s, now_s=now_s)
        for sender_delay in state.sender_delays
        for series in ((sender_delay.measured,) if sure else sender_delay.both)
    )
    excess_s = sorted(next(wait_s for _, wait_s in reversed(series) if wait_s > threshold_s) for series in high)
    return Verdict(
        queue=len(high) >= SENDERS_MIN and len(measured.high) > 0 and not low,
        clear=clear,
        disputed=len(measured.high) > 0 or (len(reported.high) > 0 and not sure) or doubtful,
        excess_s=excess_s[len(high) // 2] if high else 0.0,
        since_s=max((_since_s(series, threshold_s=threshold_s) for series in high), default=0.0),
        until_s=min((series[-1][0] for series in high), default=now_s),
        seen_by=len(high),
        reporting=sum(_reports(sender_delay, now_s=now_s) for sender_delay in state.sender_delays),
    )


@dataclass
class _Votes:
    """The series of senders that see a queue, how many see none, and for how many of these the last sample was late."""

    high: list[Series] = field(default_factory=list)
    low: int = 0
    late: int = 0


def _reports(sender_delay: SenderDelayState, *, now_s: float) -> bool:
    return any(series and series[-1][0] > now_s - SLOW_S for series in sender_delay.both)


def _is_doubtful(series: Series, *, threshold_s: float, now_s: float) -> bool:
    """Whether half of the last samples are late, so that the series is unsure."""
    fresh = [seconds for at_s, seconds in series[-OF:] if at_s > now_s - VOTE_S]
    return len(fresh) > 1 and 2 * sum(seconds > threshold_s for seconds in fresh) >= len(fresh)


def _sees(series: Series, *, threshold_s: float, now_s: float) -> bool | None:
    """Whether a series shows a queue; None where it is silent or unsure."""
    fresh, needed = voting(series, now_s=now_s)
    if len(fresh) < 2:
        return None
    over = sum(seconds > threshold_s for _, seconds in fresh)
    if over >= min(needed, len(fresh)) and fresh[-1][1] > threshold_s:
        return True
    return False if 2 * (len(fresh) - over) >= len(fresh) else None


def _since_s(series: Series, *, threshold_s: float) -> float:
    """The time since which every sample of a sender that sees a queue has shown it."""
    since_s = series[-1][0]
    for at_s, seconds in reversed(series):
        if seconds <= threshold_s:
            break
        since_s = at_s
    return since_s


def rebase(state: InboundSignalState) -> InboundSignalState:
    """Drop all baselines, so that the present delay becomes the path's own."""
    return replace(state, sources=(), sender_delays=())


def _with(
    before: SourceState | None, key: str, uid: int | None, *, at_s: float, value_s: float
) -> SourceState:  # fmt: skip
    least = with_sample(before.least_s if before is not None else (), value_s, at_s=at_s)
    return SourceState(key, at_s, value_s, least, uid)


def _sender_delays(
    state: InboundSignalState,
    reported: dict[str, tuple[float, float]],
    measured: dict[str, tuple[float, float]],
    *,
    now_s: float,
) -> tuple[SenderDelayState, ...]:
    sender_delays = {sender_delay.sender: sender_delay for sender_delay in state.sender_delays}
    for sender in {*reported, *measured}:
        before = sender_delays.get(sender, SenderDelayState(sender))
        sender_delays[sender] = SenderDelayState(
            sender, _longer(before.reported, reported.get(sender)), _longer(before.measured, measured.get(sender))
        )
    fresh = (
        replace(
            sender_delay,
            reported=_lately(sender_delay.reported, now_s=now_s),
            measured=_lately(sender_delay.measured, now_s=now_s),
        )
        for sender_delay in sender_delays.values()
    )
    return tuple(
        sorted(
            (sender_delay for sender_delay in fresh if sender_delay.reported or sender_delay.measured),
            key=lambda sender_delay: sender_delay.sender,
        )
    )


def _longer(series: Series, sample: tuple[float, float] | None) -> Series:
    return series if sample is None else (*series[1 - REMEMBERED :], sample)


def _lately(series: Series, *, now_s: float) -> Series:
    """The series if it is still being measured, else an empty one."""
    return series if series and series[-1][0] > now_s - SLOW_S else ()

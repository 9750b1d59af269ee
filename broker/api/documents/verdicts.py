"""Whose promise is kept, who lends to whom, and what limits each class and job. Pure.

promise   the average over the guarantee's window beside the guarantee. Only a class that had more to send all the
          time can be owed it; what storage lends is counted by the decision itself (broker.law.sharing.guarantee).
lends     storage alone lends its guarantee. What it lends now is what its rate lacks of it while the link is full,
          and those borrow who send more than they are promised.
limit     the first that holds of: hold, burst, ceiling, class, link. Where nothing waits in this host, the link is not
          what limits: then it is the processor, the program itself, or the peer and the path to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from broker.api.documents.window_average import Average
from broker.law.sharing.demand import BACKLOG_BYTES_MIN, SENDING_BITS_PER_S
from broker.law.sharing.guarantee import AT_RISK
from broker.law.sharing.promises import LENDER
from broker.model.reasons import Reason
from broker.model.values import ClassAllocation, DestinationAllocation, FlowSample, InterfaceAllocation, JobAllocation
from hive_qos.units import format_rate, format_size

FULL = 0.9
"""A class at this part of its limit, or a link at this part of its capacity, is there: rates are averages of 0.5 s."""
KEPT = 0.98
"""The average is exact to a twelfth of the window, and a packet more or less."""
BUSY = 0.95
"""Of all processors: what is left is what one thread of many waits for."""
HOLD_OVER = "hold-over"
MATTERS = 0.05
"""Part of a link from which on a class is named among those that use it up."""
BURST_CODES = ("yields-to-burst", "expects-burst")
CEILING_CODES = ("held-by-ceiling", "held-by-schedule")
SATISFIED_CODES = ("idle", "gets-what-it-wants")


class LinkFigures(Struct, frozen=True):
    """One outbound link's figures for the verdicts, averages by class and by held address.

    Fields: `averages` of classes over their `windows_s`; `lender_now` and `destinations` what storage sends now, in all
    and to each held address; `towards` what went there over the lender's window; `peers` whose broker asked for it;
    `inbound` the same link's other way, where it is looked after, and what is `arriving` there now.
    """

    entry: InterfaceAllocation
    averages: Mapping[str, Average] = field(default_factory=dict)
    lender_now: Average | None = None
    windows_s: Mapping[str, float] = field(default_factory=dict)
    destinations: Mapping[str, Average] = field(default_factory=dict)
    towards: Mapping[str, Average] = field(default_factory=dict)
    peers: Mapping[str, str] = field(default_factory=dict)
    inbound: InterfaceAllocation | None = None
    arriving: Average | None = None

    @property
    def full(self) -> bool:
        """Whether the classes use the link up."""
        used = sum(one.throughput_bits_per_s or 0 for one in self.entry.classes)
        return used >= FULL * self.entry.capacity_bits_per_s

    @property
    def holds(self) -> tuple[DestinationAllocation, ...]:
        """Where others hold storage back now."""
        return tuple(one for one in self.entry.destinations if one.reason.code != HOLD_OVER)

    def waits(self, one: ClassAllocation) -> bool:
        """Whether a class has more to send than our own link lets it."""
        return (one.backlog_bytes or 0) - one.held_back_bytes >= BACKLOG_BYTES_MIN


def idle(one: ClassAllocation | JobAllocation) -> bool:
    """Whether a class or job neither sends nor has anything waiting; False where that was not measured."""
    if one.throughput_bits_per_s is None:
        return False
    return one.throughput_bits_per_s < SENDING_BITS_PER_S and (one.backlog_bytes or 0) < BACKLOG_BYTES_MIN


def usable_bits_per_s(link: LinkFigures, one: ClassAllocation) -> int:
    """What a class may send now: of one that sends to held addresses alone, what may go there."""
    if one.name != LENDER or not link.holds or link.waits(one) or idle(one):
        return one.ceil_bits_per_s
    held = sum(known.bits_per_s for known in link.destinations.values())
    if link.lender_now is not None and link.lender_now.bits_per_s - held >= max(SENDING_BITS_PER_S, (1 - FULL) * held):
        return one.ceil_bits_per_s
    return min(one.ceil_bits_per_s, sum(hold.ceil_bits_per_s for hold in _busy(link)))


def held_text(link: LinkFigures, one: ClassAllocation) -> str:
    """Towards whom a class is held back now, and to what; nothing where it is not."""
    if one.name != LENDER or idle(one):
        return ""
    return "; ".join(_hold(link, hold) for hold in _busy(link))


def _busy(link: LinkFigures) -> Sequence[DestinationAllocation]:
    """The holds that matter: where something goes now, else all."""
    sends = {address for address, known in link.destinations.items() if known.bits_per_s >= SENDING_BITS_PER_S}
    return [hold for hold in link.holds if hold.address in sends] or link.holds


def _hold(link: LinkFigures, hold: DestinationAllocation) -> str:
    """To what, towards whom, why; and whether storage's promise is kept there, which is one of the smaller link."""
    text = f"held to {format_rate(hold.ceil_bits_per_s)} towards {hold.address}"
    if hold.reason.code == "held-for-peer":
        text += f", as {link.peers.get(hold.address, 'its broker')} asks"
    else:
        text += f": {hold.reason.text}"
    average, promised = link.towards.get(hold.address), hold.guarantee_bits_per_s
    if average is not None and promised:
        got, over_s = format_rate(average.bits_per_s), _over_s(average, link.windows_s[LENDER])
        text += f"; {got} went there on average over {over_s:.0f} s, {format_rate(promised)} are promised"
    return text


def _over_s(average: Average, window_s: float) -> float:
    """As it is said: an average of a window is exact to one part of it."""
    return min(average.over_s, window_s)


def promise(link: LinkFigures, one: ClassAllocation) -> Reason:
    """Whether a class gets its guarantee, as an average over its window."""
    average, window_s = link.averages.get(one.name), link.windows_s[one.name]
    if average is None or not one.guarantee_bits_per_s:
        return Reason("not-measured", "")
    got, due = format_rate(average.bits_per_s), format_rate(one.guarantee_bits_per_s)
    over_s = _over_s(average, window_s)
    if average.bits_per_s >= KEPT * one.guarantee_bits_per_s:
        return Reason("kept", f"promise kept: {got} on average over {over_s:.0f} s")
    if average.over_s >= window_s and average.waiting_s >= window_s:
        text = f"promise missed: {got} of {due} on average over {over_s:.0f} s, with more to send all the time"
        return Reason("missed", text)
    if 8 * one.owed_bytes > AT_RISK * one.guarantee_bits_per_s * window_s:
        owed = format_size(one.owed_bytes)
        return Reason("owed", f"{owed} behind its promise over {window_s:g} s; its rate is raised until it caught up")
    return Reason("not-claimed", f"sent less than promised over {over_s:.0f} s, for want of more to send")


def lends_bits_per_s(link: LinkFigures) -> Mapping[str, int]:
    """What storage lends now, by who borrows it."""
    lender = next((one for one in link.entry.classes if one.name == LENDER), None)
    if lender is None or not link.waits(lender) or not link.full:
        return {}
    lent = lender.guarantee_bits_per_s - (lender.throughput_bits_per_s or 0)
    beyond = {one.name: _beyond(one) for one in link.entry.classes if one is not lender and _beyond(one) > 0}
    if lent <= 0 or not beyond:
        return {}
    part = min(1.0, lent / sum(beyond.values()))
    return {name: int(part * bits) for name, bits in beyond.items()}


def _beyond(one: ClassAllocation) -> int:
    return (one.throughput_bits_per_s or 0) - one.guarantee_bits_per_s


def lending_text(name: str, lends: Mapping[str, int]) -> str:
    """What a class lends or borrows, in words; nothing where it does neither."""
    if name == LENDER and lends:
        return "lends " + " and ".join(f"{format_rate(bits)} to {other}" for other, bits in lends.items())
    if name in lends:
        return f"borrows {format_rate(lends[name])} from {LENDER}"
    return ""


def class_limit(link: LinkFigures, one: ClassAllocation) -> Reason:
    """What keeps a class from sending more now."""
    if idle(one):
        return Reason("idle", "")
    if not link.waits(one):
        usable = usable_bits_per_s(link, one)
        if usable < one.ceil_bits_per_s and (one.throughput_bits_per_s or 0) >= FULL * usable:
            return Reason("hold", held_text(link, one))
        if one.held_back_bytes >= BACKLOG_BYTES_MIN:
            return Reason("hold", held_text(link, one))
        return Reason("itself", "nothing waits")
    if one.reason.code in BURST_CODES:
        return Reason("burst", one.reason.text)
    at_limit = (one.throughput_bits_per_s or 0) >= FULL * one.ceil_bits_per_s
    if one.reason.code in CEILING_CODES or (at_limit and one.ceil_bits_per_s < link.entry.capacity_bits_per_s):
        return Reason("ceiling", one.reason.text)
    if link.full:
        return Reason("link", f"it is full, {_others(link, one)}")
    return Reason("link", "waits for its turn")


def _others(link: LinkFigures, own: ClassAllocation) -> str:
    others = sorted(
        (one for one in link.entry.classes if one is not own and _matters(link, one)),
        key=lambda one: -(one.throughput_bits_per_s or 0),
    )
    if not others:
        return f"{own.name} alone uses it"
    return " and ".join(f"{one.name} sends {format_rate(one.throughput_bits_per_s or 0)}" for one in others)


def _matters(link: LinkFigures, one: ClassAllocation) -> bool:
    return (one.throughput_bits_per_s or 0) >= MATTERS * link.entry.capacity_bits_per_s


def job_limit(
    link: LinkFigures,
    job: JobAllocation,
    of: ClassAllocation,
    *,
    flows: Sequence[FlowSample],
    processors_used: float | None,
) -> Reason:
    """Why a job sends no more than it does: one of idle, hold, burst, ceiling, class, link, processor, itself, peer.

    Args:
        link: through which it sends.
        job: what it gets there of its class.
        of: its class.
        flows: its connections there.
        processors_used: part of all processors in use, by everybody.
    """
    sends = job.throughput_bits_per_s or 0
    queued = (job.backlog_bytes or 0) >= BACKLOG_BYTES_MIN
    at_share = job.reason.code not in SATISFIED_CODES and sends >= FULL * job.share_bits_per_s
    held = {hold.address: hold for hold in link.holds} if of.name == LENDER else {}
    towards = next((held[flow.peer] for flow in flows if flow.peer in held), None)
    if towards is not None and of.held_back_bytes >= BACKLOG_BYTES_MIN:
        return Reason("hold", _hold(link, towards))
    if job.reason.code in CEILING_CODES and (queued or sends >= FULL * job.share_bits_per_s):
        return Reason("ceiling", job.reason.text)
    if queued or at_share:
        return _crowded(link, job, of)
    if sends < SENDING_BITS_PER_S and not flows:
        return Reason("idle", "")
    inbound, arriving = link.inbound, link.arriving
    if inbound is not None and arriving is not None and arriving.bits_per_s >= FULL * inbound.capacity_bits_per_s:
        return Reason("link", _inbound_text(inbound, arriving))
    if processors_used is not None and processors_used >= BUSY:
        return Reason("processor", f"nothing waits here, all processors are busy ({100 * processors_used:.0f} %)")
    waiting = [flow for flow in flows if not flow.application_limited and flow.rtt_s is not None]
    if sends < SENDING_BITS_PER_S or not waiting:
        return (
            Reason("itself", "nothing waits here, its programs have no more to send") if sends else Reason("idle", "")
        )
    return Reason("peer", _peer_text(max(waiting, key=lambda flow: (flow.rtt_s or 0.0) - (flow.rtt_s_min or 0.0))))


def _crowded(link: LinkFigures, job: JobAllocation, of: ClassAllocation) -> Reason:
    """It has more to send than it gets here: of its class' rate, or because its class gets no more."""
    others = [
        one for one in link.entry.jobs if one is not job and one.traffic_class == job.traffic_class and not idle(one)
    ]
    if others and job.share_bits_per_s < FULL * (of.throughput_bits_per_s or 0):
        return Reason("class", f"{job.reason.text}; {len(others)} other jobs send in {of.name}")
    limit = class_limit(link, of)
    return limit if limit.code in ("hold", "burst", "ceiling") else Reason("link", f"it is full, {_others(link, of)}")


def _inbound_text(inbound: InterfaceAllocation, arriving: Average) -> str:
    comes, carries = format_rate(arriving.bits_per_s), format_rate(inbound.capacity_bits_per_s)
    brings = next((one.throughput_bits_per_s for one in inbound.classes if one.name == LENDER), None)
    text = f"nothing waits here, the link is full inbound: {comes} of {carries}"
    return f"{text}, {format_rate(brings)} of it {LENDER}" if brings else text


def _peer_text(flow: FlowSample) -> str:
    rtt = f"round trip {1000 * (flow.rtt_s or 0.0):.0f} ms"
    least = "" if flow.rtt_s_min is None else f", {1000 * flow.rtt_s_min:.0f} ms at best"
    return f"nothing waits here, {flow.peer} or the path to it takes no more ({rtt}{least})"

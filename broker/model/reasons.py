"""Why a figure is what it is: one frozen type a reason, each of which can say itself in a sentence.

A reason becomes `Reason(code, text)` at the edge of the decision. Codes are stable (scripts and tests look at them);
texts are for people and may get better. Every code stands in `docs/log/law.md`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from msgspec import Struct

from hive_qos.units import format_rate, format_size


class Reason(Struct, frozen=True):
    """A reason as it is shown and recorded: a stable code and a sentence."""

    code: str
    text: str


class Reasoned(Protocol):
    """What every reason type offers."""

    code: ClassVar[str]

    def text(self) -> str:
        """Say the reason in one sentence."""
        ...


def state(reason: Reasoned) -> Reason:
    """Turn a typed reason into what is shown and recorded."""
    return Reason(code=reason.code, text=reason.text())


class LinkIsFree(Struct, frozen=True):
    """The class may use everything up to its ceiling; others want less than they are promised."""

    code: ClassVar[str] = "link-is-free"
    ceiling_bits_per_s: int

    def text(self) -> str:
        return f"may use all that others leave, up to {format_rate(self.ceiling_bits_per_s)}"


class Idle(Struct, frozen=True):
    """The class sends nothing; its floor is kept for it."""

    code: ClassVar[str] = "idle"
    floor_bits_per_s: int

    def text(self) -> str:
        return f"sends nothing; {format_rate(self.floor_bits_per_s)} stay reserved for it"


class YieldsToBurst(Struct, frozen=True):
    """Storage is held back because training announced a burst that needs the link."""

    code: ClassVar[str] = "yields-to-burst"
    job: str
    step: int
    burst_bytes: int
    remaining_s: float

    def text(self) -> str:
        return (
            f"makes room for step {self.step} of job {self.job}: {format_size(self.burst_bytes)} announced, "
            f"at most {self.remaining_s:.2g} s more"
        )


class ExpectsBurst(Struct, frozen=True):
    """Storage moves away before a burst that its job has foretold, so that its queues are empty when it begins."""

    code: ClassVar[str] = "expects-burst"
    job: str
    in_s: float
    burst_bytes: int
    error_s: float

    def text(self) -> str:
        when = f"due in {1000 * self.in_s:.0f} ms" if self.in_s >= 0 else f"late by {-1000 * self.in_s:.0f} ms"
        return (
            f"makes room for the next burst of job {self.job}, {when}: up to {format_size(self.burst_bytes)}; "
            f"its last forecast was wrong by {1000 * abs(self.error_s):.0f} ms"
        )


class ReplicasAtRisk(Struct, frozen=True):
    """Storage lends nothing while data has too few copies: its rate is its guarantee, for a bounded time."""

    code: ClassVar[str] = "replicas-at-risk"
    replicas: int
    guarantee_bits_per_s: int
    left_s: float

    def text(self) -> str:
        return (
            f"{self.replicas} objects have too few copies: {format_rate(self.guarantee_bits_per_s)} are kept for it "
            f"also in training's bursts, for {self.left_s:.0f} s more at most"
        )


class CreditOfMeasured(Struct, frozen=True):
    """An announcement is believed up to twice the largest of the job's last bursts."""

    code: ClassVar[str] = "credit-of-measured"
    most_bytes: int

    def text(self) -> str:
        return f"believed up to {format_size(self.most_bytes)}, twice the largest of its last bursts"


class CreditOfFirst(Struct, frozen=True):
    """A job without measured bursts is believed up to what the link carries in two seconds."""

    code: ClassVar[str] = "credit-of-first"
    most_bytes: int

    def text(self) -> str:
        return f"its first burst: believed up to {format_size(self.most_bytes)}, what the link carries in 2 s"


class CreditLost(Struct, frozen=True):
    """The job announced bursts that it did not send, so it holds nobody back for a time."""

    code: ClassVar[str] = "credit-lost"
    left_s: float

    def text(self) -> str:
        return (
            f"announced bursts that it did not send; holds nobody back for {self.left_s:.0f} s, or until it sends them"
        )


class NameUnknown(Struct, frozen=True):
    """The user began too many jobs of new names, or one of his has lost its credit; this one has to be known first."""

    code: ClassVar[str] = "name-unknown"
    uid: int

    def text(self) -> str:
        return f"user {self.uid} has used up what new names of jobs are believed; this one is believed once it has sent"


class GuaranteeRepaid(Struct, frozen=True):
    """The class got less than its guarantee over its window, so its rate is raised until it has caught up."""

    code: ClassVar[str] = "guarantee-repaid"
    received_bits_per_s: int
    guarantee_bits_per_s: int
    window_s: float

    def text(self) -> str:
        return (
            f"got {format_rate(self.received_bits_per_s)} of its guaranteed {format_rate(self.guarantee_bits_per_s)} "
            f"over {self.window_s:g} s; its rate is raised until that is made good"
        )


class SharesWhatIsLeft(Struct, frozen=True):
    """Demand exceeds capacity; the class has its part by weight above the promises."""

    code: ClassVar[str] = "shares-what-is-left"
    share_bits_per_s: int
    capacity_bits_per_s: int

    def text(self) -> str:
        return (
            f"has more to send than is free; its share is {format_rate(self.share_bits_per_s)} of "
            f"{format_rate(self.capacity_bits_per_s)}"
        )


class HeldByCeiling(Struct, frozen=True):
    """The class wants more than the operator's ceiling allows."""

    code: ClassVar[str] = "held-by-ceiling"
    ceiling_bits_per_s: int

    def text(self) -> str:
        return f"has more to send; its ceiling is {format_rate(self.ceiling_bits_per_s)}"


class LinkRate(Struct, frozen=True):
    """The capacity is what the operator or the driver says, less the headroom; nothing measured speaks against it, or
    nothing is measured (`told`)."""

    code: ClassVar[str] = "link-rate"
    rate_bits_per_s: int
    source: str
    reported: bool = True

    def text(self) -> str:
        where = {"configured": "the configured rate", "link": "the link's own speed"}.get(self.source, "a guess")
        seen = "no queue seen elsewhere" if self.reported else "queues elsewhere are not measured now"
        return f"{format_rate(self.rate_bits_per_s)}: {where}, less headroom; {seen}"


class CappedByDelay(Struct, frozen=True):
    """Packets waited in a queue that is not ours while we sent: the bottleneck is elsewhere, and this is what it
    carries."""

    code: ClassVar[str] = "capped-by-delay"
    rate_bits_per_s: int
    excess_s: float
    baseline_s: float

    def text(self) -> str:
        return (
            f"{format_rate(self.rate_bits_per_s)} measured: {1000 * self.excess_s:.0f} ms of queue elsewhere "
            f"over a round trip of {1000 * self.baseline_s:.0f} ms"
        )


class OneDestination(Struct, frozen=True):
    """One destination alone says that less is carried: training and storage keep to it, people need not."""

    code: ClassVar[str] = "one-destination"
    rate_bits_per_s: int
    base_bits_per_s: int

    def text(self) -> str:
        rate, base = format_rate(self.rate_bits_per_s), format_rate(self.base_bits_per_s)
        return (
            f"{rate} for training and storage: one destination alone tells of a bottleneck elsewhere, which may be its "
            f"own; class other has what they leave of {base}"
        )


class CappedByLoss(Struct, frozen=True):
    """Packets were lost on the way, not in our queues."""

    code: ClassVar[str] = "capped-by-loss"
    rate_bits_per_s: int
    lost_fraction: float

    def text(self) -> str:
        return f"{format_rate(self.rate_bits_per_s)} measured: {100 * self.lost_fraction:.1f} % were lost on the way"


class Probing(Struct, frozen=True):
    """The capacity was found lower and is tried upward, step by step, while no queue appears elsewhere."""

    code: ClassVar[str] = "probing"
    rate_bits_per_s: int
    base_bits_per_s: int

    def text(self) -> str:
        rate, base = format_rate(self.rate_bits_per_s), format_rate(self.base_bits_per_s)
        return f"{rate}: trying more while no queue appears elsewhere, up to {base}"


class Draining(Struct, frozen=True):
    """A queue elsewhere is being emptied: for a moment half of what the bottleneck carries."""

    code: ClassVar[str] = "draining"
    rate_bits_per_s: int
    excess_s: float

    def text(self) -> str:
        rate = format_rate(self.rate_bits_per_s)
        return f"{rate} for a moment, to empty {1000 * self.excess_s:.0f} ms of queue elsewhere"


class SignalsMissing(Struct, frozen=True):
    """Nothing tells how the path does; the last safe capacity stands."""

    code: ClassVar[str] = "signals-missing"
    rate_bits_per_s: int

    def text(self) -> str:
        return f"{format_rate(self.rate_bits_per_s)}: the last safe rate; no fresh measurement of the path"


class WayOutUnheard(Struct, frozen=True):
    """For a minute the shaper was the limit and nobody told how the path does; what was found is forgotten in steps."""

    code: ClassVar[str] = "way-out-unheard"
    rate_bits_per_s: int
    base_bits_per_s: int

    def text(self) -> str:
        rate, base = format_rate(self.rate_bits_per_s), format_rate(self.base_bits_per_s)
        return (
            f"{rate}: nobody has told for a minute how the path does, so that more is tried, step by step, up to {base}"
        )


class DelayNotOurs(Struct, frozen=True):
    """Delay stayed when our rate was cut several times, so it is not our doing; the rate was given back."""

    code: ClassVar[str] = "delay-not-ours"
    rate_bits_per_s: int

    def text(self) -> str:
        return f"{format_rate(self.rate_bits_per_s)}: delay does not follow our rate, so it is not taken for our queue"


class HeldBySchedule(Struct, frozen=True):
    """The class wants more, but its ceiling is a schedule's."""

    code: ClassVar[str] = "held-by-schedule"
    ceiling_bits_per_s: int
    schedule: str
    until: str | None

    def text(self) -> str:
        ceiling, end = format_rate(self.ceiling_bits_per_s), f"until {self.until}" if self.until else "always"
        return f"has more to send; its ceiling is {ceiling} by schedule {self.schedule}, {end}"


class HeldByPresence(Struct, frozen=True):
    """The class wants more, but somebody is on a call."""

    code: ClassVar[str] = "held-by-presence"
    ceiling_bits_per_s: int

    def text(self) -> str:
        return f"has more to send; its ceiling is {format_rate(self.ceiling_bits_per_s)} while somebody is on a call"


class OnACall(Struct, frozen=True):
    """The people's class has sent a steady stream of packets of a call's size."""

    code: ClassVar[str] = "on-a-call"
    packets_per_s: int
    packet_bytes: int

    def text(self) -> str:
        return f"{self.packets_per_s} packets of {self.packet_bytes} bytes a second, steadily: taken for a call"


class CallNotOver(Struct, frozen=True):
    """There was a call a moment ago; it may be a pause."""

    code: ClassVar[str] = "call-not-over"
    for_s: float

    def text(self) -> str:
        return f"taken for a call until {self.for_s:.0f} s ago; that may be a pause"


class NoCall(Struct, frozen=True):
    """The people's class sends nothing that looks like a call."""

    code: ClassVar[str] = "no-call"

    def text(self) -> str:
        return "nothing that looks like a call"


class PresenceUnknown(Struct, frozen=True):
    """The people's class was not counted."""

    code: ClassVar[str] = "presence-unknown"

    def text(self) -> str:
        return "packets of the class are not counted"


class JobIdle(Struct, frozen=True):
    """The job, or the connection, sends nothing."""

    code: ClassVar[str] = "idle"

    def text(self) -> str:
        return "sends nothing"


class GetsWhatItWants(Struct, frozen=True):
    """The job, or the connection, wants less than its part."""

    code: ClassVar[str] = "gets-what-it-wants"
    share_bits_per_s: int

    def text(self) -> str:
        return f"sends all that it has, up to {format_rate(self.share_bits_per_s)}: less than its share"


class SharesItsClass(Struct, frozen=True):
    """The jobs of a class want more than it has; the job gets its part of its user's, by weight."""

    code: ClassVar[str] = "shares-its-class"
    share_bits_per_s: int
    offered_bits_per_s: int
    weight: float
    total_weight: float

    def text(self) -> str:
        share, offered = format_rate(self.share_bits_per_s), format_rate(self.offered_bits_per_s)
        return f"{share} of the {offered} of its class, by weight {self.weight:.3g} of {self.total_weight:.3g}"


class JobGuaranteed(Struct, frozen=True):
    """By weight the job would get less than it is promised."""

    code: ClassVar[str] = "job-guaranteed"
    share_bits_per_s: int
    guarantee_bits_per_s: int

    def text(self) -> str:
        share, promised = format_rate(self.share_bits_per_s), format_rate(self.guarantee_bits_per_s)
        return f"{share}: it is promised {promised}, more than its weight would bring"


class SharesItsJob(Struct, frozen=True):
    """The connections of a job want more than it has; each gets the same."""

    code: ClassVar[str] = "shares-its-job"
    share_bits_per_s: int
    flows: int

    def text(self) -> str:
        return f"{format_rate(self.share_bits_per_s)}: its job's share, divided among {self.flows} that send"

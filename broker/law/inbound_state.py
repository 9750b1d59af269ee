"""The state of one interface's inbound direction, and of the leases that other brokers hold of us."""

from __future__ import annotations

from msgspec import Struct

from broker.law.capacity.state import InboundCapacity


class Account(Struct, frozen=True):
    """A promise over a window: `owed_bits` promised minus given in each part of it, newest first; `owed_end_s` when the
    newest part closes; `repaying` whether more is given to catch up. The rules are those of
    `broker.law.sharing.guarantee`."""

    owed_bits: tuple[float, ...] = ()
    owed_end_s: float = 0.0
    repaying: bool = False


class SenderState(Struct, frozen=True):
    """One host that sends storage to us.

    Fields: `received_bytes` and `read_s` its counter and when that was true; `last_bits_per_s` on the wire between the
    last two readings, `rate_bits_per_s` the same smoothed, `most_bits_per_s` the most of it lately;
    `allowed_bits_per_s` what it was held to last, 0 where it was not; `modest_s` for how long it has used clearly less
    than that while it might have used it; `held_s` when it was last held; `refused_s` since when its broker has
    refused to hold it, None where it does not.
    """

    address: str
    seen_s: float
    received_bytes: int
    read_s: float
    last_bits_per_s: float = 0.0
    rate_bits_per_s: float = 0.0
    most_bits_per_s: float = 0.0
    allowed_bits_per_s: int = 0
    modest_s: float = 0.0
    refused_s: float | None = None
    held_s: float | None = None


class InboundBurstState(Struct, frozen=True):
    """One announced burst as it comes in: what had come before it, and the highest rate in it so far.

    Fields: `announced_bytes` the most that was announced for it and believed; `before_bits` all that had come beside
    storage; `received_bits` what has come of it; `used_s` when it last came at a rate worth a hold; `over` whether all
    that usually comes has come.
    """

    job: str
    step: int
    started_s: float
    announced_bytes: int
    before_bits: float
    used_s: float
    received_bits: float = 0.0
    peak_bits_per_s: float = 0.0
    over: bool = False
    uid: int = 0


class InboundJobState(Struct, frozen=True):
    """What the last bursts of a user's job brought, newest first.

    Fields: `ratios` received bits an announced bit; `peaks_bits_per_s` the highest rate in each that brought something.
    """

    job: str
    seen_s: float
    ratios: tuple[float, ...] = ()
    peaks_bits_per_s: tuple[float, ...] = ()
    uid: int = 0


class ObservedState(Struct, frozen=True):
    """What training sends from here, where it announces nothing (`broker.law.bursts.detector`).

    Fields: `since_s` and `counted_s` when the class counters before and the last were true, `ours_bytes` and
    `every_bytes` their values for training and for all classes; `sends_bits_per_s` what training sent since the reading
    before, `part` of all that left, 0 where that was not most of it; `training_s` when it last sent so much that it
    counts; `number` of the last burst, `began_s` when it began, None where none is under way; `sent_s` when it last
    sent.
    """

    counted_s: float | None = None
    ours_bytes: int = 0
    every_bytes: int = 0
    sends_bits_per_s: float = 0.0
    part: float = 0.0
    training_s: float | None = None
    number: int = 0
    began_s: float | None = None
    sent_s: float = 0.0
    since_s: float | None = None


class IfbDelayState(Struct, frozen=True):
    """One class' queue in our IFB (`broker.law.holds.ifb_delay`).

    Fields: `read_s` and `sent_bytes` the reading from which the next rate is taken, `rate_bits_per_s` the last one;
    `waits` (when, seconds) lately, oldest first.
    """

    traffic_class: str
    read_s: float
    sent_bytes: int
    rate_bits_per_s: float = 0.0
    waits: tuple[tuple[float, float], ...] = ()


class IngressState(Struct, frozen=True):
    """The inbound direction of one interface.

    Fields: `received_bytes` the counter, `received_bits` all that has come since the state began (a counter that goes
    back counts as nothing), `storage_bits` the part of storage in it; `window_s` and `window_bits` from where the rate
    beside storage is measured; `others_bits_per_s` what comes beside storage and bursts, `training_bits_per_s` what
    comes in a burst, None before it was measured; `training_s` when a burst was last announced or seen, `announced_s`
    when one that was announced and is believed last explained what training sends; `brokerless_s` when storage last
    came from a host where no broker holds it back; `allowance_bits_per_s` what storage may send towards us, 0 while
    nothing is held; `observed` bursts that were not announced; `capacity` what this direction carries
    (`broker.law.capacity.inbound`); `ifb` what waits in an IFB of ours.
    """

    name: str
    at_s: float | None = None
    received_bytes: int | None = None
    received_bits: float = 0.0
    storage_bits: float = 0.0
    window_s: float | None = None
    window_bits: float = 0.0
    others_bits_per_s: float = 0.0
    training_bits_per_s: float | None = None
    training_s: float | None = None
    brokerless_s: float | None = None
    allowance_bits_per_s: int = 0
    account: Account = Account()
    senders: tuple[SenderState, ...] = ()
    bursts: tuple[InboundBurstState, ...] = ()
    jobs: tuple[InboundJobState, ...] = ()
    announced_s: float | None = None
    observed: ObservedState = ObservedState()
    capacity: InboundCapacity | None = None
    ifb: tuple[IfbDelayState, ...] = ()


class HeldState(Struct, frozen=True):
    """One destination towards which another broker holds our storage back, and what storage is owed there.

    Fields: `seen_s` when a lease was last in force; `counter_s` and `sent_bytes` when the destination's counter was
    read last, and its value; `sent_bits_per_s_max` the highest rate to it, which decays slowly while no lease is in
    force; `rate_bits_per_s` what is in force; `leaf_waits` (when, seconds) for how long packets waited in our own
    leaf lately, oldest first; `full_s` since when our connections have found the link there full.
    """

    address: str
    seen_s: float
    counter_s: float | None = None
    sent_bytes: int = 0
    sent_bits_per_s_max: float = 0.0
    account: Account = Account()
    rate_bits_per_s: int = 0
    leaf_waits: tuple[tuple[float, float], ...] = ()
    full_s: float | None = None

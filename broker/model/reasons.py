"""Define the reasons of figures: a stable code and a sentence with figures, from one table of templates.

Codes are stable: scripts and tests read them. Sentences are for people and may change. The reference of the HTTP
socket lists the table.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from hive_qos.units import format_rate, format_size

RATE_SOURCES: Final = {"configured": "the configured rate", "link": "the link's own speed"}
"""How a reason names the source of a rate; anything else is a guess."""


class Reason(Struct, frozen=True):
    """A reason as it is shown and recorded: a stable code and a sentence."""

    code: str
    text: str


def _writer(name: str, spec: str) -> Callable[[Any], str]:
    """Choose how a value is written, by its format and by the unit that ends its name."""
    if spec == "ms":
        return lambda seconds: f"{1000 * abs(seconds):.0f} ms"
    if spec == "percent":
        return lambda fraction: f"{100 * fraction:.1f} %"
    if spec:
        return f"{{:{spec}}}".format
    if name.endswith("bits_per_s"):
        return format_rate
    return format_size if name.endswith("bytes") else str


class Because(Enum):
    """The table: each member has a code, what the code means, and the template of its sentence.

    A call gives the reason: `Because.IDLE(floor_bits_per_s=2_000_000)`. A value whose name ends with `bits_per_s` or
    `bytes` is shown in its unit; a format of its own comes first, `ms` and `percent` among them.
    """

    # --- classes of an interface ----------------------------------------------------------------------------------
    LINK_IS_FREE = (
        "link-is-free",
        "The class may use everything up to its ceiling; others want less than they are promised.",
        "may use all that others leave, up to {ceiling_bits_per_s}",
    )
    IDLE = (
        "idle",
        "The class sends nothing; its floor is kept for it.",
        "sends nothing; {floor_bits_per_s} stay reserved for it",
    )
    YIELDS_TO_BURST = (
        "yields-to-burst",
        "Storage is held back because training announced a burst that needs the link.",
        "makes room for step {step} of job {job}: {burst_bytes} announced, at most {remaining_s:.2g} s more",
    )
    EXPECTS_BURST = (
        "expects-burst",
        "Storage is held back before a burst that its job forecast, so that queues are empty when it begins.",
        "makes room for the next burst of job {job}, {when}: up to {burst_bytes}",
    )
    REPLICAS_AT_RISK = (
        "replicas-at-risk",
        "Storage lends nothing while data has too few copies: its rate is its guarantee, for a bounded time.",
        "{replicas} objects have too few copies: {guarantee_bits_per_s} are kept for it also in training's bursts, "
        "for {left_s:.0f} s more at most",
    )
    GUARANTEE_REPAID = (
        "guarantee-repaid",
        "The class got less than its guarantee over its window, so its rate is raised until it has caught up.",
        "got {received_bits_per_s} of its guaranteed {guarantee_bits_per_s} over {window_s:g} s; its rate is raised "
        "until it has caught up",
    )
    SHARES_WHAT_IS_LEFT = (
        "shares-what-is-left",
        "Demand exceeds capacity; the class has its part by weight above the promises.",
        "has more to send than is free; its share is {share_bits_per_s} of {capacity_bits_per_s}",
    )
    HELD_BY_CEILING = (
        "held-by-ceiling",
        "The class wants more than the operator's ceiling allows.",
        "has more to send; its ceiling is {ceiling_bits_per_s}",
    )
    HELD_BY_SCHEDULE = (
        "held-by-schedule",
        "The class wants more, but its ceiling is a schedule's.",
        "has more to send; its ceiling is {ceiling_bits_per_s} by schedule {schedule}, {end}",
    )

    # --- credit of an announced burst -----------------------------------------------------------------------------
    CREDIT_OF_MEASURED = (
        "credit-of-measured",
        "An announcement is believed up to twice the largest of the job's last bursts.",
        "believed up to {most_bytes}, twice the largest of its last bursts",
    )
    CREDIT_OF_FIRST = (
        "credit-of-first",
        "A job without measured bursts is believed up to what the link carries in two seconds.",
        "its first burst: believed up to {most_bytes}, what the link carries in 2 s",
    )
    CREDIT_LOST = (
        "credit-lost",
        "The job announced bursts that it did not send, so it holds nobody back for a time.",
        "announced bursts that it did not send; holds nobody back for {left_s:.0f} s, or until it sends them",
    )
    NAME_UNKNOWN = (
        "name-unknown",
        "The user began too many jobs of new names, or one of his has lost its credit; this one has to be known first.",
        "user {uid} has used up what new names of jobs are believed; this one is believed once it has sent",
    )

    # --- capacity outbound ----------------------------------------------------------------------------------------
    LINK_RATE = (
        "link-rate",
        "The capacity is the operator's or the driver's rate, less the headroom; no measurement contradicts it.",
        "{rate_bits_per_s}: {source}, less headroom; {seen}",
    )
    CAPPED_BY_DELAY = (
        "capped-by-delay",
        "Packets waited in a queue that is not ours while we sent: the bottleneck is elsewhere.",
        "{rate_bits_per_s} measured: {excess_s:ms} of queue elsewhere over a round trip of {baseline_s:ms}",
    )
    ONE_DESTINATION = (
        "one-destination",
        "Only one destination shows a lower rate: it limits training and storage, but not people.",
        "{rate_bits_per_s} for training and storage: one destination alone shows a bottleneck elsewhere, which may be "
        "its own; class other has what they leave of {base_bits_per_s}",
    )
    CAPPED_BY_LOSS = (
        "capped-by-loss",
        "Packets were lost on the path, not in our queues.",
        "{rate_bits_per_s} measured: {lost_fraction:percent} were lost on the path",
    )
    PROBING = (
        "probing",
        "The capacity was found lower and is tried upward, step by step, while no queue appears elsewhere.",
        "{rate_bits_per_s}: trying more while no queue appears elsewhere, up to {base_bits_per_s}",
    )
    DRAINING = (
        "draining",
        "A queue elsewhere is being emptied: for a moment half of what the bottleneck carries.",
        "{rate_bits_per_s} for a moment, to empty {excess_s:ms} of queue elsewhere",
    )
    SIGNALS_MISSING = (
        "signals-missing",
        "Nothing measures the path; the last safe capacity is kept.",
        "{rate_bits_per_s}{limits}: the last safe rate; no fresh measurement of the path",
    )
    OUTBOUND_NOT_MEASURED = (
        "outbound-not-measured",
        "For a minute the shaper was the limit and nothing measured the path; the capacity is tried upward in steps.",
        "{rate_bits_per_s}{limits}: no measurement of the path for a minute, so more is tried, step by step, up to "
        "{base_bits_per_s}",
    )
    DELAY_NOT_OURS = (
        "delay-not-ours",
        "Delay persisted when our rate was cut several times, so we do not cause it; the rate was restored.",
        "{rate_bits_per_s}: delay does not follow our rate, so it is not taken for our queue",
    )

    # --- capacity inbound -----------------------------------------------------------------------------------------
    INGRESS_UNKNOWN = (
        "ingress-unknown",
        "Neither the operator nor the driver names the link's inbound rate, and no queue has shown it yet.",
        "the driver names no inbound speed, and none was measured; write `ingress` with a rate",
    )
    INBOUND_NOT_MEASURED = (
        "inbound-not-measured",
        "Fewer than two senders report how long their packets take to us, so what is configured counts.",
        "{rate_bits_per_s}: {source}, less headroom; not measured: {reporting} of the 2 senders needed report how long "
        "their packets take to us",
    )
    INBOUND_QUEUE = (
        "inbound-queue",
        "Packets of several senders waited in front of our link: the arrival rate meanwhile is its capacity.",
        "{rate_bits_per_s}, less headroom, came in while packets of {senders} senders waited {excess_s:ms} in front "
        "of our link",
    )
    INBOUND_DRAINING = (
        "inbound-draining",
        "Storage is held to half for a moment, so that a queue in front of our link goes away.",
        "half of {rate_bits_per_s}, until a queue of {excess_s:ms} in front of our link is empty",
    )
    INBOUND_PROBING = (
        "inbound-probing",
        "The link was found to carry less inbound; more is let in as long as no queue shows.",
        "{rate_bits_per_s}: more is let in, up to {base_bits_per_s}, as long as nobody sees a queue",
    )

    # --- storage that we ask senders to hold back -----------------------------------------------------------------
    NOTHING_TO_PROTECT = (
        "nothing-to-protect",
        "No training has been announced or seen lately, so nobody is asked to hold anything back.",
        "no training was announced or seen lately: nobody is asked to hold storage back",
    )
    LEAVES_ROOM = (
        "leaves-room",
        "Storage may send a little less than what the link towards us has left, so that no queue builds there.",
        "may send {rate_bits_per_s} towards us, what others leave of {capacity_bits_per_s}: so there is no queue "
        "when a burst begins",
    )
    BURST_COMES = (
        "burst-comes",
        "A burst of training comes in; storage keeps its floor, or what that training has never used.",
        "step {step} of job {job} comes in: storage sends us at most {rate_bits_per_s}",
    )
    BURST_SEEN = (
        "burst-seen",
        "Training comes in that announced nothing; storage keeps its guarantee, or what that training does not use.",
        "training that announces nothing comes in: storage sends us at most {rate_bits_per_s}",
    )
    INBOUND_GUARANTEE_REPAID = (
        "inbound-guarantee-repaid",
        "Storage got less than its inbound guarantee over its window, so it yields less.",
        "got less than its guarantee over {window_s:g} s inbound, so it may send {rate_bits_per_s} until it has "
        "caught up",
    )

    # --- storage that others ask us to hold back ------------------------------------------------------------------
    HELD_FOR_PEER = (
        "held-for-peer",
        "Another broker has asked us to hold storage back towards it, and we do.",
        "{peer} asked for at most {rate_bits_per_s} towards it",
    )
    HELD_AT_FLOOR = (
        "held-at-floor",
        "Another broker has asked for less than the floor; the floor holds at every moment.",
        "{peer} asked for at most {asked_bits_per_s} towards it; the floor of {floor_bits_per_s} holds",
    )
    HOLD_RAISED = (
        "hold-raised",
        "A hold would break storage's guarantee over its window: more is sent than was asked for.",
        "{peer} asked for at most {asked_bits_per_s}, but storage is owed {promise_bits_per_s} there over "
        "{window_s:g} s",
    )
    HOLD_RAISED_AT_RISK = (
        "hold-raised-at-risk",
        "Storage has objects with too few copies: it keeps its guarantee at every moment, whoever asks.",
        "{peer} asked for at most {asked_bits_per_s}, but {replicas} objects have too few copies, and storage keeps "
        "its guarantee of {promise_bits_per_s} there meanwhile",
    )
    HOLD_REFUSED = ("hold-refused", "A hold is not kept at all.", "{why}")
    HOLD_OVER = (
        "hold-over",
        "The lease has ended; its leaf is kept for a moment, so that its queued packets keep their order.",
        "no broker holds it back any more",
    )

    # --- jobs -----------------------------------------------------------------------------------------------------
    JOB_IDLE = ("idle", "The job sends nothing.", "sends nothing")
    GETS_WHAT_IT_WANTS = (
        "gets-what-it-wants",
        "The job wants less than its part.",
        "sends all that it has, up to {share_bits_per_s}: less than its share",
    )
    SHARES_ITS_CLASS = (
        "shares-its-class",
        "The jobs of a class want more than it has; the job gets its part of its user's, by weight.",
        "{share_bits_per_s} of the {offered_bits_per_s} of its class, by weight {weight:.3g} of {total_weight:.3g}",
    )
    JOB_GUARANTEED = (
        "job-guaranteed",
        "By weight the job would get less than it is promised.",
        "{share_bits_per_s}: it is promised {guarantee_bits_per_s}, more than its weight would bring",
    )

    # --- segments of a piece --------------------------------------------------------------------------------------
    GSO_PIECE_TIME = (
        "gso-piece-time",
        "So many segments pass in this time.",
        "{segments} segments in one piece take {piece_ms:.2g} ms at {rate_bits_per_s}",
    )
    GSO_FAST_ENOUGH = (
        "gso-fast-enough",
        "The largest piece that TCP builds passes in time.",
        "64 KiB in one piece take {piece_ms:.2g} ms at {rate_bits_per_s}; the device's own limit stands",
    )
    GSO_OFF = (
        "gso-off",
        "The policy sets it.",
        'gso_max_segs = "off" in the configuration; the device\'s own limit stands',
    )
    GSO_NOT_IN_FORCE = ("gso-not-in-force", "The kernel side left another limit than the chosen one.", "{note}")

    def __init__(self, code: str, meaning: str, sentence: str) -> None:
        self.code, self.meaning = code, meaning
        parts = [(text, name or "", spec or "") for text, name, spec, _ in string.Formatter().parse(sentence)]
        self.values = tuple(name for _, name, _ in parts if name)
        """What the sentence has to be called with."""
        self._format = "".join(text.replace("%", "%%") + ("%s" if name else "") for text, name, _ in parts)
        self._shown = tuple((name, _writer(name, spec)) for _, name, spec in parts if name)

    def __call__(self, **values: Any) -> Reason:
        """Give the reason with its figures, which are `values` by name."""
        return Reason(self.code, self._format % tuple([write(values[name]) for name, write in self._shown]))


def source_of(rate_source: str) -> str:
    """Name the source of a rate that is not measured."""
    return RATE_SOURCES.get(rate_source, "a guess")

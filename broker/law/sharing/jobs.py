"""Inside a class: what each job gets of it. The water-filling of `broker.law.sharing.water_filling`.

    rate    of the job's own leaf: the class' rate divided by user and weight, nobody below its guarantee. Every job
            counts as wanting all of it, so that the figure moves only when jobs come and go, begin or pause; what one
            does not use of its rate the kernel lends to the others.
    weight  divides what the leaves borrow from each other and from other classes (the kernel's turns): the part that
            the job has of its user's weight.
    share   what that comes to now, for people: what the class could send (`broker.law.sharing.available_rate`),
            divided by user, weight, guarantee, ceiling and demand.

Users come first: each has a part of the class, whatever number of jobs he names, and his jobs divide it by weight. He
counts as much as the heaviest of his jobs that want something. A guarantee is the operator's promise to the job: where
it is more than its user's part, he has that, and his other jobs what nobody else wants.

A job is its user's: another user's job of the same name is another one. An entry that names no user holds for both,
but promises its guarantee once: it is divided among the users whose jobs of that name want something, or among all of
them while none does.

A guarantee or a ceiling is a share of the interface's capacity, as those of classes are. Guarantees of jobs that do
not fit into their class' guarantee are scaled like those of classes, with an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from broker.law.bursts.announced import ActiveBurst
from broker.law.sharing import demand
from broker.law.sharing.available_rate import offered_bits_per_s
from broker.law.sharing.water_filling import Claim, allocate_by_user
from broker.law.state import ClassState, JobUseState
from broker.model.fair_share import in_turns
from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, ClassAllocation, ClassSample, InterfaceAllocation, JobAllocation, JobSample
from broker.policy.types import JobPolicy
from hive_qos.units import format_rate

JOBS_MAX = 32
"""Jobs of one interface that are told apart; a host runs a handful. Others share what is left in the default leaf."""
CLASSES = ("compute", "storage")
"""Whose sessions name jobs."""
LEAVES_PART, PROMISED_PART = 0.88, 0.98
"""Of the class' rate for the leaves of jobs, and the most of it where they are promised that much. The rest is for bulk
state and programs that name no job; what those do not use is lent back."""
IDLE_PART = 0.1
"""Of its weight is left to a job that wants nothing beside others of its user's that do: with less its leaf would begin
in debt, for HTB books a packet as time at the rate of the moment."""
NEW_S = demand.USAGE_SLOTS * demand.USAGE_SLOT_S
"""A job that has sent for less time than its use is remembered wants as much as it can get, for all that is known."""


class _Known(Struct, frozen=True):
    """A job next to its policy in bits per second of the present capacity."""

    sample: JobSample
    use: JobUseState
    policy: JobPolicy
    guarantee_bits_per_s: int
    ceiling_bits_per_s: int
    demand_bits_per_s: int
    sends: bool


def policy_of(jobs: Sequence[JobPolicy], name: str, uid: int | None) -> JobPolicy:
    """What the operator wants for a user's job: of the entries that are for him, the one of its very name, else the
    first pattern that fits, else nothing special."""
    his = [entry for entry in jobs if entry.uid is None or entry.uid == uid]
    exact = next((entry for entry in his if entry.name == name), None)
    return exact or next((entry for entry in his if fnmatchcase(name, entry.name)), JobPolicy(name))


def reported_jobs(samples: Iterable[JobSample]) -> list[JobSample]:
    """The jobs that are looked at, in order: of more than `JOBS_MAX` those that have a leaf come first, then of each
    user as many, those that send before others. We give leaves; that a job sends is what programs say, under as many
    names as they like."""
    named = [sample for sample in samples if sample.job and sample.traffic_class in CLASSES]
    named.sort(key=lambda one: (not one.sends, one.traffic_class, one.job, one.uid or 0))
    leaves = [one for one in named if one.leaf_sent_bytes is not None]
    others = in_turns([one for one in named if one.leaf_sent_bytes is None], of=lambda one: one.uid)
    return sorted([*leaves, *others][:JOBS_MAX], key=lambda one: (one.traffic_class, one.job, one.uid or 0))


def follow(
    uses: Sequence[JobUseState], samples: Sequence[JobSample], *, elapsed_s: float | None, now_s: float
) -> tuple[JobUseState, ...]:
    """Count what each job sent since the last tick.

    Args:
        uses: as of the last tick.
        samples: this tick's, as `reported_jobs` returned them.
        elapsed_s: time between the readings, None where nothing was read: then everything stands.
        now_s: the tick's time.
    """
    known = {(entry.traffic_class, entry.uid, entry.job): entry for entry in uses}
    followed = []
    for sample in samples:
        before = known.get((sample.traffic_class, *sample.key))
        followed.append(_counted(before, sample, elapsed_s=elapsed_s, now_s=now_s))
    return tuple(followed)


def divided(
    allocation: InterfaceAllocation, *, samples: Sequence[JobSample], uses: Sequence[JobUseState],
    policies: Sequence[JobPolicy], bursts: Sequence[ActiveBurst], now_s: float,
) -> tuple[InterfaceAllocation, tuple[Alarm, ...]]:  # fmt: skip
    """Add to an interface's allocation what each job of it gets.

    Args:
        allocation: with its classes.
        samples: this tick's jobs, as `reported_jobs` returned them.
        uses: as `follow` gave them for these.
        policies: of jobs, in the order of the file.
        bursts: those under way; a job wants what its bursts need.
        now_s: the tick's time.

    Returns:
        The allocation with jobs, and an alarm for each class whose jobs were promised too much.
    """
    if not samples:
        return allocation, ()
    by_key = {(entry.traffic_class, entry.uid, entry.job): entry for entry in uses}
    found: list[JobAllocation] = []
    alarms: list[Alarm] = []
    for entry in allocation.classes:
        mine = [one for one in samples if one.traffic_class == entry.name]
        if mine:
            known = _promised_once(
                [
                    _known(one, by_key[one.traffic_class, *one.key], entry, allocation, policies, bursts, now_s)
                    for one in mine
                ]
            )
            found += _of_class(known, entry, offered_bits_per_s(allocation, entry.name))
            alarms += _too_much_promised(known, entry, allocation.name)
    return replace(allocation, jobs=tuple(found)), tuple(alarms)


def _counted(
    before: JobUseState | None, sample: JobSample, *, elapsed_s: float | None, now_s: float
) -> JobUseState:  # fmt: skip
    of_leaf = sample.leaf_sent_bytes is not None
    if before is None or before.of_leaf is not of_leaf:  # two counters are no difference
        use = ClassState(sample.job, sent_bytes=_counter(sample))
        seen_s = before.seen_s if before is not None else now_s - NEW_S
        return JobUseState(sample.job, sample.traffic_class, use, of_leaf, began_s=now_s, seen_s=seen_s, uid=sample.uid)
    use = before.use
    if elapsed_s is not None:
        use = demand.observe(use, ClassSample(sample.job, _counter(sample)), elapsed_s=elapsed_s, now_s=now_s)
    after = replace(before, use=use)
    if not _sends(sample, use):
        return after
    began_s = now_s if now_s - before.seen_s >= NEW_S else before.began_s
    return replace(after, began_s=began_s, seen_s=now_s)


def _counter(sample: JobSample) -> int:
    return sample.delivered_bytes if sample.leaf_sent_bytes is None else sample.leaf_sent_bytes


def _sends(sample: JobSample, use: ClassState) -> bool:
    return sample.sends or (use.throughput_bits_per_s or 0.0) >= demand.SENDING_BITS_PER_S


def _known(
    sample: JobSample, use: JobUseState, entry: ClassAllocation, allocation: InterfaceAllocation,
    policies: Sequence[JobPolicy], bursts: Sequence[ActiveBurst], now_s: float,
) -> _Known:  # fmt: skip
    own = policy_of(policies, sample.job, sample.uid)
    ceiling = min(own.ceiling.of(allocation.capacity_bits_per_s), entry.ceil_bits_per_s)
    guarantee = min(own.guarantee.of(allocation.capacity_bits_per_s), ceiling)
    announced = [
        (burst.left_bytes, burst.remaining_s)
        for burst in bursts
        if burst.job == sample.job and sample.uid in (None, burst.uid) and entry.name == "compute"
    ]
    sends = _sends(sample, use.use)
    wants = demand.demand_bits_per_s(
        use.use,
        backlog_bytes=sample.leaf_backlog_bytes or 0,
        ceiling_bits_per_s=ceiling,
        floor_bits_per_s=0,
        announced=announced,
    )
    if sends and now_s - use.began_s < NEW_S:
        wants = ceiling
    return _Known(sample, use, own, guarantee, ceiling, wants, sends)


def _promised_once(known: Sequence[_Known]) -> list[_Known]:
    """The jobs of a class, with what a name is promised divided among the users whose jobs have it: no number of them
    makes it more. Who wants nothing leaves his part to those who do."""
    named: dict[tuple[str, int | None], list[_Known]] = {}
    for one in known:
        named.setdefault((one.sample.job, one.policy.uid), []).append(one)
    made = []
    for one in known:
        sharing = named[one.sample.job, one.policy.uid]
        wanting = sum(_counts(other) for other in sharing)
        if not wanting:
            part = one.guarantee_bits_per_s // len(sharing)
        else:
            part = one.guarantee_bits_per_s // wanting if _counts(one) else 0
        made.append(replace(one, guarantee_bits_per_s=part) if len(sharing) > 1 else one)
    return made


def _of_class(known: Sequence[_Known], entry: ClassAllocation, offered_bits_per_s: int) -> list[JobAllocation]:
    promised = min(sum(one.guarantee_bits_per_s for one in known), int(PROMISED_PART * entry.rate_bits_per_s))
    users = [one.sample.uid for one in known]
    weights = _weights(known)
    rates = allocate_by_user(
        [_claim(one, one.ceiling_bits_per_s, weight) for one, weight in zip(known, weights, strict=True)],
        users=users,
        capacity_bits_per_s=max(promised, int(LEAVES_PART * entry.rate_bits_per_s)),
    )
    shares = allocate_by_user(
        [_claim(one, one.demand_bits_per_s, one.policy.weight) for one in known],
        users=users,
        capacity_bits_per_s=offered_bits_per_s,
    )
    parts = _components(known, weights)
    total_weight = math.fsum(part for one, part in zip(known, parts, strict=True) if _counts(one))
    made = []
    for one, rate, share, part in zip(known, rates, shares, parts, strict=True):
        throughput = one.use.use.throughput_bits_per_s
        made.append(
            JobAllocation(
                job=one.sample.job,
                traffic_class=entry.name,
                weight=one.policy.weight,
                rate_bits_per_s=rate,
                ceil_bits_per_s=max(rate, one.ceiling_bits_per_s),
                guarantee_bits_per_s=one.guarantee_bits_per_s,
                share_bits_per_s=share,
                demand_bits_per_s=one.demand_bits_per_s,
                throughput_bits_per_s=None if throughput is None else int(throughput),
                backlog_bytes=one.sample.leaf_backlog_bytes,
                reason=_reason(one, share, entry, offered_bits_per_s, part, total_weight),
                uid=one.sample.uid,
                class_weight=part,
            )
        )
    return made


def _claim(one: _Known, demand_bits_per_s: int, weight: float) -> Claim:
    return Claim(weight, 0, one.guarantee_bits_per_s, one.ceiling_bits_per_s, demand_bits_per_s)


def _weights(known: Sequence[_Known]) -> list[float]:
    """Each job's weight beside others of its user's: less for one that wants nothing while others do."""
    heaviest: dict[int | None, float] = {}
    for one in known:
        if _counts(one):
            heaviest[one.sample.uid] = max(one.policy.weight, heaviest.get(one.sample.uid, 0.0))
    return [
        one.policy.weight
        if _counts(one) or one.sample.uid not in heaviest
        else IDLE_PART * min(one.policy.weight, heaviest[one.sample.uid])
        for one in known
    ]


def _components(known: Sequence[_Known], weights: Sequence[float]) -> list[float]:
    """Each job's weight beside all others of its class: its part of its user's, who counts as his heaviest."""
    his: dict[int | None, list[float]] = {}
    for one, weight in zip(known, weights, strict=True):
        his.setdefault(one.sample.uid, []).append(weight)
    return [
        max(his[one.sample.uid]) * weight / math.fsum(his[one.sample.uid])
        for one, weight in zip(known, weights, strict=True)
    ]


def _counts(one: _Known) -> bool:
    return one.sends or one.demand_bits_per_s >= demand.SENDING_BITS_PER_S


def _reason(
    one: _Known, share: int, entry: ClassAllocation, offered_bits_per_s: int, weight: float, total_weight: float
) -> Reason:
    if not _counts(one):
        return Because.JOB_IDLE()
    if one.ceiling_bits_per_s < entry.ceil_bits_per_s and share >= one.ceiling_bits_per_s:
        return Because.HELD_BY_CEILING(ceiling_bits_per_s=one.ceiling_bits_per_s)
    if share >= one.demand_bits_per_s and share < one.ceiling_bits_per_s:
        return Because.GETS_WHAT_IT_WANTS(share_bits_per_s=share)
    if one.guarantee_bits_per_s > 0 and share <= one.guarantee_bits_per_s:
        return Because.JOB_GUARANTEED(share_bits_per_s=share, guarantee_bits_per_s=one.guarantee_bits_per_s)
    return Because.SHARES_ITS_CLASS(
        share_bits_per_s=share, offered_bits_per_s=offered_bits_per_s, weight=weight, total_weight=total_weight
    )


def _too_much_promised(known: Sequence[_Known], entry: ClassAllocation, interface: str) -> Iterable[Alarm]:
    promised = sum(one.guarantee_bits_per_s for one in known)
    if promised > entry.guarantee_bits_per_s:
        text = (
            f"its jobs are promised {format_rate(promised)}, the class has {format_rate(entry.guarantee_bits_per_s)}; "
            "scaled when they all want it"
        )
        yield Alarm("job-guarantees-scaled", f"{interface}/{entry.name}", text)

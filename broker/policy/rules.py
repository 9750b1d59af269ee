"""What has to be true of a policy as a whole: sums, orders and trust. Each rule returns the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from broker.policy.known_programs import rules_of_class
from broker.policy.overrides import with_overrides
from broker.policy.types import ClassPolicy, InterfacePolicy, MatchRule, Policy, Share
from hive_qos.errors import ConfigurationError
from hive_qos.units import format_rate

DEMOTED_ONLY = ("storage", "other")
"""Ports, DSCP and addresses are claims that anybody can make, so they may only put traffic into the classes that come
last: whoever may bind an address of a network, or send there, is in its class."""


def check_interfaces(interfaces: Sequence[InterfacePolicy]) -> list[ConfigurationError]:
    """Every interface is named once."""
    problems = []
    seen: set[str] = set()
    for index, entry in enumerate(interfaces):
        if entry.name and entry.name in seen:
            problems.append(ConfigurationError(f"interface[{index}].name", entry.name, "named twice; keep one"))
        seen.add(entry.name)
    return problems


def check_classes(classes: Sequence[ClassPolicy], *, interfaces: Sequence[InterfacePolicy]) -> list[ConfigurationError]:
    """Promises fit into every interface, each class's figures are in order, and matches are trusted and unique."""
    problems = [problem for entry in classes for problem in _check_trust(entry)]
    problems += _check_duplicates(classes)
    known = sorted({entry.egress_bits_per_s for entry in interfaces if entry.egress_bits_per_s is not None})
    capacities: list[int | None] = [*known] or [None]
    for capacity in capacities:
        found = [problem for entry in classes for problem in _check_order(entry, capacity)]
        found += _check_sum("guarantee", [(entry.name, entry.guarantee) for entry in classes], capacity)
        found += _check_sum("floor", [(entry.name, entry.floor) for entry in classes], capacity)
        problems += found
        if found:
            break  # the same mistake would be said again for the next capacity
    return problems


def check_people(policy: Policy) -> list[ConfigurationError]:
    """Every schedule by itself leaves classes whose promises fit, and so do the jobs that are named.

    Not checked: schedules that hold at once, jobs of a pattern, a call. What does not fit is scaled, with an alarm.
    """
    problems = []
    if check_classes(policy.classes, interfaces=policy.interfaces):
        return []  # said already
    for index, entry in enumerate(policy.schedules):
        classes = with_overrides(policy.classes, entry.classes)
        for problem in check_classes(classes, interfaces=policy.interfaces):
            problems.append(ConfigurationError(f"schedule[{index}].{problem.key}", problem.value, problem.reason))
    named = [(entry.name, entry.guarantee) for entry in policy.jobs if not set(entry.name) & set("*?[")]
    return problems + list(_check_sum("guarantee", named, None, of_what="job"))


def check_match_count(classes: Sequence[ClassPolicy], *, most: int) -> list[ConfigurationError]:
    """All classes' rules hang at the same interfaces: their number counts together."""
    counts = {entry.name: len(rules_of_class(entry)) for entry in classes}
    count = sum(counts.values())
    if count <= most:
        return []
    parts = ", ".join(f"{name} {number}" for name, number in counts.items() if number)
    reason = f"at most {most} rules in all classes together ({parts}); put programs into a cgroup that one rule names"
    return [ConfigurationError("class.*.match", count, reason)]


def _check_trust(entry: ClassPolicy) -> Iterable[ConfigurationError]:
    if entry.name in DEMOTED_ONLY:
        return
    for rule in entry.match:
        if rule.port is not None or rule.dscp is not None or rule.address is not None:
            yield ConfigurationError(
                f"class.{entry.name}.match", describe(rule),
                "anybody can choose a port, a DSCP or where he sends, so these may only demote; match a cgroup or a "
                "uid instead",
            )  # fmt: skip


def _check_duplicates(classes: Sequence[ClassPolicy]) -> Iterable[ConfigurationError]:
    owner: dict[MatchRule, str] = {}
    for entry in classes:
        for rule in entry.match:
            if rule in owner:
                where = "twice" if owner[rule] == entry.name else f"in class {owner[rule]} too"
                yield ConfigurationError(f"class.{entry.name}.match", describe(rule), f"stands {where}; keep one")
            owner.setdefault(rule, entry.name)


def _check_order(entry: ClassPolicy, capacity_bits_per_s: int | None) -> Iterable[ConfigurationError]:
    prefix = f"class.{entry.name}."
    if entry.ceiling.fraction == 0:
        yield ConfigurationError(prefix + "ceiling", "0 %", "the class could never send; write at least its floor")
    pairs = (("floor", entry.floor, "guarantee", entry.guarantee), ("floor", entry.floor, "ceiling", entry.ceiling),
             ("guarantee", entry.guarantee, "ceiling", entry.ceiling))  # fmt: skip
    for low_key, low, high_key, high in pairs:
        if _is_above(low, high):
            reason = f"above the {high_key} of {show(high)}; lower it or raise {prefix}{high_key}"
            yield ConfigurationError(prefix + low_key, show(low), reason)
    if capacity_bits_per_s is not None:
        for key, share in (("guarantee", entry.guarantee), ("floor", entry.floor)):
            if share.rate_bits_per_s is not None and share.rate_bits_per_s > capacity_bits_per_s:
                reason = f"more than an interface has ({format_rate(capacity_bits_per_s)})"
                yield ConfigurationError(prefix + key, show(share), reason)


def _check_sum(
    key: str, shares: Sequence[tuple[str, Share]], capacity_bits_per_s: int | None, *, of_what: str = "class"
) -> Iterable[ConfigurationError]:
    total = sum(share.fraction or 0.0 for _, share in shares)
    if capacity_bits_per_s is not None:
        total += sum((share.rate_bits_per_s or 0) / capacity_bits_per_s for _, share in shares)
    if total > 1 + 1e-9:
        of = f" of {format_rate(capacity_bits_per_s)}" if capacity_bits_per_s else ""
        parts = ", ".join(f"{name} {show(share)}" for name, share in shares)
        yield ConfigurationError(
            f"{of_what}.*.{key}", f"{100 * total:.4g} %",
            f"the {key}s add up to more than 100 %{of} ({parts}; omitted ones count with their defaults); "
            "lower one of them",
        )  # fmt: skip


def _is_above(low: Share, high: Share) -> bool:
    """Whether a share is above one of its kind. Of two kinds the decision takes the smaller (`promises`)."""
    if low.fraction is not None and high.fraction is not None:
        return low.fraction > high.fraction
    if low.rate_bits_per_s is not None and high.rate_bits_per_s is not None:
        return low.rate_bits_per_s > high.rate_bits_per_s
    return False


def show(share: Share) -> str:
    """Write a share as the operator would."""
    return (
        format_rate(share.rate_bits_per_s)
        if share.rate_bits_per_s is not None
        else f"{100 * (share.fraction or 0):g} %"
    )


def describe(rule: MatchRule) -> str:
    """Write a match rule as the operator would."""
    (pair,) = [(k, v) for k, v in msgspec.structs.asdict(rule).items() if v is not None]
    return f"{{ {pair[0]} = {pair[1]!r} }}".replace("'", '"')

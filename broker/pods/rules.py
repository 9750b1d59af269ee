"""Which rules the pods of one node ask for. Pure: pods as the API server has them, rules as `broker.toml` has them.

A pod on the host's network is found by its cgroup, whatever its containers' runtime is: the kubelet makes one cgroup a
pod, and every container's lies below it. Sockets of another network namespace have no class on the host: a pod with a
network of its own is found by its addresses, which may only demote. Paths: kubernetes/pkg/kubelet/cm, pod container
manager and cgroup manager; slices: systemd.slice(5).
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from broker.policy.rules import DEMOTED_ONLY
from broker.policy.types import CLASS_NAMES, MatchRule
from hive_qos.text import printable

ANNOTATION = "hive-qos.io/class"
STATIC_UID = "kubernetes.io/config.hash"
"""A static pod's object at the API server has another uid than the pod that the kubelet runs, whose cgroup has this."""
MIRROR = "kubernetes.io/config.mirror"
"""Only static pods keep this: the kubelet deletes others that have it. Else a pod could name another's cgroup."""
ADDRESSES_MAX = 4
"""A pod has one of each family."""
_UID = re.compile(r"[0-9a-fA-F-]{1,64}")
_ENDED = ("Succeeded", "Failed")


class Driver(enum.Enum):
    """How the kubelet names cgroups (its `cgroupDriver`)."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


@dataclass(frozen=True)
class Hierarchy:
    """Where the kubelet's cgroups are: its driver, and its `cgroupRoot` without slashes at the ends."""

    driver: Driver
    root: str = ""


@dataclass(frozen=True)
class PodKey:
    """A pod for people and for events."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Problem:
    """Why a pod is not in the class that it asks for, and what to do."""

    pod: PodKey
    text: str


@dataclass(frozen=True)
class PodRules:
    """What the pods of a node come to."""

    rules: Mapping[str, tuple[MatchRule, ...]]
    problems: tuple[Problem, ...]
    pods: int


def rules_of(
    pods: Iterable[Mapping[str, Any]],
    *,
    hierarchy: Hierarchy | None,
    allowed: Collection[str],
    rules_max: int,
    taken: Mapping[MatchRule, str],
) -> PodRules:
    """Translate annotations to rules; the oldest pods first, where there are too many.

    Args:
        pods: objects of the API server, also such that nobody should have accepted.
        hierarchy: None where this node has no cgroup v2.
        allowed: classes that a pod may choose.
        rules_max: how many rules there is room for.
        taken: rules of the configuration itself, with their classes. The broker refuses one in two classes.
    """
    found: dict[str, list[MatchRule]] = {}
    problems: list[Problem] = []
    count, classified, owner = 0, 0, dict(taken)
    for pod in sorted(pods, key=_age):
        wanted = _table(pod, "metadata", "annotations").get(ANNOTATION)
        if wanted is None or _table(pod, "status").get("phase") in _ENDED:
            continue
        key = key_of(pod)
        rules, problem = _rules_of_one(pod, str(wanted), hierarchy=hierarchy, allowed=allowed)
        rival = next((owner[rule] for rule in rules if owner.get(rule, wanted) != wanted), None)
        if problem is None and rival is not None:
            problem = f"the configuration, or an older pod with the same address, has it in class {rival}"
        new = tuple(rule for rule in rules if rule not in owner)
        if problem is None and count + len(new) > rules_max:
            problem = f"this node has room for {rules_max} rules of pods, and older pods use them"
        if problem is not None:
            problems.append(Problem(key, problem))
            continue
        count += len(new)
        classified += bool(rules)
        owner.update(dict.fromkeys(new, str(wanted)))
        found.setdefault(str(wanted), []).extend(new)
    return PodRules(
        rules={name: tuple(dict.fromkeys(found[name])) for name in CLASS_NAMES if name in found},
        problems=tuple(problems),
        pods=classified,
    )


def pod_cgroup(*, uid: str, qos: str, hierarchy: Hierarchy) -> str:
    """The cgroup of a pod, a path below the mount of cgroup v2.

    Args:
        qos: `Guaranteed`, `Burstable` or `BestEffort`.
    """
    level = [] if qos == "Guaranteed" else [qos.lower()]
    names = [*filter(None, hierarchy.root.split("/")), "kubepods", *level, f"pod{uid}"]
    if hierarchy.driver is Driver.CGROUPFS:
        return "/".join(names)
    escaped = [name.replace("-", "_") for name in names]
    return "/".join("-".join(escaped[: depth + 1]) + ".slice" for depth in range(len(escaped)))


def find_hierarchy(mount: str | None, *, root: str | None = None) -> Hierarchy | None:
    """See which driver the kubelet of this node uses, by the cgroup above all pods.

    Args:
        mount: of cgroup v2, None where there is none.
        root: the kubelet's `cgroupRoot`; None tries none and `kubelet`, as kind has it.

    Returns:
        systemd's, the usual one, where there is no such cgroup yet. None without a mount.
    """
    if mount is None:
        return None
    for name in ("", "kubelet") if root is None else (root.strip("/"),):
        for driver in Driver:
            hierarchy = Hierarchy(driver, name)
            above_all = Path(mount, pod_cgroup(uid="", qos="Guaranteed", hierarchy=hierarchy)).parent
            if above_all.is_dir():
                return hierarchy
    return Hierarchy(Driver.SYSTEMD, (root or "").strip("/"))


def key_of(pod: Mapping[str, Any]) -> PodKey:
    """Who a pod is."""
    metadata = _table(pod, "metadata")
    return PodKey(*(str(metadata.get(key, "")) for key in ("namespace", "name", "uid")))


def _rules_of_one(
    pod: Mapping[str, Any], wanted: str, *, hierarchy: Hierarchy | None, allowed: Collection[str]
) -> tuple[tuple[MatchRule, ...], str | None]:
    if wanted not in allowed:
        named, choice = printable(wanted, length_max=60), " or ".join(sorted(allowed))
        return (), f"{ANNOTATION}: '{named}' is no class that pods may choose here; write {choice}"
    if _table(pod, "spec").get("hostNetwork") is True:
        if hierarchy is None:
            return (), "this node has no cgroup v2, by which pods on the host's network are found"
        annotations = _table(pod, "metadata", "annotations")
        static = annotations.get(STATIC_UID) if MIRROR in annotations else None
        uid = str(static or key_of(pod).uid)
        if not _UID.fullmatch(uid):
            return (), f"its uid '{printable(uid, length_max=60)}' is none"
        qos = str(_table(pod, "status").get("qosClass", "BestEffort"))
        if qos not in ("Guaranteed", "Burstable", "BestEffort"):
            return (), f"its QoS class {qos!r} is not known"
        return (MatchRule(cgroup=pod_cgroup(uid=uid, qos=qos, hierarchy=hierarchy)),), None
    if wanted not in DEMOTED_ONLY:
        return (), (
            f"class {wanted} needs hostNetwork: true: a pod with a network of its own is found by its address, "
            f"and addresses may only demote, to {' or '.join(DEMOTED_ONLY)}"
        )
    return tuple(MatchRule(address=one) for one in _addresses(pod)), None


def _addresses(pod: Mapping[str, Any]) -> list[str]:
    """As networks of one address; none before the pod has its network."""
    entries = _table(pod, "status").get("podIPs")
    found = []
    for entry in (entries if isinstance(entries, list) else [])[:ADDRESSES_MAX]:
        try:
            found.append(str(ipaddress.ip_network(str(entry["ip"]))))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _age(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Times of the API server are RFC 3339 in UTC, and sort as text."""
    metadata = _table(pod, "metadata")
    return str(metadata.get("creationTimestamp", "")), str(metadata.get("uid", ""))


def _table(value: object, *keys: str) -> Mapping[str, Any]:
    """What lies below keys; an empty table where something else does, as a hostile or newer server may say."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}

"""A kernel in memory that passes the same contract tests as the real one, for tests that need no privilege.

It keeps what HTB keeps: a root, classes, queues with a backlog, filters, and it does to queues what HTB does to them: a
first child purges its parent's queue without counting it, deleting a root purges all. `purged_packets` counts that, so
that a test can claim that nothing was lost. It does not move packets: a test adds a backlog with `enqueue`.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hive_qos.errors import ConfigurationError, KernelRejectedError, PrivilegeError, ReadBackError
from shaping.model.names import MAJOR, MARK_MINOR, is_ours
from shaping.model.observations import (
    Capabilities,
    ClassCounters,
    DeviceSegments,
    PriorQdisc,
    Redirection,
    TreeCounters,
)
from shaping.model.shapes import Rule
from shaping.model.tree import (
    AddClass,
    AddFilter,
    AddLeaf,
    AddRoot,
    ChangeClass,
    ChangeLeaf,
    ClassSpec,
    DeleteFilter,
    FilterSpec,
    LeafSpec,
    Operation,
    QdiscSpec,
    Tree,
    describe,
)

# What a veth has before anybody configures it, on Linux 6.18.
DEFAULT_ROOT = PriorQdisc(kind="noqueue", handle_major=0, options={"raw": ""})
DEFAULT_SEGMENTS = DeviceSegments(limit=65_535, default=65_535)


@dataclass
class _Interface:
    """One interface: a foreign or default `root`, or ours when `qdisc` is set."""

    root: PriorQdisc = DEFAULT_ROOT
    qdisc: QdiscSpec | None = None
    classes: dict[int, ClassSpec] = field(default_factory=dict)
    leaves: dict[int, LeafSpec] = field(default_factory=dict)
    filters: dict[int, FilterSpec] = field(default_factory=dict)
    backlog_packets: dict[int, int] = field(default_factory=dict)
    segments: DeviceSegments = DEFAULT_SEGMENTS
    redirection: Redirection | None = None
    up: bool = True


class FakeKernel:
    """`kernel_api.Kernel` in memory.

    Args:
        interfaces: names that are there, each with the kernel's default at its root.
        capabilities: what it pretends to offer.
        privileged: without, every change is refused as the kernel does it without CAP_NET_ADMIN.
    """

    def __init__(
        self,
        interfaces: Iterable[str] = ("eth0",),
        *,
        capabilities: Capabilities | None = None,
        privileged: bool = True,
    ) -> None:
        self._interfaces = {name: _Interface() for name in interfaces}
        self._numbers = {name: number for number, name in enumerate(self._interfaces, start=1)}
        self._capabilities = capabilities or Capabilities()
        self.privileged = privileged
        self.purged_packets = self.direct_packets = 0
        self.applied: list[Operation] = []
        self.reject_next: tuple[type[Operation], KernelRejectedError] | None = None
        self.reject_segments: KernelRejectedError | None = None
        self.reject_redirect: KernelRejectedError | None = None
        self.forwarded: tuple[tuple[Rule, int], ...] = ()
        self.reject_forwarded: KernelRejectedError | None = None

    def rename(self, interface: str, name: str) -> None:
        """As if somebody had given an interface another name."""
        self._interfaces[name] = self._interfaces.pop(interface)
        self._numbers[name] = self._numbers.pop(interface)

    def replace_interface(self, interface: str) -> None:
        """As if an interface had gone, and another one had come by its name."""
        self._drop_tree(self._interface(interface))
        self._interfaces[interface] = _Interface()
        self._numbers[interface] = max(self._numbers.values()) + 1

    def set_root(self, interface: str, root: PriorQdisc) -> None:
        """As if somebody else had put this qdisc at the root."""
        self._drop_tree(self._interface(interface))
        self._interface(interface).root = root

    def change_segments(self, interface: str, limit: int, *, default: int | None = None) -> None:
        """As if somebody else had set the device's gso_max_segs, or its driver started with `default`."""
        found = self._interface(interface)
        found.segments = DeviceSegments(limit, found.segments.default if default is None else default)

    def enqueue(self, interface: str, minor: int, packets: int) -> None:
        """As if so many packets waited in a leaf."""
        self._interface(interface).backlog_packets[minor] = packets

    def backlog(self, interface: str, minor: int) -> int:
        """How many packets wait in a leaf."""
        return self._interface(interface).backlog_packets.get(minor, 0)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def interfaces(self) -> tuple[str, ...]:
        return tuple(name for name in self._interfaces if not is_ours(name))

    def numbers(self) -> dict[str, int]:
        return {name: self._numbers[name] for name in self.interfaces()}

    def root(self, interface: str) -> PriorQdisc:
        found = self._interface(interface)
        if found.qdisc is None:
            return found.root
        nested = len(found.classes) + len(found.leaves) + len(found.filters)
        return PriorQdisc(kind="htb", handle_major=MAJOR, options={"raw": "ours"}, nested=nested)

    def observe(self, interface: str) -> Tree | None:
        found = self._interface(interface)
        if found.qdisc is None:
            return None
        return Tree(
            qdisc=found.qdisc,
            classes=tuple(found.classes[minor] for minor in sorted(found.classes)),
            leaves=tuple(found.leaves[minor] for minor in sorted(found.leaves)),
            filters=tuple(found.filters[preference] for preference in sorted(found.filters)),
        )

    def apply(self, interface: str, operations: Sequence[Operation]) -> None:
        found = self._interface(interface)
        first_error: KernelRejectedError | None = None
        for operation in operations:
            if not self.privileged:
                raise PrivilegeError(f"{describe(operation)} on {interface}: Operation not permitted")
            try:
                if self.reject_next is not None and isinstance(operation, self.reject_next[0]):
                    error, self.reject_next = self.reject_next[1], None
                    raise error
                self._apply_one(found, operation)
                self.applied.append(operation)
            except KernelRejectedError as error:
                first_error = first_error or error  # a batch goes on, as in the kernel
        if first_error is not None:
            raise first_error

    def delete_root(self, interface: str) -> None:
        found = self._interface(interface)
        if found.qdisc is not None:
            self._need_privilege(f"delete the root of {interface}")
            self._drop_tree(found)
            found.root = DEFAULT_ROOT

    def restore_root(self, interface: str, prior: PriorQdisc) -> tuple[str, ...]:
        self.delete_root(interface)
        found = self._interface(interface)
        if prior.handle_major:
            self._need_privilege(f"put back {prior.kind} on {interface}")
            found.root = replace(prior, nested=0)
        if prior.nested:
            return (f"{interface}: {prior.nested} classes, queues and filters below the former {prior.kind} are lost",)
        return ()

    def counters(self, interface: str) -> TreeCounters:
        found = self._interface(interface)
        waiting = found.backlog_packets
        by_minor = {minor: ClassCounters(backlog_packets=waiting.get(minor, 0)) for minor in found.classes}
        return TreeCounters(by_minor, self.direct_packets)

    def segments(self, interface: str) -> DeviceSegments:
        return self._interface(interface).segments

    def set_segments(self, interface: str, limit: int) -> None:
        self._need_privilege(f"set gso_max_segs {limit} of {interface}")
        if self.reject_segments is not None:
            raise self.reject_segments
        if limit > self.segments(interface).default:
            what = f"set gso_max_segs {limit} of {interface}"
            raise KernelRejectedError(what, errno_value=errno.EINVAL, detail="more than the driver takes")
        self.change_segments(interface, limit)

    def ifbs(self) -> tuple[str, ...]:
        return tuple(name for name in self._interfaces if is_ours(name))

    def make_ifb(self, device: str) -> None:
        self._need_privilege(f"make the IFB {device}")
        if device not in self._interfaces:
            self._numbers[device] = max(self._numbers.values()) + 1
            self._interfaces[device] = _Interface(up=False)

    def start_ifb(self, device: str) -> None:
        self._interface(device).up = True

    def delete_ifb(self, device: str) -> None:
        if device in self._interfaces:
            self._need_privilege(f"delete {device}")
            self._drop_tree(self._interfaces.pop(device))
            number = self._numbers.pop(device)
            for found in self._interfaces.values():
                hook = found.redirection
                if hook is not None and number in hook.to_indexes:
                    found.redirection = replace(hook, to_indexes=(0,))

    def running_number(self, device: str) -> int | None:
        found = self._interfaces.get(device)
        return self._numbers[device] if found is not None and found.up else None

    def redirection(self, interface: str) -> Redirection | None:
        return self._interface(interface).redirection

    def redirect(self, interface: str, device: str) -> None:
        self._need_privilege(f"redirect what arrives at {interface}")
        if self.reject_redirect is not None:
            raise self.reject_redirect
        self._interface(device)
        hook = self.redirection(interface) or Redirection("ingress")
        whole = replace(hook, to_indexes=(self._numbers[device],), preferences=(1, 2))
        self._interface(interface).redirection = whole

    def stop_redirecting(self, interface: str) -> None:
        found = self._interface(interface)
        hook = found.redirection
        if hook is not None and hook.preferences:
            self._need_privilege(f"stop redirecting what arrives at {interface}")
            found.redirection = replace(hook, to_indexes=(), preferences=()) if hook.others else None

    def remove_empty_hook(self, interface: str) -> None:
        found = self._interface(interface)
        if found.redirection == Redirection("ingress"):
            found.redirection = None

    def set_ingress(self, interface: str, hook: Redirection | None) -> None:
        """As if somebody else had put this at the ingress."""
        self._interface(interface).redirection = hook

    def stop_device(self, device: str) -> None:
        """As if somebody had set a device down."""
        self._interface(device).up = False

    def arrives(self, interface: str) -> bool:
        """Whether packets that come to an interface now reach the host."""
        hook = self.redirection(interface)
        if hook is None or not hook.preferences:
            return True
        return any(self.running_number(device) in hook.to_indexes for device in self.ifbs())

    def classify_forwarded(self, rules: Sequence[tuple[Rule, int]]) -> None:
        self.forwarded = ()
        if rules and self.reject_forwarded is not None:
            raise self.reject_forwarded
        self.forwarded = tuple(rules)

    def close(self) -> None:
        """All but this is the kernel's, and outlives who looked at it."""
        self.forwarded = ()

    def _interface(self, name: str) -> _Interface:
        if name not in self._interfaces:
            raise ConfigurationError(
                "interface.name", name, f"no such interface; there are {', '.join(self._interfaces)}"
            )
        return self._interfaces[name]

    def _need_privilege(self, what: str) -> None:
        if not self.privileged:
            raise PrivilegeError(f"{what}: Operation not permitted")

    def _drop_tree(self, found: _Interface) -> None:
        self.purged_packets += sum(found.backlog_packets.values())
        found.qdisc = None
        found.classes, found.leaves, found.filters, found.backlog_packets = {}, {}, {}, {}

    def _apply_one(self, found: _Interface, operation: Operation) -> None:
        what = describe(operation)
        if isinstance(operation, AddRoot):
            if found.qdisc is not None:
                raise KernelRejectedError(what, errno_value=errno.EINVAL, detail="an HTB cannot be changed")
            found.qdisc = operation.qdisc
            return
        if found.qdisc is None:
            raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="the root is not ours")
        match operation:
            case AddClass(spec):
                if spec.minor in found.classes:
                    raise KernelRejectedError(what, errno_value=errno.EEXIST, detail="there is such a class")
                if spec.parent_minor and spec.parent_minor not in found.classes:
                    found.classes[spec.minor] = replace(spec, parent_minor=0)  # what HTB does
                    raise ReadBackError(what, wanted=spec, found=found.classes[spec.minor])
                self.purged_packets += found.backlog_packets.pop(spec.parent_minor, 0)
                found.leaves.pop(spec.parent_minor, None)
                found.classes[spec.minor] = spec
            case ChangeClass(spec):
                if spec.minor not in found.classes:
                    raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="no such class")
                if spec.parent_minor != found.classes[spec.minor].parent_minor:
                    raise ReadBackError(what, wanted=spec, found=found.classes[spec.minor])
                found.classes[spec.minor] = spec
            case AddLeaf(leaf):
                if leaf.parent_minor not in found.classes:
                    raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="no such class")
                if leaf.parent_minor in found.leaves:
                    raise KernelRejectedError(what, errno_value=errno.EEXIST, detail="there is a queue")
                found.leaves[leaf.parent_minor] = leaf
            case ChangeLeaf(leaf):
                old = found.leaves.get(leaf.parent_minor)
                if old is None or (old.kind, old.handle_major) != (leaf.kind, leaf.handle_major):
                    raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="no such queue")
                found.leaves[leaf.parent_minor] = leaf
            case AddFilter(rule):
                if not self._capabilities.u32:
                    raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="TC classifier not found")
                if rule.parent_minor and rule.parent_minor not in found.classes:
                    raise KernelRejectedError(what, errno_value=errno.EINVAL, detail="no such class")
                if rule.preference in found.filters:
                    raise KernelRejectedError(what, errno_value=errno.ENOSPC, detail="there is such a filter")
                found.filters[rule.preference] = rule
            case DeleteFilter(rule):
                if rule.preference not in found.filters:
                    raise KernelRejectedError(what, errno_value=errno.ENOENT, detail="no such filter")
                del found.filters[rule.preference]


class FakeClassifier:
    """`kernel_api.Classifier` in memory.

    Set `failure` to what the real one raises: `PrivilegeError` without CAP_BPF, `KernelRejectedError` without BPF,
    `OSError` for a path that is no cgroup, `ValueError` for one that no path can be.
    """

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.minors: dict[str, int] = {}
        self.failure = failure

    def apply(self, rules: Sequence[Rule], *, minors: Mapping[str, int] = MARK_MINOR) -> tuple[str, ...]:
        if self.failure is not None:
            raise self.failure
        self.rules, self.minors = tuple(rules), dict(minors)
        return ()

    def remember(self, sock: socket.socket, rule: Rule) -> bool:
        return rule in self.rules

    def clear(self) -> int:
        if self.failure is not None:
            raise self.failure
        had, self.rules = len(self.rules), ()
        return had

"""The real kernel: traffic control of the network namespace in which it is made.

What is built once is laid out by pyroute2 (`netlink.messages`), what ticks read and change by `netlink.fast_path`. One
socket carries both.

What was applied is read back at once: every class, queue and filter that an operation named has to be there with
exactly the values that were sent.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence

from hive_qos.errors import ConfigurationError, KernelRejectedError, ReadBackError, ShapingError
from hive_qos.netlink import NetlinkSocket
from shaping import failsafe
from shaping.model.names import is_ours, show_classid
from shaping.model.observations import Capabilities, DeviceSegments, PriorQdisc, Redirection, TreeCounters
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
)
from shaping.netlink import fast_path, links, nftables, root, tree


class RealKernel:
    """`kernel_api.Kernel` on rtnetlink. Make it in the namespace and the thread in which it will be used."""

    def __init__(self) -> None:
        self._tc = NetlinkSocket()
        self._probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._forwarding: NetlinkSocket | None = None
        self._capabilities: Capabilities | None = None

    def capabilities(self) -> Capabilities:
        if self._capabilities is None:
            self._capabilities = Capabilities(
                htb=root.knows_qdisc(self._tc, "htb"), fq_codel=root.knows_qdisc(self._tc, "fq_codel")
            )
        return self._capabilities

    def interfaces(self) -> tuple[str, ...]:
        return tuple(self.numbers())

    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in socket.if_nameindex() if not is_ours(name)}

    def root(self, interface: str) -> PriorQdisc:
        return root.read_root(self._tc, interface, self._index(interface))

    def observe(self, interface: str) -> Tree | None:
        return tree.read_tree(self._tc, interface, self._index(interface))

    def apply(self, interface: str, operations: Sequence[Operation]) -> None:
        if not operations:
            return
        index = self._index(interface)
        tree.execute(self._tc, interface, index, operations)
        self._read_back(interface, index, operations)

    def delete_root(self, interface: str) -> None:
        index = self._index(interface)
        try:
            root.delete_own(self._tc, interface, index)
        except KernelRejectedError as error:
            if self.observe(interface) is not None:
                raise
            if error.errno_value not in (errno.ENOENT, errno.EINVAL):
                raise

    def restore_root(self, interface: str, prior: PriorQdisc) -> tuple[str, ...]:
        notes = []
        if prior.nested:
            notes.append(
                f"{interface}: {prior.nested} classes, queues and filters below the former {prior.kind} "
                f"{prior.handle_major:x}: are lost; set them up again"
            )
        self.delete_root(interface)
        if prior.handle_major == 0:
            return tuple(notes)
        note = root.put_back(self._tc, interface, self._index(interface), prior)
        return (*notes, note) if note else tuple(notes)

    def counters(self, interface: str) -> TreeCounters:
        return fast_path.read_counters(self._tc, interface, self._index(interface))

    def segments(self, interface: str) -> DeviceSegments:
        link = self._link(interface)
        default = link.gso_max_segs if link.tso_max_segs is None else link.tso_max_segs
        return DeviceSegments(limit=link.gso_max_segs, default=default)

    def set_segments(self, interface: str, limit: int) -> None:
        index = self._index(interface)
        links.set_segments(self._tc, interface, index, limit, group=self._link(interface).group)
        found = self.segments(interface).limit
        if found != limit:
            raise ReadBackError(f"gso_max_segs of {interface}", wanted=limit, found=found)

    def ifbs(self) -> tuple[str, ...]:
        return tuple(name for _, name in socket.if_nameindex() if is_ours(name))

    def make_ifb(self, device: str) -> None:
        if device in self.ifbs():
            self._need_ifb(device)
            return
        links.make_ifb(self._tc, device)

    def start_ifb(self, device: str) -> None:
        links.start_ifb(self._tc, device, self._index(device))

    def delete_ifb(self, device: str) -> None:
        if device in self.ifbs():
            self._need_ifb(device)
            links.delete_link(self._tc, device, self._index(device))

    def running_number(self, device: str) -> int | None:
        return links.running_number(self._probe, device)

    def redirection(self, interface: str) -> Redirection | None:
        return links.redirection(self._tc, self._index(interface))

    def redirect(self, interface: str, device: str) -> None:
        index, to_index = self._index(interface), self._index(device)
        links.redirect(self._tc, index, to_index)
        found = links.redirection(self._tc, index)
        if found is None or found.to_indexes != (to_index,) or len(found.preferences) != 2:
            raise ReadBackError(f"the redirection of {interface}", wanted=device, found=found)

    def stop_redirecting(self, interface: str) -> None:
        failsafe.stop_redirecting(self._tc, {self._index(interface)})

    def remove_empty_hook(self, interface: str) -> None:
        links.remove_empty_hook(self._tc, self._index(interface))

    def classify_forwarded(self, rules: Sequence[tuple[Rule, int]]) -> None:
        if not rules:
            self._stop_forwarding()
            return
        self._forwarding = self._forwarding or NetlinkSocket(nftables.NETLINK_NETFILTER)
        requests = nftables.replace_table(rules)
        try:
            what = f"make the table inet {nftables.TABLE}"
            self._forwarding.transact(what, requests, begin=nftables.begin(), end=nftables.end())
        except ShapingError:
            self._stop_forwarding()
            raise

    def _stop_forwarding(self) -> None:
        """The table goes with its socket."""
        if self._forwarding is not None:
            self._forwarding.close()
            self._forwarding = None

    def close(self) -> None:
        self._stop_forwarding()
        self._probe.close()
        self._tc.close()

    def _index(self, interface: str) -> int:
        try:
            return links.interface_number(self._probe, interface)
        except OSError as error:
            raise _missing(interface) from error

    def _link(self, interface: str) -> links.Link:
        link = links.read_link(self._tc, interface)
        if link is None:
            raise _missing(interface)
        return link

    def _need_ifb(self, device: str) -> None:
        if self._link(device).kind != "ifb":
            raise ConfigurationError("interface.ingress", device, "a link of this name is there that is no IFB of ours")

    def _read_back(self, interface: str, index: int, operations: Sequence[Operation]) -> None:
        wanted_classes: dict[int, ClassSpec] = {}
        wanted_leaves: dict[int, LeafSpec] = {}
        wanted_filters: dict[int, FilterSpec | None] = {}
        wanted_root: QdiscSpec | None = None
        for operation in operations:
            match operation:
                case AddRoot(qdisc):
                    wanted_root = qdisc
                case AddClass(spec) | ChangeClass(spec):
                    wanted_classes[spec.minor] = spec
                case AddLeaf(leaf) | ChangeLeaf(leaf):
                    wanted_leaves[leaf.parent_minor] = leaf
                case AddFilter(rule):
                    wanted_filters[rule.preference] = rule
                case DeleteFilter(rule):
                    wanted_filters[rule.preference] = None
        if all(isinstance(operation, ChangeClass) for operation in operations):  # queues are listed of all interfaces
            classes = fast_path.read_classes(self._tc, interface, index)
            _compare(interface, "class", wanted_classes, {spec.minor: spec for spec in classes})
            return
        found = tree.read_tree(self._tc, interface, index, filters=bool(wanted_filters))
        if found is None or (wanted_root is not None and found.qdisc != wanted_root):
            raise ReadBackError(f"the root of {interface}", wanted=wanted_root or QdiscSpec(), found=found)
        _compare(interface, "class", wanted_classes, {spec.minor: spec for spec in found.classes})
        _compare(interface, "queue at", wanted_leaves, {leaf.parent_minor: leaf for leaf in found.leaves})
        _compare(interface, "filter", wanted_filters, {rule.preference: rule for rule in found.filters})


def _missing(interface: str) -> ConfigurationError:
    there = ", ".join(name for _, name in socket.if_nameindex())
    return ConfigurationError(
        "interface.name", interface, f"no such interface in this network namespace; there are {there}"
    )


def _compare(interface: str, what: str, wanted: Mapping[int, object], found: Mapping[int, object]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            name = show_classid(key) if what != "filter" else str(key)
            raise ReadBackError(f"{what} {name} on {interface}", wanted=value, found=found.get(key))

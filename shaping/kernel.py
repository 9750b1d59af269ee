"""The real kernel: traffic control of the network namespace in which it is made. The only file that knows pyroute2.

Everything goes through our own `codec` over one socket, for the reasons that stand there. pyroute2 makes the journal
readable where a root that somebody configured is to be replaced, and is imported then alone: with what it imports it
takes 14 MB. Its synchronous `IPRoute` must not be made or used inside a running event loop: call this from a thread of
its own.

What was applied is read back at once: every class, queue and filter that an operation named has to be there with
exactly the values that were sent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
from collections.abc import Mapping, Sequence

from hive_qos.errors import ConfigurationError, KernelRejectedError, ReadBackError, ShapingError
from shaping.classify import nftables
from shaping.ingress import redirect
from shaping.ingress.ifb import (
    encode_delete_link,
    encode_ifb,
    encode_no_addresses,
    encode_up,
    interface_number,
    running_number,
)
from shaping.model import (
    HELD_NAME,
    INNER_MINOR,
    MAJOR,
    AddClass,
    AddFilter,
    AddLeaf,
    AddRoot,
    Capabilities,
    ChangeClass,
    ChangeLeaf,
    ClassCounters,
    ClassSpec,
    DeleteFilter,
    DeviceSegments,
    FilterSpec,
    LeafSpec,
    Operation,
    PriorQdisc,
    QdiscSpec,
    Redirection,
    Tree,
    classid,
    describe,
    is_ours,
    show_classid,
)
from shaping.netlink.class_counters import decode_class_counters
from shaping.netlink.links import Link, decode_link, encode_look, encode_segments
from shaping.netlink.tc_codec import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    TC_H_ROOT,
    Object,
    decode_class,
    decode_filter,
    decode_leaf,
    decode_root,
    encode_delete_root,
    encode_dump,
    encode_operation,
    encode_qdisc,
    options_to_give_back,
)
from shaping.netlink.tc_socket import TcSocket

RAW_OPTIONS = "raw"
"""Key of the prior qdisc's options as the kernel's own bytes in hexadecimal; they can be given back as they are."""

_REFUSED_OPTIONS = b"\x05\x00\x01\x00\xff\x00\x00\x00"
"""One attribute of type 1 with one byte. Every kind that we probe refuses it (HTB wants type 2, bfifo's limit is 4
bytes of which these would be the first, so it gets less than 4; fq_codel's type 1 is 4 bytes), so that a probe can
never replace a qdisc."""


class RealKernel:
    """`kernel_api.Kernel` on rtnetlink. Make it in the namespace and the thread in which it will be used."""

    def __init__(self) -> None:
        self._tc = TcSocket()
        self._probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._forwarding: TcSocket | None = None
        self._capabilities: Capabilities | None = None

    def capabilities(self) -> Capabilities:
        if self._capabilities is None:
            self._capabilities = Capabilities(
                htb=self._knows_qdisc("htb"), bfifo=self._knows_qdisc("bfifo"), fq_codel=self._knows_qdisc("fq_codel")
            )
        return self._capabilities

    def interfaces(self) -> tuple[str, ...]:
        return tuple(self.numbers())

    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in socket.if_nameindex() if not is_ours(name)}

    def root(self, interface: str) -> PriorQdisc:
        index = self._index(interface)
        objects = self._qdiscs(interface, index)
        root = next((found for found in objects if found.parent == TC_H_ROOT), None)
        if root is None:  # an interface that is down may list none
            return PriorQdisc(kind="noqueue", handle_major=0)
        nested = 0
        if root.handle:  # what hangs below a default root is the kernel's own (mq's queues)
            nested = len([child for child in objects if child.parent != TC_H_ROOT and child.parent >> 16 != 0xFFFF])
            nested += len(self._classes(interface, index, root.handle))
            nested += len(self._filters(interface, index, root.handle))
        return PriorQdisc(
            kind=root.kind,
            handle_major=root.handle >> 16,
            options={RAW_OPTIONS: root.options.hex(), **(_readable_options(index) if root.handle else {})},
            nested=nested,
        )

    def observe(self, interface: str) -> Tree | None:
        index = self._index(interface)
        objects = self._qdiscs(interface, index)
        root = next((found for found in objects if found.parent == TC_H_ROOT), None)
        if root is None or root.kind != "htb" or root.handle != MAJOR << 16:
            return None
        classes = map(decode_class, self._classes(interface, index, root.handle))
        leaves = [decode_leaf(found) for found in objects if found.parent >> 16 == MAJOR]
        filters = [
            decode_filter(found)
            for minor in (0, INNER_MINOR[HELD_NAME])
            for found in self._filters(interface, index, classid(minor))
        ]
        return Tree(
            qdisc=decode_root(root)[0],
            classes=tuple(sorted(classes, key=lambda spec: spec.minor)),
            leaves=tuple(sorted((leaf for leaf in leaves if leaf), key=lambda leaf: leaf.parent_minor)),
            filters=tuple(sorted((rule for rule in filters if rule), key=lambda rule: rule.preference)),
        )

    def apply(self, interface: str, operations: Sequence[Operation]) -> None:
        if not operations:
            return
        index = self._index(interface)
        requests = [
            (f"{describe(operation)} on {interface}", encode_operation(operation, interface_index=index))
            for operation in operations
        ]
        self._tc.execute(requests)
        self._read_back(interface, index, operations)

    def delete_root(self, interface: str) -> None:
        index = self._index(interface)
        request = encode_delete_root(interface_index=index, handle=MAJOR << 16)
        try:
            self._tc.execute([(f"delete the root {MAJOR:x}: of {interface}", request)])
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
        index = self._index(interface)
        raw = bytes.fromhex(str(prior.options.get(RAW_OPTIONS, "")))
        request = encode_qdisc(
            prior.kind,
            options_to_give_back(prior.kind, raw),
            interface_index=index,
            handle=prior.handle_major << 16,
            flags=NLM_F_CREATE | NLM_F_REPLACE,
            parent=TC_H_ROOT,
        )
        what = f"put back {prior.kind} {prior.handle_major:x}: at the root of {interface}"
        try:
            self._tc.execute([(what, request)])
        except KernelRejectedError as error:
            notes.append(f"{interface}: {error}; the kernel's default is there now")
            return tuple(notes)
        found = self.root(interface)
        if (found.kind, found.options.get(RAW_OPTIONS)) != (prior.kind, prior.options.get(RAW_OPTIONS)):
            notes.append(f"{interface}: {prior.kind} is back, but some of its options are not what they were")
        return tuple(notes)

    def counters(self, interface: str) -> dict[int, ClassCounters]:
        # Of our root alone: asked for all, the kernel goes through the 1,024 queues of each fq_codel leaf besides.
        request = encode_dump(RTM_GETTCLASS, interface_index=self._index(interface), parent=MAJOR << 16)
        found = self._tc.read(f"list classes of {interface}", request, decode_class_counters)
        return {handle & 0xFFFF: counters for handle, counters in found if handle >> 16 == MAJOR}

    def direct_packets(self, interface: str) -> int:
        queues = self._qdiscs(interface, self._index(interface))
        return next((decode_root(found)[1] for found in queues if found.handle == MAJOR << 16), 0)

    def segments(self, interface: str) -> DeviceSegments:
        link = self._link(interface)
        default = link.gso_max_segs if link.tso_max_segs is None else link.tso_max_segs
        return DeviceSegments(limit=link.gso_max_segs, default=default)

    def set_segments(self, interface: str, limit: int) -> None:
        group = self._link(interface).group
        request = encode_segments(limit, interface_index=self._index(interface), group=group)
        self._tc.execute([(f"set gso_max_segs {limit} of {interface}", request)])
        found = self.segments(interface).limit
        if found != limit:
            raise ReadBackError(f"gso_max_segs of {interface}", wanted=limit, found=found)

    def ifbs(self) -> tuple[str, ...]:
        return tuple(name for _, name in socket.if_nameindex() if is_ours(name))

    def make_ifb(self, device: str) -> None:
        if device in self.ifbs():
            self._need_ifb(device)
            return
        self._tc.execute([(f"make the IFB {device}", encode_ifb(device))])

    def start_ifb(self, device: str) -> None:
        index = self._index(device)
        with contextlib.suppress(KernelRejectedError):  # a kernel without IPv6 gives it no addresses anyway
            self._tc.execute([(f"keep IPv6 addresses off {device}", encode_no_addresses(interface_index=index))])
        self._tc.execute([(f"set {device} up", encode_up(interface_index=index))])

    def delete_ifb(self, device: str) -> None:
        if device in self.ifbs():
            self._need_ifb(device)
            self._tc.execute([(f"delete {device}", encode_delete_link(interface_index=self._index(device)))])

    def running_number(self, device: str) -> int | None:
        return running_number(self._probe, device)

    def redirection(self, interface: str) -> Redirection | None:
        return redirect.redirections(self._tc).get(self._index(interface))

    def redirect(self, interface: str, device: str) -> None:
        index, to_index = self._index(interface), self._index(device)
        redirect.redirect(self._tc, index=index, to_index=to_index)
        found = redirect.redirections(self._tc).get(index)
        if found is None or found.to_indexes != (to_index,) or len(found.preferences) != 2:
            raise ReadBackError(f"the redirection of {interface}", wanted=device, found=found)

    def stop_redirecting(self, interface: str) -> None:
        redirect.stop_redirecting(self._tc, {self._index(interface)})

    def remove_empty_hook(self, interface: str) -> None:
        redirect.remove_empty_hook(self._tc, self._index(interface))

    def classify_forwarded(self, filters: Sequence[FilterSpec]) -> None:
        if not filters:
            self._stop_forwarding()
            return
        self._forwarding = self._forwarding or TcSocket(nftables.NETLINK_NETFILTER)
        requests = nftables.replace_table(filters)
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
            return interface_number(self._probe, interface)
        except OSError as error:
            there = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigurationError(
                "interface.name", interface, f"no such interface in this network namespace; there are {there}"
            ) from error

    def _link(self, interface: str) -> Link:
        request = encode_look(interface_index=self._index(interface))
        return self._tc.ask(f"look at the link {interface}", request, decode_link)

    def _need_ifb(self, device: str) -> None:
        if self._link(device).kind != "ifb":
            raise ConfigurationError("interface.ingress", device, "a link of this name is there that is no IFB of ours")

    def _qdiscs(self, interface: str, index: int) -> list[Object]:
        objects = self._tc.dump(f"list queues of {interface}", encode_dump(RTM_GETQDISC, interface_index=index))
        return [found for found in objects if found.interface_index == index]

    def _classes(self, interface: str, index: int, root: int) -> list[Object]:
        """Of the root with this handle alone, as `counters` asks."""
        request = encode_dump(RTM_GETTCLASS, interface_index=index, parent=root)
        objects = self._tc.dump(f"list classes of {interface}", request)
        return [found for found in objects if found.handle >> 16 == root >> 16]

    def _filters(self, interface: str, index: int, parent: int) -> list[Object]:
        request = encode_dump(RTM_GETTFILTER, interface_index=index, parent=parent)
        return self._tc.dump(f"list filters of {interface}", request)

    def _knows_qdisc(self, kind: str) -> bool:
        """Ask for a qdisc with options that its init refuses: ENOENT tells an unknown kind from a known one.

        A root that somebody configured does not deceive it: EEXIST is only said of one of this very kind, which is then
        known (6.18: over a tbf, htb and bfifo are refused by their init, an unknown kind with ENOENT, as over none).
        """
        request = encode_qdisc(
            kind,
            _REFUSED_OPTIONS if kind != "bfifo" else b"\0",
            interface_index=socket.if_nametoindex("lo"),
            handle=0,
            flags=NLM_F_CREATE | NLM_F_EXCL,
            parent=TC_H_ROOT,
        )
        try:
            self._tc.execute([(f"probe for {kind}", request)])
        except KernelRejectedError as error:
            return error.errno_value not in (errno.ENOENT, errno.EOPNOTSUPP)
        raise ReadBackError(f"probe for {kind}", wanted="a refusal", found="a qdisc on lo")

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
        if wanted_classes and not (wanted_root or wanted_leaves or wanted_filters):
            objects = self._classes(interface, index, MAJOR << 16)
            found_classes = {spec.minor: spec for spec in map(decode_class, objects)}
            _compare(interface, "class", wanted_classes, found_classes)
            return
        tree = self.observe(interface)
        if tree is None or (wanted_root is not None and tree.qdisc != wanted_root):
            raise ReadBackError(f"the root of {interface}", wanted=wanted_root or QdiscSpec(), found=tree)
        _compare(interface, "class", wanted_classes, {spec.minor: spec for spec in tree.classes})
        _compare(interface, "queue at", wanted_leaves, {leaf.parent_minor: leaf for leaf in tree.leaves})
        _compare(interface, "filter", wanted_filters, {rule.preference: rule for rule in tree.filters})


def _compare(interface: str, what: str, wanted: Mapping[int, object], found: Mapping[int, object]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            name = show_classid(key) if what != "filter" else str(key)
            raise ReadBackError(f"{what} {name} on {interface}", wanted=value, found=found.get(key))


def _readable_options(index: int) -> dict[str, object]:
    """The root's options as pyroute2 names them, for whoever reads the journal. JSON values only."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute(ext_ack=True) as route:
            messages = tuple(route.get_qdiscs(index))
    except NetlinkError as error:
        return {"readable": f"pyroute2 could not read them: {error}"}
    for message in messages:
        options = message.get_attr("TCA_OPTIONS")
        if message["parent"] == TC_H_ROOT and options is not None:
            text = json.dumps(options, default=str, sort_keys=True)
            return {"readable": json.loads(text)}
    return {}

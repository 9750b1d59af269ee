"""Messages without pyroute2: the HTB tree, which ticks read and change, and what the watchdog needs.

CPU time, and what it is where pyroute2 0.9.7 lays out the same messages for the same socket (docs/log/kernel.md):

    counters of 26 classes    0.12 ms     0.85 ms    ten times a second: 0.9 % of a core for each interface
    one class changed         0.003 ms    0.24 ms    a tick that changes all of them: 6 ms more

Layouts: tcmsg, tc_htb_opt, tc_htb_glob, tc_htb_xstats of include/uapi/linux/{rtnetlink,pkt_sched,gen_stats}.h.
"""

from __future__ import annotations

import functools
import struct
import sys
from dataclasses import dataclass

from hive_qos.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NetlinkSocket,
    Request,
    attribute_map,
    pack_attribute,
    pack_text,
)
from shaping.model.names import MAJOR, classid
from shaping.model.observations import ClassCounters, TreeCounters
from shaping.model.tree import AddClass, AddLeaf, AddRoot, ChangeClass, ChangeLeaf, ClassSpec, LeafSpec, QdiscSpec
from shaping.netlink.psched_ticks import burst_bytes_of, burst_ticks

# linux/rtnetlink.h and linux/pkt_sched.h.
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
TC_H_ROOT, TC_H_INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2, _TCA_STAB = 1, 2, 7, 8
_TCA_HTB_PARMS, TCA_HTB_INIT, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 2, 6, 7
_TCA_FQ_CODEL_LIMIT = 2

_TCMSG = struct.Struct("=BxHiIII")  # family, pad, interface index, handle, parent, info
_RATE = struct.Struct("=BBHhHI")  # cell_log, linklayer, overhead, cell_align, mpu, rate
_HTB_TAIL = struct.Struct("=IIIII")  # buffer, cbuffer, quantum, level, prio
HTB_GLOB = struct.Struct("=IIIII")  # version, rate2quantum, defcls, debug, direct_pkts
HTB_VERSION = 3  # what the kernel wants: HTB_VER of net/sched/sch_htb.c, its major part
_LINKLAYER_ETHERNET = 1  # linux/pkt_sched.h, TC_LINKLAYER_ETHERNET
_QUANTUM_UNUSED = 1_514  # a class above others has no turn; 0 would make the kernel compute one, and warn
_RATE32_MAX = 2**32 - 1  # struct tc_ratespec has 32 bits of bytes per second; more goes into an attribute of 64

# Of TCA_STATS2, by kind: bytes, packets; qlen, backlog, drops, requeues, overlimits; packets again, in 64 bits, for the
# 32-bit count wraps after an hour at 1 M/s.
_BASIC, _QUEUE, _PACKETS64 = 1, 3, 8
_STATISTICS = {kind: struct.Struct(form) for kind, form in ((_BASIC, "=QI"), (_QUEUE, "=5I"), (_PACKETS64, "=Q"))}


@dataclass(frozen=True)
class Object:
    """One queue, class or filter: the fields of its tcmsg, its kind, its options as bytes, whether it has a stab."""

    interface_index: int
    handle: int
    parent: int
    info: int
    kind: str
    options: bytes
    size_table: bool = False


def read_objects(
    kernel: NetlinkSocket, what: str, message_type: int, *, index: int = 0, parent: int = 0
) -> list[Object]:
    """All classes or filters of one interface, or all queues of every interface.

    Args:
        parent: keeps it to the classes of one queue, or to the filters at one class.

    Raises:
        KernelRejectedError: as `NetlinkSocket.read`.
    """
    return kernel.read(what, _listing(message_type, index, parent), decode_object)


def read_classes(kernel: NetlinkSocket, interface: str, index: int) -> tuple[ClassSpec, ...]:
    """The classes of our root alone: asked for all, the kernel goes through 1,024 queues of each fq_codel leaf."""
    found = read_objects(kernel, f"list classes of {interface}", RTM_GETTCLASS, index=index, parent=MAJOR << 16)
    classes = (decode_class(one) for one in found if one.handle >> 16 == MAJOR)
    return tuple(sorted(classes, key=lambda spec: spec.minor))


def read_counters(kernel: NetlinkSocket, interface: str, index: int) -> TreeCounters:
    """What our root and its classes have counted.

    The queues tell what was dropped: a class counts what its queue refuses, and nothing of what fq_codel drops later
    (net/sched/sch_htb.c, `htb_enqueue`).
    """
    request = _listing(RTM_GETTCLASS, index, MAJOR << 16)
    found = kernel.read(f"list classes of {interface}", request, decode_counters)
    counters = {handle & 0xFFFF: counted for handle, counted in found if handle >> 16 == MAJOR}
    direct_packets = 0
    request = _listing(RTM_GETQDISC, index, 0)  # the kernel lists those of all interfaces
    decode = functools.partial(decode_queue, of=index)
    for parent, packets in filter(None, kernel.read(f"list queues of {interface}", request, decode)):
        if parent == TC_H_ROOT:
            direct_packets = packets
        elif parent >> 16 == MAJOR and (minor := parent & 0xFFFF) in counters:
            counters[minor] = counters[minor]._replace(dropped_packets=packets)
    return TreeCounters(counters, direct_packets)


def read_queues(kernel: NetlinkSocket, interface: str, index: int) -> tuple[QdiscSpec, tuple[LeafSpec, ...]] | None:
    """The root of ours and the queues of its classes, sorted by their class; None where the root is not ours."""
    queues = [one for one in _queues(kernel, interface, index) if one.interface_index == index]
    root = next((one for one in queues if one.parent == TC_H_ROOT), None)
    if root is None or root.kind != "htb" or root.handle != MAJOR << 16:
        return None
    leaves = [leaf for one in queues if one.parent >> 16 == MAJOR and (leaf := decode_leaf(one))]
    return QdiscSpec(MAJOR, _glob(root)[2]), tuple(sorted(leaves, key=lambda leaf: leaf.parent_minor))


def encode_operation(operation: AddRoot | AddClass | ChangeClass | AddLeaf | ChangeLeaf, *, index: int) -> Request:
    """One operation as one message."""
    match operation:
        case AddRoot(qdisc):
            glob = pack_attribute(TCA_HTB_INIT, HTB_GLOB.pack(HTB_VERSION, 0, qdisc.default_minor, 0, 0))
            flags = NLM_F_CREATE | NLM_F_REPLACE
            return encode_queue("htb", glob, index=index, handle=qdisc.handle_major << 16, flags=flags)
        case AddClass(spec):
            return _encode_class(spec, index=index, flags=NLM_F_CREATE | NLM_F_EXCL)
        case ChangeClass(spec):
            return _encode_class(spec, index=index, flags=NLM_F_REPLACE)
        case AddLeaf(leaf) | ChangeLeaf(leaf):
            limit = struct.pack("=I", leaf.limit)
            options = limit if leaf.kind == "bfifo" else pack_attribute(_TCA_FQ_CODEL_LIMIT, limit)
            flags = NLM_F_CREATE | NLM_F_EXCL if isinstance(operation, AddLeaf) else 0
            handle, parent = leaf.handle_major << 16, classid(leaf.parent_minor)
            return encode_queue(leaf.kind, options, index=index, handle=handle, flags=flags, parent=parent)


def _encode_class(spec: ClassSpec, *, index: int, flags: int) -> Request:
    rate, ceil = spec.rate_bits_per_s // 8, spec.ceil_bits_per_s // 8
    parms = b"".join(
        (
            _RATE.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _RATE32_MAX)),
            _RATE.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(ceil, _RATE32_MAX)),
            _HTB_TAIL.pack(
                burst_ticks(spec.burst_bytes, rate_bytes_per_s=rate),
                burst_ticks(spec.cburst_bytes, rate_bytes_per_s=ceil),
                spec.quantum_bytes or _QUANTUM_UNUSED,
                0,
                spec.priority,
            ),
        )
    )
    options = pack_attribute(_TCA_HTB_PARMS, parms)
    if rate > _RATE32_MAX:
        options += pack_attribute(_TCA_HTB_RATE64, struct.pack("=Q", rate))
    if ceil > _RATE32_MAX:
        options += pack_attribute(_TCA_HTB_CEIL64, struct.pack("=Q", ceil))
    parent = classid(spec.parent_minor)
    body = _TCMSG.pack(0, 0, index, classid(spec.minor), parent, 0)
    return Request(RTM_NEWTCLASS, flags, body + pack_text(_TCA_KIND, "htb") + pack_attribute(_TCA_OPTIONS, options))


def encode_queue(kind: str, options: bytes, *, index: int, handle: int, flags: int, parent: int = TC_H_ROOT) -> Request:
    """A queue of any kind with its options as bytes, at the root by default."""
    body = _TCMSG.pack(0, 0, index, handle, parent, 0) + pack_text(_TCA_KIND, kind)
    return Request(RTM_NEWQDISC, flags, body + (pack_attribute(_TCA_OPTIONS, options) if options else b""))


def encode_delete(message_type: int, found: Object) -> Request:
    """Delete a queue or a filter that was found."""
    body = _TCMSG.pack(0, 0, found.interface_index, found.handle, found.parent, found.info)
    return Request(message_type, 0, body + pack_text(_TCA_KIND, found.kind))


def decode_object(_: int, body: bytes) -> Object:
    """Take one message apart.

    Raises:
        struct.error: shorter than a tcmsg; the kernel does not send that.
    """
    _, _, index, handle, parent, info = _TCMSG.unpack_from(body)
    attributes = attribute_map(body, _TCMSG.size)
    kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    options, size_table = attributes.get(_TCA_OPTIONS, b""), _TCA_STAB in attributes
    return Object(index, handle, parent, info, kind, options, size_table)


def decode_leaf(found: Object) -> LeafSpec | None:
    """A queue below one of our classes, or None for a kind that we never make."""
    match found.kind:
        case "bfifo" as kind:
            limit = found.options
        case "fq_codel" as kind:
            limit = attribute_map(found.options)[_TCA_FQ_CODEL_LIMIT]
        case _:
            return None
    number = int.from_bytes(limit[:4], sys.byteorder)
    return LeafSpec(found.parent & 0xFFFF, kind, number, handle_major=found.handle >> 16)


def decode_class(found: Object) -> ClassSpec:
    """All parameters of an HTB class."""
    attributes = attribute_map(found.options)
    parms = attributes[_TCA_HTB_PARMS]
    rate: int = _RATE.unpack_from(parms, 0)[5]
    ceil: int = _RATE.unpack_from(parms, _RATE.size)[5]
    if _TCA_HTB_RATE64 in attributes:
        rate = int.from_bytes(attributes[_TCA_HTB_RATE64], sys.byteorder)
    if _TCA_HTB_CEIL64 in attributes:
        ceil = int.from_bytes(attributes[_TCA_HTB_CEIL64], sys.byteorder)
    buffer, cbuffer, quantum, level, priority = _HTB_TAIL.unpack_from(parms, 2 * _RATE.size)
    return ClassSpec(
        minor=found.handle & 0xFFFF,
        parent_minor=0 if found.parent == TC_H_ROOT else found.parent & 0xFFFF,
        rate_bits_per_s=rate * 8,
        ceil_bits_per_s=ceil * 8,
        priority=0 if level else priority,
        burst_bytes=burst_bytes_of(buffer, rate_bytes_per_s=rate),
        cburst_bytes=burst_bytes_of(cbuffer, rate_bytes_per_s=ceil),
        quantum_bytes=0 if level else quantum,
    )


def decode_counters(_: int, body: bytes) -> tuple[int, ClassCounters]:
    """A class' handle and what it counted. Statistics grew over kernel versions: what is missing counts as 0."""
    values = attribute_map(attribute_map(body, _TCMSG.size).get(_TCA_STATS2, b""))
    sent_bytes, packets = _statistics(values, _BASIC)
    waiting_packets, waiting_bytes, drops, _, _ = _statistics(values, _QUEUE)
    (packets64,) = _statistics(values, _PACKETS64)
    return _TCMSG.unpack_from(body)[3], ClassCounters(
        sent_bytes=sent_bytes,
        sent_packets=packets64 or packets,
        dropped_packets=drops,
        backlog_bytes=waiting_bytes,
        backlog_packets=waiting_packets,
    )


def decode_queue(message_type: int, body: bytes, *, of: int) -> tuple[int, int] | None:
    """Of a queue: its parent, and the packets that it has dropped; of our root, those that went past all its classes.
    None for one of another interface than `of`."""
    _, _, index, handle, parent, _ = _TCMSG.unpack_from(body)
    if index != of:
        return None
    if parent == TC_H_ROOT:
        return (parent, _glob(decode_object(message_type, body))[4]) if handle == MAJOR << 16 else None
    values = attribute_map(attribute_map(body, _TCMSG.size).get(_TCA_STATS2, b""))
    return parent, _statistics(values, _QUEUE)[2]


def _queues(kernel: NetlinkSocket, interface: str, index: int) -> list[Object]:
    return read_objects(kernel, f"list queues of {interface}", RTM_GETQDISC, index=index)


def _glob(root: Object) -> tuple[int, ...]:
    return HTB_GLOB.unpack_from(attribute_map(root.options)[TCA_HTB_INIT])


def _statistics(values: dict[int, bytes], kind: int) -> tuple[int, ...]:
    form, value = _STATISTICS[kind], values.get(kind, b"")
    return form.unpack_from(value if len(value) >= form.size else bytes(form.size))


def _listing(message_type: int, index: int, parent: int) -> Request:
    return Request(message_type, 0, _TCMSG.pack(0, 0, index, 0, parent, 0))

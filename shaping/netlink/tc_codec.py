"""The bytes of traffic-control messages (rtnetlink), written and read. Pure: bytes in, values out.

Why not pyroute2's own codec: it has no bfifo (an unknown kind is re-parented to the root with its options dropped), its
u32 keys lose leading zero bytes of a mask, its HTB bursts are cut to whole microseconds, and one class costs it 0.9 ms
of CPU to change and 0.2 ms to read, which at ten ticks a second would be more than the broker may use altogether.
Layouts: struct tcmsg, tc_htb_opt, tc_htb_glob, tc_fifo_qopt, tc_u32_sel, tc_htb_xstats in the kernel's
include/uapi/linux/{rtnetlink,pkt_sched,pkt_cls,gen_stats}.h. Host byte order except where a field is the packet's.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shaping.model import (
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
    classid,
)
from shaping.netlink.attributes import attribute_map, pack_attribute, pack_text
from shaping.netlink.psched_ticks import burst_bytes_of, burst_ticks

# linux/rtnetlink.h.
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_DELTCLASS, RTM_GETTCLASS = 40, 41, 42
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46

# linux/netlink.h.
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400

TC_H_ROOT = 0xFFFFFFFF  # linux/pkt_sched.h

# linux/rtnetlink.h, linux/pkt_sched.h and linux/pkt_cls.h.
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_TCA_HTB_PARMS, _TCA_HTB_INIT, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 2, 6, 7
_TCA_U32_CLASSID, _TCA_U32_SEL = 1, 5
_TCA_FQ_CODEL_LIMIT = 2

_TCMSG = struct.Struct("=BxHiIII")  # family, pad, interface index, handle, parent, info
_RATE = struct.Struct("=BBHhHI")  # cell_log, linklayer, overhead, cell_align, mpu, rate
_HTB_TAIL = struct.Struct("=IIIII")  # buffer, cbuffer, quantum, level, prio
_HTB_GLOB = struct.Struct("=IIIII")  # version, rate2quantum, defcls, debug, direct_pkts
_U32_SEL = struct.Struct("=BBBxHHhhI")  # flags, offshift, nkeys, offmask, off, offoff, hoff, hmask
_LINKLAYER_ETHERNET = 1  # linux/pkt_sched.h, TC_LINKLAYER_ETHERNET
_HTB_VERSION = 3  # what the kernel wants: HTB_VER of net/sched/sch_htb.c, its major part
_HTB_RATE2QUANTUM = 10  # unused: every class has its quantum
_QUANTUM_UNUSED = 1_514  # a class above others has no turn; 0 would make the kernel compute one, and warn
_U32_TERMINAL = 1  # TC_U32_TERMINAL: who matches needs no look at what follows
_U32_FIRST_NODE = 0x800  # naming it makes a second filter of the same preference an error (ENOSPC), not a second node
_RATE32_MAX = 2**32 - 1  # struct tc_ratespec has 32 bits of bytes per second; more goes into an attribute of 64

_ETH_P: Mapping[Literal[4, 6] | None, int] = {4: 0x0800, 6: 0x86DD, None: 0x0003}  # the last is ETH_P_ALL
_FAMILY = {protocol: family for family, protocol in _ETH_P.items()}


@dataclass(frozen=True)
class Request:
    """One message without its netlink header: what kind, which flags beyond REQUEST and ACK, and the bytes."""

    message_type: int
    flags: int
    body: bytes


@dataclass(frozen=True)
class Object:
    """One traffic-control object of whatever kind: the fields of tcmsg, the kind, options and statistics as bytes."""

    message_type: int
    interface_index: int
    handle: int
    parent: int
    info: int
    kind: str
    options: bytes
    statistics: bytes


def encode_operation(operation: Operation, *, interface_index: int) -> Request:
    """One operation as one message."""
    match operation:
        case AddRoot(qdisc):
            return _encode_root(qdisc, interface_index)
        case AddClass(spec):
            return _encode_class(spec, interface_index, NLM_F_CREATE | NLM_F_EXCL)
        case ChangeClass(spec):
            return _encode_class(spec, interface_index, NLM_F_REPLACE)
        case AddLeaf(leaf):
            return _encode_leaf(leaf, interface_index, NLM_F_CREATE | NLM_F_EXCL)
        case ChangeLeaf(leaf):
            return _encode_leaf(leaf, interface_index, 0)
        case AddFilter(rule):
            return _encode_filter(rule, interface_index)
        case DeleteFilter(rule):
            head = _filter_head(rule, interface_index, 0)
            return Request(RTM_DELTFILTER, 0, head + pack_text(_TCA_KIND, "u32"))


def encode_qdisc(kind: str, options: bytes, *, interface_index: int, handle: int, flags: int, parent: int) -> Request:
    """Any qdisc with its options as raw bytes, e.g. as they were read from the kernel before."""
    body = _TCMSG.pack(0, 0, interface_index, handle, parent, 0) + pack_text(_TCA_KIND, kind)
    return Request(RTM_NEWQDISC, flags, body + (pack_attribute(_TCA_OPTIONS, options) if options else b""))


def options_to_give_back(kind: str, options: bytes) -> bytes:
    """What the kernel takes for what it reported. The same bytes for all kinds but HTB, whose version it reports with
    a minor part (0x30011) that it refuses to be told (it wants 3)."""
    if kind != "htb":
        return options
    given = b""
    for attribute, payload in attribute_map(options).items():
        if attribute == _TCA_HTB_INIT:
            _, rate2quantum, default, debug, _ = _HTB_GLOB.unpack_from(payload)
            payload = _HTB_GLOB.pack(_HTB_VERSION, rate2quantum, default, debug, 0)
        given += pack_attribute(attribute, payload)
    return given


def encode_delete_root(*, interface_index: int, handle: int) -> Request:
    """Delete the root qdisc if it has this handle; another one is refused by the kernel."""
    return Request(RTM_DELQDISC, 0, _TCMSG.pack(0, 0, interface_index, handle, TC_H_ROOT, 0))


def encode_dump(message_type: int, *, interface_index: int, parent: int = 0) -> Request:
    """Ask for all classes or filters of one interface, or all qdiscs (of every interface). `parent` keeps it to the
    classes of one qdisc, or to the filters at one class."""
    return Request(message_type, NLM_F_DUMP, _TCMSG.pack(0, 0, interface_index, 0, parent, 0))


def decode_object(message_type: int, body: bytes) -> Object:
    """Take one message apart.

    Raises:
        struct.error: shorter than a tcmsg; the kernel does not send that.
    """
    _, _, index, handle, parent, info = _TCMSG.unpack_from(body)
    attributes = attribute_map(body, _TCMSG.size)
    kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    return Object(
        message_type=message_type,
        interface_index=index,
        handle=handle,
        parent=parent,
        info=info,
        kind=kind,
        options=attributes.get(_TCA_OPTIONS, b""),
        statistics=attributes.get(_TCA_STATS2, b""),
    )


def decode_root(found: Object) -> tuple[QdiscSpec, int]:
    """The HTB root and its count of packets that went past every class."""
    glob = attribute_map(found.options)[_TCA_HTB_INIT]
    _, _, default, _, direct = _HTB_GLOB.unpack_from(glob)
    return QdiscSpec(handle_major=found.handle >> 16, default_minor=default & 0xFFFF), direct


def decode_class(found: Object) -> ClassSpec:
    """All that a class of HTB was told."""
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


def decode_leaf(found: Object) -> LeafSpec | None:
    """A queue below one of our classes, or None for a kind that we never make."""
    parent_minor = found.parent & 0xFFFF
    if found.kind == "bfifo":
        limit: int = struct.unpack_from("=I", found.options)[0]
        return LeafSpec(parent_minor=parent_minor, kind="bfifo", limit=limit, handle_major=found.handle >> 16)
    if found.kind == "fq_codel":
        limit = int.from_bytes(attribute_map(found.options)[_TCA_FQ_CODEL_LIMIT], sys.byteorder)
        return LeafSpec(parent_minor=parent_minor, kind="fq_codel", limit=limit, handle_major=found.handle >> 16)
    return None


def decode_filter(found: Object) -> FilterSpec | None:
    """A u32 rule with a target; None for the heads of hash tables that the kernel lists beside them."""
    attributes = attribute_map(found.options)
    selector = attributes.get(_TCA_U32_SEL)
    if found.kind != "u32" or selector is None or _TCA_U32_CLASSID not in attributes:
        return None
    protocol = socket.ntohs(found.info & 0xFFFF)
    if protocol not in _FAMILY:
        return None
    matches = []
    for position in range(selector[2]):
        start = _U32_SEL.size + 16 * position
        mask, value = struct.unpack_from(">II", selector, start)
        (offset,) = struct.unpack_from("=i", selector, start + 8)
        matches.append((offset, mask, value))
    target = int.from_bytes(attributes[_TCA_U32_CLASSID], sys.byteorder)
    return FilterSpec(
        preference=found.info >> 16,
        family=_FAMILY[protocol],
        matches=tuple(matches),
        target_minor=target & 0xFFFF,
        parent_minor=found.parent & 0xFFFF,
    )


def pack_traffic_control(interface_index: int, *, handle: int, parent: int, info: int = 0) -> bytes:
    """A struct tcmsg."""
    return _TCMSG.pack(0, 0, interface_index, handle, parent, info)


def _encode_root(qdisc: QdiscSpec, interface_index: int) -> Request:
    glob = _HTB_GLOB.pack(_HTB_VERSION, _HTB_RATE2QUANTUM, qdisc.default_minor, 0, 0)
    return encode_qdisc(
        "htb",
        pack_attribute(_TCA_HTB_INIT, glob),
        interface_index=interface_index,
        handle=qdisc.handle_major << 16,
        flags=NLM_F_CREATE | NLM_F_REPLACE,
        parent=TC_H_ROOT,
    )


def _encode_class(spec: ClassSpec, interface_index: int, flags: int) -> Request:
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
    body = _TCMSG.pack(0, 0, interface_index, classid(spec.minor), parent, 0)
    return Request(RTM_NEWTCLASS, flags, body + pack_text(_TCA_KIND, "htb") + pack_attribute(_TCA_OPTIONS, options))


def _encode_leaf(leaf: LeafSpec, interface_index: int, flags: int) -> Request:
    if leaf.kind == "bfifo":
        options = struct.pack("=I", leaf.limit)
    else:
        options = pack_attribute(_TCA_FQ_CODEL_LIMIT, struct.pack("=I", leaf.limit))
    return encode_qdisc(
        leaf.kind,
        options,
        interface_index=interface_index,
        handle=leaf.handle_major << 16,
        flags=flags,
        parent=classid(leaf.parent_minor),
    )


def _filter_head(rule: FilterSpec, interface_index: int, handle: int) -> bytes:
    info = rule.preference << 16 | socket.htons(_ETH_P[rule.family])
    return _TCMSG.pack(0, 0, interface_index, handle, classid(rule.parent_minor), info)


def _encode_filter(rule: FilterSpec, interface_index: int) -> Request:
    selector = _U32_SEL.pack(_U32_TERMINAL, 0, len(rule.matches), 0, 0, 0, 0, 0)
    for offset, mask, value in rule.matches:
        selector += struct.pack(">II", mask, value) + struct.pack("=ii", offset, 0)
    target = struct.pack("=I", classid(rule.target_minor))
    options = pack_attribute(_TCA_U32_CLASSID, target) + pack_attribute(_TCA_U32_SEL, selector)
    body = (
        _filter_head(rule, interface_index, _U32_FIRST_NODE)
        + pack_text(_TCA_KIND, "u32")
        + pack_attribute(_TCA_OPTIONS, options)
    )
    return Request(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body)

"""The root that was there before ours, whatever its kind: read it, put it back; and which kinds this kernel has.

Its options are bytes to us: what pyroute2 reads of a kind, it does not always write as it was.
"""

from __future__ import annotations

import errno
import socket
import sys

from hive_qos.errors import KernelRejectedError, ReadBackError
from hive_qos.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkSocket, attribute_map, pack_attribute
from shaping.model.names import MAJOR
from shaping.model.observations import SIZE_TABLE, PriorQdisc
from shaping.netlink.fast_path import (
    HTB_GLOB,
    HTB_VERSION,
    RTM_DELQDISC,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    TC_H_ROOT,
    TCA_HTB_INIT,
    Object,
    encode_delete,
    encode_queue,
    read_objects,
)

_RAW_OPTIONS = "raw"
"""Key of the prior qdisc's options as the kernel's own bytes in hexadecimal; they can be given back as they are."""

_MADE_CLASSES = frozenset({"atm", "cbq", "drr", "dsmark", "hfsc", "htb", "qfq"})
"""Kinds whose classes somebody makes. Other kinds come with theirs, such as the bands of prio and the flows of cake."""

_CODEL_TIMES = {"codel": (1, 3, 5), "fq_codel": (1, 3, 7)}
"""Attributes of the target, the interval and the threshold of ECN."""

_SFQ_LIMIT, _SFQ_FLOWS = slice(8, 12), slice(16, 20)  # of tc_sfq_qopt in linux/pkt_sched.h

_REFUSED_OPTIONS = b"\x05\x00\x01\x00\xff\x00\x00\x00"
"""One attribute of type 1 with one byte. HTB wants type 2, and fq_codel's type 1 has 4 bytes: both refuse it, so that a
probe can never replace a qdisc."""


def read_root(tc: NetlinkSocket, interface: str, index: int) -> PriorQdisc:
    """What is at an interface's root, whoever made it."""
    found = read_objects(tc, f"list queues of {interface}", RTM_GETQDISC, index=index)
    queues = [one for one in found if one.interface_index == index]
    root = next((one for one in queues if one.parent == TC_H_ROOT), None)
    if root is None:  # an interface that is down may list none
        return PriorQdisc(kind="noqueue", handle_major=0)
    nested = 0
    if root.handle:  # what hangs below a default root is the kernel's own, as is a queue without a handle (mq's)
        nested = len([one for one in queues if one.handle and one.parent != TC_H_ROOT and one.parent >> 16 != 0xFFFF])
        for kind in (RTM_GETTCLASS, RTM_GETTFILTER) if root.kind in _MADE_CLASSES else (RTM_GETTFILTER,):
            what = f"list what is below {root.kind} of {interface}"
            below = read_objects(tc, what, kind, index=index, parent=root.handle)
            nested += len([one for one in below if kind != RTM_GETTCLASS or one.handle != root.handle])  # hfsc's own
    options: dict[str, object] = {_RAW_OPTIONS: root.options.hex()} | ({SIZE_TABLE: True} if root.size_table else {})
    return PriorQdisc(root.kind, root.handle >> 16, options, nested)


def delete_own(tc: NetlinkSocket, interface: str, index: int) -> None:
    """Delete a root of ours with all below it."""
    own = Object(index, MAJOR << 16, TC_H_ROOT, 0, "htb", b"")
    tc.execute([(f"delete the root {MAJOR:x}: of {interface}", encode_delete(RTM_DELQDISC, own))])


def put_back(tc: NetlinkSocket, interface: str, index: int, prior: PriorQdisc) -> str | None:
    """Make `prior` the root again; a sentence where the kernel did not take all of it, or None."""
    raw = bytes.fromhex(str(prior.options.get(_RAW_OPTIONS, "")))
    options = _taken_back(prior.kind, raw)
    flags, handle = NLM_F_CREATE | NLM_F_REPLACE, prior.handle_major << 16
    request = encode_queue(prior.kind, options, index=index, handle=handle, flags=flags)
    try:
        tc.execute([(f"put back {prior.kind} {prior.handle_major:x}: at the root of {interface}", request)])
    except KernelRejectedError as error:
        return f"{interface}: {error}; the kernel's default is there now"
    found = read_root(tc, interface, index)
    there = bytes.fromhex(str(found.options.get(_RAW_OPTIONS, "")))
    if (found.kind, _compared(found.kind, there)) != (prior.kind, _compared(prior.kind, raw)):
        return f"{interface}: {prior.kind} is back, but some of its options are not what they were"
    return None


def knows_qdisc(tc: NetlinkSocket, kind: str) -> bool:
    """Ask for a qdisc with options that its init refuses: ENOENT tells an unknown kind from a known one.

    A root that somebody configured does not deceive it: EEXIST is only said of one of this very kind, which is then
    known (6.18: over a tbf, htb is refused by its init, an unknown kind with ENOENT, as over none).
    """
    flags, index = NLM_F_CREATE | NLM_F_EXCL, socket.if_nametoindex("lo")
    request = encode_queue(kind, _REFUSED_OPTIONS, index=index, handle=0, flags=flags)
    try:
        tc.execute([(f"probe for {kind}", request)])
    except KernelRejectedError as error:
        return error.errno_value not in (errno.ENOENT, errno.EOPNOTSUPP)
    raise ReadBackError(f"probe for {kind}", wanted="a refusal", found="a qdisc on lo")


def _taken_back(kind: str, options: bytes) -> bytes:
    """What the kernel takes for what it reported.

    HTB reports its version with a minor part (0x30011) that it refuses to be told. CoDel keeps its times in units of
    1.024 us, reports them in whole microseconds and rounds down in both directions: one more gives the same unit.
    """
    if kind != "htb" and kind not in _CODEL_TIMES:
        return options
    given = b""
    for attribute, payload in attribute_map(options).items():
        if attribute in _CODEL_TIMES.get(kind, ()):
            payload = (int.from_bytes(payload, sys.byteorder) + 1).to_bytes(4, sys.byteorder)
        elif kind == "htb" and attribute == TCA_HTB_INIT:
            _, rate2quantum, default, debug, _ = HTB_GLOB.unpack_from(payload)
            payload = HTB_GLOB.pack(HTB_VERSION, rate2quantum, default, debug, 0)
        given += pack_attribute(attribute, payload)
    return given


def _compared(kind: str, options: bytes) -> bytes:
    """Options as they work: of SFQ's flows there are never more than packets, whatever it was told at first."""
    if kind != "sfq" or len(options) < _SFQ_FLOWS.stop:
        return options
    flows = min(options[_SFQ_FLOWS], options[_SFQ_LIMIT], key=lambda number: int.from_bytes(number, sys.byteorder))
    return options[: _SFQ_FLOWS.start] + flows + options[_SFQ_FLOWS.stop :]

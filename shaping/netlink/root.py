"""The root that was there before ours, whatever its kind: read it, put it back; and which kinds this kernel has.

Its options are bytes to us: what pyroute2 reads of a kind, it does not always write as it was.
"""

from __future__ import annotations

import errno
import socket

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
    if root.handle:  # what hangs below a default root is the kernel's own (mq's queues)
        nested = len([child for child in queues if child.parent != TC_H_ROOT and child.parent >> 16 != 0xFFFF])
        for kind in (RTM_GETTCLASS, RTM_GETTFILTER):
            what = f"list what is below {root.kind} of {interface}"
            below = read_objects(tc, what, kind, index=index, parent=root.handle)
            nested += len(below)
    options: dict[str, object] = {_RAW_OPTIONS: root.options.hex()} | ({SIZE_TABLE: True} if root.size_table else {})
    return PriorQdisc(root.kind, root.handle >> 16, options, nested)


def delete_own(tc: NetlinkSocket, interface: str, index: int) -> None:
    """Delete a root of ours with all below it."""
    own = Object(index, MAJOR << 16, TC_H_ROOT, 0, "htb", b"")
    tc.execute([(f"delete the root {MAJOR:x}: of {interface}", encode_delete(RTM_DELQDISC, own))])


def put_back(tc: NetlinkSocket, interface: str, index: int, prior: PriorQdisc) -> str | None:
    """Make `prior` the root again; a sentence where the kernel did not take all of it, or None."""
    raw = bytes.fromhex(str(prior.options.get(_RAW_OPTIONS, "")))
    options = _taken_back(raw) if prior.kind == "htb" else raw
    flags, handle = NLM_F_CREATE | NLM_F_REPLACE, prior.handle_major << 16
    request = encode_queue(prior.kind, options, index=index, handle=handle, flags=flags)
    try:
        tc.execute([(f"put back {prior.kind} {prior.handle_major:x}: at the root of {interface}", request)])
    except KernelRejectedError as error:
        return f"{interface}: {error}; the kernel's default is there now"
    found = read_root(tc, interface, index)
    if (found.kind, found.options.get(_RAW_OPTIONS)) != (prior.kind, prior.options.get(_RAW_OPTIONS)):
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


def _taken_back(options: bytes) -> bytes:
    """What the kernel takes for what it reported of HTB: it reports its version with a minor part (0x30011) that it
    refuses to be told."""
    given = b""
    for attribute, payload in attribute_map(options).items():
        if attribute == TCA_HTB_INIT:
            _, rate2quantum, default, debug, _ = HTB_GLOB.unpack_from(payload)
            payload = HTB_GLOB.pack(HTB_VERSION, rate2quantum, default, debug, 0)
        given += pack_attribute(attribute, payload)
    return given

"""u32 filters (tc-u32(8)) through pyroute2: by words of the network header into a class, or to another interface."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink.rtnl.tcmsg import cls_u32, tcmsg
from pyroute2.netlink.rtnl.tcmsg.common_act import get_tca_action

from hive_qos.netlink import NLM_F_CREATE, NLM_F_EXCL, NetlinkSocket, Request
from shaping.netlink import messages
from shaping.netlink.fast_path import RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWTFILTER

_SELECTOR = struct.Struct("=BBBxHHhhI")  # struct tc_u32_sel: flags, offshift, nkeys, offmask, off, offoff, hoff, hmask
_TERMINAL = 1  # TC_U32_TERMINAL: a packet that matches needs no look at what follows


@dataclass(frozen=True, kw_only=True)
class Filter:
    """One filter. Of another kind's, and of the head of a list, only the first three are known.

    Args:
        parent: the class or queue whose filter it is.
        preference: the smaller is asked first.
        protocol: of linux/if_ether.h.
        matches: offset in bytes from the network header, mask, value; all have to hold.
        classid: where matching packets go, or
        to_index: the interface that gets them instead, as if it sent them.
    """

    parent: int
    preference: int
    protocol: int
    matches: tuple[tuple[int, int, int], ...] = ()
    classid: int | None = None
    to_index: int | None = None


class _Options(cls_u32.options):  # type: ignore[misc]  # pyroute2 has no types
    """With the selector as bytes: pyroute2 moves a key whose mask begins with zeros, and joins keys that follow."""

    nla_map = tuple((name, "cdata" if name == "TCA_U32_SEL" else how) for name, how in cls_u32.options.nla_map)


class _Message(tcmsg):  # type: ignore[misc]  # pyroute2 has no types
    @staticmethod
    def get_options(self: Any, *_: Any, **__: Any) -> Any:
        return _Options if self.get_attr("TCA_KIND") == "u32" else self.hex


def encode_add(wanted: Filter, *, index: int, handle: int = 0) -> Request:
    """Add a filter to an interface."""
    options: list[tuple[str, Any]] = [("TCA_U32_SEL", _selector(wanted))]
    if wanted.classid is not None:
        options.append(("TCA_U32_CLASSID", wanted.classid))
    if wanted.to_index is not None:
        action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": wanted.to_index}
        options.append(("TCA_U32_ACT", get_tca_action({"action": action})))
    attributes = ("TCA_KIND", "u32"), ("TCA_OPTIONS", {"attrs": options})
    how = NLM_F_CREATE | NLM_F_EXCL
    return messages.request(_Message, RTM_NEWTFILTER, *attributes, how=how, handle=handle, **_named(wanted, index))


def encode_delete(former: Filter, *, index: int) -> Request:
    """Delete a filter of an interface; its parent, preference and protocol name it."""
    return messages.request(_Message, RTM_DELTFILTER, ("TCA_KIND", "u32"), **_named(former, index))


def read_filters(kernel: NetlinkSocket, what: str, *, index: int, parent: int) -> list[Filter]:
    """The filters at one class or queue of an interface, of any kind, whoever made them.

    Raises:
        KernelRejectedError: as `NetlinkSocket.read`.
    """
    return kernel.read(what, messages.request(_Message, RTM_GETTFILTER, index=index, parent=parent), decode)


def decode(message_type: int, body: bytes) -> Filter:
    """Take one message apart."""
    found = messages.decode(_Message, message_type, body)
    options = found.get_attr("TCA_OPTIONS") if found.get_attr("TCA_KIND") == "u32" else None
    selector = options.get_attr("TCA_U32_SEL") if options else None
    action = options.get_nested("TCA_U32_ACT", "TCA_ACT_PRIO_1") if options else None
    kind = action.get_attr("TCA_ACT_KIND") if action else None
    mirred = action.get_nested("TCA_ACT_OPTIONS", "TCA_MIRRED_PARMS") if action and kind == "mirred" else None
    return Filter(
        parent=found["parent"],
        preference=found["info"] >> 16,
        protocol=socket.ntohs(found["info"] & 0xFFFF),
        matches=_matches(selector) if selector else (),
        classid=options.get_attr("TCA_U32_CLASSID") if options else None,
        to_index=mirred["ifindex"] if mirred else None,
    )


def _named(one: Filter, index: int) -> dict[str, int]:
    return {"index": index, "parent": one.parent, "info": one.preference << 16 | socket.htons(one.protocol)}


def _selector(wanted: Filter) -> bytes:
    keys = (struct.pack(">II", mask, value) + struct.pack("=ii", offset, 0) for offset, mask, value in wanted.matches)
    return _SELECTOR.pack(_TERMINAL, 0, len(wanted.matches), 0, 0, 0, 0, 0) + b"".join(keys)


def _matches(selector: bytes) -> tuple[tuple[int, int, int], ...]:
    found = []
    for start in range(_SELECTOR.size, _SELECTOR.size + 16 * selector[2], 16):
        mask, value = struct.unpack_from(">II", selector, start)
        (offset,) = struct.unpack_from("=i", selector, start + 8)
        found.append((offset, mask, value))
    return tuple(found)

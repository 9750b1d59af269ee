"""Lead what arrives at an interface through an IFB, and stop that at once. No pyroute2: the watchdog does it, too.

    interface ── ingress qdisc ffff: ── u32, everything of IPv4 and of IPv6 ── mirred redirect ──▶ IFB ──▶ the host

While a redirection stands and its IFB is down or gone, everything that arrives is lost. So the redirection is the last
thing that is made and the first that is removed, and whoever finds it without a working IFB removes it at once.

Ours is told by its filters: u32, two preferences of our own, a mirred action. Other filters there are somebody's: they
are asked before ours, and where there are any we take away ours and leave the qdisc.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from shaping.model import Redirection
from shaping.netlink.attributes import attribute_map, pack_attribute, pack_text
from shaping.netlink.tc_codec import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_DELQDISC,
    RTM_DELTFILTER,
    RTM_GETQDISC,
    RTM_GETTFILTER,
    RTM_NEWTFILTER,
    Object,
    Request,
    encode_dump,
    encode_qdisc,
    pack_traffic_control,
)
from shaping.netlink.tc_socket import TcSocket

# linux/pkt_sched.h; its handle is always the same.
_TC_H_INGRESS = 0xFFFFFFF1
_HANDLE = 0xFFFF0000
_PREFERENCES = {0xFFE0: 0x0800, 0xFFE1: 0x86DD}
"""Ours, and the protocol of each: IPv4 and IPv6. ARP and the rest arrive as ever: they need no shaping, and without ARP
nothing else would arrive."""

# linux/rtnetlink.h, linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_U32_SEL, _TCA_U32_ACT = 5, 7
_TCA_ACT_KIND, _TCA_ACT_OPTIONS = 1, 2
_TCA_MIRRED_PARMS = 2
_TCA_EGRESS_REDIR = 1
_TC_ACT_STOLEN = 4
_MIRRED = struct.Struct("=IIiiiiI")  # index, capab, action, refcnt, bindcnt, eaction, interface index
_MATCH_ALL = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + struct.pack(">II", 0, 0) + struct.pack("=ii", 0, 0)


def redirections(tc: TcSocket) -> dict[int, Redirection]:
    """What hangs at the ingress of each interface of the namespace that has anything there, by interface number."""
    found = tc.dump("list queues", encode_dump(RTM_GETQDISC, interface_index=0))
    hooks = {one.interface_index: one.kind for one in found if one.parent == _TC_H_INGRESS}
    return {index: _redirection(tc, index, kind) for index, kind in hooks.items()}


def redirect(tc: TcSocket, *, index: int, to_index: int) -> None:
    """Lead IPv4 and IPv6 that arrive at one interface to another, where nothing hangs at its ingress yet, or ours does.

    Raises:
        KernelRejectedError: no ingress qdisc, u32 or mirred in this kernel; or somebody was quicker.
    """
    hook = redirections(tc).get(index)
    requests = []
    if hook is None:
        flags = NLM_F_CREATE | NLM_F_EXCL
        hook_request = encode_qdisc(
            "ingress", b"", interface_index=index, handle=_HANDLE, flags=flags, parent=_TC_H_INGRESS
        )
        requests.append(("add an ingress qdisc", hook_request))
    there = hook.preferences if hook is not None else ()
    for preference in _PREFERENCES:
        if preference not in there:
            requests.append((f"redirect what arrives ({preference:x})", _encode_filter(index, preference, to_index)))
    tc.execute(requests)


def stop_redirecting(tc: TcSocket, indexes: Iterable[int] | None = None) -> int:
    """Take our redirections away, from these interfaces or from all; what arrives goes straight on from here.

    Returns:
        From how many interfaces.
    """
    stopped = 0
    for index, hook in redirections(tc).items():
        if (indexes is not None and index not in indexes) or hook.kind != "ingress" or not hook.preferences:
            continue
        if hook.others:
            requests = [(f"stop redirecting ({one:x})", _encode_delete(index, one)) for one in hook.preferences]
        else:
            body = pack_traffic_control(index, handle=_HANDLE, parent=_TC_H_INGRESS)
            requests = [("delete the ingress qdisc", Request(RTM_DELQDISC, 0, body))]
        tc.execute(requests)
        stopped += 1
    return stopped


def remove_empty_hook(tc: TcSocket, index: int) -> None:
    """Delete an ingress qdisc that nobody's filters hang at: what a crash between two messages of ours leaves."""
    hook = redirections(tc).get(index)
    if hook is not None and hook.kind == "ingress" and not hook.preferences and not hook.others:
        body = pack_traffic_control(index, handle=_HANDLE, parent=_TC_H_INGRESS)
        tc.execute([("delete the ingress qdisc", Request(RTM_DELQDISC, 0, body))])


def _redirection(tc: TcSocket, index: int, kind: str) -> Redirection:
    dump = encode_dump(RTM_GETTFILTER, interface_index=index, parent=_HANDLE)
    ours: dict[int, int] = {}
    others: set[int] = set()
    for one in tc.dump(f"list ingress filters of interface {index}", dump):
        preference = one.info >> 16
        target = _mirred_target(one) if preference in _PREFERENCES else None
        if target is not None:
            ours[preference] = target
        else:
            others.add(preference)
    return Redirection(
        kind=kind,
        to_indexes=tuple(sorted({*ours.values()})),
        preferences=tuple(sorted(ours)),
        others=len(others - ours.keys()),  # a filter's head is listed beside it
    )


def _mirred_target(found: Object) -> int | None:
    """The interface to which a u32 filter redirects, 0 when that one is gone; None for any other filter."""
    if found.kind != "u32":
        return None
    actions = attribute_map(found.options).get(_TCA_U32_ACT, b"")
    for action in attribute_map(actions).values():
        attributes = attribute_map(action)
        options = attribute_map(attributes.get(_TCA_ACT_OPTIONS, b""))
        if attributes.get(_TCA_ACT_KIND, b"").rstrip(b"\0") == b"mirred" and _TCA_MIRRED_PARMS in options:
            _, _, _, _, _, how, target = _MIRRED.unpack_from(options[_TCA_MIRRED_PARMS])
            return int(target) if how == _TCA_EGRESS_REDIR else None
    return None


def _encode_filter(index: int, preference: int, to_index: int) -> Request:
    parms = _MIRRED.pack(0, 0, _TC_ACT_STOLEN, 0, 0, _TCA_EGRESS_REDIR, to_index)
    action = pack_text(_TCA_ACT_KIND, "mirred") + pack_attribute(
        _TCA_ACT_OPTIONS, pack_attribute(_TCA_MIRRED_PARMS, parms)
    )
    options = pack_attribute(_TCA_U32_SEL, _MATCH_ALL) + pack_attribute(_TCA_U32_ACT, pack_attribute(1, action))
    body = _filter_head(index, preference) + pack_text(_TCA_KIND, "u32") + pack_attribute(_TCA_OPTIONS, options)
    return Request(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body)


def _encode_delete(index: int, preference: int) -> Request:
    return Request(RTM_DELTFILTER, 0, _filter_head(index, preference) + pack_text(_TCA_KIND, "u32"))


def _filter_head(index: int, preference: int) -> bytes:
    info = preference << 16 | socket.htons(_PREFERENCES[preference])
    return pack_traffic_control(index, handle=0, parent=_HANDLE, info=info)

"""One interface's HTB tree in the kernel: read it, and do operations on it.

Classes go by `tc_codec`, because ticks change them; root, queues and filters go by pyroute2.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyroute2.netlink.rtnl import TC_H_ROOT

from hive_qos.errors import KernelRejectedError, PrivilegeError
from hive_qos.netlink import NetlinkSocket
from shaping.model import (
    HELD_NAME,
    INNER_MINOR,
    MAJOR,
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
    classid,
    describe,
)
from shaping.netlink.plugins import matches_of
from shaping.netlink.route import Route
from shaping.netlink.tc_codec import RTM_GETTCLASS, decode_class, dump, encode_class, encode_dump

_FIRST_NODE = 0x800
"""Naming a u32 node makes a second filter of the same preference an error (ENOSPC), not a second node."""

_PROTOCOL: Mapping[Literal[4, 6] | None, int] = {4: 0x0800, 6: 0x86DD, None: 0x0003}  # linux/if_ether.h; ETH_P_ALL
_FAMILY = {protocol: family for family, protocol in _PROTOCOL.items()}


def read_tree(route: Route, tc: NetlinkSocket, interface: str, index: int) -> Tree | None:
    """The tree of ours at an interface's root; None where the root is not ours."""
    queues = route.qdiscs(f"list queues of {interface}", index)
    root = next((found for found in queues if found["parent"] == TC_H_ROOT), None)
    if root is None or root.get_attr("TCA_KIND") != "htb" or root["handle"] != MAJOR << 16:
        return None
    default: int = root.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"]
    leaves = [leaf for found in queues if found["parent"] >> 16 == MAJOR and (leaf := _leaf(found))]
    filters = [
        rule
        for minor in (0, INNER_MINOR[HELD_NAME])
        for found in route.filters(f"list filters of {interface}", index, classid(minor))
        if (rule := _filter(found))
    ]
    return Tree(
        qdisc=QdiscSpec(handle_major=MAJOR, default_minor=default & 0xFFFF),
        classes=tuple(sorted(read_classes(tc, interface, index), key=lambda spec: spec.minor)),
        leaves=tuple(sorted(leaves, key=lambda leaf: leaf.parent_minor)),
        filters=tuple(sorted(filters, key=lambda rule: rule.preference)),
    )


def execute(route: Route, tc: NetlinkSocket, interface: str, index: int, operations: Sequence[Operation]) -> None:
    """Do operations in their order; neighbouring changes of classes go in one system call.

    Raises:
        PrivilegeError: EPERM.
        KernelRejectedError: the first one that was refused. Those after it were tried.
    """
    refused: list[KernelRejectedError | PrivilegeError] = []
    for _, group in itertools.groupby(operations, key=lambda one: isinstance(one, AddClass | ChangeClass)):
        classes = []
        for operation in group:
            what = f"{describe(operation)} on {interface}"
            if isinstance(operation, AddClass | ChangeClass):
                classes.append((what, encode_class(operation, interface_index=index)))
                continue
            try:
                _do(route, what, operation, index)
            except (KernelRejectedError, PrivilegeError) as error:
                refused.append(error)
        try:
            tc.execute(classes)
        except (KernelRejectedError, PrivilegeError) as error:
            refused.append(error)
    if refused:
        raise refused[0]


def read_classes(tc: NetlinkSocket, interface: str, index: int) -> list[ClassSpec]:
    """The classes of our root alone: asked for all, the kernel goes through 1,024 queues of each fq_codel leaf."""
    request = encode_dump(RTM_GETTCLASS, interface_index=index, parent=MAJOR << 16)
    found = dump(tc, f"list classes of {interface}", request)
    return [decode_class(one) for one in found if one.handle >> 16 == MAJOR]


def _do(route: Route, what: str, operation: Operation, index: int) -> None:
    match operation:
        case AddRoot(qdisc):
            handle = qdisc.handle_major << 16
            route.tc(what, "replace", "htb", index, handle=handle, parent=TC_H_ROOT, default=qdisc.default_minor)
        case AddLeaf(leaf) | ChangeLeaf(leaf):
            command = "add" if isinstance(operation, AddLeaf) else "change"
            at = classid(leaf.parent_minor)
            route.tc(what, command, leaf.kind, index, handle=leaf.handle_major << 16, parent=at, limit=leaf.limit)
        case AddFilter(rule):
            named = {"target": classid(rule.target_minor), "matches": rule.matches}
            route.tc(what, "add-filter", "u32", index, handle=_FIRST_NODE, **_head(rule), **named)
        case DeleteFilter(rule):
            route.tc(what, "del-filter", "u32", index, **_head(rule))


def _head(rule: FilterSpec) -> dict[str, int]:
    return {"parent": classid(rule.parent_minor), "prio": rule.preference, "protocol": _PROTOCOL[rule.family]}


def _leaf(found: Any) -> LeafSpec | None:
    """A queue below one of our classes; None for a kind that we never make."""
    kind, options = found.get_attr("TCA_KIND"), found.get_attr("TCA_OPTIONS")
    if kind == "bfifo":
        limit = options["limit"]
    elif kind == "fq_codel":
        limit = options.get_attr("TCA_FQ_CODEL_LIMIT")
    else:
        return None
    return LeafSpec(found["parent"] & 0xFFFF, kind, limit, handle_major=found["handle"] >> 16)


def _filter(found: Any) -> FilterSpec | None:
    """A u32 rule with a target; None for the heads of hash tables that the kernel lists beside them."""
    options = found.get_attr("TCA_OPTIONS")
    target = options.get_attr("TCA_U32_CLASSID") if found.get_attr("TCA_KIND") == "u32" and options else None
    protocol = socket.ntohs(found["info"] & 0xFFFF)
    if target is None or protocol not in _FAMILY:
        return None
    return FilterSpec(
        preference=found["info"] >> 16,
        family=_FAMILY[protocol],
        matches=matches_of(options.get_attr("TCA_U32_SEL")),
        target_minor=target & 0xFFFF,
        parent_minor=found["parent"] & 0xFFFF,
    )

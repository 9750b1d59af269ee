"""One interface's HTB tree in the kernel: read it, and do operations on it.

Root, classes and queues go by `fast_path`: ticks change them, and a tree is there by one system call. Filters go by
pyroute2.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hive_qos.errors import KernelRejectedError, PrivilegeError
from hive_qos.netlink import NetlinkSocket
from shaping.model.names import HELD_NAME, INNER_MINOR, classid
from shaping.model.tree import AddFilter, DeleteFilter, FilterSpec, Operation, Tree, describe
from shaping.netlink.fast_path import encode_operation, read_classes, read_queues
from shaping.netlink.plugins import matches_of
from shaping.netlink.route import Route

_FIRST_NODE = 0x800
"""Naming a u32 node makes a second filter of the same preference an error (ENOSPC), not a second node."""

_PROTOCOL: Mapping[Literal[4, 6] | None, int] = {4: 0x0800, 6: 0x86DD, None: 0x0003}  # linux/if_ether.h; ETH_P_ALL
_FAMILY = {protocol: family for family, protocol in _PROTOCOL.items()}


def read_tree(route: Route, tc: NetlinkSocket, interface: str, index: int, *, filters: bool = True) -> Tree | None:
    """The tree of ours at an interface's root, with its filters if asked for; None where the root is not ours."""
    queues = read_queues(tc, interface, index)
    if queues is None:
        return None
    rules = [
        rule
        for minor in ((0, INNER_MINOR[HELD_NAME]) if filters else ())
        for found in route.filters(f"list filters of {interface}", index, classid(minor))
        if (rule := _filter(found))
    ]
    qdisc, leaves = queues
    classes = read_classes(tc, interface, index)
    return Tree(qdisc, classes, leaves, tuple(sorted(rules, key=lambda rule: rule.preference)))


def execute(route: Route, tc: NetlinkSocket, interface: str, index: int, operations: Sequence[Operation]) -> None:
    """Do operations in their order; neighbouring ones that are no filters go in one system call.

    Raises:
        PrivilegeError: EPERM.
        KernelRejectedError: the first one that was refused. Those after it were tried.
    """
    refused: list[KernelRejectedError | PrivilegeError] = []
    for _, group in itertools.groupby(operations, key=lambda one: isinstance(one, AddFilter | DeleteFilter)):
        batch = []
        for one in group:
            what = f"{describe(one)} on {interface}"
            if not isinstance(one, AddFilter | DeleteFilter):
                batch.append((what, encode_operation(one, index=index)))
                continue
            try:
                _change_filter(route, what, one, index)
            except (KernelRejectedError, PrivilegeError) as error:
                refused.append(error)
        try:
            tc.execute(batch)
        except (KernelRejectedError, PrivilegeError) as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _change_filter(route: Route, what: str, operation: AddFilter | DeleteFilter, index: int) -> None:
    rule = operation.spec
    named = {"parent": classid(rule.parent_minor), "prio": rule.preference, "protocol": _PROTOCOL[rule.family]}
    if isinstance(operation, DeleteFilter):
        route.tc(what, "del-filter", "u32", index, **named)
    else:
        wanted = {"target": classid(rule.target_minor), "matches": rule.matches}
        route.tc(what, "add-filter", "u32", index, handle=_FIRST_NODE, **named, **wanted)


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

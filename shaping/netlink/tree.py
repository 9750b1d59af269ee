"""One interface's HTB tree in the kernel: read it, and do operations on it.

Root, classes and queues are laid out by `fast_path`, filters by pyroute2 (`u32`). Operations go together in one system
call, so that a tree is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hive_qos.netlink import NetlinkSocket, Request
from shaping.model.names import HELD_NAME, INNER_MINOR, classid
from shaping.model.tree import AddFilter, DeleteFilter, FilterSpec, Operation, Tree, describe
from shaping.netlink import u32
from shaping.netlink.fast_path import encode_operation, read_classes, read_queues

_FIRST_NODE = 0x800
"""Naming a u32 node makes a second filter of the same preference an error (ENOSPC), not a second node."""

_PROTOCOL: Mapping[Literal[4, 6] | None, int] = {4: 0x0800, 6: 0x86DD, None: 0x0003}  # linux/if_ether.h; ETH_P_ALL
_FAMILY = {protocol: family for family, protocol in _PROTOCOL.items()}


def read_tree(tc: NetlinkSocket, interface: str, index: int, *, filters: bool = True) -> Tree | None:
    """The tree of ours at an interface's root, with its filters if asked for; None where the root is not ours."""
    queues = read_queues(tc, interface, index)
    if queues is None:
        return None
    rules = [
        rule
        for minor in ((0, INNER_MINOR[HELD_NAME]) if filters else ())
        for found in u32.read_filters(tc, f"list filters of {interface}", index=index, parent=classid(minor))
        if (rule := _read(found))
    ]
    qdisc, leaves = queues
    classes = read_classes(tc, interface, index)
    return Tree(qdisc, classes, leaves, tuple(sorted(rules, key=lambda rule: rule.preference)))


def execute(tc: NetlinkSocket, interface: str, index: int, operations: Sequence[Operation]) -> None:
    """Do operations in their order.

    Raises:
        PrivilegeError: EPERM.
        KernelRejectedError: the first one that was refused. Those after it were tried.
    """
    tc.execute([(f"{describe(one)} on {interface}", _encode(one, index)) for one in operations])


def _encode(operation: Operation, index: int) -> Request:
    match operation:
        case AddFilter(rule):
            return u32.encode_add(_written(rule), index=index, handle=_FIRST_NODE)
        case DeleteFilter(rule):
            return u32.encode_delete(_written(rule), index=index)
        case _:
            return encode_operation(operation, index=index)


def _written(rule: FilterSpec) -> u32.Filter:
    return u32.Filter(
        parent=classid(rule.parent_minor),
        preference=rule.preference,
        protocol=_PROTOCOL[rule.family],
        matches=rule.matches,
        classid=classid(rule.target_minor),
    )


def _read(found: u32.Filter) -> FilterSpec | None:
    """A rule with a target; None for the heads of hash tables that the kernel lists beside them."""
    if found.classid is None or found.protocol not in _FAMILY:
        return None
    return FilterSpec(
        preference=found.preference,
        family=_FAMILY[found.protocol],
        matches=found.matches,
        target_minor=found.classid & 0xFFFF,
        parent_minor=found.parent & 0xFFFF,
    )

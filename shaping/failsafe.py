"""What is done where nobody decides any more: open every ceiling to the line's rate, and stop redirecting to IFBs.

Every class of ours may then send what the line carries, the root with them; rates stay, so every floor and who goes
first stays as it was. It asks the kernel what is there and changes only what is lower, only below roots of ours: to do
it twice, or where nothing of ours is, changes nothing. A redirection whose IFB is down or gone loses all that arrives:
whoever finds one removes it at once. No pyroute2, so that a small process can do both (broker.process.watchdog).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hive_qos.errors import HiveError, ShapingError
from hive_qos.netlink import NetlinkSocket
from hive_qos.units import bytes_per_s_of
from shaping.journal import Journal
from shaping.model.names import MAJOR, REDIRECTION_PROTOCOL, ROOT_MINOR
from shaping.model.tree import ChangeClass, ClassSpec, QdiscSpec, Tree, describe
from shaping.netlink.fast_path import (
    RTM_DELQDISC,
    RTM_DELTFILTER,
    RTM_GETQDISC,
    RTM_GETTFILTER,
    TC_H_INGRESS,
    TC_H_ROOT,
    encode_delete,
    encode_operation,
    read_classes,
    read_objects,
)
from shaping.plan.desired_tree import burst_bytes
from shaping.plan.diff import diff

Lines = Mapping[int, int | None]
"""What each interface's line carries in bits per second, by its number, which a new name does not change."""


def opened(tree: Tree, line_bits_per_s: int | None) -> Tree:
    """The same tree with every ceiling at the line's rate, or at the root's own where that is more or nothing else is
    known. The root has nobody to borrow from, so its rate is opened as well."""
    root = next((spec for spec in tree.classes if spec.minor == ROOT_MINOR), None)
    if root is None:  # cut short while it was built: nothing limits anybody yet
        return tree
    line = max(bytes_per_s_of(line_bits_per_s or 0) * 8, root.ceil_bits_per_s)
    return replace(tree, classes=tuple(_opened(spec, line) for spec in tree.classes))


def open_ceilings(tc: NetlinkSocket, lines: Lines) -> int:
    """Open every root of ours on these interfaces, and read back that it is so.

    Returns:
        How many classes were changed; 0 when all was open, or nothing of ours is there.

    Raises:
        ShapingError: the kernel refused something; all other interfaces have been opened by then.
    """
    changed, refused = 0, []
    for index in lines.keys() & own_roots(tc):
        try:
            changed += _open_one(tc, index, lines[index])
        except ShapingError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return changed


def stop_redirecting(tc: NetlinkSocket, indexes: Iterable[int] | None = None) -> int:
    """Take our redirections away, from these interfaces or from all; what arrives goes straight on from here.

    Returns:
        From how many interfaces.
    """
    stopped = 0
    for hook in read_objects(tc, "list queues", RTM_GETQDISC):
        index = hook.interface_index
        if hook.parent != TC_H_INGRESS or hook.kind != "ingress" or (indexes is not None and index not in indexes):
            continue
        what = f"list ingress filters of interface {index}"
        filters = read_objects(tc, what, RTM_GETTFILTER, index=index, parent=hook.handle)
        by_preference = {one.info >> 16: replace(one, handle=0) for one in filters}
        ours = by_preference.keys() & REDIRECTION_PROTOCOL.keys()
        if not ours:
            continue
        if by_preference.keys() == ours:
            requests = [("delete the ingress qdisc", encode_delete(RTM_DELQDISC, hook))]
        else:
            requests = [
                (f"stop redirecting ({one:x})", encode_delete(RTM_DELTFILTER, by_preference[one])) for one in ours
            ]
        tc.execute(requests)
        stopped += 1
    return stopped


def own_roots(tc: NetlinkSocket) -> set[int]:
    """The numbers of the interfaces of this network namespace whose roots are ours. Needs no privilege."""
    return {
        found.interface_index
        for found in read_objects(tc, "list queues", RTM_GETQDISC)
        if found.parent == TC_H_ROOT and found.kind == "htb" and found.handle == MAJOR << 16
    }


def journalled_lines(journal: Journal) -> dict[int, int | None]:
    """The lines of the interfaces that a journal names and that are there now."""
    lines = {}
    for name in journal.interfaces():
        try:
            index = socket.if_nametoindex(name)
        except OSError:  # gone
            continue
        try:
            lines[index] = journal.read_line(name)
        except (HiveError, OSError):  # unreadable: what its root has is opened to its classes all the same
            lines[index] = None
    return lines


def _open_one(tc: NetlinkSocket, index: int, line_bits_per_s: int | None) -> int:
    before = _tree(tc, index)
    operations = [one for one in diff(before, opened(before, line_bits_per_s)) if isinstance(one, ChangeClass)]
    tc.execute([(describe(one), encode_operation(one, index=index)) for one in operations])
    after = _tree(tc, index)
    if operations and after != opened(after, line_bits_per_s):
        raise ShapingError(f"ceilings of interface {index} are not open though the kernel took them")
    return len(operations)


def _tree(tc: NetlinkSocket, index: int) -> Tree:
    return Tree(QdiscSpec(), read_classes(tc, f"interface {index}", index), leaves=())


def _opened(spec: ClassSpec, line_bits_per_s: int) -> ClassSpec:
    if spec.ceil_bits_per_s >= line_bits_per_s:
        return spec
    burst = burst_bytes(line_bits_per_s // 8)
    wider = replace(spec, ceil_bits_per_s=line_bits_per_s, cburst_bytes=burst)
    return wider if spec.minor != ROOT_MINOR else replace(wider, rate_bits_per_s=line_bits_per_s, burst_bytes=burst)

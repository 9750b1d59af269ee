"""Gives sockets their class that were there before the rule that they fall under.

Rules on cgroups and users work when a socket is made (`shaping.classify.cgroup`). A storage service that ran before the
broker, or whose cgroup was removed and made again a moment before we saw it, has sockets without a class. A sweep asks
the kernel for sockets of those cgroups and users (sock_diag tells both), looks for a process that holds each one that
is in no class of ours, takes a duplicate of it and marks it. A listener gets the rule's note besides, so that what it
accepts from then on is classified by the kernel. Codepoints stay as they are: other than a passed socket, nobody asked
for one.

A passed socket outlives its session, and its mark then names a leaf that a later job may get. So while a job has a
leaf, a sweep also moves each socket that is marked for a job's leaf, and that no session of that job has passed, to the
default leaf of compute.

A sweep goes in slices, at once when the rules or their cgroups have changed, and every `SWEEP_S` for those that slipped
through or took their class away (IP_TOS does). One in progress ends first, and `HASTENED_SHARE` bounds all of them: a
service that crashes again and again has another cgroup each time. What cannot be reached is counted and logged once.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import psutil
from msgspec import Struct

from broker.events.log import Log
from broker.measure.budget import CpuBudget
from broker.measure.tcp_diag import CGROUPS_FILTERED_MAX, OwnedSocket, owned_sockets
from broker.model.values import Alarm
from broker.process.proc_fds import sockets_of
from hive_qos.errors import HiveError, PrivilegeError
from shaping.classify.cgroup import rule_path
from shaping.classify.pidfd_getfd import duplicate
from shaping.classify.socket_priority import priority_of
from shaping.model.names import JOB_MINOR, MAJOR, MARK_MINOR, classid
from shaping.model.shapes import Rule

SWEEP_S = 5.0
SHARE, SLICE_S = 0.002, 0.003
HASTENED_SHARE, HASTENED_SLICE_S = 0.02, 0.02
"""At the start and when rules change: a host with 10,000 descriptors is done within two ticks."""
PENDING_MAX = 4096
"""Sockets of one sweep; the rest waits for the next."""
CGROUPS_MAX = 4096
AT_ONCE = 32
"""Descriptors, or cgroups, between two looks at the time."""
RETRY_S = 60.0
"""When a socket that could not be reached is tried again: its process may be another by then."""
NOT_SEEN = "no process holds them that we may look into (CAP_SYS_PTRACE)"
NOT_ALLOWED = "their process may not be touched (CAP_SYS_PTRACE)"


Duplicate = Callable[..., AbstractContextManager[socket.socket | None]]
"""As `shaping.classify.pidfd_getfd.duplicate`."""


class Close(Protocol):
    """Closes a descriptor."""

    def __call__(self, descriptor: int, *, uid: int) -> None:
        """Soon, for this user."""


class _Pending(Struct, frozen=True):
    socket: OwnedSocket
    rule: Rule | None  # None: it was left in a job's leaf


class Reclassifier:
    """For one thread, in the network namespace of the daemon.

    Args:
        mount: where cgroup v2 is; None leaves rules on users.
        mark: as `shaping.classify.socket_priority.mark_socket`.
        remember: as `SocketClassifier.remember`.
        close: closes a descriptor of a user's soon: here it might last.
        mark_minor: the minor that `mark` gets for a target (`Shaper.mark_minor`).
        slot_of_inode: of the sockets that sessions of jobs with a leaf have passed, the slot of that leaf.
        sockets_of, duplicate: of other processes; a finder's where this one may not look into them.
        cpu_clock: as of `CpuBudget`.
    """

    def __init__(
        self,
        *,
        mount: Path | None,
        mark: Callable[..., None],
        remember: Callable[[socket.socket, Rule], bool],
        close: Close,
        log: Log,
        mark_minor: Callable[[str], int] = MARK_MINOR.__getitem__,
        slot_of_inode: Callable[[], Mapping[int, int]] = dict,
        sockets_of: Callable[[int], Iterator[tuple[int, int]]] = sockets_of,
        duplicate: Duplicate = duplicate,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._mount, self._mark, self._remember, self._close, self._log = mount, mark, remember, close, log
        self._mark_minor, self._slot_of_inode = mark_minor, slot_of_inode
        self._sockets_of, self._duplicate = sockets_of, duplicate
        self._rules: tuple[Rule, ...] = ()
        self._places: tuple[int, ...] = ()
        self._leaves: frozenset[int] = frozenset()
        self._passes = CpuBudget(self._sweep, share=SHARE, interval_s_min=SWEEP_S, slice_s=SLICE_S, cpu_clock=cpu_clock)
        self._changed = self._fresh = False  # since the last pass began; before the one that is under way
        self._filters = True
        self._unreached: dict[int, tuple[str, float]] = {}  # by cookie: why, and until when that is believed
        self._suspects: set[int] = set()
        self._noted: set[str] = set()
        self._now_s = 0.0
        self.marked = 0
        """Sockets that got their class so."""

    def look(
        self, rules: Callable[[], Sequence[Rule]], *, classified: bool, now_s: float, urgent: bool = False
    ) -> None:
        """Do a slice where one is due.

        Args:
            rules: gives all that are in force; those on ports and the like are left out.
            classified: the rules have been brought to their cgroups just now, so that no new socket is without its
                class: time to see whether a rule, its cgroup, or a job's leaf in use is another than before.
            urgent: somebody waits for this tick; a slice can wait for the next one.
        """
        self._now_s = now_s
        if classified:
            mine = tuple(rule for rule in rules() if rule.cgroup is not None or rule.uid is not None)
            places = self._inodes(mine)
            leaves = frozenset(self._slot_of_inode().values())
            if (mine, places, leaves) != (self._rules, self._places, self._leaves):
                self._rules, self._places, self._leaves = mine, places, leaves
                self._changed = True
        if urgent:
            return
        if self._changed:
            self._passes.hasten(share=HASTENED_SHARE)
        try:
            self._passes.go(now_s=now_s, slice_s=HASTENED_SLICE_S if self._changed or self._fresh else SLICE_S)
        except OSError as problem:
            self._changed = self._fresh = False
            self._passes.wait(now_s + RETRY_S)
            self._say(f"sockets from before the rules are not found: {problem}")

    def alarm(self) -> Alarm | None:
        """What could not be given its class when it was last tried."""
        if not self._unreached:
            return None
        reasons = Counter(reason for reason, _ in self._unreached.values())
        why = "; ".join(f"{count}: {reason}" for reason, count in sorted(reasons.items()))
        count = sum(reasons.values())
        text = f"{count} {_MISPLACED} ({why}); restart their programs"
        return Alarm(code="sockets-not-classified", subject="rules", text=text)

    # --- a sweep ---------------------------------------------------------------------------------------------------

    def _sweep(self) -> Iterator[None]:
        """One pass. After a change listeners get their notes again."""
        self._fresh, self._changed = self._changed, False
        fresh = self._fresh
        groups: dict[int, Rule] = {}
        members: list[Path] = []
        for _ in self._find_groups(groups, members):
            yield
        users = {rule.uid: rule for rule in reversed(self._rules) if rule.uid is not None}
        slots = self._slot_of_inode()
        pending: dict[int, _Pending] = {}
        believed: dict[int, tuple[str, float]] = {}
        if groups or users or slots:
            for page in self._sockets(groups, few=not users and not slots):
                for one in page:
                    left = _is_left(one.inode, one.priority, slots)
                    rule = None if left else groups.get(one.cgroup_id) or users.get(one.uid)
                    if not (left or rule is not None) or len(pending) >= PENDING_MAX:
                        continue
                    if one.priority >> 16 == MAJOR and not (left or (fresh and one.listens)):
                        continue
                    why = self._unreached.get(one.cookie)
                    if why is not None and self._now_s < why[1] and not fresh:
                        believed[one.cookie] = why
                    else:
                        pending[one.inode] = _Pending(one, rule)
                yield
        failed: dict[int, str] = {}
        if pending:
            for pid in _nearest_first(members):
                try:
                    for _ in self._take_from(pid, pending, failed):
                        yield
                except PermissionError:
                    continue
                if not pending:
                    break
                yield
        lost = {left.socket.cookie for left in pending.values()}
        known = self._suspects | self._unreached.keys()
        failed.update((cookie, NOT_SEEN) for cookie in lost & known)
        self._suspects = lost - known  # they may just have been closed: reported if the next sweep meets them again
        until_s = self._now_s + RETRY_S
        self._fresh = False
        self._unreached = {**believed, **{cookie: (reason, until_s) for cookie, reason in failed.items()}}
        for reason in sorted(set(failed.values())):
            self._say(f"{_MISPLACED}: {reason}")

    def _sockets(self, groups: Mapping[int, Rule], *, few: bool) -> Iterator[list[OwnedSocket]]:
        """All that may be concerned, chosen in the kernel where it is cgroups alone (`few`), and not many."""
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            few = few and self._filters and len(groups) <= CGROUPS_FILTERED_MAX
            try:
                yield from owned_sockets(protocol, cgroups=tuple(groups) if few else None)
            except OSError as problem:
                if protocol == socket.IPPROTO_UDP and problem.errno == errno.ENOENT:  # no CONFIG_INET_UDP_DIAG
                    self._say("UDP sockets from before the rules are not found: this kernel has no udp_diag")
                elif few and problem.errno == errno.EINVAL:  # before 5.9
                    self._filters = False
                    yield from owned_sockets(protocol)
                else:
                    raise

    def _find_groups(self, groups: dict[int, Rule], members: list[Path]) -> Iterator[None]:
        """The number of each cgroup below a rule's, with the nearest rule; and where their processes are listed."""
        if self._mount is None:
            return
        paths = {rule_path(self._mount, rule): rule for rule in reversed(self._rules) if rule.cgroup is not None}
        for top in sorted(paths, key=lambda path: len(path.parts)):
            for directory, _, _ in os.walk(top):
                if len(groups) >= CGROUPS_MAX:
                    self._say(f"of more than {CGROUPS_MAX} cgroups below the rules' the first are swept alone")
                    return
                try:
                    groups[os.stat(directory).st_ino] = paths[top]
                except FileNotFoundError:
                    continue
                members.append(Path(directory))
                if len(members) % AT_ONCE == 0:
                    yield

    def _take_from(self, pid: int, pending: dict[int, _Pending], failed: dict[int, str]) -> Iterator[None]:
        """Mark what one process holds of those that are pending.

        Raises:
            PermissionError: it may not be looked into.
        """
        for number, (descriptor, inode) in enumerate(self._sockets_of(pid)):
            if inode in pending or number % AT_ONCE == AT_ONCE - 1:  # to take one is milliseconds
                yield
            wanted = pending.get(inode)
            if wanted is None:
                continue
            try:
                if self._give_class(pid, descriptor, wanted):
                    del pending[inode]
            except PrivilegeError:
                failed[wanted.socket.cookie] = NOT_ALLOWED
                del pending[inode]
            except (HiveError, ValueError, OSError) as problem:
                failed[wanted.socket.cookie] = str(problem)
                del pending[inode]

    def _give_class(self, pid: int, descriptor: int, wanted: _Pending) -> bool:
        """False where the socket is not at that descriptor any more; it may be at another one."""
        close = functools.partial(self._close, uid=wanted.socket.uid)
        with self._duplicate(pid, descriptor, cookie=wanted.socket.cookie, close=close) as sock:
            if sock is None:
                return False
            if wanted.socket.listens and wanted.rule is not None:
                self._remember(sock, wanted.rule)
            priority = priority_of(sock)  # a session may have passed it meanwhile
            if priority >> 16 != MAJOR or _is_left(wanted.socket.inode, priority, self._slot_of_inode()):
                target = wanted.rule.target if wanted.rule is not None else "compute"
                self._mark(sock, minor=self._mark_minor(target), dscp=None)
                self.marked += 1
            return True

    # --- small parts -----------------------------------------------------------------------------------------------

    def _inodes(self, rules: Sequence[Rule]) -> tuple[int, ...]:
        found = []
        for rule in rules:
            if rule.cgroup is not None and self._mount is not None:
                try:
                    found.append(os.stat(rule_path(self._mount, rule)).st_ino)
                except OSError:
                    found.append(0)
        return tuple(found)

    def _say(self, note: str) -> None:
        if note not in self._noted and len(self._noted) < _NOTES_MAX:
            self._noted.add(note)
            self._log.warning("rule-not-applied", note=note)


_SLOT_OF_PRIORITY = {classid(minor): slot for slot, minor in enumerate(JOB_MINOR)}
_MISPLACED = "sockets from before their rule are in no class of it, or in the leaf of a job that has ended"


def _is_left(inode: int, priority: int, slot_of_inode: Mapping[int, int]) -> bool:
    """Whether a socket is marked for the leaf of a job that no session has passed it for."""
    slot = _SLOT_OF_PRIORITY.get(priority)
    return slot is not None and slot_of_inode.get(inode) != slot


_NOTES_MAX = 64
"""Different notes that are logged in the life of a daemon: paths of cgroups come without end."""


def _nearest_first(members: Sequence[Path]) -> Iterator[int]:
    """The processes that are in the rules' cgroups now, then all others: a socket may be in anybody's hands."""
    seen: set[int] = set()
    for directory in members:
        try:
            found = [int(line) for line in (directory / "cgroup.procs").read_text(encoding="ascii").split()]
        except OSError:  # gone, or a threaded one, whose processes its domain lists
            continue
        for pid in found:
            if pid and pid not in seen:  # 0: of a pid namespace that cannot be seen from here
                seen.add(pid)
                yield pid
    for pid in psutil.pids():
        if pid not in seen:
            yield pid

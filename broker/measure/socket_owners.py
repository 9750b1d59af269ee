"""Whose a connection is: process, command and cgroup, for the connections that are shown.

The cgroup's number comes with the connection; its path is the directory with that inode number. The process takes a
walk through /proc/*/fd, about 10 µs a descriptor. So only connections that are shown are looked for, in slices, and
again after `LIFE_S`, because a socket can change hands. Most of them belong to the same few programs: so all sockets of
a process are remembered that was found to hold one. Those are looked into first, then the newest: what has just come is
mostly theirs, and a walk that ends early is cheap, so that the next one may begin soon.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from types import MappingProxyType

import psutil
from msgspec import Struct

from broker.measure.budget import CpuBudget
from broker.measure.tcp_diag import TcpConnection, UdpSocket
from hive_qos.text import printable

SHARE, SLICE_S = 0.003, 0.002
WALK_S = 2.0
"""From one walk to the next, at least: a connection that has just come waits so long for its process."""
LIFE_S = 120.0
AT_ONCE = 32
WANTED_MAX = 320
"""Connections whose process is looked for."""
HOLDERS_MAX = 4096
"""Sockets whose process is remembered: a few programs with a thousand connections each. 0.4 MB."""
GENERATIONS_MAX = 8
"""A socket is its holder's parent's, if that has it, too; and so on, so far."""
CGROUPS_MAX = 8192
CGROUPS_WALK_S = 5.0
LOST_S = 60.0
"""So long a cgroup that no walk has found is not looked for: it was removed, and only sockets of it are left."""
NAME_LENGTH_MAX, PATH_LENGTH_MAX = 64, 1024
"""As shown, escaped: the kernel's names of programs have 15 bytes, paths of cgroups up to 4096."""


SocketsOf = Callable[[int], Iterator[tuple[int, int]]]
"""As `broker.process.proc_fds.sockets_of`."""


class SocketOwner(Struct, frozen=True):
    """Who made a connection. None: not known (yet), or not to be seen from here. Texts are safe to print."""

    pid: int | None = None
    command: str | None = None
    cgroup: str | None = None


Shown = tuple[tuple[TcpConnection | UdpSocket, str], ...]
"""Connections and sockets that are shown, with the class of each."""
NOBODY = SocketOwner()
_NOT_YET: tuple[int | None, float] = (None, 0.0)  # nobody found, and never looked for


class SocketOwners:
    """For one thread; what `known` gave stays as it is.

    Args:
        mount: where cgroup v2 is, None without.
        sockets_of: the descriptors and inodes of a process' sockets; raises PermissionError.
        cpu_clock: as of `CpuBudget`.
    """

    def __init__(
        self, mount: str | None, *, sockets_of: SocketsOf, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._sockets_of, self._cgroups = sockets_of, CgroupPaths(mount)
        self._walking = CpuBudget(self._walk, share=SHARE, interval_s_min=WALK_S, slice_s=SLICE_S, cpu_clock=cpu_clock)
        self._shown: Shown = ()
        self._wanted: dict[int, int] = {}
        self._cgroup_ids: frozenset[int] = frozenset()
        self._lacks = False
        self._holders: dict[int, tuple[int | None, float]] = {}
        self._commands: dict[int, str | None] = {}
        self._known: Mapping[int, SocketOwner] = MappingProxyType({})
        self._now_s = 0.0

    def look(self, shown: Shown, *, now_s: float) -> Mapping[int, SocketOwner]:
        """Look a little further, and give what is known of these connections (with their classes), by inode."""
        self._now_s = now_s
        if shown is not self._shown:  # the same tuple until somebody has looked at the connections again
            self._shown = shown
            wanted = {one.inode: one.cgroup_id for one, _ in shown}
            if wanted != self._wanted:
                self._wanted = wanted
                self._cgroup_ids = frozenset(wanted.values())
                self._show()
            self._lacks = bool(self._missing())
        found = self._cgroups.look(self._cgroup_ids, now_s=now_s)
        if (self._lacks or self._walking.under_way) and self._walking.go(now_s=now_s):
            self._lacks = bool(self._missing())
            found = True
        if found:
            self._show()
        return self._known

    def _missing(self) -> set[int]:
        now_s = self._now_s
        first = list(self._wanted)[:WANTED_MAX]
        return {inode for inode in first if inode not in self._holders or now_s - self._holders[inode][1] > LIFE_S}

    def _walk(self) -> Iterator[None]:
        self._forget()
        missing, began_s = self._missing(), self._now_s
        read: dict[int, list[int]] = {}
        had = {pid for pid, _ in self._holders.values() if pid is not None}
        for pid in [*had, *(pid for pid in sorted(psutil.pids(), reverse=True) if pid not in had)]:
            line: list[tuple[int, set[int], list[int]]] = []
            holder: int | None = pid
            while holder is not None and len(line) < GENERATIONS_MAX:
                found, others = yield from self._read(holder, line[-1][1] if line else missing, read)
                if not found:
                    break
                line.append((holder, found, others))
                holder = parent_of(holder)
            for ancestor, found, others in reversed(line):
                if found := found & missing:
                    missing -= found
                    self._hold(ancestor, found, others, began_s=began_s)
            if not missing:
                break
            yield
        self._holders.update((inode, (None, began_s)) for inode in missing)

    def _read(
        self, pid: int, wanted: Collection[int], read: dict[int, list[int]]
    ) -> Generator[None, None, tuple[set[int], list[int]]]:
        """Which of the wanted sockets a process holds, and others of its; none where we may not look.

        Args:
            read: all of each process that this walk has looked into, as a parent of many is only once.
        """
        if pid not in read:
            inodes = read[pid] = []
            try:
                for number, (_, inode) in enumerate(self._sockets_of(pid)):
                    inodes.append(inode)
                    if number % AT_ONCE == AT_ONCE - 1:
                        yield
            except PermissionError:
                inodes.clear()
        found = {inode for inode in read[pid] if inode in wanted}
        return found, [inode for inode in read[pid] if inode not in found][:HOLDERS_MAX]

    def _hold(self, pid: int, found: set[int], others: list[int], *, began_s: float) -> None:
        """Remember whose the sockets of a process are: those that were looked for, and as many others as fit. A child
        inherits its parent's, which stay the parent's."""
        self._commands[pid] = command_of(pid)
        self._holders.update(dict.fromkeys(found, (pid, began_s)))
        room = max(0, HOLDERS_MAX - len(self._holders))
        fresh = [inode for inode in others if self._holders.get(inode, _NOT_YET)[0] is None]
        self._holders.update(dict.fromkeys(fresh[:room], (pid, began_s)))

    def _forget(self) -> None:
        """Drop what nobody has asked for since it was found so long ago that it would be looked for again."""
        self._holders = {
            inode: entry
            for inode, entry in self._holders.items()
            if inode in self._wanted or (entry[0] is not None and self._now_s - entry[1] <= LIFE_S)
        }
        pids = {pid for pid, _ in self._holders.values()}
        self._commands = {pid: command for pid, command in self._commands.items() if pid in pids}

    def _show(self) -> None:
        made: dict[tuple[int | None, int], SocketOwner] = {}  # many connections are of one process
        known = {}
        for inode, cgroup_id in self._wanted.items():
            key = (self._holders.get(inode, _NOT_YET)[0], cgroup_id)
            if key not in made:
                made[key] = self._origin(*key)
            known[inode] = made[key]
        self._known = MappingProxyType(known)

    def _origin(self, pid: int | None, cgroup_id: int) -> SocketOwner:
        command = self._commands.get(pid) if pid is not None else None
        path = self._cgroups.path_of(cgroup_id)
        return SocketOwner(
            pid=pid,
            command=command,
            cgroup=None if path is None else printable(path, length_max=PATH_LENGTH_MAX),
        )


def command_of(pid: int) -> str | None:
    """The name of a process, safe to print; None when it has ended.

    Not by psutil, which reads the command line of long names, too: that waits for the memory of a process that may wait
    for a dead network file system, and we are in the loop.
    """
    try:
        return printable(_comm(pid), length_max=NAME_LENGTH_MAX)
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    """Who started a process, or took its place; None when it has ended."""
    try:
        return psutil.Process(pid).ppid() or None
    except psutil.Error:
        return None


def _comm(pid: int) -> str:
    with open(f"/proc/{pid}/comm", "rb") as file:
        return os.fsdecode(file.read().rstrip(b"\n"))


class CgroupPaths:
    """The path of a cgroup below the mount, by its number. The kernel gives no number out twice.

    One walk in slices reads all of them, with two system calls each. It begins when an unknown one is wanted, and not
    more often than every `CGROUPS_WALK_S`. A cgroup that was removed while a socket of it lives has no path any more.
    """

    def __init__(self, mount: str | None, *, walk: Callable[[str], Iterator[tuple[str, int]]] | None = None) -> None:
        self._mount, self._walk_over = mount, walk or _cgroups
        self._walking = CpuBudget(self._walk, share=SHARE, interval_s_min=CGROUPS_WALK_S, slice_s=SLICE_S)
        self._paths: dict[int, str] = {}
        self._wanted: frozenset[int] = frozenset()
        self._lost_s: dict[int, float] = {}

    def look(self, wanted: frozenset[int], *, now_s: float) -> bool:
        """Look a little further for these numbers; True when a walk has ended with it, and more may be known."""
        if not self._walking.under_way:
            lost = {number for number in wanted & self._lost_s.keys() if now_s - self._lost_s[number] < LOST_S}
            self._wanted = wanted - self._paths.keys() - lost - {0}
            if not self._wanted:
                return False
        if not self._walking.go(now_s=now_s):
            return False
        self._lost_s = {number: when_s for number, when_s in self._lost_s.items() if now_s - when_s < LOST_S}
        self._lost_s |= dict.fromkeys(self._wanted - self._paths.keys(), now_s)
        return True

    def path_of(self, number: int) -> str | None:
        """As "/hive.slice/hive-storage.slice"; None where that is not known."""
        return self._paths.get(number)

    def _walk(self) -> Iterator[None]:
        found = {}
        for path, inode in self._walk_over(self._mount) if self._mount is not None else ():
            found[inode] = path
            yield
        self._paths = found


def _cgroups(mount: str) -> Iterator[tuple[str, int]]:
    for count, (directory, _, _) in enumerate(os.walk(mount)):
        if count >= CGROUPS_MAX:
            return
        try:
            yield directory[len(mount) :] or "/", os.stat(directory).st_ino
        except FileNotFoundError:
            continue

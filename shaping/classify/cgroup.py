"""Put the sockets of a cgroup or of a user into a class when they are made: nothing is done per packet.

Two programs go to a cgroup for each rule:
- at BPF_CGROUP_INET_SOCK_CREATE: a socket of our network namespace (and of the rule's user) that is in no class of ours
  yet gets the priority `ffe0:minor`, which HTB takes as a class, and a note of it in the socket's storage;
- at BPF_CGROUP_SOCK_OPS, once for each accepted TCP connection: the note, which the kernel copied from the listener,
  becomes the priority, because accept starts every socket at priority 0.

Precedence: the nearest cgroup with a rule wins (the kernel runs the programs of a child before those of its parents,
and ours leave alone what is classified), then users (whose rules hang at the top). A socket that is passed to the
broker later is marked over both. Sockets that exist when a rule comes keep what they have.

The programs stay when the daemon dies, like its qdiscs. They carry our name and the namespace's cookie; the next start
finds them, keeps those that are as wanted (with their storage, so that listeners go on classifying what they accept)
and removes the others. Programs of others are never touched.
"""

from __future__ import annotations

import errno
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hive_qos.errors import KernelRejectedError, ShapingError
from shaping.classify import bpf
from shaping.classify.bpf_programs import accept_program, create_program
from shaping.classify.socket_priority import own_netns_cookie
from shaping.model.names import MARK_MINOR, classid
from shaping.model.shapes import Rule

_HELD = "somebody else may hold this cgroup's socket programs for himself alone"
_WHY = {errno.E2BIG: "all 64 places are taken, maybe by programs of network namespaces that ended (docs/log/kernel.md)"}
_OURS = "hq_"
"""So the names of our programs begin, in whatever network namespace: whoever can load one is trusted with more."""
AGAIN_S = 5.0
"""After the kernel refused: who held a cgroup's programs for himself may be gone by then."""
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_ATTACH_TYPES = (bpf.ATTACH_SOCK_CREATE, bpf.ATTACH_SOCK_OPS)


@dataclass(frozen=True)
class _Place:
    """What hangs at one cgroup. The inode tells one that was removed and made again.

    Args:
        again_s: on the monotonic clock, when to try again what the kernel refused; infinite where it took all.
    """

    inode: int
    rules: frozenset[Rule]
    notes: tuple[str, ...]
    again_s: float = math.inf


def find_mount() -> Path | None:
    """Where cgroup v2 is mounted (not at the top of /sys/fs/cgroup on hybrid hosts); None where it is not."""
    return mount_in(Path("/proc/self/mountinfo").read_bytes())


def mount_in(mountinfo: bytes) -> Path | None:
    """As `find_mount`, from what /proc/self/mountinfo holds (proc(5)). Other mounts' names may be any bytes."""
    for line in mountinfo.split(b"\n"):
        fields, _, rest = line.partition(b" - ")
        if rest.split(b" ", 1)[0] == b"cgroup2":
            return Path(os.fsdecode(_ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), fields.split(b" ")[4])))
    return None


def mount() -> Path:
    """Where cgroup v2 is mounted here.

    Raises:
        ShapingError: nowhere; rules on cgroups and users cannot work.
    """
    found = find_mount()
    if found is None:
        raise ShapingError("cgroup v2 is not mounted; rules on cgroups and users cannot work on this host")
    return found


@lru_cache(maxsize=256)
def rule_path(mount_point: Path, rule: Rule) -> Path:
    """Where a rule hangs. Users' rules do at the top of the hierarchy, where every process is below."""
    if rule.cgroup is None:
        return mount_point
    path = Path(rule.cgroup)
    return path if path.is_relative_to(mount_point) else mount_point / rule.cgroup.lstrip("/")


def slice_advice(path: Path) -> str:
    """What is wrong with a path of systemd's slices, which nest by the dashes in their names; "" when nothing is."""
    for parent, name in zip(path.parts, path.parts[1:], strict=False):
        above = name.removesuffix(".slice").rpartition("-")[0]
        if name.endswith(".slice") and above and parent != f"{above}.slice":
            return f" (systemd puts {name} below {above}.slice)"
    return ""


def programs_of_others(path: Path) -> tuple[str, ...]:
    """The BPF programs at one cgroup, each as "BPF program NAME (kind)"; those by which a broker classifies left out.

    Raises:
        OSError: there is no such cgroup.
        PrivilegeError, KernelRejectedError: they cannot be looked at: without CAP_SYS_ADMIN no program can.
    """
    found = []
    with _open(path) as cgroup:
        for attach_type, kind in bpf.CGROUP_ATTACH_TYPES.items():
            try:
                programs = bpf.attached(cgroup=cgroup, attach_type=attach_type)
            except KernelRejectedError as error:
                if error.errno_value == errno.EINVAL:  # this kernel has no such programs
                    continue
                raise
            found += [
                f"BPF program {program.name or 'without a name'} ({kind})"
                for program in programs
                if attach_type not in _ATTACH_TYPES or not program.name.startswith(_OURS)
            ]
    return tuple(found)


class SocketClassifier:
    """The rules on cgroups and users of one network namespace. Make and use it in one thread."""

    def __init__(self, *, mount_point: Path | None = None) -> None:
        self._mount = mount_point or mount()
        self._cookie = _netns_cookie()
        self._name = f"{_OURS}{self._cookie:x}"[: bpf.NAME_BYTES_MAX]
        self._places: dict[Path, _Place] = {}
        self._minors = dict(MARK_MINOR)
        self._found_old = False
        self._storages: dict[Rule, int] = {}

    def apply(self, rules: Sequence[Rule], *, minors: Mapping[str, int] = MARK_MINOR) -> tuple[str, ...]:
        """Make exactly these rules be in force; those on ports, DSCP and addresses are not ours and left out.

        Args:
            minors: the mark that a target means; as the trees understand it (`Shaper.mark_minor`).

        Cheap when nothing changed (one stat for each cgroup): call it again and again, so that a cgroup that comes
        later, or was removed and made again, is found.

        Returns:
            Sentences on rules that are not wholly in force, and why.

        Raises:
            PrivilegeError: without CAP_BPF and CAP_NET_ADMIN.
        """
        wanted: dict[Path, set[Rule]] = {}
        for rule in rules:
            if rule.cgroup is not None or rule.uid is not None:
                wanted.setdefault(rule_path(self._mount, rule), set()).add(rule)
        if not self._found_old:
            self._places = {path: _Place(0, frozenset(), ()) for path in self._with_programs_of_ours()}
            self._found_old = True
        notes = []
        if self._minors != minors:  # no program says any more what is wanted
            self._minors = dict(minors)
            self._places = {path: replace(place, inode=0) for path, place in self._places.items()}
        for path in sorted({*self._places, *wanted}):
            here = frozenset(wanted.get(path, ()))
            try:
                inode = path.stat().st_ino
            except FileNotFoundError:
                self._places.pop(path, None)
                if any(not rule.may_be_absent for rule in here):
                    notes.append(f"there is no cgroup {path}; its rule waits until there is{slice_advice(path)}")
                continue
            place = self._places.get(path)
            now_s = time.monotonic()
            if place is None or (place.inode, place.rules) != (inode, here) or now_s >= place.again_s:
                told, whole = self._reconcile(path, here)
                place = self._places[path] = _Place(inode, here, tuple(told), math.inf if whole else now_s + AGAIN_S)
            notes.extend(place.notes)
            if not here and place.again_s == math.inf:
                del self._places[path]
        self._close_storages(keep=rules)
        return tuple(notes)

    def remember(self, sock: socket.socket, rule: Rule) -> bool:
        """Leave a rule's note in a listening socket that was there before it, for the connections that it accepts.

        Returns:
            Whether there is a place for it: False on kernels without socket storage, and for a rule not in force.

        Raises:
            KernelRejectedError: the kernel does not take the note.
        """
        storage = self._storages.get(rule)
        if storage is None:
            return False
        bpf.store(storage, sock=sock.fileno(), value=classid(self._minors[rule.target]))
        return True

    def clear(self) -> int:
        """Remove all programs of ours in this namespace, wherever they hang; returns from how many cgroups."""
        paths = self._with_programs_of_ours()
        for path in paths:
            self._reconcile(path, frozenset())
        self._places.clear()
        self._close_storages(keep=())
        return len(paths)

    def _close_storages(self, *, keep: Sequence[Rule]) -> None:
        for rule in self._storages.keys() - set(keep):
            os.close(self._storages.pop(rule))

    def _with_programs_of_ours(self) -> list[Path]:
        """Walk all cgroups: two system calls each."""
        found = []
        for directory, _, _ in os.walk(self._mount):
            try:
                with _open(Path(directory)) as cgroup:
                    if any(self._ours(cgroup, attach_type) for attach_type in _ATTACH_TYPES):
                        found.append(Path(directory))
            except FileNotFoundError:  # it went while we walked
                continue
            except KernelRejectedError as error:
                if error.errno_value == errno.EPERM:  # root of a user namespace: who may not look, attached nothing
                    return found
                raise
        return found

    def _ours(self, cgroup: int, attach_type: int) -> list[bpf.Attached]:
        programs = bpf.attached(cgroup=cgroup, attach_type=attach_type)
        return [program for program in programs if program.name == self._name]

    def _reconcile(self, path: Path, rules: frozenset[Rule]) -> tuple[list[str], bool]:
        """Attach what is missing at one cgroup, keep what is as wanted, then remove what is not.

        Returns:
            What is not in force, and whether the kernel took the rest.
        """
        notes: list[str] = []
        try:
            with _open(path) as cgroup:
                there = {attach_type: self._ours(cgroup, attach_type) for attach_type in _ATTACH_TYPES}
                kept: set[int] = set()
                for rule in sorted(rules, key=repr):
                    notes.extend(self._enforce(cgroup, rule, there, kept))
                for attach_type, programs in there.items():
                    for program in programs:
                        if program.program_id not in kept:
                            _detach(cgroup, program.program_id, attach_type)
        except FileNotFoundError:
            notes.append(f"the cgroup {path} went away")
        except KernelRejectedError as error:
            notes.append(f"{path}: {error}; {_WHY.get(error.errno_value, _HELD)}")
            return notes, False
        return notes, True

    def _enforce(
        self, cgroup: int, rule: Rule, there: Mapping[int, Sequence[bpf.Attached]], kept: set[int]
    ) -> list[str]:
        """Load a rule's pair of programs; attach it unless the same pair, with a storage of its own, is there."""
        notes = []
        with ExitStack() as descriptors:
            storage: int | None = None
            try:
                storage = bpf.make_socket_storage()
                descriptors.callback(os.close, storage)
            except KernelRejectedError as error:
                notes.append(f"connections accepted under {rule_path(self._mount, rule)} are not classified: {error}")
            programs = {}
            for attach_type, (program_type, code) in self._programs(rule, storage).items():
                program = bpf.load_program(
                    program_type=program_type, attach_type=attach_type, instructions=code, name=self._name
                )
                descriptors.callback(os.close, program)
                programs[attach_type] = program
            pair = _same_pair({kind: bpf.information(program).tag for kind, program in programs.items()}, there)
            if pair:
                kept.update(program.program_id for program in pair)
                self._keep_storage(rule, bpf.open_map(pair[0].maps[0]) if pair[0].maps else None)
                return notes
            with ExitStack() as undone:  # half a pair serves nobody, and each try would leave another half
                for attach_type, program in programs.items():
                    bpf.attach(cgroup=cgroup, program=program, attach_type=attach_type)
                    undone.callback(bpf.detach, cgroup=cgroup, program=program, attach_type=attach_type)
                undone.pop_all()
            self._keep_storage(rule, None if storage is None else os.dup(storage))
        return notes

    def _keep_storage(self, rule: Rule, storage: int | None) -> None:
        former = self._storages.pop(rule, None)
        if former is not None:
            os.close(former)
        if storage is not None:
            self._storages[rule] = storage

    def _programs(self, rule: Rule, storage: int | None) -> dict[int, tuple[int, bytes]]:
        priority = classid(self._minors[rule.target])
        create = create_program(cookie=self._cookie, priority=priority, uid=rule.uid, storage=storage)
        programs = {bpf.ATTACH_SOCK_CREATE: (bpf.PROG_TYPE_CGROUP_SOCK, create)}
        if storage is not None:
            programs[bpf.ATTACH_SOCK_OPS] = (bpf.PROG_TYPE_SOCK_OPS, accept_program(storage=storage))
        return programs


def _same_pair(tags: Mapping[int, bytes], there: Mapping[int, Sequence[bpf.Attached]]) -> tuple[bpf.Attached, ...]:
    """Attached programs with these tags that share their storage; none when there is no such pair."""
    for create in there[bpf.ATTACH_SOCK_CREATE]:
        if create.tag != tags[bpf.ATTACH_SOCK_CREATE]:
            continue
        if bpf.ATTACH_SOCK_OPS not in tags:
            return (create,)
        for accept in there[bpf.ATTACH_SOCK_OPS]:
            if accept.tag == tags[bpf.ATTACH_SOCK_OPS] and accept.maps == create.maps:
                return (create, accept)
    return ()


def _detach(cgroup: int, program_id: int, attach_type: int) -> None:
    program = bpf.open_program(program_id)
    try:
        bpf.detach(cgroup=cgroup, program=program, attach_type=attach_type)
    finally:
        os.close(program)


def _netns_cookie() -> int:
    cookie = own_netns_cookie()
    if cookie is None:
        raise ShapingError("this kernel (before 5.14) does not tell network namespaces apart")
    return cookie


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

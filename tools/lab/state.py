"""What is written down about a running lab, so that anybody can take it down when its owner is gone.

One directory a lab: /run/hive-lab/<id>/ (without root $XDG_RUNTIME_DIR/hive-lab/<id>/) with `state.json`, the relay's
socket and logs. It is there before the first namespace is made and goes after the last one. Everything that a lab
makes carries its id: namespaces `hq<id>-...`, /etc/netns/hq<id>-.... So taking down needs no list, only the id.

Processes are named by number and start time: a number alone may have been given to somebody else since.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tools.lab.kernel import NAMESPACES, LabError, ip_batch
from tools.lab.wire import Medium

HOSTS_FILES = Path("/etc/netns")
_KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now; start 0 when there is none (it counts as dead)."""
        return cls(pid, _start_ticks(pid))

    @property
    def alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        return self.start_ticks != 0 and _start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True, kw_only=True)
class LabState:
    """The content of `state.json`."""

    id: str
    name: str
    owner: Process
    guard: Process | None = None
    detached: bool = False
    description: dict[str, Any] | None = None
    mediums: dict[str, Medium] = field(default_factory=dict)
    limits_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def stale(self) -> bool:
        """Nobody looks after it any more."""
        return not self.owner.alive


def state_root() -> Path:
    """Where labs are written down: /run/hive-lab for root, else under $XDG_RUNTIME_DIR."""
    override = os.environ.get("HIVE_LAB_STATE")
    if override:
        return Path(override)
    if os.geteuid() == 0:
        return Path("/run/hive-lab")
    return Path(os.environ.get("XDG_RUNTIME_DIR", f"/tmp/hive-lab-{os.getuid()}")) / "hive-lab"


def directory_of(lab_id: str) -> Path:
    """The lab's own directory."""
    return state_root() / lab_id


def prefix_of(lab_id: str) -> str:
    """What every namespace of the lab begins with."""
    return f"hq{lab_id}-"


def create(state: LabState) -> None:
    """Write a new lab down, whole or not at all (readers never see a directory without its file)."""
    state_root().mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = state_root() / f".{state.id}.{os.getpid()}"
    draft.mkdir(mode=0o755)
    (draft / "state.json").write_text(json.dumps(asdict(state)))
    draft.rename(directory_of(state.id))


def write(state: LabState) -> None:
    """Replace what is written about a lab."""
    path = directory_of(state.id) / "state.json"
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(state)))
    draft.replace(path)


def read(lab_id: str) -> LabState | None:
    """What is written about a lab; None when it is gone. What another version wrote besides is left out.

    Raises:
        LabError: it is there and cannot be read, or not understood: not ours wrote it, and perhaps not yet to its end.
    """
    try:
        raw = json.loads((directory_of(lab_id) / "state.json").read_text())
        raw["owner"] = Process(**raw["owner"])
        raw["guard"] = Process(**raw["guard"]) if raw.get("guard") else None
        known = {one.name for one in fields(LabState)}
        return LabState(**{name: value for name, value in raw.items() if name in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LabError(f"lab {lab_id}: its state.json cannot be read: {error!r}") from error


def all_ids() -> list[str]:
    """The id of every lab that is written down, readable or not."""
    root = state_root()
    return sorted(entry.name for entry in root.iterdir() if not entry.name.startswith(".")) if root.is_dir() else []


def all_labs() -> list[LabState]:
    """Every lab that is written down, by id. One that cannot be read keeps nobody from the others: it is left out, with
    a line on stderr that says how to take it down, for nobody can see whether its owner lives."""
    found = []
    for lab_id in all_ids():
        try:
            found.append(read(lab_id))
        except LabError as error:
            _say_once(f"{error}; `python -m tools.lab down {lab_id}` takes it down")
    return [state for state in found if state is not None]


def namespaces_of(lab_id: str) -> list[str]:
    """The lab's namespaces that are there now."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(entry.name for entry in NAMESPACES.iterdir() if entry.name.startswith(prefix_of(lab_id)))


def tear_down(lab_id: str) -> None:
    """Take down everything of a lab: processes, namespaces, files. Safe to repeat, and to run twice at once. The id
    suffices, where what is written about the lab cannot be read.

    Raises:
        LabError: a process does not die within 5 s, or a namespace cannot be removed.
    """
    state = _read_if_possible(lab_id)
    with _locked(lab_id):
        _kill_inside(lab_id)
        names = namespaces_of(lab_id)
        for name in names:
            shutil.rmtree(HOSTS_FILES / name, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty or not there: not ours to remove
            HOSTS_FILES.rmdir()
        for name in names:
            try:
                ip_batch([f"netns del {name}"])
            except LabError:
                if (NAMESPACES / name).exists():
                    raise
        shutil.rmtree(directory_of(lab_id), ignore_errors=True)
    if state is not None and state.guard is not None and state.guard.pid != os.getpid() and state.guard.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.guard.pid, signal.SIGKILL)


def sweep() -> list[str]:
    """Take down every lab whose owner is dead. Returns their ids."""
    stale = [state.id for state in all_labs() if state.stale]
    for lab_id in stale:
        tear_down(lab_id)
    root = state_root()
    for draft in root.glob(".*.*") if root.is_dir() else ():
        pid = int(draft.suffix[1:]) if draft.suffix[1:].isdigit() else 0
        if not Process.of(pid).alive:
            shutil.rmtree(draft, ignore_errors=True)
    return stale


def processes_inside(lab_id: str) -> list[int]:
    """The numbers of all processes in the lab's namespaces, this one and its owner and guard excepted."""
    inodes: set[tuple[int, int]] = set()
    for name in namespaces_of(lab_id):
        with contextlib.suppress(OSError):
            status = os.stat(NAMESPACES / name)
            inodes.add((status.st_dev, status.st_ino))
    state = _read_if_possible(lab_id)
    spared = {os.getpid()} | ({state.owner.pid} if state else set())
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or a zombie: in no namespace any more
            status = os.stat(f"/proc/{entry}/ns/net")
            if (status.st_dev, status.st_ino) in inodes:
                found.append(int(entry))
    return found


def _read_if_possible(lab_id: str) -> LabState | None:
    try:
        return read(lab_id)
    except LabError:
        return None


@functools.cache
def _say_once(line: str) -> None:
    """For whoever is at the terminal: one command looks at all labs more than once."""
    print(f"lab: {line}", file=sys.stderr)


def _kill_inside(lab_id: str) -> None:
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while processes := processes_inside(lab_id):
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise LabError(f"lab {lab_id}: processes {processes} do not die")
        time.sleep(0.005)


@contextlib.contextmanager
def _locked(lab_id: str) -> Iterator[None]:
    """One at a time: the owner, its guard and a `down --all` may all come to take down the same lab."""
    state_root().mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(state_root() / f".lock-{lab_id}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            Path(lock.name).unlink(missing_ok=True)


def _start_ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return 0
        raise
    return 0 if fields[0] in "ZX" else int(fields[19])

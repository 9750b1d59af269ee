"""Runs command lines of `hive-qos` in a place where something is wrong: no rights, no room, nothing to write to.

A program of its own, in its own namespaces of mounts and processes: `python command_scene.py`, with a
condition and its cases as a line of JSON on stdin, and what became of each as a line on stdout. Everything is imported
once; each case is a fork that becomes the command, as the console script does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import broker.cli
from broker.client import Session, http
from hive_qos.errors import BrokerError
from transport.identity import ca_init, ca_issue

ROOM = Path("/mnt")
"""Where the file system is that a case may write to; below it are also what commands see as /etc, /run, /var/lib."""
ROOM_BYTES = 8 * 2**20
HOME = ROOM / "home"
CONFIGURATION = """version = 1
[[interface]]
name = "eth0"
egress = "20 Mbit/s"
[daemon]
group = "nogroup"
"""
CORRUPT = {
    "configuration that is no TOML": "version = [\n",
    "configuration with escapes": 'version = 1\n[[interface]]\nname = "eth0"\n["\\u001b[31mred"]\n',
}
"""What stands in broker.toml, by the condition."""
SPOILED = ("full disk", "read-only")
NOBODY = 65534
INTERRUPT = """
import os, random, signal, sys
seed, *sys.argv[1:] = sys.argv[1:]
left = random.Random(int(seed)).randrange(1, {events})
def count(*_):
    global left
    left -= 1
    if left == 0:
        os.killpg(0, signal.SIGINT)  # as a terminal does: to the watchdog, too
sys.addaudithook(count)
from broker.cli import main
main()
"""
"""A start that is interrupted at one of its imports, opened files and the like."""
EVENTS = 6000
"""Of those, as many as most commands have until they have said what they say."""
INTERRUPTED_AFTER_S = 3.0
"""A command that has not ended by then (a daemon, a screen that repeats) is interrupted, as a user does."""
_CLONE_NEWNS, _MS_REMOUNT, _MS_RDONLY, _MS_BIND = 0x20000, 32, 1, 4096
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    if _LIBC.mount(source.encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def furnish(condition: str) -> None:
    """Make the place of a condition, in a namespace of mounts that this process has to itself."""
    if _LIBC.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("tmpfs", ROOM, "tmpfs", data=f"size={ROOM_BYTES},mode=755")
    for name in ("etc/hive-qos", "run", "var-lib", "home", "tmp"):
        (ROOM / name).mkdir(parents=True)
    for name in ("passwd", "group", "nsswitch.conf", "hosts", "ld.so.cache", "localtime"):
        if os.path.exists(f"/etc/{name}"):
            shutil.copy(f"/etc/{name}", ROOM / "etc" / name)
    for target, name in (("/etc", "etc"), ("/run", "run"), ("/var/lib", "var-lib")):
        mount(str(ROOM / name), Path(target), flags=_MS_BIND)
    os.environ.update(HOME=str(HOME), TMPDIR=str(ROOM / "tmp"), XDG_RUNTIME_DIR=str(ROOM / "tmp"))
    os.environ.pop("HIVE_DEBUG", None)
    os.chdir(HOME)
    path = Path("/etc/hive-qos/broker.toml")
    if condition in CORRUPT:
        path.write_text(CORRUPT[condition])
    elif condition != "nothing there":
        path.write_text(CONFIGURATION)
        (HOME / "broker.toml").write_text(CONFIGURATION)
        if condition in SPOILED:  # where `ca init` itself cannot work
            ca_init(HOME / "hive-ca", days=3)
            ca_issue(HOME / "hive-ca", "trainer-1", addresses=("10.0.0.1",), days=3, out=HOME)


def files() -> dict[str, tuple[int, int]]:
    """All files of the place, each with its size and its time of change."""
    found = {}
    for folder, _, names in os.walk(ROOM):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (status.st_size, status.st_mtime_ns)
    return found


def spoil(condition: str) -> None:
    """What is wrong with the place from now on."""
    if condition == "full disk":
        with open(ROOM / "tmp/filling", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
    elif condition == "read-only":
        mount("", ROOM, flags=_MS_REMOUNT | _MS_RDONLY)


def start_broker() -> tuple[subprocess.Popen[bytes], Session]:
    """A broker with a job and a client whose names nobody should send to a terminal as they are."""
    with open(ROOM / "tmp/log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "hive_qos", "broker"], stderr=log)

    def is_up() -> bool:
        """Both of its sockets are as they stay: a command is judged by what it changes."""
        try:
            http.fetch("/v1/status")
        except BrokerError:
            return False
        return os.path.exists("/run/hive-qos/session.sock")

    until_s = time.monotonic() + 30
    while not is_up():
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"no broker: {(ROOM / 'tmp/log').read_text()}")
        time.sleep(0.02)
    session = Session(job="\x1b[31mred\x1b]0;title\x07\nline\u202e", socket_path="/run/hive-qos/session.sock")
    session.__enter__()
    return process, session


def become(argv: list[str], condition: str, outputs: tuple[int, int]) -> None:
    """Turn this child into the command: what the console script sees."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    empty = os.open(os.devnull, os.O_RDONLY)
    for number, given in enumerate((empty, *outputs)):
        os.dup2(given, number)
    if condition == "output on a full disk":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif condition == "closed output":
        os.close(1)
        sys.stdout = None  # as Python finds it then
    if condition == "without rights":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own /proc is its own again
    os.environ.update(COLUMNS="40", PATH=str(HOME))  # programs of examples are not there
    sys.argv = ["hive-qos", *argv]
    if condition == "interrupted":
        os.execv(sys.executable, [sys.executable, "-c", INTERRUPT.format(events=EVENTS), *argv])


def processes() -> set[int]:
    """What runs in this namespace of processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(int(path.name))
        except OSError:  # ended meanwhile
            continue
    return found


def left_after(kept: set[int], limit_s: float) -> list[str]:
    """What still runs beside what is kept: a daemon's watchdog ends a little after it."""
    until_s = time.monotonic() + limit_s
    while (left := processes() - kept) and time.monotonic() < until_s:
        time.sleep(0.02)
    return [_name(pid) for pid in left]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return str(pid)


def kernel_state() -> str:
    """Queues, links and classes of this network namespace, without counters."""
    return "".join(
        subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        for argv in (["tc", "qdisc", "show"], ["tc", "filter", "show", "dev", "eth0"], ["ip", "-br", "link"])
    )


def run(argv: list[str], condition: str, *, limit_s: float, kept: set[int], alone: bool) -> dict[str, Any] | None:
    """Run one case to its end; None in the child, which has to become it."""
    before = files()
    outputs = (os.memfd_create("out"), os.memfd_create("err"))
    began_s = time.monotonic()
    child = os.fork()
    if child == 0:
        become(argv, condition, outputs)
        return None
    status, interrupted = None, False
    while status is None and time.monotonic() < began_s + limit_s:
        ended, found = os.waitpid(child, os.WNOHANG)
        if ended:
            status = found
        elif time.monotonic() > began_s + INTERRUPTED_AFTER_S and not interrupted:
            os.kill(child, signal.SIGINT)
            interrupted = True
        else:
            time.sleep(0.005)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    texts = []
    for descriptor in outputs:
        size = os.fstat(descriptor).st_size
        texts.append(os.pread(descriptor, size, 0).decode(errors="surrogateescape"))
        os.close(descriptor)
    changed = (
        {} if condition == "read-only" else {name: what for name, what in files().items() if before.get(name) != what}
    )
    return {
        "argv": argv, "condition": condition, "interrupted": interrupted,
        "status": None if status is None else os.waitstatus_to_exitcode(status),
        "out": texts[0], "err": texts[1], "seconds": time.monotonic() - began_s,
        "written": sorted(name for name in changed if name != str(ROOM / "tmp/log")),
        "left": left_after(kept, limit_s / 2) if alone else [],
    }  # fmt: skip


def in_condition(condition: str, cases: list[list[str]], results: int, limit_s: float) -> bool:
    """Run all cases in one condition and write what became of each as a line; False in a child that becomes one."""
    furnish(condition)
    kernel, kept = kernel_state(), processes()
    daemon, session = start_broker() if condition == "broker" else (None, None)
    spoil(condition)
    for argv in cases:
        result = run(argv, condition, limit_s=limit_s, kept=kept, alone=daemon is None)
        if result is None:
            return False
        os.write(results, json.dumps(result).encode() + b"\n")
    if daemon is not None and session is not None:
        session.__exit__(None, None, None)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(limit_s)
    end = {"kernel": [kernel, kernel_state()], "left": left_after(kept, limit_s)}
    os.write(results, json.dumps(end).encode() + b"\n")
    return True


def load_everything() -> None:
    """Import what commands import when they need it, so that each is only a fork."""
    for found in pkgutil.walk_packages(broker.cli.__path__, "broker.cli."):
        importlib.import_module(found.name)
    for name in ("broker.daemon.daemon", "rich.live", "rich.table", "transport.identity", "shaping.kernel"):
        importlib.import_module(name)


def main() -> bool:
    """Take a condition with its cases from each line; False in a child that becomes a command."""
    load_everything()
    gc.freeze()  # children do not copy what they only look at
    results = os.dup(1)
    for line in iter(sys.stdin.readline, ""):
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            if in_condition(wanted["condition"], wanted["cases"], results, wanted["limit_s"]):
                os._exit(0)
            return False
        os.waitpid(child, 0)
        os.write(results, b"{}\n")  # the end, also of a condition that could not be made
    return True


def end_as_the_command() -> NoReturn:
    """Run the console script's function, and end with its exit code as Python does, without taking down the heap."""
    try:
        broker.cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - as Python shows it
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
    except OSError:
        traceback.print_exc()
        code = 120
    os._exit(code)


if __name__ == "__main__" and not main():
    end_as_the_command()

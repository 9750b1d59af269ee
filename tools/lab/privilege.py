"""The privilege that a lab needs, and how an ordinary user gets it: a user namespace of one's own.

As root nothing happens. Otherwise, where the kernel allows it, the program starts again inside new user, mount and
network namespaces in which it is root. There /run is a private file system (for /run/netns), with the user's own
/run/user/<uid> as before, and /etc is an overlay (for /etc/netns), so that nothing of the machine is changed.
`user=` of `host.run` has no effect there: there is only one user, and outside that one is ordinary.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools.lab.kernel import command_path
from tools.lab.state import state_root

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_INSIDE = "HIVE_LAB_INSIDE"


def missing() -> str | None:
    """What stands between this process and a lab, in one line; None when nothing does."""
    for program in ("ip", "tc"):
        if shutil.which(program, path=command_path()) is None:
            return f"{program} is not installed (Debian: apt install iproute2)"
    if not _has_capabilities():
        return "no privilege: run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)"
    return None


def ensure(argv: Sequence[str]) -> None:
    """Return when this process may make a lab; else start `argv` again inside namespaces of its own, or end.

    Args:
        argv: the whole command line of this program, e.g. `[sys.executable, "-m", "tools.demo", *sys.argv[1:]]`.

    Raises:
        SystemExit: it cannot be had here; its text is one line that says what is missing (exit status 1).
    """
    if os.environ.get(_INSIDE) == str(os.getuid()) or _has_capabilities():
        if (lack := missing()) is not None:
            raise SystemExit(f"lab: {lack}")
        return
    # Labs are written down in the same place on both sides: `hive-lab exec` finds from outside what is inside.
    os.environ["HIVE_LAB_STATE"] = str(state_root())
    _enter_user_namespace()
    os.environ[_INSIDE] = "0"
    os.environ["PATH"] = command_path()
    os.execvp(argv[0], list(argv))


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET) != 0:
        words = os.strerror(ctypes.get_errno())
        _end(f"not root, and this kernel refuses user namespaces ({words}); run as root")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        _own_file_systems(libc, uid)
    except OSError as error:
        _end(f"not root, and the user namespace cannot be furnished ({error}); run as root")


def _own_file_systems(libc: ctypes.CDLL, uid: int) -> None:
    """A /run of our own, and an /etc that looks the same and takes /etc/netns."""

    def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        arguments = [None if part is None else part.encode() for part in (source, target, kind, data)]
        if libc.mount(arguments[0], arguments[1], arguments[2], flags, arguments[3]) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"mount {target}: {os.strerror(number)}")

    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    users = Path(f"/run/user/{uid}")
    kept = os.open(users, os.O_PATH) if users.is_dir() else None
    mount("hive-lab", "/run", "tmpfs", 0, "mode=755")
    Path("/run/netns").mkdir()
    if kept is not None:
        users.mkdir(parents=True)
        mount(f"/proc/self/fd/{kept}", str(users), None, _MS_BIND | _MS_REC)
        os.close(kept)
    # upper/netns: where the machine has an /etc/netns, the merged one has to belong to us, not to its root.
    for part in ("upper/netns", "work"):
        Path(f"/run/hive-lab-etc/{part}").mkdir(parents=True)
    options = "lowerdir=/etc,upperdir=/run/hive-lab-etc/upper,workdir=/run/hive-lab-etc/work"
    mount("hive-lab", "/etc", "overlay", 0, options)


def _has_capabilities() -> bool:
    with contextlib.suppress(OSError), open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith("CapEff:"):
                effective = int(line.split()[1], 16)
                return bool(effective >> _CAP_NET_ADMIN & 1 and effective >> _CAP_SYS_ADMIN & 1)
    return False


def _end(reason: str) -> NoReturn:
    sys.stdout.flush()
    raise SystemExit(f"lab: {reason}")

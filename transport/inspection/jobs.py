"""Where the members of jobs on this host listen, and how one is asked. Standard library only.

Each connected rank listens on a Unix socket in a folder of its user: below `XDG_RUNTIME_DIR`, else `/run/user/UID`,
else `/tmp/hive-qos-UID`. It answers one line of JSON with one line of JSON, and closes. Only its user can open the
folder and the socket; root asks those of all users.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hive_qos.errors import PeerError

SUFFIX = ".sock"
REQUEST_BYTES_MAX = 1024
ANSWER_BYTES_MAX = 64 * 2**20
"""Of a group of 1,000 members, each with its 256 links of 80 bytes and some."""
OWN_S = 2.0
"""For what a member says of itself: its transport's thread may stand behind a collective's callbacks."""
OWN, GROUP, PLANS = "own", "group", "plans"
"""What a member is asked for: what it says of itself, what all members say, or `Group.explain` of its groups."""
_FOLDER = ("hive-qos", "jobs")


def own_folders() -> list[Path]:
    """Where members of this user may listen, the first choice first."""
    user = os.geteuid()
    bases = [Path(base) for base in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}") if base]
    return [base.joinpath(*_FOLDER) for base in bases] + [Path(f"/tmp/hive-qos-{user}", _FOLDER[1])]


def make_folder() -> Path:
    """The folder for a socket of this process, which nobody else can open.

    Raises:
        OSError: there is no place for one.
    """
    refused: OSError | None = None
    for folder in own_folders():
        base = folder.parents[1]
        if base != Path("/tmp") and not _is_own(base):
            continue
        try:
            for one in (folder.parent, folder):
                with contextlib.suppress(FileExistsError):
                    one.mkdir(0o700)
                if not _is_own(one):
                    raise PermissionError(f"{one} belongs to somebody else")
            return folder
        except OSError as error:
            refused = error
    raise refused or FileNotFoundError("no folder for sockets of this user")


def sockets() -> Iterator[Path]:
    """All sockets of members that this user may ask: of root, those of everybody."""
    folders = {one for one in own_folders() if _is_own(one)}  # anybody may make one below /tmp
    if os.geteuid() == 0:
        found = [(one.parents[1].name, one) for one in Path("/run/user").glob("/".join(("*", *_FOLDER)))]
        found += [(one.parent.name.rpartition("-")[2], one) for one in Path("/tmp").glob("hive-qos-*/" + _FOLDER[1])]
        folders |= {one for user, one in found if _are_of(user, one.parent, one)}
    for folder in sorted(folders):
        with contextlib.suppress(OSError):
            yield from sorted(one for one in folder.iterdir() if one.name.endswith(SUFFIX))


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name of a socket that fits into an address, however long its folder's is (108 bytes, unix(7))."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def ask(path: Path, want: str = OWN, *, limit_s: float = OWN_S) -> dict[str, Any]:
    """The document of a member, of its whole group, or of its groups' plans.

    Args:
        want: `OWN`, `GROUP` or `PLANS`.
        limit_s: so long the member may take with itself and each of the others.

    Raises:
        OSError: nobody listens there (any more), or does not answer in time.
        PeerError: what answers is no member of a job.
    """
    give_up_s = time.monotonic() + limit_s + OWN_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(limit_s + OWN_S)
        with reachable(path) as name:
            sock.connect(name)
        sock.sendall(json.dumps({"want": want, "limit_s": limit_s}).encode() + b"\n")
        held = bytearray()
        while data := sock.recv(2**18):
            held += data
            if len(held) > ANSWER_BYTES_MAX:
                raise PeerError(str(path), f"it answers with more than {ANSWER_BYTES_MAX} bytes")
            left_s = give_up_s - time.monotonic()
            if left_s <= 0.0:  # a socket's timeout counts from one receive to the next
                raise TimeoutError(f"{path} does not end its answer")
            sock.settimeout(left_s)
    try:
        found = json.loads(held)
        if not isinstance(found, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        raise PeerError(str(path), f"it answers with what is no document of a member: {error}") from error
    return found


def members() -> list[tuple[Path, dict[str, Any]]]:
    """The members on this host that answer, each with what it says of itself."""
    found = []
    for path in sockets():
        with contextlib.suppress(OSError, PeerError):
            found.append((path, ask(path)))
    return found


def _are_of(user: str, *folders: Path) -> bool:
    """Whether these are folders of the user of that number, and no links of somebody's to other sockets."""
    return user.isdecimal() and all(_is_of(int(user), one) for one in folders)


def _is_own(folder: Path) -> bool:
    return _is_of(os.geteuid(), folder)


def _is_of(user: int, folder: Path) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user and private

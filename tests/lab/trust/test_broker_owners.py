"""Users of one container, in the kernel's own words about a socket's other end: they count as whose container it is."""

from __future__ import annotations

import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

from broker.process import rights
from broker.sessions.job_table import JobTable
from shaping.model.names import JOB_MINOR

NOBODY = pwd.getpwnam("nobody")
CONNECT = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.recv(1)"
)


def peers(folder: Path, uids: range) -> list[rights.Peer]:
    """Whom the daemon takes programs for that run as these users and connect to its socket."""
    path = folder / "s"
    found = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        listener.settimeout(LIMIT_S)
        for uid in uids:
            argv = [sys.executable, "-c", CONNECT, str(path)]
            with subprocess.Popen(argv, user=uid, group=NOBODY.pw_gid, extra_groups=[]):
                connection, _ = listener.accept()
                with connection:
                    found.append(rights.peer_of(connection))
    return found


def test_users_of_a_subordinate_range_are_one_user(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("owners")
    for each in (folder, *folder.parents):  # the programs' users reach the socket
        if each.is_relative_to("/tmp") and each != Path("/tmp"):
            each.chmod(0o755)
    (folder / "subuid").write_text("nobody:100000:65536\nroot:300000:65536\n")
    monkeypatch.setattr(rights, "owner_of", rights.UserOwners(folder / "subuid").owner_of)
    contained = peers(folder, range(100_000, 100_006))
    (folder / "s").unlink()
    of_root = peers(folder, range(300_000, 300_002))
    assert {peer.uid for peer in contained} == {NOBODY.pw_uid}
    assert {peer.uid for peer in of_root} == {300_000}
    authority = rights.Authority(
        group=None, admin_group=None, uids=frozenset(), class_uids=frozenset({("compute", 0)}), notes=()
    )
    assert {authority.right_of(peer) for peer in (*contained, *of_root)} == {rights.Right.NONE}
    book = JobTable(len(JOB_MINOR))
    for number, peer in enumerate(contained):
        book.register(f"s-{number}", job=f"j{number}", traffic_class="compute", uid=peer.uid)
    assert len(book.slots()) == len(JOB_MINOR) // 2

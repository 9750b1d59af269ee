"""Whom the daemon lets in, told by the real kernel to the real command: a user's groups, and what `doctor` says."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, two_hosts

from broker import client
from hive_qos.errors import BrokerRejectedError

ROOT = Path(__file__).parents[3]
UID, OWN_GROUP, GROUP, OUTSIDE = 2001, 2001, 65534, 65533
"""A user without a name; the group of `CONFIGURATION`, which is nogroup; and one that gives nothing."""
HELLO = """
import json, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(json.dumps({"v": 1, "op": "hello", "client": "test", "job": "j"}).encode())
print(json.loads(sock.recv(65536))["op"])
"""
HOLD = """
import socket, sys
held = []
while True:
    for sock in held[:]:
        try:
            if not sock.recv(1, socket.MSG_DONTWAIT):
                held.remove(sock)
        except BlockingIOError:
            pass
        except ConnectionError:
            held.remove(sock)
    while len(held) < 20:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(sys.argv[1])
        held.append(sock)
        if len(held) == 4:
            print(flush=True)
"""


COME_AGAIN = """
import socket, sys
for _ in range(300):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(sys.argv[1])
        sock.send(b"garbage")
        sock.recv(1000)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with two_hosts("rights") as lab, tempfile.TemporaryDirectory(prefix="hq") as path:
        Path(path).chmod(0o755)
        broker = Broker(lab["a"], Path(path), configuration=CONFIGURATION)
        broker.start()
        yield broker
        broker.stop()


def become(groups: list[int], *, uid: int = UID) -> list[str]:
    """The beginning of a command: an ordinary user whose login has these supplementary groups."""
    return ["setpriv", f"--reuid={uid}", f"--regid={OWN_GROUP}", "--groups", ",".join(map(str, groups)), "--"]


def as_user(broker: Broker, argv: list[str], *, groups: list[int]) -> subprocess.CompletedProcess[str]:
    return broker.host.run([*become(groups), *argv], check=False, cwd=ROOT)


@pytest.mark.parametrize(
    "groups",
    [[GROUP], [*range(300_000, 300_255), GROUP], [*range(300_000, 301_000), GROUP]],
    ids=["one", "256", "1001"],
)
def test_a_member_by_a_supplementary_group_may_use_the_broker(broker: Broker, groups: list[int]) -> None:
    status = as_user(broker, [*COMMAND, "status", "--socket", str(broker.folder / "run/broker.sock")], groups=groups)
    assert status.returncode == 0, status.stderr
    hello = as_user(broker, [sys.executable, "-c", HELLO, broker.sessions], groups=groups)
    assert hello.stdout.strip() == "welcome", hello


@pytest.mark.parametrize(
    "apart", [["--pid", "--fork"], ["--user", "--map-root-user"]], ids=["pid namespace", "user namespace"]
)
def test_root_of_a_container_may_use_the_broker_and_not_change_its_policy(broker: Broker, apart: list[str]) -> None:
    socket = ["--socket", str(broker.folder / "run/broker.sock")]
    contained = ["unshare", *apart, "--", *COMMAND]
    reload = broker.host.run([*contained, "reload", *socket], check=False)
    assert reload.returncode == 5
    assert "only the admin group may change" in reload.stderr
    assert broker.host.run([*contained, "status", *socket], check=False).returncode == 0
    assert broker.host.run([*COMMAND, "reload", *socket], check=False).returncode == 0


def test_who_is_in_no_group_of_the_broker_is_kept_out(broker: Broker) -> None:
    status = as_user(broker, [*COMMAND, "status", "--socket", str(broker.folder / "run/broker.sock")], groups=[OUTSIDE])
    assert status.returncode == 5, status
    assert "join the group" in status.stderr


@pytest.mark.parametrize(("groups", "verdict"), [([GROUP], "good"), ([OUTSIDE], "bad")])
def test_doctor_says_of_a_users_rights_what_the_broker_says(broker: Broker, groups: list[int], verdict: str) -> None:
    argv = [*COMMAND, "doctor", "--json", "--socket", str(broker.folder / "run/broker.sock")]
    findings = json.loads(as_user(broker, argv, groups=groups).stdout)
    (found,) = [finding for finding in findings if finding["what"] == "broker"]
    assert found["verdict"] == verdict, found
    assert ("log in again" in found["advice"]) == (verdict == "bad")


def test_a_user_who_holds_all_connections_that_he_gets_keeps_nobody_else_out(broker: Broker) -> None:
    api = str(broker.folder / "run/broker.sock")
    argv = [*become([GROUP]), sys.executable, "-c", HOLD, api]
    holder = broker.host.popen(argv, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        for _ in range(30):
            with pytest.raises(BrokerRejectedError, match="nothing is on trial"):
                client.http.post("/v1/confirm", socket_path=api)
        another = broker.host.run(
            [*become([GROUP], uid=UID + 1), *COMMAND, "status", "--socket", api], check=False, cwd=ROOT
        )
        assert another.returncode == 0, another.stderr
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.communicate()


def test_a_user_who_comes_again_and_again_does_not_fill_the_log(broker: Broker) -> None:
    before = broker.log.count("session-closed")
    argv = [*become([GROUP]), sys.executable, "-c", COME_AGAIN, broker.sessions]
    assert broker.host.run(argv, check=False).returncode == 0
    said = broker.log.count("session-closed") - before
    assert 1 <= said < 100, said

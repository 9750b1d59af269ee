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

ROOT = Path(__file__).parents[2]
UID, OWN_GROUP, GROUP, OUTSIDE = 2001, 2001, 65534, 65533
"""A user without a name; the group of `CONFIGURATION`, which is nogroup; and one that gives nothing."""
HELLO = """
import json, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(json.dumps({"v": 1, "op": "hello", "client": "test", "job": "j"}).encode())
print(json.loads(sock.recv(65536))["op"])
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with two_hosts("rights") as lab, tempfile.TemporaryDirectory(prefix="hq") as path:
        Path(path).chmod(0o755)
        broker = Broker(lab["a"], Path(path), configuration=CONFIGURATION)
        broker.start()
        yield broker
        broker.stop()


def as_user(broker: Broker, argv: list[str], *, groups: list[int]) -> subprocess.CompletedProcess[str]:
    """Run a program as an ordinary user whose login has these supplementary groups."""
    supplementary = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    become = ["setpriv", f"--reuid={UID}", f"--regid={OWN_GROUP}", *supplementary, "--"]
    return broker.host.run([*become, *argv], check=False, cwd=ROOT)


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

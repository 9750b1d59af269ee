"""The real daemon in a host of the lab: its tree, its sessions, its end, its death."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, SEND_TCP, SINK, Broker, two_hosts
from patience import most_of, wait_until

from tools.lab import Lab

ROOT = Path(__file__).parents[3]
USER, OUTSIDER = "nobody", "daemon"
PAYLOAD_BYTES = 300_000
SEND_REGISTERED = """
import socket, sys, time
from broker.client import Session, SessionState
address, traffic_class, role, path, size = sys.argv[1:]
sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
with Session(job="lab", socket_path=path) as session:
    session.register(sock, traffic_class=traffic_class, role=role)
    until = time.monotonic() + 30
    while not session.flows and time.monotonic() < until:
        time.sleep(0.01)
    assert session.flows, (session.state, session.rejections)
    for _ in range(int(size) // 1000):
        sock.sendto(bytes(958), (address, 4001))
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("broker") as lab:
        sink = lab["b"].popen(["python3", "-c", SINK], stdout=subprocess.PIPE)
        assert sink.stdout is not None
        sink.stdout.readline()
        sink.stdout.close()
        yield lab


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that an ordinary user reaches, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="hq") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.fixture
def broker(lab: Lab, folder: Path) -> Iterator[Broker]:
    broker = Broker(lab["a"], folder)
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_a_registered_socket_of_an_ordinary_user_lands_in_compute(broker: Broker, lab: Lab, family: str) -> None:
    address = lab["b"].address if family == "ipv4" else lab["b"].address6
    argv = [sys.executable, "-c", SEND_REGISTERED, address, "compute", "gradient", broker.sessions, str(PAYLOAD_BYTES)]
    broker.host.run(argv, user=USER, cwd=ROOT)
    wait_until(lambda: broker.sent_bytes("compute") >= PAYLOAD_BYTES, what=broker.status)
    assert broker.sent_bytes("storage") == 0


def test_a_program_that_is_run_in_storage_lands_there_and_its_exit_code_is_passed_on(broker: Broker, lab: Lab) -> None:
    run = [*COMMAND, "run", "--class", "storage", "--socket", broker.sessions, "--"]
    broker.host.run([*run, "python3", "-c", SEND_TCP, lab["b"].address, str(PAYLOAD_BYTES)], user=USER)
    wait_until(lambda: broker.sent_bytes("storage") >= PAYLOAD_BYTES, what=broker.status)
    assert broker.host.run([*run, "sh", "-c", "exit 37"], user=USER, check=False).returncode == 37
    assert broker.host.run([*run, "nosuchprogram"], user=USER, check=False).returncode == 127


def test_storage_connections_are_measured_by_tcp_info(broker: Broker, lab: Lab) -> None:
    run = [*COMMAND, "run", "--class", "storage", "--socket", broker.sessions, "--"]
    sender = broker.host.popen(
        [*run, "python3", "-c", SEND_TCP, lab["b"].address, str(60_000_000)]
    )  # 24 s at the interface's rate

    def measured() -> bool:
        flows = [flow for flow in broker.status()["flows"] if flow["kind"] == "tcp"]
        return any(
            flow["class"] == "storage" and flow["delivered_bytes"] > 100_000 and flow["rtt_s"] > 0 for flow in flows
        )

    try:
        wait_until(measured, what=broker.status)
    finally:
        sender.kill()
        sender.wait()


def test_sighup_reads_the_configuration_again_and_ctrl_c_ends_cleanly(broker: Broker) -> None:
    assert broker.process is not None
    (broker.folder / "broker.toml").write_text(CONFIGURATION.replace("20 Mbit/s", "10 Mbit/s"))
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: 9e6 < broker.status()["interfaces"][0]["capacity_bits_per_s"] <= 10e6, what=broker.status)
    assert broker.end(signal.SIGINT) == 130
    assert "htb" not in broker.root_qdisc()


@pytest.mark.parametrize("deleted", [False, True], ids=["undisturbed", "our-tree-deleted-meanwhile"])
def test_a_clean_stop_puts_back_what_was_there(lab: Lab, folder: Path, deleted: bool) -> None:
    host = lab["a"]
    host.run(["tc", "qdisc", "add", "dev", "eth0", "root", "handle", "5:", "bfifo", "limit", "123456"])
    try:
        broker = Broker(host, folder, arguments=("--take-over",))
        before = broker.root_qdisc()
        broker.start()
        assert "htb ffe0:" in broker.root_qdisc()
        if deleted:
            host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
            wait_until(lambda: "htb ffe0:" in broker.root_qdisc(), what=broker.status)
        assert broker.end(signal.SIGTERM) == 0
        assert broker.root_qdisc() == before
    finally:
        host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])


def test_a_killed_daemon_leaves_traffic_flowing_and_the_next_adopts_its_queues(broker: Broker, lab: Lab) -> None:
    flood = "import socket,sys; s=socket.socket(2,2); s.setsockopt(1,32,1<<24); s.setsockopt(1,12,0xffe00310-2**32)\n"
    flood += "for _ in range(100): s.sendto(bytes(1000), (sys.argv[1], 4001))"
    broker.end(signal.SIGKILL)
    wait_until(
        lambda: not broker.watchdogs()
    )  # it has opened the ceilings; this one is closed again, so that packets wait
    broker.host.run(["tc", "class", "change", "dev", "eth0", "parent", "ffe0:30", "classid", "ffe0:310",
                     "htb", "rate", "100kbit", "ceil", "100kbit", "burst", "2k", "cburst", "2k"])  # fmt: skip
    broker.host.run([sys.executable, "-c", flood, lab["b"].address])

    def storage() -> tuple[int, int, int]:
        text = broker.host.run(["tc", "-s", "class", "show", "dev", "eth0"]).stdout.split("class htb ffe0:310 ")[1]
        found = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+),.*?backlog \w+ (\d+)p", text, re.DOTALL)
        assert found is not None, text
        return int(found[1]), int(found[2]), int(found[3])

    _, dropped, waiting = storage()
    assert waiting > 50
    run = [*COMMAND, "run", "--class", "control", "--socket", broker.sessions, "--"]
    broker.host.run([*run, "python3", "-c", SEND_TCP, lab["b"].address, str(PAYLOAD_BYTES)])
    broker.start()
    assert "adopted=true" in broker.log
    wait_until(lambda: storage()[2] == 0, what=storage)
    sent, dropped_after, _ = storage()
    assert (sent, dropped_after) == (100, dropped)
    assert broker.sent_bytes("control") >= PAYLOAD_BYTES


HOLD = """
import socket, sys, time
from broker.client import Session
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
with Session(job="lab", socket_path=sys.argv[1]) as session:
    session.register(sock, traffic_class="compute", role="gradient")
    while True:
        session.announce(step=1, bytes_by_destination={"10.0.0.1": 1}, deadline_s=1.0)
        session.report([{"peer": "10.0.0.1:1", "rtt_s": float("inf")}])
        time.sleep(0.1)
"""


def test_a_program_goes_on_when_the_broker_is_killed_and_is_known_to_the_next_one(broker: Broker) -> None:
    program = broker.host.popen([sys.executable, "-c", HOLD, broker.sessions], user=USER, cwd=ROOT)
    try:
        for _ in range(2):
            wait_until(lambda: [f["pid"] for f in broker.status()["flows"] if f["kind"] == "socket"] == [program.pid])
            broker.end(signal.SIGKILL)
            assert program.poll() is None
            broker.start()
    finally:
        program.kill()
        program.wait()
    wait_until(lambda: broker.status()["sessions"] == [], what=broker.status)


def test_a_tree_that_somebody_deletes_is_built_again_and_said(broker: Broker) -> None:
    broker.host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
    wait_until(lambda: any(alarm["subject"] == "eth0" for alarm in broker.status()["alarms"]), what=broker.status)
    wait_until(lambda: "htb ffe0:" in broker.root_qdisc())
    wait_until(lambda: broker.status()["alarms"] == [], what=broker.status)


def test_a_second_daemon_a_missing_interface_and_missing_privilege_are_told_apart(broker: Broker, folder: Path) -> None:
    assert broker.process is not None
    argv = [*COMMAND, "broker", "--config", str(broker.folder / "broker.toml"), "--state-dir"]
    second = broker.host.run([*argv, str(folder / "state"), "--runtime-dir", str(folder / "run")], check=False)
    assert (second.returncode, second.stderr.count("\n")) == (5, 1)
    assert f"another broker (pid {broker.process.pid}, user 0)" in second.stderr
    broker.end(signal.SIGKILL)
    tree = broker.root_qdisc()
    (folder / "other.toml").write_text('version = 1\n[[interface]]\nname = "eth9"\negress = "1 Mbit/s"\n')
    other = [*COMMAND, "broker", "--config", str(folder / "other.toml"), "--state-dir", str(folder / "s2")]
    missing = broker.host.run([*other, "--runtime-dir", str(folder / "r2")], check=False)
    assert missing.returncode == 3
    assert "eth9" in missing.stderr
    assert broker.root_qdisc() == tree
    (folder / "open").mkdir(mode=0o777)
    (folder / "open").chmod(0o777)
    mine = [*argv, str(folder / "open/s"), "--runtime-dir", str(folder / "open/r")]
    unprivileged = broker.host.run(mine, check=False, user=USER)
    assert unprivileged.returncode == 6, unprivileged.stderr
    assert "programs still run" not in unprivileged.stderr
    directories = broker.host.run([*argv, str(folder / "open/s")], check=False, user=USER)  # and /run/hive-qos
    assert directories.returncode == 6, directories.stderr
    assert "run it as root" in directories.stderr
    assert broker.host.run([*COMMAND, "clear", "--state-dir", str(folder / "state")]).returncode == 0


@pytest.mark.parametrize("group", ["nogroup", "no-such-group"])
def test_a_user_outside_of_the_group_is_refused_and_not_told_that_there_is_no_broker(
    lab: Lab, folder: Path, group: str
) -> None:
    broker = Broker(lab["a"], folder, configuration=CONFIGURATION.replace("nogroup", group))
    broker.start()
    try:
        api = str(folder / "run/broker.sock")
        for command in (["status", "--socket", api],
                        ["run", "--class", "storage", "--socket", broker.sessions, "--", "true"]):  # fmt: skip
            refused = broker.host.run([*COMMAND, *command], user=OUTSIDER, check=False)
            assert refused.returncode == 5, refused
    finally:
        broker.end(signal.SIGTERM)


def test_clear_removes_what_a_killed_daemon_left(broker: Broker) -> None:
    clear = [*COMMAND, "clear", "--state-dir", str(broker.folder / "state"), "--json"]
    for command in (clear, [*COMMAND, "clear", "--state-dir", str(broker.folder / "elsewhere")]):
        assert broker.host.run(command, check=False).returncode == 5
    broker.end(signal.SIGKILL)
    assert "htb ffe0:" in broker.root_qdisc()
    assert json.loads(broker.host.run(clear).stdout)["done"]
    assert "htb" not in broker.root_qdisc()


def test_clear_works_where_the_configuration_has_a_mistake(broker: Broker) -> None:
    broker.end(signal.SIGKILL)
    broken = broker.folder / "broken.toml"
    broken.write_text(f'version = 1\n[daemon]\nstate_dir = "{broker.folder / "state"}"\n')
    cleared = broker.host.run([*COMMAND, "clear", "--config", str(broken)])
    assert "has a mistake" in cleared.stderr
    assert "htb" not in broker.root_qdisc()


def test_an_idle_daemon_rests_between_its_ticks(broker: Broker) -> None:
    def share_of_a_core() -> float:
        before = broker.status()["daemon"]
        time.sleep(2)  # the window itself: twenty ticks
        after = broker.status()["daemon"]
        return (after["cpu_s"] - before["cpu_s"]) / (after["up_s"] - before["up_s"])

    # One that does not wait takes all of a core, one that ticks ten times too often a third; 0.03 is usual.
    most_of(share_of_a_core, lambda share: share < 0.2)

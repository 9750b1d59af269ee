"""Two real brokers: the receiver of a flood asks the sender's to hold it back, for a burst, and for no longer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_host import COMMAND, PEERS, STORAGE, TRAINER, Broker, broker_in
from patience import LIMIT_S, wait_until

from broker.enforce.ingress import LOST_AGAIN_S
from tools.brokerbench.figures.blocks import gaps
from tools.lab import Lab
from tools.lab.host import Host

ROOT = Path(__file__).parents[3]
LINK_BITS_PER_S = 20_000_000
RIGHT_WITHIN_S, STARVES_S_MAX = 2.0, 1.0
"""After somebody deleted the IFB."""
FLOOR_BITS_PER_S = int(0.95 * LINK_BITS_PER_S) // 50
CONFIGURATION = """
version = 1
[[interface]]
name = "eth0"
egress = "{egress}"
ingress = "{ingress}"
[class.storage]
match = [{{ port = 4873 }}]
[daemon]
group = "nogroup"
record_file = "{record}"
"""
SILENT_TRAINER = """
import socket, sys, time
from broker.client import Session
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
with Session(job="lab", socket_path=sys.argv[1]) as session:
    session.register(sock, traffic_class="compute", role="gradient")
    while True:
        for _ in range(600):
            sock.sendto(bytes(1400), (sys.argv[2], 4999))
        time.sleep(0.4)
"""
ECHO = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 4999))
print(flush=True)
while True:
    sock.sendto(*sock.recvfrom(2000))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("holds") as lab:
        for name in ("a", "b", "c"):
            lab.host(name)
        lab.router("r")
        for name, rate in (("a", LINK_BITS_PER_S), ("b", 10 * LINK_BITS_PER_S), ("c", 10 * LINK_BITS_PER_S)):
            lab.link(name, "r", rate_bits_per_s=rate)
        lab.up()
        yield lab


@pytest.fixture
def pki(lab: Lab, tmp_path: Path) -> Path:
    def ca(*arguments: str) -> None:
        subprocess.run([*COMMAND, "ca", *arguments, "--directory", str(tmp_path / "ca")], check=True, timeout=LIMIT_S)

    ca("init")
    for name in ("a", "c"):
        ca("issue", name, "--role", "broker", "--address", lab[name].address, "--out", str(tmp_path / "ca"))
    return tmp_path / "ca"


@pytest.fixture
def flood(lab: Lab) -> Iterator[None]:
    """Storage from c to a, without end."""
    sink = lab["a"].popen([sys.executable, "-c", STORAGE, "sink"], stdout=subprocess.PIPE)
    assert sink.stdout is not None
    sink.stdout.readline()
    sender = lab["c"].popen([sys.executable, "-c", STORAGE, lab["a"].address], stderr=subprocess.DEVNULL)
    yield
    for process in (sender, sink):
        process.kill()
        process.wait()
    sink.stdout.close()


def started(broker: Broker, *, egress: str, ingress: str = "off", pki: Path | None = None) -> Broker:
    """The broker with its configuration; it records what it decides."""
    text = CONFIGURATION.format(egress=egress, ingress=ingress, record=broker.folder / "record")
    if pki is not None:
        text += PEERS.format(pki=pki, host=broker.host.name)
    broker.configuration = text
    broker.start()
    return broker


def recorded(broker: Broker) -> list[dict[str, Any]]:
    """The decisions that have been written whole."""
    lines = (broker.folder / "record").read_text().splitlines(keepends=True)
    ticks = [json.loads(line) for line in lines if line.endswith("\n")]
    return [tick for tick in ticks if "record" not in tick]


def train(host: Host, broker: Broker, towards: str, program: str = TRAINER) -> subprocess.Popen[bytes]:
    return host.popen([sys.executable, "-c", program, broker.sessions, towards], cwd=ROOT)


def ceilings(broker: Broker) -> list[tuple[int, str]]:
    """What was allowed towards the first held address, and why, decision after decision."""
    found = []
    for tick in recorded(broker):
        for one in tick["allocation"]["interfaces"][0]["destinations"]:
            found.append((one["ceil_bits_per_s"], one["reason"]["code"]))
    return found


def test_a_flood_is_held_at_its_sender_for_each_burst_and_free_when_the_receiver_dies(
    lab: Lab, pki: Path, flood: None
) -> None:
    with broker_in(lab["a"]) as receiver, broker_in(lab["c"]) as sender:
        started(sender, egress="200 Mbit/s", pki=pki)
        started(receiver, egress="20 Mbit/s", ingress="20 Mbit/s", pki=pki)
        trainer = train(lab["a"], receiver, lab["b"].address)
        try:
            # The floor for a burst, and all that is left between two.
            wait_until(lambda: any(rate <= 2 * FLOOR_BITS_PER_S for rate, _ in ceilings(sender)), what=receiver.status)
            held = len(ceilings(sender))
            wait_until(lambda: any(rate > 10_000_000 for rate, _ in ceilings(sender)[held:]), what=receiver.status)
            wait_until(lambda: [one["granted"] for one in receiver.status()["holds"]] == [True], what=receiver.status)
            (lease,) = sender.status()["leases"]
            assert (lease["peer"], lease["address"], lease["class"]) == ("a", lab["a"].address, "storage")
            shown = receiver.host.run([*COMMAND, "status", "--socket", str(receiver.folder / "run/broker.sock")]).stdout
            assert "eth0 receives at most" in shown
            assert lab["c"].address in shown

            receiver.end(signal.SIGKILL)
            wait_until(lambda: sender.status()["leases"] == [], what=sender.status)
            wait_until(lambda: ceilings(sender)[-1] == (194_000_000, "hold-over"), what=sender.status)
        finally:
            trainer.kill()
            trainer.wait()
        for broker in (receiver, sender):
            broker.stop()
            replayed = subprocess.run([*COMMAND, "replay", str(broker.folder / "record")], timeout=LIMIT_S, check=False)
            assert replayed.returncode == 0, broker.host.name


def test_a_flood_is_held_for_training_that_announces_nothing(lab: Lab, pki: Path, flood: None) -> None:
    echo = lab["b"].popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert echo.stdout is not None
    echo.stdout.readline()
    with broker_in(lab["a"]) as receiver, broker_in(lab["c"]) as sender:
        started(sender, egress="200 Mbit/s", pki=pki)
        started(receiver, egress="20 Mbit/s", ingress="20 Mbit/s", pki=pki)
        trainer = train(lab["a"], receiver, lab["b"].address, SILENT_TRAINER)
        try:
            # Its guarantee while a burst is seen, and all that is left between two.
            wait_until(lambda: any(rate <= 6_000_000 for rate, _ in ceilings(sender)), what=receiver.status)
            held = len(ceilings(sender))
            wait_until(lambda: any(rate > 10_000_000 for rate, _ in ceilings(sender)[held:]), what=receiver.status)
        finally:
            for process in (trainer, echo):
                process.kill()
                process.wait()
            echo.stdout.close()
        reasons = {
            entry["reason"]["code"]
            for tick in recorded(receiver)
            for inbound in tick["allocation"]["ingress"]
            for entry in inbound["classes"]
        }
        assert "burst-seen" in reasons
        assert all(rate > FLOOR_BITS_PER_S for rate, _ in ceilings(sender)), "promised by nobody: not to the floor"
        receiver.stop()
        replayed = subprocess.run([*COMMAND, "replay", str(receiver.folder / "record")], timeout=LIMIT_S, check=False)
        assert replayed.returncode == 0


def test_who_has_no_broker_is_held_on_an_ifb_and_everything_is_put_back(lab: Lab, flood: None) -> None:
    host = lab["a"]
    with broker_in(host) as receiver:
        started(receiver, egress="20 Mbit/s", ingress="20 Mbit/s")
        trainer = train(host, receiver, lab["b"].address)
        try:
            wait_until(lambda: "hqifb" in host.run(["ip", "link", "show"]).stdout, what=receiver.status)
            wait_until(lambda: "mirred" in host.run(["tc", "filter", "show", "dev", "eth0", "ingress"]).stdout)
            wait_until(lambda: receiver.status()["interfaces"][1]["shaped"], what=receiver.status)
        finally:
            trainer.kill()
            trainer.wait()
        assert receiver.end(signal.SIGTERM) == 0
        assert "hqifb" not in host.run(["ip", "link", "show"]).stdout
        assert "ingress" not in host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout


SUMMED_SINK = """
import pathlib, socket, sys, threading, time
server = socket.create_server(("", 4873))
taken = [0]
def take(connection):
    while data := connection.recv(1 << 16):
        taken[0] += len(data)
def tell():
    with open(sys.argv[1], "w", buffering=1) as file:
        while True:
            file.write(f"{time.monotonic()} {taken[0]}\\n")
            time.sleep(0.02)
threading.Thread(target=tell, daemon=True).start()
while True:
    threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()
"""


def test_an_ifb_that_somebody_deletes_under_a_running_daemon_is_made_again_and_storage_goes_on_meanwhile(
    lab: Lab, tmp_path: Path
) -> None:
    host, counted = lab["a"], tmp_path / "counted"
    sink = host.popen([sys.executable, "-c", SUMMED_SINK, str(counted)])
    wait_until(lambda: counted.exists() and counted.read_text().count("\n") > 1)
    sender = lab["c"].popen([sys.executable, "-c", STORAGE, host.address], stderr=subprocess.DEVNULL)

    def device() -> str | None:
        """The IFB with its tree, once what arrives is led there."""
        hook = host.run(["tc", "filter", "show", "dev", "eth0", "ingress"]).stdout
        found = re.search(r"Redirect to device (hqifb\d+)", hook)
        if found is None:
            return None
        root = host.run(["tc", "qdisc", "show", "dev", found[1], "root"], check=False).stdout
        return found[1] if "htb ffe0:" in root else None

    with broker_in(host) as receiver:
        started(receiver, egress="20 Mbit/s", ingress="20 Mbit/s")
        trainer = train(host, receiver, lab["b"].address)
        try:
            wait_until(lambda: device() is not None, what=receiver.status)
            time.sleep(LOST_AGAIN_S)  # as somebody does it who comes by, not right after it was made
            began_s = time.monotonic()
            for _ in range(2):
                deleted_s = time.monotonic()
                host.run(["ip", "link", "del", device() or "none"])
                wait_until(lambda: device() is not None, what=receiver.status)
                assert time.monotonic() - deleted_s < RIGHT_WITHIN_S
                wait_until(
                    lambda: "ingress-failed" not in [one["code"] for one in receiver.status()["alarms"]],
                    what=receiver.status,
                )
            time.sleep(STARVES_S_MAX)
        finally:
            for process in (trainer, sender, sink):
                process.kill()
                process.wait()
        assert gaps(rows_of(counted), begin_s=began_s, end_s=time.monotonic()) < STARVES_S_MAX
        assert receiver.end(signal.SIGTERM) == 0
        assert "hqifb" not in host.run(["ip", "link", "show"]).stdout


def rows_of(counted: Path) -> list[list[float]]:
    """Time and bytes of each line that was written whole."""
    return [[float(word) for word in line.split()] for line in counted.read_text().splitlines()[:-1]]


def test_a_way_in_of_unknown_speed_is_found_and_followed_by_two_senders_word(lab: Lab) -> None:
    """No brokers at the senders, and nobody trains: storage of two hosts is in each other's way."""
    host, link = lab["a"], lab.links["a-r"]
    sink = host.popen([sys.executable, "-c", STORAGE, "sink"], stdout=subprocess.PIPE)
    assert sink.stdout is not None
    sink.stdout.readline()
    senders = [
        lab[name].popen([sys.executable, "-c", STORAGE, host.address], stderr=subprocess.DEVNULL) for name in ("b", "c")
    ]
    with broker_in(host) as receiver:

        def inbound() -> dict[str, Any]:
            return next(entry for entry in receiver.status()["interfaces"] if entry["direction"] == "ingress")

        try:
            started(receiver, egress="20 Mbit/s", ingress="auto")
            wait_until(lambda: inbound()["capacity_source"] == "fallback", what=inbound)
            wait_until(lambda: len(recorded(receiver)) > 30, what=inbound)
            link.set_rate(LINK_BITS_PER_S // 4)
            wait_until(lambda: inbound()["capacity_bits_per_s"] <= LINK_BITS_PER_S // 3, what=inbound)
            assert inbound()["capacity_source"] == "measured"
            link.set_rate(LINK_BITS_PER_S)
            wait_until(lambda: inbound()["capacity_bits_per_s"] >= LINK_BITS_PER_S // 2, what=inbound)
        finally:
            link.set_rate(LINK_BITS_PER_S)
            for process in (*senders, sink):
                process.kill()
                process.wait()
            sink.stdout.close()
        receiver.stop()
        replayed = subprocess.run([*COMMAND, "replay", str(receiver.folder / "record")], timeout=LIMIT_S, check=False)
        assert replayed.returncode == 0

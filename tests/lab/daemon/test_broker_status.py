"""`hive-qos status` of real daemons with real traffic: whose promise is kept, who is held, and who sends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_host import COMMAND, PEERS, STORAGE, TRAINER, Broker, broker_in, two_hosts
from patience import LIMIT_S, wait_until

from tools.lab import Lab
from tools.lab.host import Host

ROOT = Path(__file__).parents[3]
CONFIGURATION = """
version = 1
[[interface]]
name = "eth0"
egress = "{egress}"
ingress = "{ingress}"
[class.storage]
match = [{{ port = 4873 }}]
guarantee_window = "3 s"
[daemon]
group = "nogroup"
"""
A_FIFTH = 4_000_000
"""Storage's share of the receiver's 20 Mbit/s, a tenth of that of the sender's link. A tenth less is promised where a
little is left free, and more where more was delivered before the hold: the link counts as that for a while."""
UDP = """
import pathlib, socket, sys, time
pathlib.Path("/proc/self/comm").write_text("quicsync")
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 22000))
while True:
    for _ in range(10):
        sock.sendto(bytes(1200), (sys.argv[1], 9))
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("status") as lab:
        yield lab


@contextmanager
def programs(*started: tuple[Host, str, tuple[str, ...]]) -> Iterator[None]:
    """Programs that run meanwhile."""
    running = [host.popen([sys.executable, "-c", text, *arguments], cwd=ROOT) for host, text, arguments in started]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def sink(host: Host) -> Iterator[None]:
    process = host.popen([sys.executable, "-c", STORAGE, "sink"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def screen(broker: Broker) -> str:
    """What an operator reads at 80 columns."""
    socket = str(broker.folder / "run/broker.sock")
    return broker.host.run(["env", "COLUMNS=80", *COMMAND, "status", "--socket", socket]).stdout


def storage_of(broker: Broker) -> dict[str, Any]:
    return next(one for one in broker.status()["interfaces"][0]["classes"] if one["name"] == "storage")


def test_a_sender_that_is_held_says_to_what_and_towards_whom_in_its_row(lab: Lab, tmp_path: Path) -> None:
    def ca(*arguments: str) -> None:
        subprocess.run([*COMMAND, "ca", *arguments, "--directory", str(tmp_path)], check=True, timeout=LIMIT_S)

    ca("init")
    for name in ("a", "b"):
        ca("issue", name, "--role", "broker", "--address", lab[name].address, "--out", str(tmp_path))
    with broker_in(lab["a"]) as receiver, broker_in(lab["b"]) as sender, sink(lab["a"]):
        for broker, egress, ingress in ((receiver, "20 Mbit/s", "20 Mbit/s"), (sender, "200 Mbit/s", "off")):
            broker.configuration = CONFIGURATION.format(egress=egress, ingress=ingress)
            broker.configuration += PEERS.format(pki=tmp_path, host=broker.host.name)
        address = lab["a"].address

        def is_as_slow_as_it_says() -> bool:
            """The receiver shapes its link once it has to. Until then it carries more, and a fifth of that is promised
            for as long as it is held."""
            (link,) = (one for one in receiver.status()["interfaces"] if one["direction"] == "ingress")
            (storage,) = (one for one in link["classes"] if one["name"] == "storage")
            return link["shaped"] and 0 < (storage["throughput_bits_per_s"] or 0) < 20_000_000

        def held() -> bool:
            """In one document: the hold may end before the next."""
            link = sender.status()["interfaces"][0]
            now = next(one for one in link["classes"] if one["name"] == "storage")
            promised = [one["guarantee_bits_per_s"] for one in link["destinations"] if one["address"] == address]
            limited = now["usable_bits_per_s"] <= 20_000_000 < 190_000_000 < now["ceil_bits_per_s"]
            return (
                limited
                and f"towards {address}, as a asks; " in now["held"]
                and any(0.9 * A_FIFTH <= rate <= 2 * A_FIFTH for rate in promised)
            )

        def shown() -> bool:
            text = " ".join(screen(sender).split())
            found = re.search(rf"held to .* towards {address}, as a asks; .* ([0-9.]+) Mbit/s are promised", text)
            return found is not None and 0.9 * A_FIFTH <= float(found[1]) * 1e6 <= 2 * A_FIFTH

        receiver.start()
        with programs((lab["b"], STORAGE, (address,))):
            wait_until(is_as_slow_as_it_says, what=receiver.status)
            sender.start()
            with programs((lab["a"], TRAINER, (receiver.sessions, lab["b"].address))):
                wait_until(held, what=sender.status)
                wait_until(shown, what=lambda: screen(sender))


def test_averages_tell_of_the_promise_and_programs_by_name_of_who_sends_udp_too(lab: Lab) -> None:
    with broker_in(lab["a"]) as broker, sink(lab["b"]):
        broker.configuration = CONFIGURATION.format(egress="20 Mbit/s", ingress="off")
        broker.start()
        wait_until(lambda: storage_of(broker)["limited_by"]["code"] == "idle", what=broker.status)
        assert storage_of(broker)["demand_bits_per_s"] == 0
        address = lab["b"].address
        with programs((lab["a"], STORAGE, (address,)), (lab["a"], UDP, (address,))):

            def of_one_moment() -> tuple[dict[str, Any], dict[str, Any]] | None:
                """UDP's row and storage of one document, once nothing but the link keeps the programs from sending.

                One that gets no processor for a moment sends less, and its class then waits for itself.
                """
                document = broker.status()
                (storage,) = (one for one in document["interfaces"][0]["classes"] if one["name"] == "storage")
                rows = {(row["class"], row["command"]): row for row in document["programs"]}
                udp = rows.get(("other", "quicsync"))
                sender = next((row for key, row in rows.items() if key[0] == "storage"), None)
                if udp is None or sender is None or (storage["average_over_s"] or 0) < 3:
                    return None
                udp_rate, rate = (row["throughput_bits_per_s"] or 0 for row in (udp, sender))
                average = storage["average_bits_per_s"]
                assert sender["peer"] == address
                # Some 4.9 Mbit/s of UDP; the rest of 20 is storage's.
                steady = 3_000_000 < udp_rate < 7_000_000 and average > 10_000_000 and 0.8 < rate / average < 1.2
                limited = (storage["promise"]["code"], storage["limited_by"]["code"]) == ("kept", "link")
                return (udp, storage) if steady and limited else None

            found = wait_until(of_one_moment, what=broker.status)
            assert found is not None
            udp, storage = found
            assert (udp["protocol"], udp["port"], udp["rate_source"]) == ("udp", 22000, "rest-of-class")
            assert storage["window_s"] == 3
            text = screen(broker)
        assert "quicsync" in text
        assert "UDP port 22000" in text
        assert max(map(len, text.splitlines())) <= 80

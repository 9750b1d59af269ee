"""The broker on a stock kernel, which has what this project's own machines may lack: fq_codel leaves.

`make test-kernels` runs these where Debian's kernels are booted. Without fq_codel in the kernel they mean nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import CONFIGURATION, Broker, broker_in, two_hosts
from patience import wait_until
from shaping_contract import make_shape

from broker import client
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.shaper import Shaper
from tools.lab import Lab
from tools.lab.kernel import entered

pytestmark = pytest.mark.stock_kernel

STORAGE_BITS_PER_S = 2_000_000
PAYLOAD_BYTES = 1_000_000
SHAPED = CONFIGURATION.replace("20 Mbit/s", "8 Mbit/s").replace(
    "[class.storage]", '[class.storage]\nguarantee = "5 %"\nceiling = "2 Mbit/s"'
)
SINK = """
import socket
server = socket.create_server(("", 4873))
print(flush=True)
while True:
    connection = server.accept()[0]
    while connection.recv(65536):
        pass
    connection.close()
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 4873), 60) as sock:
    sock.sendall(bytes(int(sys.argv[2])))
    sock.shutdown(socket.SHUT_WR)
    sock.recv(1)
"""
FLOOD = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    until_s = time.monotonic() + 3.0
    while time.monotonic() < until_s:
        sock.sendto(bytes(1400), (sys.argv[1], 4873))  # far more than storage's 2 Mbit/s: CoDel drops from the head
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("stock") as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    with broker_in(lab["a"], configuration=SHAPED) as broker:
        broker.start()
        yield broker
        broker.stop()


def leaves(broker: Broker) -> list[str]:
    found = broker.host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout.splitlines()
    return [re.split(r"\s+", line)[1] for line in found if " parent ffe0:" in line]


def test_leaves_are_fq_codel_and_the_next_daemon_adopts_them(broker: Broker) -> None:
    kinds = leaves(broker)
    assert set(kinds) == {"fq_codel"}
    assert len(kinds) >= 5
    handles = broker.host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout
    assert broker.process is not None
    broker.process.kill()
    broker.process.wait()
    wait_until(lambda: not broker.watchdogs(), what=broker.watchdogs)
    broker.start()
    assert "adopted=true" in broker.log
    assert broker.host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout == handles


def test_a_transfer_goes_at_its_class_ceiling_and_is_counted_there(broker: Broker, lab: Lab) -> None:
    with lab["b"].popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE) as sink:
        try:
            assert sink.stdout is not None
            sink.stdout.readline()
            before, began_s = broker.sent_bytes("storage"), time.monotonic()
            broker.host.run([sys.executable, "-c", SEND, lab["b"].address, str(PAYLOAD_BYTES)], timeout_s=120.0)
            took_s = time.monotonic() - began_s
        finally:
            sink.kill()
    # Its burst (64 KiB) goes at once, the rest at the ceiling; a slow guest only makes it longer.
    least_s = 8 * (PAYLOAD_BYTES - 128 * 1024) / STORAGE_BITS_PER_S
    assert took_s >= least_s
    assert took_s < 4 * least_s
    wait_until(
        lambda: broker.sent_bytes("storage") - before >= PAYLOAD_BYTES,
        what=lambda: f"{broker.sent_bytes('storage') - before} bytes in the class of storage",
    )
    stated = json.loads(broker.host.run(["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]).stdout)
    assert [one for one in stated if one["kind"] == "fq_codel" and one["bytes"] >= PAYLOAD_BYTES]


def test_what_fq_codel_drops_late_is_counted_although_its_class_does_not_count_it(broker: Broker, lab: Lab) -> None:
    for _ in range(3):
        broker.host.run([sys.executable, "-c", FLOOD, lab["b"].address], timeout_s=120.0)

    def queues(what: str) -> int:
        stated = json.loads(broker.host.run(["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]).stdout)
        return sum(one[what] for one in stated if one["kind"] == "fq_codel")

    wait_until(lambda: not queues("backlog"))
    of_queues = queues("drops")
    shown = broker.host.run(["tc", "-s", "class", "show", "dev", "eth0"]).stdout
    of_classes = sum(map(int, re.findall(r"\(dropped (\d+),", shown)))
    assert of_queues > of_classes
    wait_until(lambda: dropped_packets(broker) == of_queues, what=lambda: f"{dropped_packets(broker)} of {of_queues}")


def dropped_packets(broker: Broker) -> int:
    text = client.fetch("/metrics", socket_path=str(broker.folder / "run/broker.sock")).decode()
    found = re.findall(r"^hive_qos_class_dropped_packets_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(int(float(one)) for one in found)


def test_a_clean_end_puts_back_what_the_kernel_had(broker: Broker) -> None:
    broker.stop()
    assert "htb" not in broker.root_qdisc()


@pytest.mark.parametrize("kind", [
    "cake bandwidth 30mbit", "codel target 3ms", "fq_codel limit 500 target 3ms interval 60ms ecn", "hfsc default 1",
    "multiq", "prio bands 4", "sfq perturb 10", "skbprio",
])  # fmt: skip
def test_a_qdisc_that_comes_back_as_it_was_is_no_reason_for_a_word(lab: Lab, tmp_path: Path, kind: str) -> None:
    with taken_over(lab, tmp_path, kind) as (before, shaper, notes):
        assert notes == ()
        assert shaper.detach("eth0") == ()
        assert root_of(lab) == before


@pytest.mark.parametrize("kind", [
    "choke limit 1000 bandwidth 10mbit", "ets bands 3 strict 1", "red limit 100000 avpkt 1000 bandwidth 10mbit",
])  # fmt: skip
def test_a_qdisc_that_will_not_come_back_is_named_at_the_start(lab: Lab, tmp_path: Path, kind: str) -> None:
    with taken_over(lab, tmp_path, kind) as (_, shaper, (note,)):
        assert f"{kind.split()[0]} 7: will not be put back" in note
        (refused,) = shaper.detach("eth0")
        assert "the kernel's default is there now" in refused


@contextlib.contextmanager
def taken_over(lab: Lab, folder: Path, kind: str) -> Iterator[tuple[str, Shaper, tuple[str, ...]]]:
    """What stood at the root, the shaper that took it over, and what that said."""
    with entered(lab["a"].namespace), Shaper(RealKernel(), Journal(folder)) as shaper:
        lab["a"].run(["tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "7:", *kind.split()])
        before = root_of(lab)
        try:
            yield before, shaper, shaper.attach(make_shape("eth0"), replace_foreign=True).notes
        finally:
            shaper.clear()
            lab["a"].run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=False)


def root_of(lab: Lab) -> str:
    return lab["a"].run(["tc", "qdisc", "show", "dev", "eth0", "root"]).stdout

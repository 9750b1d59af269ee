"""Ceilings in the kernel: one that is lowered by little of a fast link, and what class control has by default."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, CONFIGURATION, SINK, Broker, broker_in, two_hosts
from patience import most_of, wait_until

from shaping.model.names import INNER_MINOR, MAJOR
from tools.lab import Lab
from tools.measure.wall_clock import HALF_PAST_TWELVE_S, HOUR_S, OFFICE_HOURS, WallClock

FLOOD = """
import socket, sys
with socket.create_connection((sys.argv[1], 4000), 30) as sock:
    while True:
        sock.sendall(bytes(65536))
"""
CONTROL_FLOOD = """
import socket, sys
from broker.client import Session
with Session(job="j", socket_path=sys.argv[2]) as session, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    session.register(sock, traffic_class="control", role="control")
    while not session.rejections:
        sock.sendto(bytes(1200), (sys.argv[1], 4001))
"""
ROOT = Path(__file__).parents[3]
WINDOW_S = 2.0
BURST_BITS = 8 * 2 * 64 * 1024
"""What HTB may let go at once, of the class and of its leaf."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("ceilings") as lab:
        yield lab


def with_ceiling(ceiling: str, *, egress: str = "1 Gbit/s") -> str:
    """Port 4000 is storage's, which has a ceiling on a link that is fast beside it."""
    storage = f'[class.storage]\nguarantee = "5 Mbit/s"\nfloor = "1 Mbit/s"\nceiling = "{ceiling}"\n'
    changed = CONFIGURATION.replace("[class.storage]\n", storage).replace("20 Mbit/s", egress)
    return changed.replace("4873", "4000")


def kernel(broker: Broker, name: str = "storage") -> tuple[float, int]:
    """What HTB has as a class' ceil in Mbit/s, and how many bytes it has sent."""
    text = broker.host.run(["tc", "-s", "class", "show", "dev", "eth0"]).stdout
    found = re.search(rf"class htb {MAJOR:x}:{INNER_MINOR[name]:x} .*? ceil (\d+)([KMG]?)bit .*\n Sent (\d+)", text)
    assert found is not None, text
    return float(found[1]) * {"": 1e-6, "K": 1e-3, "M": 1.0, "G": 1e3}[found[2]], int(found[3])


def sent_mbit(broker: Broker, name: str) -> float:
    """What a class sends in a window; that it is no more than its ceil is asserted, whatever noise there is."""
    outer_s = time.monotonic()
    before = kernel(broker, name)[1]
    begun_s = time.monotonic()
    time.sleep(WINDOW_S)
    within_s = time.monotonic() - begun_s
    ceil_mbit, after = kernel(broker, name)
    sent_bits = 8 * (after - before)
    assert sent_bits - BURST_BITS <= 1e6 * ceil_mbit * (time.monotonic() - outer_s)
    return sent_bits / within_s / 1e6


def test_a_ceiling_lowered_by_a_reload_limits_storage_on_a_fast_link(lab: Lab) -> None:
    sink = lab["b"].popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
    assert sink.stdout is not None
    sink.stdout.readline()
    with broker_in(lab["a"], configuration=with_ceiling("30 Mbit/s")) as broker:
        broker.start()
        flood = broker.host.popen([sys.executable, "-c", FLOOD, lab["b"].address])
        try:
            assert kernel(broker)[0] == 30.0
            most_of(lambda: sent_mbit(broker, "storage"), lambda mbit: mbit > 25.0)
            for mbit in (15, 29, 30):
                (broker.folder / "broker.toml").write_text(with_ceiling(f"{mbit} Mbit/s"))
                broker.host.run([*COMMAND, "reload", "--socket", str(broker.folder / "run/broker.sock")])
                wait_until(lambda mbit=mbit: kernel(broker)[0] == mbit, what=broker.status)
                if mbit == 15:
                    most_of(lambda: sent_mbit(broker, "storage"), lambda mbit: 12.0 < mbit < 16.0)
        finally:
            for program in (flood, sink):
                program.kill()
                program.wait()
            sink.stdout.close()


def test_a_schedule_s_ceiling_reaches_the_kernel_on_a_fast_link(lab: Lab, tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    clock.set_to(HALF_PAST_TWELVE_S - HOUR_S)
    before_s = clock.behind_s
    with broker_in(
        lab["a"],
        configuration=with_ceiling("300 Mbit/s", egress="10 Gbit/s") + OFFICE_HOURS + 'ceiling = "150 Mbit/s"\n',
        environment=clock.environment,
    ) as broker:
        broker.start()
        wait_until(lambda: kernel(broker)[0] == 300.0, what=broker.status)
        for hours, mbit in ((1, 150.0), (0, 300.0)):
            clock.set_back(before_s - hours * HOUR_S)
            wait_until(lambda mbit=mbit: kernel(broker)[0] == mbit, what=broker.status)


def test_who_puts_everything_into_control_has_a_twentieth_of_the_link(lab: Lab) -> None:
    with broker_in(lab["a"], configuration=with_ceiling("50 Mbit/s", egress="100 Mbit/s")) as broker:
        broker.start()
        argv = [sys.executable, "-c", CONTROL_FLOOD, lab["b"].address, broker.sessions]
        flood = broker.host.popen(argv, cwd=ROOT)
        try:
            most_of(lambda: sent_mbit(broker, "control"), lambda mbit: mbit > 4.0)
            assert kernel(broker, "control")[0] == pytest.approx(0.05 * 0.97 * 100)
        finally:
            flood.kill()
            flood.wait()

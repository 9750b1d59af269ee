"""Echoes: requests leave, replies are matched, what is no reply of ours counts for nothing; and a daemon that finds a
bottleneck by them alone."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from broker_host import CONFIGURATION, Broker, broker_in
from patience import wait_until

from broker.events.log import open_log
from broker.measure.probes import HEADER, PAYLOAD_BYTES, REPLY, SILENT_S, Probes
from broker.policy.types import ProbePolicy
from tools.lab import Lab
from tools.lab.spoil import internet_checksum

BOTH = ProbePolicy(("127.0.0.1", "::1"), 0.01)
LINK_BITS_PER_S = 8_000_000
BLIND = """
import socket, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
begin_s = time.monotonic()
sent = 0
while (now_s := time.monotonic()) < begin_s + 120:
    while sent * 8 * 1442 < 16e6 * (now_s - begin_s):
        sock.sendto(bytes(1400), ("{address}", 9))
        sent += 1
    time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("probes") as lab:
        for name in ("a", "b", "c"):
            lab.host(name)
        lab.router("r")
        lab.link("a", "r", rate_bits_per_s=LINK_BITS_PER_S, buffer_s=0.2)
        lab.link("b", "r")
        lab.link("c", "r")
        lab.up()
        lab["a"].run(["sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647"])
        yield lab


def probes(clock=time.monotonic) -> Probes:
    return Probes(mark=lambda own: None, log=open_log(), clock=clock)


def heard(asking: Probes) -> dict[str, int]:
    samples = asking.samples(now_s=time.monotonic()).get("lo", ())
    return {sample.peer: (sample.delivered_bytes or 0) // PAYLOAD_BYTES for sample in samples}


def test_both_families_answer_and_each_answer_is_a_new_round_trip(lab: Lab) -> None:
    asking = probes()
    with lab["a"].enter():
        asking.go(BOTH, interface_of=lambda address: "lo", now_s=time.monotonic())
    try:

        def often() -> bool:
            asking.go(BOTH, interface_of=lambda address: "lo", now_s=time.monotonic())
            time.sleep(0.005)
            return min(heard(asking).values(), default=0) >= 5 and len(heard(asking)) == 2

        wait_until(often, what=lambda: str(heard(asking)))
        for sample in asking.samples(now_s=time.monotonic())["lo"]:
            assert sample.rtt_latest_s is not None
            assert sample.rtt_s_min is not None
            assert 0 < sample.rtt_s_min <= sample.rtt_latest_s < 1
        assert asking.alarms() == ()
        asking.go(None, interface_of=lambda address: "lo", now_s=time.monotonic())
        assert asking.samples(now_s=time.monotonic()) == {}
    finally:
        asking.close()


def test_who_does_not_answer_is_an_alarm_and_who_is_not_ours_is_not_asked(lab: Lab) -> None:
    now_s = [100.0]
    asking = probes(lambda: now_s[0])
    elsewhere = ProbePolicy(("127.0.0.1",), 0.1)
    try:
        with lab["a"].enter():
            asking.go(elsewhere, interface_of=lambda address: None, now_s=now_s[0])
        assert [alarm.code for alarm in asking.alarms()] == ["probe-elsewhere"]
        now_s[0] += SILENT_S + 1
        asking._targets["127.0.0.1"].interface = "lo"
        assert [alarm.code for alarm in asking.alarms()] == ["probe-unanswered"]
    finally:
        asking.close()


def test_a_reply_with_other_bytes_or_said_twice_counts_for_nothing(lab: Lab) -> None:
    with lab["a"].enter():
        asking = probes()
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    settings = ProbePolicy(("127.0.0.1",), 10.0)

    def say(payload: bytes) -> None:
        number = asking._sockets[4].socket.getsockname()[1]
        empty = HEADER.pack(REPLY[4], 0, 0, number, 1) + payload
        raw.sendto(HEADER.pack(REPLY[4], 0, internet_checksum(empty), number, 1) + payload, ("127.0.0.1", 0))

    def go() -> None:
        asking.go(settings, interface_of=lambda address: "lo", now_s=time.monotonic())

    try:
        with lab["a"].enter():
            go()  # opens the socket, and sends number 1
        say(bytes(PAYLOAD_BYTES))
        say(b"")

        def answered() -> bool:
            go()
            return bool(heard(asking))

        wait_until(answered, what=lambda: "no answer")
        say(asking._token)
        go()
        assert heard(asking) == {"127.0.0.1": 1}
    finally:
        asking.close()
        raw.close()


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    probe = f'[probe]\ntargets = ["{lab["b"].address}", "{lab["c"].address}", "{lab["c"].address6}"]\n'
    with broker_in(lab["a"], configuration=CONFIGURATION + probe) as broker:
        broker.start()
        blind = lab["a"].popen([sys.executable, "-c", BLIND.format(address=lab["b"].address)])
        try:
            yield broker
        finally:
            blind.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                blind.wait(10)


def test_a_bottleneck_behind_traffic_that_tells_nothing_is_found_by_probes(broker: Broker) -> None:
    """20 Mbit/s are configured, 8 lie behind, and UDP without any answer fills them."""

    def found() -> bool:
        (outbound,) = broker.status()["interfaces"]
        return outbound["capacity_source"] == "measured" and outbound["capacity_bits_per_s"] < 1.2 * LINK_BITS_PER_S

    wait_until(found, what=lambda: broker.log)
    probed = {flow["peer"] for flow in broker.flows() if flow["kind"] == "probe"}
    assert len(probed) == 3

"""Interfaces that come, go, flap and are renamed under a running daemon: it hears of it, and does not look for it.

Everything that looks now and then is switched off in this daemon, so that only events can bring about what is waited
for here.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

import broker_host
import pytest
from broker_host import CONFIGURATION, Broker, broker_in, two_hosts
from patience import wait_until

from tools.lab import Lab

DEAF = """
import broker.measure.interfaces, broker.enforce.egress, broker.enforce.interfaces
broker.enforce.interfaces.LOOK_S = broker.measure.interfaces.LINKS_LIFE_S = 1e9
broker.enforce.egress.RETRY_S = broker.enforce.egress.VERIFY_S = 1e9
from broker.cli import main
main()
"""
# struct ethtool_cmd of linux/ethtool.h: ETHTOOL_GSET and _SSET, the speed in two halves.
SET_SPEED = """
import array, fcntl, socket, struct, sys
def ask(data):
    info = array.array("B", data)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8946, struct.pack("16sP16x", sys.argv[1].encode(), info.buffer_info()[0]))
    return bytearray(info)
settings = ask(struct.pack("=I40x", 0x1))
struct.pack_into("=I", settings, 0, 0x2)
struct.pack_into("=H", settings, 12, int(sys.argv[2]) & 0xFFFF)
struct.pack_into("=H", settings, 28, int(sys.argv[2]) >> 16)
ask(settings)
"""
TWO = CONFIGURATION.replace("[class.storage]", '[[interface]]\nname = "extra0"\negress = "30 Mbit/s"\n[class.storage]')


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("links") as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(broker_host, "COMMAND", [sys.executable, "-c", DEAF])
    with broker_in(lab["a"], configuration=TWO) as broker:
        broker.start()
        yield broker
        for name in ("extra0", "other0"):
            broker.host.run(["ip", "link", "del", name], check=False)


def ip(broker: Broker, *words: str) -> None:
    broker.host.run(["ip", "link", *words])


def add(broker: Broker, name: str) -> None:
    ip(broker, "add", name, "type", "veth", "peer", "name", "peer0")
    ip(broker, "set", "peer0", "up")
    ip(broker, "set", name, "up")


def rename(broker: Broker, old: str, new: str) -> None:
    ip(broker, "set", old, "down")
    ip(broker, "set", old, "name", new)
    ip(broker, "set", new, "up")


def root(broker: Broker, name: str) -> str:
    return broker.host.run(["tc", "qdisc", "show", "dev", name, "root"], check=False).stdout


def shaped(broker: Broker) -> dict[str, bool]:
    return {entry["name"]: entry["shaped"] for entry in broker.status()["interfaces"]}


def alarms(broker: Broker) -> set[tuple[str, str]]:
    found: list[dict[str, Any]] = broker.status()["alarms"]
    return {(alarm["code"], alarm["subject"]) for alarm in found}


def test_an_interface_that_comes_is_shaped_when_it_goes_is_missed_and_shaped_again_when_it_is_back(
    broker: Broker,
) -> None:
    assert ("interface-missing", "extra0") in alarms(broker)
    for _ in range(2):
        add(broker, "extra0")
        wait_until(lambda: "htb ffe0:" in root(broker, "extra0"), what=broker.status)
        wait_until(lambda: shaped(broker) == {"eth0": True, "extra0": True}, what=broker.status)
        wait_until(lambda: alarms(broker) == set(), what=broker.status)
        ip(broker, "del", "extra0")
        wait_until(lambda: shaped(broker) == {"eth0": True, "extra0": False}, what=broker.status)
        wait_until(lambda: ("interface-missing", "extra0") in alarms(broker), what=broker.status)


def test_another_interface_by_the_same_name_is_shaped_anew(broker: Broker) -> None:
    add(broker, "extra0")
    wait_until(lambda: "htb ffe0:" in root(broker, "extra0"), what=broker.status)
    for _ in range(5):
        ip(broker, "del", "extra0")
        add(broker, "extra0")
        wait_until(lambda: "htb ffe0:" in root(broker, "extra0"), what=broker.status)
        wait_until(lambda: shaped(broker)["extra0"], what=broker.status)
        wait_until(lambda: alarms(broker) == set(), what=broker.status)


def test_an_interface_that_is_renamed_away_is_given_back_and_one_that_gets_the_name_is_shaped(broker: Broker) -> None:
    add(broker, "extra0")
    wait_until(lambda: "htb ffe0:" in root(broker, "extra0"), what=broker.status)
    rename(broker, "extra0", "other0")
    wait_until(lambda: "htb" not in root(broker, "other0"), what=broker.status)
    wait_until(lambda: ("interface-missing", "extra0") in alarms(broker), what=broker.status)
    rename(broker, "other0", "extra0")
    wait_until(lambda: "htb ffe0:" in root(broker, "extra0"), what=broker.status)
    wait_until(lambda: alarms(broker) == set(), what=broker.status)
    assert broker.end(signal.SIGTERM) == 0
    assert "htb" not in root(broker, "extra0")
    assert not list((broker.folder / "state").glob("qdisc-*"))


def test_what_stood_there_before_follows_an_interface_to_its_new_name(lab: Lab, broker: Broker) -> None:
    broker.end(signal.SIGTERM)
    add(broker, "extra0")
    broker.host.run(["tc", "qdisc", "add", "dev", "extra0", "root", "handle", "5:", "bfifo", "limit", "123456"])
    before = root(broker, "extra0")
    broker.arguments = ("--take-over",)
    broker.start()
    assert "htb ffe0:" in root(broker, "extra0")
    rename(broker, "extra0", "other0")
    wait_until(lambda: root(broker, "other0") == before, what=lambda: (root(broker, "other0"), broker.log))


def test_two_interfaces_that_swap_their_names_swap_their_rates_and_keep_what_was_there_before(broker: Broker) -> None:
    add(broker, "extra0")
    wait_until(lambda: "htb ffe0:" in root(broker, "extra0"), what=broker.status)

    def rate(name: str) -> str:
        text = broker.host.run(["tc", "class", "show", "dev", name], check=False).stdout
        return next((line.split("rate ")[1].split()[0] for line in text.splitlines() if "ffe0:1 root" in line), "")

    before = (rate("eth0"), rate("extra0"))
    assert before == ("19400Kbit", "29100Kbit")
    try:
        for old, new in (("eth0", "between0"), ("extra0", "eth0"), ("between0", "extra0")):
            rename(broker, old, new)
        wait_until(lambda: (rate("eth0"), rate("extra0")) == before, what=lambda: (rate("eth0"), rate("extra0")))
        wait_until(lambda: shaped(broker) == {"eth0": True, "extra0": True}, what=broker.status)
        assert broker.end(signal.SIGTERM) == 0
        assert "htb" not in root(broker, "eth0") + root(broker, "extra0")
    finally:
        for old, new in (("eth0", "between0"), ("extra0", "eth0"), ("between0", "extra0")):
            rename(broker, old, new)


def test_a_link_that_flaps_keeps_its_tree_and_its_broker(broker: Broker) -> None:
    tree = broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout
    for _ in range(20):
        ip(broker, "set", "eth0", "down")
        ip(broker, "set", "eth0", "up")
    wait_until(lambda: shaped(broker)["eth0"], what=broker.status)
    assert broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout == tree
    assert "counters-unreadable" not in broker.log
    before = broker.status()["daemon"]["ticks"]
    wait_until(lambda: broker.status()["daemon"]["ticks"] > before + 5)


def test_a_cable_that_is_pulled_is_an_alarm_and_a_figure_until_it_is_back(broker: Broker) -> None:
    add(broker, "extra0")
    wait_until(lambda: shaped(broker)["extra0"] and alarms(broker) == set(), what=broker.status)

    def measured() -> dict[str, Any]:
        return dict(broker.status()["interfaces"][1]["measured"])

    before = measured()
    assert before["carrier"] is True
    ip(broker, "set", "peer0", "down")
    wait_until(lambda: alarms(broker) == {("link-down", "extra0")}, what=broker.status)
    pulled = measured()
    assert (pulled["carrier"], pulled["carrier_changes"]) == (False, before["carrier_changes"] + 1)
    assert shaped(broker)["extra0"]
    ip(broker, "set", "peer0", "up")
    wait_until(lambda: alarms(broker) == set(), what=broker.status)
    assert measured()["carrier"] is True
    ip(broker, "set", "peer0", "down")
    ip(broker, "set", "peer0", "up")
    wait_until(lambda: measured()["carrier_changes"] == before["carrier_changes"] + 4, what=broker.status)
    assert ("carrier-lost" in broker.log, "carrier-restored" in broker.log) == (True, True)


def test_a_storm_of_other_peoples_links_leaves_ours_alone(broker: Broker) -> None:
    tree = broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout
    for number in range(20):
        ip(broker, "add", f"s{number}", "type", "veth", "peer", "name", f"p{number}")
    for number in range(20):
        ip(broker, "del", f"s{number}")
    assert broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout == tree
    assert "interface-removed" not in broker.log
    assert "interface-renamed" not in broker.log


def test_a_link_that_comes_back_at_another_speed_is_shaped_at_that(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # A tap device keeps the speed that it is given, and says it when it is asked; only that we do not believe one.
    driver = "import broker.measure.interfaces\nbroker.measure.interfaces._NO_SPEED = ()\n"
    monkeypatch.setattr(broker_host, "COMMAND", [sys.executable, "-c", driver + DEAF])
    with broker_in(lab["a"], configuration=TWO.replace("30 Mbit/s", "auto")) as broker:
        broker.host.run(["ip", "tuntap", "add", "extra0", "mode", "tap"])
        try:
            ip(broker, "set", "extra0", "up")
            broker.start()
            for mbit in (100, 2500, 10, 100_000):
                broker.host.run([sys.executable, "-c", SET_SPEED, "extra0", str(mbit)])
                ip(broker, "set", "extra0", "down")
                ip(broker, "set", "extra0", "up")

                def extra() -> dict[str, Any]:
                    return dict(broker.status()["interfaces"][1])

                wait_until(lambda: extra()["capacity_bits_per_s"] == mbit * 970_000, what=broker.status)  # noqa: B023 - waited for here
                assert extra()["capacity_source"] == "link"
                assert extra()["measured"]["link_bits_per_s"] == mbit * 1_000_000
        finally:
            broker.host.run(["ip", "link", "del", "extra0"], check=False)

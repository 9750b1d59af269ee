"""What is known of links: carrier, speed, for how long, and of which interface; and which leads to an address."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.measure import interfaces
from broker.measure.interfaces import LINKS_LIFE_S, ROUTE_LIFE_S, UNKNOWN_LIFE_S, Links, Routes
from hive_qos.errors import KernelRejectedError

MBIT = 1_000_000


@dataclass(frozen=True)
class Link:
    number: int
    carrier: bool
    carrier_changes: int


class Card:
    """An interface as kernel and driver show it, asked through `Links`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.look: Link | None = Link(2, carrier=True, carrier_changes=1)
        self.speed_mbit_per_s = 100
        self.answers = True
        self.now_s = 0.0
        monkeypatch.setattr(interfaces, "speed_mbit_per_s_of", lambda _: self.speed_mbit_per_s)
        monkeypatch.setattr(interfaces, "driver_of", lambda _: "e1000e")
        monkeypatch.setattr(interfaces, "mtu_bytes_of", lambda _: 1500)
        self.links = Links(self.asked)

    def asked(self, interface: str) -> Link | None:
        if not self.answers:
            raise TimeoutError
        return self.look

    def set(self, *, number: int = 2, carrier: bool, changes: int, mbit_per_s: int) -> None:
        self.look, self.speed_mbit_per_s = Link(number, carrier, changes), mbit_per_s
        self.links.forget()

    @property
    def bits_per_s(self) -> int | None:
        return self.links.look("eth0", now_s=self.now_s).link_bits_per_s

    @property
    def carrier(self) -> tuple[bool | None, int | None]:
        found = self.links.look("eth0", now_s=self.now_s)
        return found.carrier, found.carrier_changes


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


@pytest.mark.parametrize("said_mbit_per_s", [0, 10])
def test_the_last_speed_holds_while_there_is_no_carrier_whatever_the_driver_says(
    card: Card, said_mbit_per_s: int
) -> None:
    assert (card.bits_per_s, card.carrier) == (100 * MBIT, (True, 1))
    card.set(carrier=False, changes=2, mbit_per_s=said_mbit_per_s)
    assert (card.bits_per_s, card.carrier) == (100 * MBIT, (False, 2))
    card.set(carrier=True, changes=3, mbit_per_s=1000)
    assert (card.bits_per_s, card.carrier) == (1000 * MBIT, (True, 3))


def test_with_a_carrier_the_driver_is_believed_also_when_it_names_no_speed(card: Card) -> None:
    assert card.bits_per_s == 100 * MBIT
    card.set(carrier=True, changes=1, mbit_per_s=0)
    assert card.bits_per_s is None
    card.set(carrier=False, changes=2, mbit_per_s=0)
    assert card.bits_per_s is None


def test_another_interface_of_the_same_name_does_not_inherit_a_speed(card: Card) -> None:
    assert card.bits_per_s == 100 * MBIT
    card.set(number=3, carrier=False, changes=0, mbit_per_s=0)
    assert card.bits_per_s is None


def test_what_the_kernel_does_not_say_is_not_known_and_asked_again(card: Card) -> None:
    card.answers = False
    assert (card.carrier, card.bits_per_s) == ((None, None), 100 * MBIT)
    card.answers = True
    assert card.carrier == (None, None)
    card.now_s += LINKS_LIFE_S + 0.1
    assert card.carrier == (True, 1)


def test_one_that_is_not_there_has_no_carrier_to_speak_of(card: Card) -> None:
    card.look = None
    assert card.carrier == (None, None)


class Bridge:
    """Routes of a host whose bridge br0 has two ports, or as many as asked for; virtual machine 192.0.2.50 is at tap0.

    What the kernel was asked stands in `asked`; what it does not know yet, in `unknown`.
    """

    def __init__(self, sys: Path, *ports: str) -> None:
        self.sys, self.asked, self.unknown = sys, list[tuple[str, ...]](), set[str]()
        self.now_s, self.on_top = 0.0, "br0"
        ports = ports or ("eth0", "tap0")
        for name, below in {"br0": ports, "br0.7": ("br0",), "bond0": ("eth0", "eth1"), "eth0.9": ("eth0",)}.items():
            for one in below:
                self.stand(name, one)
            for one in {*below} - {"br0", "eth0.9", "bond0"}:
                (sys / one).mkdir(exist_ok=True)
        (sys / "br0" / "bridge").mkdir()
        self.routes = Routes(self.route_to, self.port_towards, sys=sys)

    def stand(self, name: str, below: str) -> None:
        (self.sys / name).mkdir(exist_ok=True)
        (self.sys / name / f"lower_{below}").symlink_to(f"../{below}")

    def route_to(self, address: str) -> tuple[str, str] | None:
        return self.on_top, address if address.startswith("192.0.2.") else "192.0.2.1"

    def port_towards(self, bridge: str, route: tuple[str, str]) -> str:
        self.asked.append((bridge, *route))
        if route[1] in self.unknown:
            raise KernelRejectedError("ask", errno_value=errno.ENOENT, detail="no")
        return {"192.0.2.50": "tap0", "192.0.2.9": "br0"}.get(route[1], "eth0")

    def leaves_by(self, address: str = "198.51.100.7", *shaped: str) -> str | None:
        return self.routes.interface_towards(address, shaped=frozenset(shaped or ("eth0",)), now_s=self.now_s)


@pytest.mark.parametrize(
    ("on_top", "shaped", "leaves_by"),
    [
        ("br0", ["br0"], "br0"),
        ("br0", ["eth0"], "eth0"),
        ("br0.7", ["eth0"], "eth0"),
        ("br0", ["eth0", "tap0"], "eth0"),
        ("br0", ["tap0"], None),
        ("eth0.9", ["eth0"], "eth0"),
        ("eth0", ["br0"], None),
        ("bond0", ["bond0"], "bond0"),
        ("bond0", ["eth0"], None),
        ("gone", ["eth0"], None),
    ],
)
def test_packets_leave_by_the_first_shaped_interface_on_the_way_down(
    tmp_path: Path, on_top: str, shaped: list[str], leaves_by: str | None
) -> None:
    bridge = Bridge(tmp_path)
    bridge.on_top = on_top
    assert bridge.leaves_by("198.51.100.7", *shaped) == leaves_by


def test_what_is_at_another_port_of_the_bridge_or_on_it_says_nothing_about_the_uplink(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path)
    assert [bridge.leaves_by(f"192.0.2.{last}") for last in (7, 50, 9)] == ["eth0", None, None]
    assert bridge.leaves_by("192.0.2.50", "eth0", "tap0") == "tap0"


def test_a_bridges_only_port_needs_no_question(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path, "eth0")
    assert (bridge.leaves_by(), bridge.asked) == ("eth0", [])


def test_a_neighbour_that_the_kernel_does_not_know_yet_is_soon_asked_for_again(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path)
    bridge.unknown.add("192.0.2.1")
    assert bridge.leaves_by() is None
    bridge.unknown.clear()
    bridge.now_s += UNKNOWN_LIFE_S + 0.01
    assert bridge.leaves_by() == "eth0"


def test_a_bridge_is_looked_at_once_and_a_gateway_asked_for_once_whatever_is_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = Bridge(tmp_path, "eth0", *(f"veth{number}" for number in range(100)))
    looked: list[Path] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: looked.append(place) or listdir(place))
    for rounds in (1, 2):
        assert {bridge.leaves_by(f"198.51.100.{last}") for last in range(256)} == {"eth0"}
        assert (looked, bridge.asked) == ([tmp_path / "br0"] * rounds, [("br0", "br0", "192.0.2.1")] * rounds)
        bridge.routes.forget()


def test_another_interface_that_is_shaped_counts_at_once(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path)
    assert (bridge.leaves_by("192.0.2.7", "eth1"), bridge.leaves_by("192.0.2.7", "eth0")) == (None, "eth0")


def test_a_change_of_routes_counts_at_once_and_a_storm_of_them_once_a_second() -> None:
    asked: list[str] = []
    ways, changes = {"192.0.2.7": ("eth0", "192.0.2.7")}, [False]
    routes = Routes(lambda address: asked.append(address) or ways.get(address), lambda *_: "", changed=changes.pop)

    def leaves_by(*addresses: str, now_s: float, change: bool) -> list[str | None]:
        changes[:] = [change]
        routes.follow(now_s=now_s)
        return [routes.interface_towards(one, shaped=frozenset({"eth0", "eth1"}), now_s=now_s) for one in addresses]

    assert leaves_by("192.0.2.7", now_s=0.0, change=False) == ["eth0"]
    ways["192.0.2.7"] = "eth1", "192.0.2.7"
    assert leaves_by("192.0.2.7", now_s=0.1, change=False) == ["eth0"]
    assert leaves_by("192.0.2.7", now_s=0.2, change=True) == ["eth1"]
    asked.clear()
    for tenth in range(10, 110):
        assert leaves_by("192.0.2.7", now_s=tenth / 10, change=True) == ["eth1"]
    assert len(asked) <= 10

    many = [f"198.51.{high}.{low}" for high in range(4) for low in range(250)]
    leaves_by(*many, now_s=12.0, change=True)
    asked.clear()
    for second in range(13, 33):
        leaves_by(*many, now_s=second, change=True)
    assert len(asked) <= 3 * len(many), "not more often than without any change"


def test_where_there_is_no_route_nothing_leaves() -> None:
    routes = Routes(lambda _: None, lambda *_: "eth0")
    assert routes.interface_towards("192.0.2.7", shaped=frozenset({"eth0"}), now_s=0.0) is None


def test_what_a_route_stands_on_is_looked_at_again_as_the_route_is(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path)
    bridge.on_top = "eth0.8"
    assert bridge.leaves_by() is None
    bridge.stand("eth0.8", "eth0")
    bridge.now_s = ROUTE_LIFE_S
    assert bridge.leaves_by() is None
    bridge.now_s += 0.1
    assert bridge.leaves_by() == "eth0"
    (tmp_path / "eth0.8" / "lower_eth0").unlink()
    bridge.routes.forget()
    assert bridge.leaves_by() is None

"""What is known of links: carrier, speed, for how long, and of which interface; and which leads to an address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.measure import interfaces
from broker.measure.interfaces import LINKS_LIFE_S, ROUTE_LIFE_S, Links, Routes

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
        return self.links.link_bits_per_s("eth0", now_s=self.now_s)

    @property
    def carrier(self) -> tuple[bool | None, int | None]:
        name, now_s = "eth0", self.now_s
        return self.links.carrier(name, now_s=now_s), self.links.carrier_changes(name, now_s=now_s)


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


@pytest.mark.parametrize(
    ("route", "shaped", "leaves_by"),
    [
        ("br0", {"br0"}, "br0"),
        ("br0", {"eth0"}, "eth0"),
        ("br0.7", {"eth0"}, "eth0"),
        ("br0", {"eth1"}, None),
        ("br0", {"eth0", "tap0"}, None),
        ("eth0", {"br0"}, None),
        ("gone", {"eth0"}, None),
        (None, {"eth0"}, None),
    ],
)
def test_packets_leave_by_the_one_shaped_interface_below_the_route(
    tmp_path: Path, route: str | None, shaped: set[str], leaves_by: str | None
) -> None:
    for name, below in {"eth0": (), "eth1": (), "tap0": (), "br0": ("eth0", "tap0"), "br0.7": ("br0",)}.items():
        (tmp_path / name).mkdir()
        for one in below:
            (tmp_path / name / f"lower_{one}").symlink_to(f"../{one}")
    routes = Routes(lambda _: route, sys=tmp_path)
    assert routes.interface_towards("192.0.2.7", shaped=frozenset(shaped), now_s=0.0) == leaves_by


def test_what_a_route_stands_on_is_looked_at_again_as_the_route_is(tmp_path: Path) -> None:
    (tmp_path / "br0").mkdir()
    routes = Routes(lambda _: "br0", sys=tmp_path)

    def leaves_by(now_s: float) -> str | None:
        return routes.interface_towards("192.0.2.7", shaped=frozenset({"eth0"}), now_s=now_s)

    assert leaves_by(0.0) is None
    (tmp_path / "br0" / "lower_eth0").symlink_to("../eth0")
    assert leaves_by(ROUTE_LIFE_S) is None
    assert leaves_by(ROUTE_LIFE_S + 0.1) == "eth0"
    (tmp_path / "br0" / "lower_eth0").unlink()
    routes.forget()
    assert leaves_by(ROUTE_LIFE_S + 0.2) is None

"""Which layer of a stack of interfaces is the wrong one to shape, from what /sys/class/net says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.enforce.device_stack import misplaced


class Stack:
    """A /sys/class/net in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, *, kind: str = "", on: tuple[str, ...] = (), ports: bool = False) -> None:
        place = self.folder / name
        place.mkdir()
        (place / "uevent").write_text(
            f"DEVTYPE={kind}\nINTERFACE={name}\n" if kind == "vlan" else f"INTERFACE={name}\n"
        )
        if kind == "bridge":
            (place / "bridge").mkdir()
        if kind == "bond":
            (place / "bonding").mkdir()
        for below in on:
            (place / f"lower_{below}").symlink_to(f"../{below}")
            (self.folder / below / f"upper_{name}").symlink_to(f"../{name}")
            if ports:
                (self.folder / below / "master").symlink_to(f"../{name}")

    def problems(self, *shaped: str) -> list[tuple[str, str]]:
        return [(one.interface, one.text) for one in misplaced(shaped, sys=self.folder)]


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """eth0 in a bridge, eth1 and eth2 in a bond, a VLAN on the bond and one on eth3."""
    made = Stack(tmp_path)
    for name in ("eth0", "eth1", "eth2", "eth3", "tap0"):
        made.add(name)
    made.add("br0", kind="bridge", on=("eth0", "tap0"), ports=True)
    made.add("bond0", kind="bond", on=("eth1", "eth2"), ports=True)
    made.add("bond0.7", kind="vlan", on=("bond0",))
    made.add("eth3.7", kind="vlan", on=("eth3",))
    return made


@pytest.mark.parametrize("shaped", [("eth0",), ("bond0",), ("bond0.7",), ("eth3",), ("eth3.7",), ("eth1", "eth2"),
                                    ("eth0", "bond0", "eth3"), ("gone",)])  # fmt: skip
def test_one_layer_that_everything_passes_is_fine(stack: Stack, shaped: tuple[str, ...]) -> None:
    assert stack.problems(*shaped) == []


@pytest.mark.parametrize(
    ("shaped", "interface", "words"),
    [
        (("br0",), "br0", "passes its ports eth0, tap0 alone"),
        (("eth0", "br0"), "br0", "stands on eth0"),
        (("eth1",), "eth1", "what goes by eth2 is not shaped"),
        (("bond0", "eth1"), "bond0", "stands on eth1"),
        (("eth1", "bond0.7"), "bond0.7", "stands on eth1"),
        (("eth3", "eth3.7"), "eth3.7", "stands on eth3"),
    ],
)
def test_what_is_missed_or_done_twice_is_said(
    stack: Stack, shaped: tuple[str, ...], interface: str, words: str
) -> None:
    assert any(name == interface and words in text for name, text in stack.problems(*shaped))

"""What stands above and below an interface (bridge, bond, VLAN), and where shaping it would miss or repeat something.

A packet passes the qdisc of every layer on its way down: its VLAN's, then its parent's; its bridge's, then the port's.
So one layer has to be chosen, and only the lowest sees everything. docs/operate/first-hour.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from broker.measure.interfaces import SYS, lower


class Layers(Struct, frozen=True):
    """One interface: `kind` is the kernel's word (bridge, bond, vlan, ...), "" for others; `master` the bridge or bond
    that it is a port of, `lower` what it stands on, `upper` what stands on it."""

    name: str
    kind: str
    master: str | None
    lower: tuple[str, ...]
    upper: tuple[str, ...]


class Misplaced(Struct, frozen=True):
    """Shaping this interface does not have the promised effect. `advice` names the interface to use instead."""

    interface: str
    text: str
    advice: str


def read(name: str, *, sys: Path = SYS) -> Layers | None:
    """Look at one interface; None where it is not there."""
    place = sys / name
    try:
        entries = os.listdir(place)
    except OSError:
        return None
    return Layers(
        name=name,
        kind=_kind(place, entries),
        master=_target(place / "master"),
        lower=tuple(sorted(entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_"))),
        upper=tuple(sorted(entry.removeprefix("upper_") for entry in entries if entry.startswith("upper_"))),
    )


def misplaced(names: Iterable[str], *, sys: Path = SYS) -> tuple[Misplaced, ...]:
    """What is wrong with shaping just these interfaces; nothing for those that are not there."""
    shaped = {name: layers for name in names if (layers := read(name, sys=sys)) is not None}
    found = []
    for layers in shaped.values():
        found += _twice(layers, shaped, sys)
        if layers.kind == "bridge" and layers.lower and not shaped.keys() & set(layers.lower):
            text = (
                f"is a bridge: what virtual machines and containers send passes its ports {_list(layers.lower)} alone"
            )
            found.append(Misplaced(layers.name, text, "name the port that leads out instead"))
        master = read(layers.master, sys=sys) if layers.master is not None else None
        if master is not None and master.kind in ("bond", "team") and master.name not in shaped:
            others = sorted(set(master.lower) - shaped.keys() - {layers.name})
            if others:
                text = f"is one of several in the bond {master.name}: what goes by {_list(others)} is not shaped"
                found.append(Misplaced(layers.name, text, f"name {master.name} instead"))
    return tuple(found)


def _twice(layers: Layers, shaped: dict[str, Layers], sys: Path) -> list[Misplaced]:
    """An interface that stands on another shaped one, at whatever distance."""
    return [
        Misplaced(
            layers.name,
            f"stands on {name}, which is shaped, too: its packets would wait twice, and count in both",
            f"name one of the two: {name} for everything that leaves, {layers.name} for its own traffic alone",
        )
        for name in sorted(lower(layers.name, sys=sys) & shaped.keys())
    ]


def _kind(place: Path, entries: list[str]) -> str:
    if "bridge" in entries:
        return "bridge"
    if "bonding" in entries:
        return "bond"
    try:
        lines = (place / "uevent").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("DEVTYPE=") for line in lines if line.startswith("DEVTYPE=")), "")


def _target(link: Path) -> str | None:
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return None


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)

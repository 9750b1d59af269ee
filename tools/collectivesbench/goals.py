"""What `hive` has to reach, beside what was found and what links and processors would allow: pure.

Where a goal covers several sizes or operations, the worst one counts and is named. One that was measured in a single
turn neither reaches nor misses a goal, and a goal that no other one misses is not judged then. "Gloo" is the faster
one of cubic and BBR, cell by cell, unless the goal names one.

What a run was to measure and has not is missing: a goal that covers it is not reached, and not measured unless
another cell misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from hive_qos.units import format_size
from tools.collectivesbench.contenders import GLOO, GLOO_BBR, HIVE, compressed
from tools.collectivesbench.networks import FALLING_TASK, SWEPT, TRAINED, equal, falling
from tools.collectivesbench.settings import KIB, MIB
from tools.measure.records import Record

COMPRESSED = tuple(compressed(name).name for name in ("bfloat16", "int8", "int4"))
LOSS_GAP_MAX = 0.02
"""Of the loss at one step: sums in another order differ in the last bits, and training widens that a little."""

Cell: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str, str, int]
"""Scenario, network, operation or what is trained, bytes."""
BOUNDS = ("links", "processors")
TURNS_MIN = 2


class Found(NamedTuple):
    """A value (None: not measured), what it is of, its turns, and what each of `BOUNDS` allows there."""

    value: Any
    where: str
    turns: int
    allowed: Mapping[str, float] = MappingProxyType({})


def goals(cells: Sequence[Cell], head: Record) -> list[dict[str, Any]]:
    """Every goal in the order of the scenarios; `value` and `passed` are None where it was not measured.

    Args:
        head: of the run, which has its scenarios and settings; without settings nothing is missing.
    """
    wanted = list(_wanted(head))
    ours = _with_missing(cells, wanted, HIVE.name)
    entries: list[dict[str, Any]] = []
    for ranks, offload, least in ((2, False, 1.3), (2, True, 1.3), (4, False, 1.5), (4, True, 1.5)):
        case = equal(ranks, offload=offload).name
        large = _of(ours, "lan", case, lambda cell: 16 * MIB <= cell["bytes"] <= 64 * MIB and _sums(cell))
        entries.append(_at_least(f"1  {case}, all_reduce of 16 to 64 MiB: times Gloo", least, map(_of_gloo, large)))
    for case in _cases(ours, "lan"):
        upper = _of(ours, "lan", case, lambda cell: cell["bytes"] >= 256 * KIB)
        entries.append(_at_least(f"1  {case}, from 256 KiB: times Gloo", 1.0, map(_of_gloo, upper)))
        small = _of(ours, "lan", case, lambda cell: cell["bytes"] < 64 * KIB)
        entries.append(_at_most(f"1  {case}, under 64 KiB: of Gloo's latency", 1.2, map(_latency, small)))
    largest = _largest(_of(ours, "uneven", "", _sums))
    entries.append(_at_least("2  100/100/100/25 Mbit/s: times Gloo", 1.35, map(_of_gloo, largest)))
    asked = map(compressed, head.get("variants", {}).get("compressions", ()))
    competing = (*(one.name for one in asked), *(c["contender"] for c in cells if c["contender"] in COMPRESSED))
    for name in (HIVE.name, *dict.fromkeys(competing)):
        largest = _largest(_of(_with_missing(cells, wanted, name), "sites", "", _sums))
        for reference, least in ((GLOO_BBR.name, 1.5), (GLOO.name, 25.0)):
            values = [_times(cell, reference) for cell in largest]
            entries.append(_at_least(f"3  two sites, {name}: times {reference}", least, values))
    for cell in _of(ours, "falling", "", lambda _cell: True):
        follow, gap = (_figure(cell, name, "high", "") for name in ("follow_s", "loss_gap"))
        entries.append(_at_most("4  a link falls: s until the plan follows", 10.0, [follow]))
        entries.append(_at_most("4  a link falls: loss, apart from Gloo's", LOSS_GAP_MAX, [gap]))
    for case in _cases(ours, "training"):
        trained = _of(ours, "training", case, lambda _cell: True)
        reached = [_figure(cell, "reached", "low", cell["operation"]) for cell in trained]
        entries.append(_at_least(f"5  {case}: the loss is reached, of all seeds", 1.0, reached))
        entries.append(_at_least(f"5  {case}, to the same loss: times Gloo", 1.0, map(_of_gloo, trained)))
    busy = [cell for cell in ours if cell["bytes"] >= MIB and cell["scenario"] in SWEPT]
    shares = [_figure(cell, "python_share", "median", _what(cell, case=True)) for cell in busy]
    entries.append(_at_most("6  Python's share of CPU, from 1 MiB", 0.1, shares))
    for case in _cases(ours, "host"):
        large = _of(ours, "host", case, lambda cell: cell["bytes"] >= MIB)
        entries.append(_at_least(f"6  {case}, from 1 MiB: times Gloo's loopback", 1.0, map(_of_gloo, large)))
    for case in _cases(ours, "urgent"):
        beside = _of(ours, "urgent", case, lambda _cell: True)
        name = f"7  {case}, urgent beside 64 MiB, less a chunk's time: times alone"
        entries.append(_at_most(name, 2.0, [_figure(cell, "after_chunk", "median", "") for cell in beside]))
    return entries


def _wanted(head: Record) -> Iterator[Key]:
    """What the run was to measure of each contender."""
    settings: Record = head.get("settings", {})
    for scenario in head["scenarios"] if settings else ():
        match scenario:
            case "urgent":
                for bits_per_s, ranks in product(settings["urgent_bits_per_s"], settings["urgent_worlds"]):
                    yield scenario, equal(ranks, bits_per_s=bits_per_s).name, "all_reduce", settings["urgent_bytes"]
            case "falling":
                yield scenario, falling().name, FALLING_TASK, 0
            case "training":
                for network, task in product(settings["training_networks"], settings["losses"]):
                    yield scenario, TRAINED[network].name, task, 0
            case _:
                for network in SWEPT[scenario](settings["worlds"], settings.get("offload_worlds", ())):
                    for one in settings["sweeps"][scenario]:
                        for operation, payload_bytes in product(one["operations"], one["payload_bytes"]):
                            yield scenario, network.name, operation, payload_bytes


def _with_missing(cells: Sequence[Cell], wanted: Sequence[Key], contender: str) -> list[Cell]:
    """A contender's cells, and an empty one in place of each that there is not."""
    names = ("scenario", "case", "operation", "bytes")
    mine = [cell for cell in cells if cell["contender"] == contender]
    found = {tuple(cell[name] for name in names) for cell in mine}
    empty = {"contender": contender, "figures": {}, "times": {}, "allowed": {}}
    return mine + [dict(zip(names, key, strict=True)) | empty for key in wanted if key not in found]


def _cases(cells: Sequence[Cell], scenario: str) -> list[str]:
    """The networks of a scenario; one that is not in the run has no goals that name one."""
    return list(dict.fromkeys(cell["case"] for cell in cells if cell["scenario"] == scenario))


def _of(cells: Sequence[Cell], scenario: str, case: str, wanted: Callable[[Cell], bool]) -> list[Cell]:
    """Those of a scenario, and of a case unless that is ""."""
    return [c for c in cells if c["scenario"] == scenario and case in ("", c["case"]) and wanted(c)]


def _sums(cell: Cell) -> bool:
    return bool(cell["operation"] == "all_reduce")


def _largest(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell["bytes"] == max(each["bytes"] for each in cells)]


def _times(cell: Cell, reference: str) -> Found | None:
    if reference not in cell["times"]:
        return None
    times = cell["times"][reference]
    return Found(times["median"], _what(cell), times["n"], cell["allowed"][reference])


def _figure(cell: Cell, name: str, which: str, where: str) -> Found | None:
    values = cell["figures"].get(name)
    return values and Found(values[which], where, values["n"])


def _of_gloo(cell: Cell) -> Found | None:
    """Beside the faster Gloo."""
    return _times(cell, min(cell["times"], key=lambda name: cell["times"][name]["median"], default=""))


def _latency(cell: Cell) -> Found | None:
    found = _of_gloo(cell)
    if found is None:
        return None
    allowed = {name: 1 / times for name, times in found.allowed.items()}
    return found._replace(value=1 / found.value, allowed=allowed)


def _what(cell: Cell, *, case: bool = False) -> str:
    text = f"{cell['operation']} of {format_size(cell['bytes'])}" if cell["bytes"] else cell["operation"]
    return f"{cell['case']}: {text}" if case else text


def _at_least(name: str, bound: float, values: Iterable[Found | None]) -> dict[str, Any]:
    return _entry(name, "at_least", bound, values)


def _at_most(name: str, bound: float, values: Iterable[Found | None]) -> dict[str, Any]:
    return _entry(name, "at_most", bound, values)


def _entry(name: str, side: str, bound: float, values: Iterable[Found | None]) -> dict[str, Any]:
    """The worst of those that can be judged; where that reaches the bound, what is missing or left open by one turn."""
    every = list(values)
    found = [value for value in every if value is not None]
    worst_of = min if side == "at_least" else max
    judged, single = (
        worst_of((one for one in found if (one.turns < TURNS_MIN) is few), key=lambda one: one.value, default=None)
        for few in (False, True)
    )
    missed = judged is not None and (judged.value < bound if side == "at_least" else judged.value > bound)
    shown = judged if missed or single is None else single
    if not missed and len(found) < len(every):
        shown = Found(None, f"{len(every) - len(found)} of {len(every)} missing", 0)
    value, where, turns, allowed = shown or Found(None, "", 0)
    passed = False if missed else None if shown is not judged or judged is None else True
    entry = {"name": name, "value": value, "where": where, "turns": turns, "allowed": dict(allowed)}
    return {**entry, side: bound, "passed": passed}

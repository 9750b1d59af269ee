"""The report's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hive_qos.units import format_rate, format_size
from tools.measure.tables import NONE, Column, Section, goals

TITLES = {
    "sender": "1  Bottleneck at the sender's own link",
    "receiver": "2  Bottleneck at the receiver's link, flooded from a link ten times faster",
    "fresh": "2b  The same in the first seconds after everything has started",
    "remote": "3  Remote bottleneck of unknown rate with a deep buffer",
    "capacity": "4  A link that falls to a third and rises again",
    "inbound": "5  A way in that falls to a third and rises again",
    "jobs": "6  Two jobs and storage",
    "flows": "7  Many flows",
    "faults": "8  Faults",
    "hold": "9  Holds between brokers",
}


def sections(report: Mapping[str, Any]) -> list[Section]:
    """Title, heads and rows of each table."""
    found: list[Section] = []
    for scenario, by_name in report["scenarios"].items():
        columns = COLUMNS[scenario]
        rows = [[name, *(show(figures) for _, show in columns)] for name, figures in by_name.items()]
        found.append((TITLES[scenario], ("", *(head for head, _ in columns)), rows))
    return [*found, goals(report)]


def seconds(value: float | None) -> str:
    """A time of 0.1 s and more in seconds, below in milliseconds."""
    if value is None:
        return NONE
    return f"{value:.2f} s" if value >= 0.1 else f"{1e3 * value:.1f} ms"


def number(value: float | None, digits: int = 2) -> str:
    """A figure without unit."""
    return NONE if value is None else f"{value:.{digits}f}"


def _ratio(figures: Mapping[str, Any]) -> str:
    ratio = figures.get("ratio")
    return NONE if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} … {ratio['high']:.2f})"


def _whole(show: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """The same figure with its transient; reports of earlier versions have none."""
    return lambda figures: show(figures["whole"]) if "whole" in figures else NONE


def _of_left(figures: Mapping[str, Any]) -> str:
    share = figures["storage_of_left"]
    if not figures["storage_bits_per_s"] > 1e5:
        return NONE
    return f"{share['all']:.2f} ({share['low']:.2f} … {share['high']:.2f})"


def _brokers(figures: Mapping[str, Any]) -> str:
    cores = [value for name, value in figures["cores"].items() if name.startswith("broker ")]
    return number(max(cores), 3) if cores else NONE


_SHARES: list[Column] = [
    ("step", lambda f: f"{f['step_s']['median']:.3f} s"),
    ("95 %", lambda f: f"{f['step_s']['p95']:.3f} s"),
    ("of idle", _ratio),
    ("95 %", lambda f: number(f.get("ratio", {}).get("p95"))),
    ("storage", lambda f: format_rate(f["storage_bits_per_s"]) if f["storage_bits_per_s"] > 1e5 else NONE),
    ("of left", _of_left),
    ("whole: 95 %", _whole(lambda f: number(f.get("ratio", {}).get("p95")))),
    ("of left", _whole(lambda f: _of_left(f).split(" ")[0])),
    ("steps", lambda f: str(f["step_s"]["n"])),
    ("CPU idle", lambda f: number(f["idle_share"])),
    ("broker, cores", _brokers),
    ("limit", lambda f: str(f["limit"])),
]


_FRESH: list[Column] = [
    ("idle step", lambda f: seconds(f["idle_s"])),
    ("of idle", lambda f: number(f["of_idle"], 3)),
    ("95 %", lambda f: number(f["p95"])),
    ("storage, of left", lambda f: number(f["storage_of_left"])),
    ("steps", lambda f: str(f["steps"])),
]


def _followed(name: str) -> Callable[[Mapping[str, Any]], str]:
    def text(figures: Mapping[str, Any]) -> str:
        found = figures[name]
        if found is None:
            return NONE
        missed = f", {found['missed']} never" if found["missed"] else ""
        return f"{found['median']:.1f} s, at most {found['high']:.1f} s{missed}"

    return text


def _of_parts(key: str, show: Callable[[float | None], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda figures: " / ".join(show(part[key]) for part in figures["parts"].values())


def _of_whole_parts(key: str, show: Callable[[float | None], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda figures: " / ".join(_whole(lambda part: show(part[key]))(part) for part in figures["parts"].values())


def _milliseconds(value: float | None) -> str:
    return number(value and 1e3 * value, 0)


_CAPACITY: list[Column] = [
    ("a fall is followed within", _followed("fall_s")),
    ("a rise within", _followed("rise_s")),
    ("delay of people, 95 %, ms: start / fall / rise", _of_parts("delay_s", _milliseconds)),
    ("used", _of_parts("used", number)),
    ("whole: delay", _of_whole_parts("delay_s", _milliseconds)),
    ("used", _of_whole_parts("used", number)),
    ("step, s", _of_parts("step_s", number)),
    ("CPU idle", lambda f: number(f["idle_share"])),
]
_WAY_IN: list[Column] = [
    *_CAPACITY[:-2],
    ("step, of idle", _of_parts("of_idle", number)),
    ("storage, Mbit/s", _of_parts("storage_bits_per_s", lambda rate: number(rate and rate / 1e6, 0))),
    _CAPACITY[-1],
]
_JOBS: list[Column] = [
    ("small job", lambda f: format_rate(f["got_bits_per_s"]["small"])),
    ("large job", lambda f: format_rate(f["got_bits_per_s"]["large"])),
    ("fairness", lambda f: number(f["fairness"]["median"], 3)),
    ("least of 10 s", lambda f: number(f["fairness"]["low_10_s"], 3)),
    ("storage, of its guarantee", lambda f: number(f["kept"]["storage"])),
    ("training, of its", lambda f: number(f["kept"]["training"])),
    ("CPU idle", lambda f: number(f["idle_share"])),
]
_FLOWS: list[Column] = [
    ("flows seen", lambda f: str(f["flows"])),
    ("watched", lambda f: f"{f['seconds']:.0f} s"),
    ("cores of the daemon", lambda f: number(f["cores"], 3)),
    ("memory", lambda f: format_size(f["resident_bytes"])),
]
_FAULTS: list[Column] = [
    ("storage starves for", lambda f: seconds(f["storage_gap_s"])),
    ("training", lambda f: seconds(f["training_gap_s"])),
    ("people", lambda f: seconds(f["people_gap_s"])),
    ("longest step", lambda f: seconds(f["step_s"])),
    ("right again after", lambda f: seconds(f["right_s"])),
    ("sessions back after", lambda f: seconds(f["sessions_s"])),
]
_HOLD: list[Column] = [
    ("bursts", lambda f: str(f["announced"])),
    ("held", lambda f: str(f["held"])),
    ("whole", _whole(lambda f: f"{f['held']} of {f['announced']}")),
    ("beyond the way there", lambda f: seconds(f["latency_s"] and f["latency_s"]["median"])),
    ("95 %", lambda f: seconds(f["latency_s"] and f["latency_s"]["p95"])),
    ("longest", lambda f: seconds(f["latency_s"] and f["latency_s"]["high"])),
]
COLUMNS: Mapping[str, Sequence[Column]] = {
    "sender": _SHARES,
    "receiver": _SHARES,
    "fresh": _FRESH,
    "remote": _SHARES,
    "capacity": _CAPACITY,
    "inbound": _WAY_IN,
    "jobs": _JOBS,
    "flows": _FLOWS,
    "faults": _FAULTS,
    "hold": _HOLD,
}

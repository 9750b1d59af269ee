"""The report's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hive_qos.units import format_rate, format_size
from tools.measure.tables import NONE, Column, Section, goals

Cell: TypeAlias = Mapping[str, Any]

TITLES = {
    "loopback": "1  One connection over loopback",
    "lan": "2  One connection over 1 Gbit/s",
    "loss": "3  One connection over 200 Mbit/s, 40 ms, with random loss",
    "latency": "4  Round trips of small messages, idle and beside a bulk transfer to the same peer",
    "memory": "5  Memory beyond the tensors' own",
    "connections": "5  Idle connections",
    "congestion": "6  Congestion controls over 200 Mbit/s, 40 ms",
}


def sections(report: Mapping[str, Any]) -> list[Section]:
    """Title, heads and rows of each table; docs/log/transport.md shows the same."""
    found: list[Section] = []
    for name, title in TITLES.items():
        scenario = "memory" if name == "connections" else name
        cells = [
            cell
            for cell in report["cells"]
            if cell["scenario"] == scenario and ("connections" in cell["figures"]) == (name == "connections")
        ]
        if cells:
            references = sorted({key for cell in cells for key in cell["ratios"] if " of idle" not in key})
            columns = [*COLUMNS[name], *(_ratio(f"of {key}", key) for key in references)]
            rows = [[cell["case"], cell["contender"], *(show(cell) for _, show in columns)] for cell in cells]
            found.append((title, ("case", "contender", *(head for head, _ in columns)), rows))
    return [*found, goals(report)]


def _figure(name: str, key: str, show: Callable[[float], str], *, spread: bool = False) -> Column:
    def text(cell: Cell) -> str:
        values = cell["figures"].get(key)
        if values is None:
            return NONE
        if spread and values["n"] > 1:
            return f"{show(values['median'])} ({show(values['low'])} … {show(values['high'])})"
        return show(values["median"])

    return name, text


def _ratio(name: str, key: str) -> Column:
    def text(cell: Cell) -> str:
        values = cell["ratios"].get(key)
        return NONE if values is None else f"{values['median']:.2f}"

    return name, text


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def _number(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


_FLOW: list[Column] = [
    _figure("goodput", "goodput_bits_per_s", format_rate, spread=True),
    _figure("CPU s/GB: sender", "sender_cpu_s_per_gb", _number(2)),
    _figure("receiver", "receiver_cpu_s_per_gb", _number(2)),
    _figure("machine", "machine_cpu_s_per_gb", _number(2)),
    _figure("other cores", "other_cores", _number(2)),
    ("limit", lambda cell: cell["limit"]),
]
COLUMNS: Mapping[str, Sequence[Column]] = {
    "loopback": _FLOW,
    "lan": _FLOW,
    "loss": _FLOW,
    "latency": [
        _figure("1 kB: median ms", "median_s_1000", _milliseconds),
        _ratio("of idle", "median_s_1000 of idle"),
        _figure("99 %", "p99_s_1000", _milliseconds),
        _ratio("of idle", "p99_s_1000 of idle"),
        _figure("64 kB: median ms", "median_s_64000", _milliseconds),
        _ratio("of idle", "median_s_64000 of idle"),
        _figure("99 %", "p99_s_64000", _milliseconds),
        _ratio("of idle", "p99_s_64000 of idle"),
        _figure("bulk", "bulk_bits_per_s", format_rate),
    ],
    "memory": [
        _figure("sender", "sender_memory_bytes", format_size),
        _figure("receiver", "receiver_memory_bytes", format_size),
        _figure("moved", "moved_bytes", format_size),
    ],
    "connections": [
        _figure("connections", "connections", _number(0)),
        _figure("each: dialler", "dialler_bytes", format_size),
        _figure("accepter", "accepter_bytes", format_size),
        _figure("ms to make one", "connect_s", _milliseconds),
        _figure("idle, cores: dialler", "idle_cores_dialler", _number(3)),
        _figure("accepter", "idle_cores_accepter", _number(3)),
        _figure("read 10 times a second", "statistics_cores", _number(3)),
    ],
    "congestion": [
        _figure("goodput", "goodput_bits_per_s", format_rate, spread=True),
        _figure("echo, median ms", "echo_median_s", _milliseconds),
        _figure("95 %", "echo_p95_s", _milliseconds),
        _figure("TCP beside", "beside_bits_per_s", format_rate),
        _figure("CPU s/GB: sender", "sender_cpu_s_per_gb", _number(2)),
        ("limit", lambda cell: cell["limit"]),
    ],
}

"""The figures in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.api import verdicts
from broker.api.snapshot import Snapshot
from hive_qos.text import printable


class Figure(NamedTuple):
    """A metric: its kind, what it is, and its labels."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


_CLASS: Final = ("interface", "class")
METRICS: Final = {
    "class_rate_bits_per_s": Figure("gauge", "rate of the class in the kernel now", _CLASS),
    "class_ceil_bits_per_s": Figure("gauge", "ceil of the class in the kernel now", _CLASS),
    "class_guarantee_bits_per_s": Figure("gauge", "guarantee by policy, at the present capacity", _CLASS),
    "class_floor_bits_per_s": Figure("gauge", "floor by policy, at the present capacity", _CLASS),
    "class_ceiling_bits_per_s": Figure("gauge", "ceiling by policy, at the present capacity", _CLASS),
    "class_demand_bits_per_s": Figure("gauge", "what the class wants", _CLASS),
    "class_throughput_bits_per_s": Figure("gauge", "what the class sends, measured", _CLASS),
    "class_backlog_bytes": Figure("gauge", "waiting in this host's queues", _CLASS),
    "class_sent_bytes_total": Figure("counter", "sent on the wire", _CLASS),
    "class_dropped_packets_total": Figure("counter", "dropped in this host's queues", _CLASS),
    "capacity_bits_per_s": Figure("gauge", "what the interface can carry", ("interface", "source")),
    "carrier": Figure("gauge", "1 while the link has a carrier", ("interface",)),
    "carrier_changes_total": Figure("counter", "how often the carrier came or went", ("interface",)),
    "sessions": Figure("gauge", "connected programs"),
    "alarm": Figure("gauge", "1 while the alarm holds", ("code", "subject")),
    "watchdog_alive": Figure("gauge", "1 while the watchdog watches"),
    "watchdog_openings_total": Figure("counter", "how often the watchdog opened the ceilings"),
    "ticks_total": Figure("counter", "decisions"),
    "cpu_seconds_total": Figure("counter", "processor time of the broker"),
    "memory_bytes": Figure("gauge", "memory of the broker"),
    "host_processors_used": Figure("gauge", "part of all processors in use, by everybody"),
}
"""By name, without `hive_qos_` in front."""
_OF_ALLOCATION: Final = (
    "rate_bits_per_s", "ceil_bits_per_s", "guarantee_bits_per_s", "floor_bits_per_s", "ceiling_bits_per_s",
    "throughput_bits_per_s", "backlog_bytes",
)  # fmt: skip


def metrics(snapshot: Snapshot) -> bytes:
    """The figures in the text format of Prometheus; one that is not known is left out."""
    # Imported when first asked for: a host whose metrics nobody scrapes saves the memory.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for name, (kind, text, labels) in METRICS.items():
        made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        families[name] = made(f"hive_qos_{name.removesuffix('_total')}", text, labels=labels)
    for name, labels, value in _values(snapshot):
        if value is not None:
            families[name].add_metric([printable(label) for label in labels], value)

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from (family for name, family in families.items() if family.samples or METRICS[name].labels)

    registry = CollectorRegistry()
    registry.register(Figures())
    return generate_latest(registry)


def _values(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    """Each metric's name, labels and value."""
    for interface in snapshot.decision.allocation.interfaces:
        for entry in interface.classes:
            labels = (interface.name, entry.name)
            for field in _OF_ALLOCATION:
                yield f"class_{field}", labels, getattr(entry, field)
            # The decision counts the floor of a class that sends nothing as wanted.
            yield "class_demand_bits_per_s", labels, 0 if verdicts.idle(entry) else entry.demand_bits_per_s
            yield "class_dropped_packets_total", labels, entry.dropped_packets
        yield "capacity_bits_per_s", (interface.name, interface.capacity_source), interface.capacity_bits_per_s
    for measured in snapshot.measurements.interfaces:
        for sample in measured.classes:
            yield "class_sent_bytes_total", (measured.name, sample.name), sample.sent_bytes
        yield "carrier", (measured.name,), measured.carrier
        yield "carrier_changes_total", (measured.name,), measured.carrier_changes
    for alarm in snapshot.alarms:
        yield "alarm", (alarm.code, alarm.subject), 1
    watchdog = snapshot.daemon.watchdog
    yield "sessions", (), len(snapshot.sessions)
    yield "watchdog_alive", (), None if watchdog is None else watchdog.alive
    yield "watchdog_openings_total", (), None if watchdog is None else watchdog.openings
    yield "ticks_total", (), snapshot.daemon.ticks
    yield "cpu_seconds_total", (), snapshot.daemon.cpu_s
    yield "memory_bytes", (), snapshot.load.daemon_memory_bytes
    yield "host_processors_used", (), snapshot.load.processors_used

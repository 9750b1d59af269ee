"""The figures in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.api.documents.schema import OutboundStatus
from broker.api.documents.snapshot import Snapshot
from broker.api.documents.status import outline
from hive_qos import __version__
from hive_qos.text import printable


class Figure(NamedTuple):
    """A metric: its kind, what it is, and its labels."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


_LINK: Final = ("interface", "direction")
_CLASS: Final = ("interface", "class")
METRICS: Final = {
    "build_info": Figure("gauge", "1, with the version of the broker", ("version",)),
    "alarm": Figure("gauge", "1 while the alarm holds", ("code", "subject")),
    "capacity_bytes_per_second": Figure("gauge", "what the interface can carry", _LINK),
    "capacity_source_info": Figure("gauge", "1, with what the capacity rests on", (*_LINK, "source")),
    "class_rate_bytes_per_second": Figure("gauge", "rate of the class in the kernel now", _CLASS),
    "class_ceil_bytes_per_second": Figure("gauge", "ceil of the class in the kernel now", _CLASS),
    "class_guarantee_bytes_per_second": Figure("gauge", "guarantee by policy, at the present capacity", _CLASS),
    "class_floor_bytes_per_second": Figure("gauge", "floor by policy, at the present capacity", _CLASS),
    "class_ceiling_bytes_per_second": Figure("gauge", "ceiling by policy, at the present capacity", _CLASS),
    "class_demand_bytes_per_second": Figure("gauge", "what the class wants", _CLASS),
    "class_throughput_bytes_per_second": Figure("gauge", "what the class sends, measured", _CLASS),
    "class_average_bytes_per_second": Figure("gauge", "what it sent over the window of its guarantee", _CLASS),
    "class_lent_bytes_per_second": Figure(
        "gauge", "what the class lends now, by who borrows it", (*_CLASS, "borrower")
    ),
    "class_promise_missed": Figure(
        "gauge", "1 while it got less than promised, with more to send all the time", _CLASS
    ),
    "class_limited_info": Figure("gauge", "1, with what limits the class now", (*_CLASS, "limit")),
    "class_backlog_bytes": Figure("gauge", "waiting in this host's queues", _CLASS),
    "class_sent_bytes_total": Figure("counter", "sent on the wire", _CLASS),
    "class_dropped_packets_total": Figure("counter", "dropped in this host's queues", _CLASS),
    "job_throughput_bytes_per_second": Figure(
        "gauge", "what all jobs of a name send; of more than 50 the rest is `other`", (*_CLASS, "job")
    ),
    "received_bytes_total": Figure("counter", "what came in through the interface", ("interface",)),
    "carrier": Figure("gauge", "1 while the link has a carrier", ("interface",)),
    "carrier_changes_total": Figure("counter", "how often the carrier came or went", ("interface",)),
    "sessions": Figure("gauge", "connected programs"),
    "watchdog_alive": Figure("gauge", "1 while the watchdog watches"),
    "watchdog_openings_total": Figure("counter", "how often the watchdog opened the ceilings"),
    "ticks_total": Figure("counter", "decisions"),
    "cpu_seconds_total": Figure("counter", "processor time of the broker"),
    "memory_bytes": Figure("gauge", "memory of the broker"),
    "host_processors_used_ratio": Figure("gauge", "part of all processors in use, by everybody"),
}
"""By name, without `hive_qos_` in front. Units are Prometheus' base units: bytes, seconds, ratios."""
_OF_ALLOCATION: Final = ("rate", "ceil", "guarantee", "floor", "ceiling", "throughput")
JOBS_MAX, ALARMS_MAX = 50, 100
"""Values of a label that others choose. Those that send most, and the first alarms, have their names."""
REST: Final = "other"
"""The value of such a label for all the rest."""


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
    shown = outline(snapshot)
    yield "build_info", (__version__,), 1
    for link in shown.interfaces:
        labels = link.name, "egress" if isinstance(link, OutboundStatus) else "ingress"
        yield "capacity_bytes_per_second", labels, link.capacity_bits_per_s / 8
        yield "capacity_source_info", (*labels, link.capacity_source), 1
        if isinstance(link, OutboundStatus):
            yield from _of_classes(link)
    for measured in snapshot.measurements.interfaces:
        for sample in measured.classes:
            yield "class_sent_bytes_total", (measured.name, sample.name), sample.sent_bytes
        yield "received_bytes_total", (measured.name,), measured.received_bytes
        yield "carrier", (measured.name,), measured.carrier
        yield "carrier_changes_total", (measured.name,), measured.carrier_changes
    yield from _of_jobs(snapshot)
    for alarm in dict.fromkeys(
        (one.code, one.subject if number < ALARMS_MAX else REST) for number, one in enumerate(shown.alarms)
    ):
        yield "alarm", alarm, 1
    watchdog = snapshot.daemon.watchdog
    yield "sessions", (), len(snapshot.sessions)
    yield "watchdog_alive", (), None if watchdog is None else watchdog.alive
    yield "watchdog_openings_total", (), None if watchdog is None else watchdog.openings
    yield "ticks_total", (), snapshot.daemon.ticks
    yield "cpu_seconds_total", (), snapshot.daemon.cpu_s
    yield "memory_bytes", (), snapshot.load.daemon_memory_bytes
    yield "host_processors_used_ratio", (), snapshot.load.processors_used


def _of_classes(link: OutboundStatus) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    for one in link.classes:
        labels = (link.name, one.name)
        for field in _OF_ALLOCATION:
            yield f"class_{field}_bytes_per_second", labels, _bytes(getattr(one, f"{field}_bits_per_s"))
        yield "class_demand_bytes_per_second", labels, _bytes(one.demand_bits_per_s)
        yield "class_average_bytes_per_second", labels, _bytes(one.average_bits_per_s)
        for borrower, bits_per_s in one.lends_bits_per_s.items():
            yield "class_lent_bytes_per_second", (*labels, borrower), bits_per_s / 8
        yield "class_promise_missed", labels, one.promise.code == "missed"
        yield "class_limited_info", (*labels, one.limited_by.code), 1
        yield "class_backlog_bytes", labels, one.backlog_bytes
        yield "class_dropped_packets_total", labels, one.dropped_packets


def _of_jobs(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    """Jobs of one name are one, whosever they are: a label for each user has no bound."""
    found: Counter[tuple[str, str, str]] = Counter()
    for interface in snapshot.decision.allocation.interfaces:
        for job in interface.jobs:
            if job.job:
                found[interface.name, job.traffic_class, printable(job.job)] += job.throughput_bits_per_s or 0
    rest: Counter[tuple[str, str, str]] = Counter()
    for number, (labels, bits_per_s) in enumerate(found.most_common()):
        rest[labels if number < JOBS_MAX else (*labels[:2], REST)] += bits_per_s
    for labels, bits_per_s in rest.items():
        yield "job_throughput_bytes_per_second", labels, bits_per_s / 8


def _bytes(bits: int | None) -> float | None:
    return None if bits is None else bits / 8

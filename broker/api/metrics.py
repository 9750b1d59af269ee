"""The figures in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.api import verdicts
from broker.api.snapshot import Snapshot
from hive_qos.text import printable


def metrics(snapshot: Snapshot) -> bytes:
    """The figures in the text format of Prometheus."""
    # Imported when first asked for: a host whose metrics nobody scrapes saves the memory.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    labels = ["interface", "class"]

    def family(kind: Any, name: str, text: str, field: str) -> Metric:
        made = kind(f"hive_qos_class_{name}", text, labels=labels)
        for interface in snapshot.decision.allocation.interfaces:
            for entry in interface.classes:
                value = getattr(entry, field)
                if field == "demand_bits_per_s" and verdicts.idle(entry):
                    value = 0  # the decision counts its floor as wanted at least
                if value is not None:
                    made.add_metric([printable(interface.name), entry.name], value)
        return made  # type: ignore[no-any-return]  # the families are all Metric

    class Figures(Collector):
        def collect(self) -> Iterable[Metric]:
            for name in (
                "rate_bits_per_s", "ceil_bits_per_s", "guarantee_bits_per_s", "floor_bits_per_s",
                "ceiling_bits_per_s", "demand_bits_per_s", "throughput_bits_per_s", "backlog_bytes",
            ):  # fmt: skip
                yield family(GaugeMetricFamily, name, f"{name} of the class", name)
            yield family(CounterMetricFamily, "dropped_packets", "packets dropped in the class", "dropped_packets")
            sent = CounterMetricFamily("hive_qos_class_sent_bytes", "wire bytes sent by the class", labels=labels)
            for measured in snapshot.measurements.interfaces:
                for sample in measured.classes:
                    sent.add_metric([printable(measured.name), sample.name], sample.sent_bytes)
            yield sent
            carried = GaugeMetricFamily(
                "hive_qos_capacity_bits_per_s", "what the interface can carry", labels=["interface", "source"]
            )
            for interface in snapshot.decision.allocation.interfaces:
                shown = [printable(interface.name), interface.capacity_source]
                carried.add_metric(shown, interface.capacity_bits_per_s)
            yield carried
            carrier = GaugeMetricFamily("hive_qos_carrier", "1 while the link has a carrier", labels=["interface"])
            text = "how often the carrier came or went"
            changes = CounterMetricFamily("hive_qos_carrier_changes", text, labels=["interface"])
            for measured in snapshot.measurements.interfaces:
                if measured.carrier is not None:
                    carrier.add_metric([printable(measured.name)], int(measured.carrier))
                if measured.carrier_changes is not None:
                    changes.add_metric([printable(measured.name)], measured.carrier_changes)
            yield from (carrier, changes)
            yield GaugeMetricFamily("hive_qos_sessions", "connected programs", value=len(snapshot.sessions))
            alarms = GaugeMetricFamily("hive_qos_alarm", "1 while the alarm holds", labels=["code", "subject"])
            for alarm in snapshot.alarms:
                alarms.add_metric([alarm.code, printable(alarm.subject)], 1)
            yield alarms
            watchdog = snapshot.daemon.watchdog
            if watchdog is not None:
                yield GaugeMetricFamily(
                    "hive_qos_watchdog_alive", "1 while the watchdog runs", value=int(watchdog.alive)
                )
                text = "how often the watchdog has opened the ceilings"
                yield CounterMetricFamily("hive_qos_watchdog_openings", text, value=watchdog.openings)
            yield CounterMetricFamily("hive_qos_ticks", "decisions taken", value=snapshot.daemon.ticks)
            yield CounterMetricFamily("hive_qos_cpu_seconds", "CPU used by the broker", value=snapshot.daemon.cpu_s)
            if snapshot.load.daemon_memory_bytes is not None:
                text, held = "memory that the broker has", snapshot.load.daemon_memory_bytes
                yield GaugeMetricFamily("hive_qos_memory_bytes", text, value=held)
            if snapshot.load.processors_used is not None:
                text, used = "part of all processors in use, by everybody", snapshot.load.processors_used
                yield GaugeMetricFamily("hive_qos_host_processors_used", text, value=used)

    registry = CollectorRegistry()
    registry.register(Figures())
    return generate_latest(registry)

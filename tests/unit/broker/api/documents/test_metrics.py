"""The metrics: Prometheus' naming conventions, base units, and labels that stay few whatever others choose."""

from __future__ import annotations

import re

from msgspec.structs import replace
from status_documents import snapshot

from broker.api.documents.metrics import ALARMS_MAX, JOBS_MAX, METRICS, metrics
from broker.api.documents.snapshot import Snapshot
from broker.model.values import Alarm

UNITS = ("_bytes", "_bytes_per_second", "_bytes_total", "_seconds_total", "_ratio")
CLASS = 'class="compute",interface="eth0"'


def lines(of: Snapshot, name: str) -> list[str]:
    return [line for line in metrics(of).decode().splitlines() if line.startswith(f"hive_qos_{name}{{")]


def value(line: str) -> float:
    return float(line.rpartition(" ")[2])


def with_jobs(count: int) -> Snapshot:
    """A host with so many jobs; job 7 sends 7 Mbit/s."""
    now = snapshot()
    (link,) = now.decision.allocation.interfaces
    jobs = tuple(
        replace(link.jobs[0], job=f"job-{number}", throughput_bits_per_s=number * 1_000_000) for number in range(count)
    )
    allocation = replace(now.decision.allocation, interfaces=(replace(link, jobs=jobs),))
    return replace(now, decision=replace(now.decision, allocation=allocation))


def test_names_end_in_a_base_unit_and_counters_in_total() -> None:
    for name, one in METRICS.items():
        assert name.endswith("_total") == (one.kind == "counter"), name
        assert not re.search(r"_(bits|s|ms|percent|kb)(_|$)", name), name
        measured = re.search(r"bytes|seconds|ratio", name)
        assert not measured or name.endswith(UNITS), name


def test_a_rate_is_in_bytes_and_agrees_with_the_status() -> None:
    now = snapshot()
    (link,) = now.decision.allocation.interfaces
    compute = next(one for one in link.classes if one.name == "compute")
    assert [value(one) for one in lines(now, "class_ceil_bytes_per_second") if CLASS in one] == [
        compute.ceil_bits_per_s / 8
    ]
    (capacity,) = lines(now, "capacity_bytes_per_second")
    assert capacity.startswith('hive_qos_capacity_bytes_per_second{direction="egress",interface="eth0"}')
    assert value(capacity) == link.capacity_bits_per_s / 8


def test_jobs_beyond_the_bound_are_one_series_and_nothing_is_lost() -> None:
    found = lines(with_jobs(JOBS_MAX + 20), "job_throughput_bytes_per_second")
    assert len(found) == JOBS_MAX + 1
    total = sum(range(JOBS_MAX + 20)) * 1_000_000 / 8
    assert sum(map(value, found)) == total
    assert [value(one) for one in found if 'job="other"' in one] == [sum(range(20)) * 1_000_000 / 8]


def test_alarms_beyond_the_bound_keep_their_code() -> None:
    many = tuple(Alarm("probe-unanswered", f"host-{number}", "") for number in range(ALARMS_MAX + 20))
    found = lines(snapshot(alarms=(*many, Alarm("link-down", "eth0", ""), many[0])), "alarm")
    assert len(found) == ALARMS_MAX + 2
    assert 'hive_qos_alarm{code="link-down",subject="other"} 1.0' in found


def test_no_label_names_a_process_or_a_user() -> None:
    assert {label for one in METRICS.values() for label in one.labels} == {
        "version", "code", "subject", "interface", "direction", "source", "class", "borrower", "limit", "job",
    }  # fmt: skip

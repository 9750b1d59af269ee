"""Clusters whose backlog and data at risk can be read, while nothing holds their rate but the kernel.

MinIO cancels transfers, and tries them again for ever, where its limit is low against its objects (minio/minio 12812).
Ceph's mClock governs operations, not the network. SeaweedFS' limits are fixed at its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from broker.adapters.http import ProgramHttp
from broker.adapters.program import Backlog, ProgramError, StorageAdapter, number
from broker.policy.types import StorageProgram

MINIO_QUEUED = "minio_node_replication_last_minute_queued_bytes"


class Minio(StorageAdapter):
    """This server's bucket replication, by its metrics (`nodeGroups` in minio/minio `cmd/metrics-v2.go`).

    The key is a bearer token of `mc admin prometheus generate`; without one MinIO has to serve metrics publicly.
    """

    def __init__(self, program: StorageProgram, key: str) -> None:
        self._http = ProgramHttp(program, {"Authorization": f"Bearer {key}"} if key else {})

    def read(self) -> Backlog:
        """What was queued in the last minute."""
        found = _metrics(self._http.text("GET", "/minio/v2/metrics/node"))
        if MINIO_QUEUED not in found:
            reason = f"its answer has no {MINIO_QUEUED}; is this a MinIO, and does it replicate buckets?"
            raise ProgramError("unexpected", reason)
        return Backlog(int(_sum(found, MINIO_QUEUED)))


class Ceph(StorageAdapter):
    """A Ceph cluster, by the Prometheus module of its manager (ceph/ceph `src/pybind/mgr/prometheus`), port 9283.

    Copies that are missing or misplaced, at the average size of an object, divided evenly among the hosts with OSDs.
    """

    def __init__(self, program: StorageProgram, key: str) -> None:
        self._http = ProgramHttp(program, {"Authorization": f"Bearer {key}"} if key else {})

    def read(self) -> Backlog:
        """This host's part."""
        found = _metrics(self._http.text("GET", "/metrics"))
        if "ceph_num_objects_degraded" not in found:
            reason = "its answer has no ceph_num_objects_degraded; is this the active manager?"
            raise ProgramError("unexpected", reason)
        degraded = _sum(found, "ceph_num_objects_degraded")
        copies = degraded + _sum(found, "ceph_num_objects_misplaced")
        objects, stored = _sum(found, "ceph_pool_objects"), _sum(found, "ceph_pool_stored")
        hosts = {one.labels.get("hostname") for one in found.get("ceph_osd_metadata", ())}
        size_bytes = stored / objects if objects > 0 else 0.0
        return Backlog(int(copies * size_bytes / max(1, len(hosts))), objects_at_risk=int(degraded))


class SeaweedFs(StorageAdapter):
    """A SeaweedFS cluster, by the volumes that its master lists: those with fewer copies than their placement wants."""

    def __init__(self, program: StorageProgram, key: str) -> None:
        self._http = ProgramHttp(program, {"Authorization": f"Bearer {key}"} if key else {})

    def read(self) -> Backlog:
        """The missing copies, divided evenly among the volume servers."""
        answer = self._http.json("GET", "/vol/status")
        copies: dict[int, int] = {}
        wanted: dict[int, tuple[int, int, int]] = {}
        servers = 0
        for volumes in _servers(answer):
            servers += 1
            for volume in volumes:
                name, placement = number(volume, "Id"), volume.get("ReplicaPlacement")
                copies[name] = copies.get(name, 0) + 1
                extra = sum(number(placement, key) for key in placement) if isinstance(placement, Mapping) else 0
                size_bytes, files = number(volume, "Size"), number(volume, "FileCount")
                before = wanted.get(name, (0, 0, 0))
                wanted[name] = 1 + extra, max(before[1], size_bytes), max(before[2], files)
        missing = {name: want[0] - copies[name] for name, want in wanted.items() if want[0] > copies[name]}
        left_bytes = sum(count * wanted[name][1] for name, count in missing.items())
        return Backlog(left_bytes // max(1, servers), objects_at_risk=sum(wanted[name][2] for name in missing))


def _servers(answer: object) -> Iterator[list[Mapping[str, object]]]:
    """The volumes of each server: data centers hold racks, and racks servers."""
    try:
        for center in answer["Volumes"]["DataCenters"].values():  # type: ignore[index]
            for rack in center.values():
                for volumes in rack.values():
                    yield list(volumes or ())
    except (TypeError, KeyError, AttributeError) as problem:
        raise ProgramError("unexpected", "its answer lists no volumes; is this a SeaweedFS master?") from problem


def _metrics(text: str) -> dict[str, list[Sample]]:
    """Samples by name."""
    found: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample)
    except (ValueError, KeyError, IndexError) as problem:
        raise ProgramError("unexpected", "its answer is no Prometheus text; is this the right address?") from problem
    return found


def _sum(found: Mapping[str, list[Sample]], name: str) -> float:
    """Of what can be counted."""
    values = (sample.value for sample in found.get(name, ()))
    return sum(value for value in values if 0 <= value < 2**62)

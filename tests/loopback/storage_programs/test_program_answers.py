"""Clusters by their recorded answers.

`seaweedfs-4.48-vol-status.json` is what a real master said of two volume servers with placement 001, after one of
them had lost the volumes 1 and 2, with one object of 3 MB each. The answers of MinIO (metrics v2) and Ceph (manager of
version 18) are written after their documents: neither program was there to be asked.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.adapters.clusters import Ceph, Minio, SeaweedFs
from broker.adapters.program import Backlog, ProgramError
from broker.adapters.rclone import Rclone
from broker.adapters.syncthing import Syncthing
from broker.policy.types import StorageProgram

ANSWERS = Path(__file__).parent / "answers"
Serve = Callable[[dict[str, str]], StorageProgram]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves each path's text, whatever the method; other paths are not there."""
    with contextlib.ExitStack() as held:

        def start(pages: dict[str, str]) -> StorageProgram:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    body = pages.get(self.path)
                    self.send_response(404 if body is None else 200)
                    self.end_headers()
                    self.wfile.write((body or "").encode())

                do_POST = do_GET

                def log_message(self, *_: object) -> None:
                    pass

            server = held.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            held.callback(thread.join)
            held.callback(server.shutdown)
            return StorageProgram("p", "any", f"http://127.0.0.1:{server.server_address[1]}")

        yield start


def recorded(name: str) -> str:
    return (ANSWERS / name).read_text()


def test_minio_queues_what_it_says(serve: Serve) -> None:
    program = serve({"/minio/v2/metrics/node": recorded("minio-metrics-v2-node.txt")})
    assert Minio(program, "token").read() == Backlog(322_122_540)


def test_ceph_lacks_copies_of_the_average_size_divided_among_its_hosts(serve: Serve) -> None:
    program = serve({"/metrics": recorded("ceph-18-mgr-prometheus.txt")})
    assert Ceph(program, "").read() == Backlog(400 * 4_000_000 // 2, objects_at_risk=300)


def test_seaweedfs_lacks_the_volumes_that_one_server_has_lost(serve: Serve) -> None:
    program = serve({"/vol/status": recorded("seaweedfs-4.48-vol-status.json")})
    assert SeaweedFs(program, "").read() == Backlog(2 * 3_000_056 // 2, objects_at_risk=2)


@pytest.mark.parametrize("kind", [Minio, Ceph, SeaweedFs, Syncthing, Rclone])
@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", '{"Volumes": {"DataCenters": [1]}}', 'a{b="'])
def test_another_programs_answer_is_named_as_that(
    serve: Serve, kind: type[Minio | Ceph | SeaweedFs | Syncthing | Rclone], text: str
) -> None:
    paths = ("/minio/v2/metrics/node", "/metrics", "/vol/status", "/rest/system/connections", "/core/stats")
    with pytest.raises(ProgramError) as caught:
        kind(serve(dict.fromkeys(paths, text)), "").read()
    assert caught.value.state == "unexpected"


def syncthing(serve: Serve, *, connections: dict[str, object], lacks: dict[str, int]) -> Syncthing:
    pages = {f"/rest/db/completion?device={name}": json.dumps({"needBytes": size}) for name, size in lacks.items()}
    pages |= {"/rest/system/connections": json.dumps({"connections": connections})}
    pages |= {"/rest/db/completion": '{"needBytes": 7}'}
    return Syncthing(serve(pages), "key")


def test_syncthing_owes_what_connected_devices_lack_by_their_address(serve: Serve) -> None:
    near = {"connected": True, "address": "10.0.0.2:22000"}
    six = {"connected": True, "address": "[fd00::3%eth0]:22000"}
    away = {"connected": False, "address": ""}
    made = syncthing(serve, connections={"A": near, "B": six, "C": away}, lacks={"A": 100, "B": 50, "C": 1000})
    assert made.read() == Backlog(150, 7, 1000, peers={"10.0.0.2": 100, "fd00::3": 50})


def test_what_goes_through_a_relay_counts_everywhere(serve: Serve) -> None:
    relay = {"connected": True, "address": "relay.example:22067"}
    near = {"connected": True, "address": "10.0.0.2:22000"}
    made = syncthing(serve, connections={"A": relay, "B": near}, lacks={"A": 100, "B": 50})
    assert made.read() == Backlog(150, 7)


def test_what_goes_to_an_address_that_only_its_link_tells_from_others_counts_everywhere(serve: Serve) -> None:
    near = {"connected": True, "address": "[fe80::1%eth1]:22000"}
    assert syncthing(serve, connections={"A": near}, lacks={"A": 100}).read() == Backlog(100, 7)


def test_a_slow_program_is_asked_about_some_devices_at_a_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.adapters.syncthing.READ_S_MAX", 0.0)
    near = {"connected": True, "address": "10.0.0.2:22000"}
    made = syncthing(serve, connections={"A": near, "B": near, "C": near}, lacks={"A": 1, "B": 10, "C": 100})
    assert [made.read().upload_bytes for _ in range(4)] == [1, 11, 111, 111]


def test_a_limit_of_the_operators_that_spares_the_local_network_is_left_alone(serve: Serve) -> None:
    made = syncthing(serve, connections={}, lacks={})
    spares = {"maxSendKbps": 500, "maxRecvKbps": 0, "limitBandwidthInLan": False}
    assert made.limited(spares, 80_000_000) is None
    assert made.limited({**spares, "limitBandwidthInLan": True}, 80_000_000) == {
        "maxSendKbps": 500, "maxRecvKbps": 0, "limitBandwidthInLan": True,
    }  # fmt: skip
    assert made.limited({**spares, "maxSendKbps": 0}, 8192 * 1000) == {
        "maxSendKbps": 1000, "maxRecvKbps": 0, "limitBandwidthInLan": True,
    }  # fmt: skip

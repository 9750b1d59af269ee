"""A pod's traffic is in the class that it names, by the kernel's own counters, and nothing stays of a pod that went.

The API server is a test's; the cgroups are real ones, laid out as the kubelet does, and what sends in them is a process
of a container that knows nothing of hive-qos.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from broker_host import COMMAND, Broker
from kubernetes_api import KubernetesApi, pod
from patience import LIMIT_S, wait_until

from broker.policy.types import CLASS_NAMES
from shaping.classify import bpf, cgroup
from tools.lab import Lab

PAYLOAD_BYTES = 200_000
NOISE_BYTES = PAYLOAD_BYTES // 4
UID = "0ee6f3a1-52b3-4a5e-9a3e-5b1c2d3e4f50"
BASE = """
version = 1
[[interface]]
name = "eth0"
egress = "50 Mbit/s"
[daemon]
group = "nogroup"
"""
SINK = """
import socket, threading
def take(connection):
    while connection.recv(65536):
        pass
server = socket.create_server(("", 4000))
print(flush=True)
while True:
    threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()
"""
SEND = """
import os, socket, sys
with open(sys.argv[3] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
with socket.create_connection((sys.argv[1], 4000), 30) as sock:
    sock.sendall(bytes(int(sys.argv[2])))
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet's cgroup root of our own; removed with all below it."""
    path = cgroup.mount() / f"hqpods-{os.getpid()}"
    (path / "kubepods" / "burstable").mkdir(parents=True)
    yield path
    for directory, _, _ in sorted(os.walk(path), reverse=True):
        with suppress(FileNotFoundError):
            os.rmdir(directory)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab("pods") as lab:
        lab.host("a")
        lab.host("b")
        lab.link("a", "b")
        lab.up()
        sink = lab["b"].popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
        assert sink.stdout is not None
        sink.stdout.readline()
        sink.stdout.close()
        yield lab


def test_a_pods_traffic_is_in_its_class_as_long_as_the_pod_is_there(lab: Lab, root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hq") as name:
        folder = Path(name)
        api, broker = KubernetesApi(folder), Broker(lab["a"], folder, configuration=BASE)
        (folder / "base.toml").write_text(BASE)
        broker.start()
        argv = [*COMMAND, "pods", "--base", str(folder / "base.toml"), "--out", str(folder / "broker.toml")]
        argv += ["--account", str(api.account), "--cgroup-root", root.name]
        argv += ["--socket", str(folder / "run/broker.sock")]
        with open(folder / "pods.log", "wb") as log:
            pods = subprocess.Popen(argv, env={**os.environ, **api.environment}, stderr=log)
        try:
            container = root / "kubepods" / "burstable" / f"pod{UID}" / "container"
            container.mkdir(parents=True)

            def said() -> str:
                return ((folder / "pods.log").read_text().splitlines() or [""])[-1]

            def sent_in(expected: str) -> None:
                before = {one: broker.sent_bytes(one) for one in CLASS_NAMES}

                def sent() -> dict[str, int]:
                    return {one: broker.sent_bytes(one) - before[one] for one in CLASS_NAMES}

                lab["a"].run([sys.executable, "-c", SEND, lab["b"].address, str(PAYLOAD_BYTES), str(container)])
                wait_until(lambda: sent()[expected] >= PAYLOAD_BYTES, what=sent)
                assert all(count < NOISE_BYTES for one, count in sent().items() if one != expected), sent()

            wait_until(lambda: "rules=0" in said(), what=said)
            sent_in("other")
            api.put(pod("backup", uid=UID, traffic_class="storage"))
            wait_until(lambda: "rules=1" in said(), what=said)
            first = wait_until(lambda: programs_at(container.parent), what=lambda: broker.log)
            sent_in("storage")
            api.put(pod("backup", uid=UID, traffic_class="compute"))
            wait_until(lambda: programs_at(container.parent) - first, what=lambda: broker.log)
            sent_in("compute")
            api.delete(UID)
            wait_until(lambda: "rules=0" in said(), what=said)
            wait_until(lambda: not programs_at(container.parent), what=lambda: broker.log)
            sent_in("other")
        finally:
            pods.send_signal(signal.SIGTERM)
            assert pods.wait(LIMIT_S) == 0
            assert broker.end(signal.SIGTERM) == 0
            api.close()


def programs_at(path: Path) -> frozenset[int]:
    """The programs of a broker at a cgroup."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = bpf.attached(cgroup=descriptor, attach_type=bpf.ATTACH_SOCK_CREATE)
    finally:
        os.close(descriptor)
    return frozenset(one.program_id for one in found if one.name.startswith("hq_"))

"""Rules as an operator writes them in `broker.toml` put real packets into their class, IPv4 and IPv6, TCP and UDP.

The programs know nothing of hive-qos. Each case sends the same bytes with one property that a rule names; the daemon's
own counters say in which class the kernel sent them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import COMMAND, Broker
from patience import wait_until

from broker.policy.types import CLASS_NAMES
from shaping.classify import cgroup
from tools.lab import Lab

USER = 61_236
"""Nobody's, so that its rule, which hangs at the top of all cgroups, concerns no process but ours."""
PORT, PLAIN_PORT = 4873, 4000
SYNCTHING_PORT = 22000
UNIT = "system.slice/urbackupsrv.service"
"""Of a known program that hardly any test machine has."""
PAYLOAD_BYTES = 100_000
NOISE_BYTES = PAYLOAD_BYTES // 4
"""Acknowledgements, neighbour and router discovery: what may go by in other classes meanwhile."""
RULES = f"""
version = 1
[[interface]]
name = "eth0"
egress = "50 Mbit/s"
[class.control]
match = [{{ cgroup = "%s" }}]
[class.compute]
match = [{{ uid = {USER} }}]
[class.storage]
match = [{{ port = {PORT} }}, {{ dscp = 1 }}]
programs = ["syncthing", "urbackup"]
[daemon]
group = "nogroup"
"""
SINK = """
import socket, sys, threading
def take(server):
    while True:
        connection = server.accept()[0]
        while connection.recv(65536):
            pass
for port in map(int, sys.argv[1:]):
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    threading.Thread(target=take, args=(server,)).start()
print(flush=True)
"""
SEND = """
import os, socket, sys, time
address, port, kind, size, user, dscp, cgroup, own_port = sys.argv[1:]
if cgroup:
    with open(cgroup + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
if user:
    os.setuid(int(user))
sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, getattr(socket, kind))
if dscp:
    level, option = (41, socket.IPV6_TCLASS) if ":" in address else (0, socket.IP_TOS)
    sock.setsockopt(level, option, int(dscp) << 2)
if own_port:  # as a server's answers have it
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", int(own_port)))
if kind == "SOCK_STREAM":
    sock.connect((address, int(port)))
    sock.sendall(bytes(int(size)))
else:
    for _ in range(int(size) // 1000):
        sock.sendto(bytes(1000), (address, int(port)))
        time.sleep(0.0005)
"""


@pytest.fixture(scope="module")
def group() -> Iterator[Path]:
    """A cgroup of our own, removed when the processes in it have ended."""
    path = cgroup.mount() / f"hqrules-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.fixture(scope="module")
def unit() -> Iterator[Path]:
    """The cgroup of a unit, as systemd makes it; what was not there is removed."""
    path = cgroup.mount() / UNIT
    made = [one for one in (path.parent, path) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    yield path
    for one in reversed(made):
        one.rmdir()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab("rules") as lab:
        lab.host("a")
        lab.host("b")
        lab.link("a", "b")
        lab.up()
        argv = [sys.executable, "-c", SINK, str(PORT), str(PLAIN_PORT), str(SYNCTHING_PORT)]
        sink = lab["b"].popen(argv, stdout=subprocess.PIPE)
        assert sink.stdout is not None
        sink.stdout.readline()
        sink.stdout.close()
        yield lab


@pytest.fixture(scope="module")
def broker(lab: Lab, group: Path, unit: Path) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="hq") as folder:
        broker = Broker(lab["a"], Path(folder), configuration=RULES % group.name)
        (Path(folder) / "check.toml").write_text(broker.configuration)
        lab["a"].run([*COMMAND, "check", str(Path(folder) / "check.toml")])
        broker.start()
        yield broker
        assert broker.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("cgroup", "control"),
        ("uid", "compute"),
        ("port", "storage"),
        ("dscp", "storage"),
        ("none", "other"),
        ("program", "storage"),
        ("program's server", "storage"),
        ("program's unit", "storage"),
    ],
)
def test_a_rule_puts_traffic_into_its_class(
    broker: Broker, lab: Lab, group: Path, unit: Path, rule: str, expected: str, family: str, kind: str
) -> None:
    address = lab["b"].address if family == "ipv4" else lab["b"].address6
    before = {name: broker.sent_bytes(name) for name in CLASS_NAMES}

    def sent() -> dict[str, int]:
        return {name: broker.sent_bytes(name) - before[name] for name in CLASS_NAMES}

    broker.host.run(
        [
            sys.executable, "-c", SEND, address,
            str({"port": PORT, "program": SYNCTHING_PORT}.get(rule, PLAIN_PORT)), kind, str(PAYLOAD_BYTES),
            str(USER) if rule == "uid" else "",
            "1" if rule == "dscp" else "",
            str({"cgroup": group, "program's unit": unit}.get(rule, "")),
            str(SYNCTHING_PORT) if rule == "program's server" else "",
        ]
    )  # fmt: skip
    wait_until(lambda: sent()[expected] >= PAYLOAD_BYTES, what=sent)
    assert all(count < NOISE_BYTES for name, count in sent().items() if name != expected), sent()

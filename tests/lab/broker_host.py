"""The daemon as the lab's tests run it: in a host, from a configuration in a folder of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patience import LIMIT_S, wait_until

from broker import client
from hive_qos.errors import BrokerUnavailableError
from tools.lab import Lab
from tools.lab.host import Host

COMMAND = [str(Path(sys.executable).with_name("hive-qos"))]
CONFIGURATION = """
version = 1
[[interface]]
name = "eth0"
egress = "20 Mbit/s"
[class.storage]
match = [{ port = 4873 }]
[daemon]
group = "nogroup"
"""
SINK = """
import socket
server = socket.create_server(("", 4000))
print(flush=True)
while True:
    connection = server.accept()[0]
    while connection.recv(65536):
        pass
"""
SEND_TCP = """
import socket, sys
with socket.create_connection((sys.argv[1], 4000), 30) as sock:
    sock.sendall(bytes(int(sys.argv[2])))
"""
PEERS = """
[peers]
listen = "0.0.0.0:4710"
ca = "{pki}/ca.crt"
certificate = "{pki}/{host}.crt"
key = "{pki}/{host}.key"
"""
STORAGE = """
import socket, sys, threading
if sys.argv[1] == "sink":
    server = socket.create_server(("", 4873))
    print(flush=True)
    def take(connection):
        while connection.recv(1 << 16):
            pass
    while True:
        threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()
with socket.create_connection((sys.argv[1], 4873), 30) as connection:
    while True:
        connection.sendall(bytes(1 << 16))
"""
TRAINER = """
import socket, sys, time
from broker.client import Session
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
with Session(job="lab", socket_path=sys.argv[1]) as session:
    session.register(sock, traffic_class="compute", role="gradient")
    for step in range(10_000):
        session.announce(step=step, bytes_by_destination={sys.argv[2]: 200_000}, deadline_s=0.2)
        for _ in range(150):
            sock.sendto(bytes(1400), (sys.argv[2], 9))
        time.sleep(0.1)
        session.announce_end(step=step)
        time.sleep(0.3)
"""


@dataclass
class Broker:
    """A daemon in a host, and where it can be asked. `environment` is what it gets more, `before` becomes it."""

    host: Host
    folder: Path
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    configuration: str = CONFIGURATION
    environment: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    @property
    def sessions(self) -> str:
        return str(self.folder / "run/session.sock")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> None:
        (self.folder / "broker.toml").write_text(self.configuration)
        argv = [*self.before, *COMMAND, "broker", "--config", str(self.folder / "broker.toml"), "--runtime-dir"]
        argv += [str(self.folder / "run"), "--state-dir", str(self.folder / "state"), *self.arguments]
        with open(self.folder / "log", "wb") as log:
            self.process = self.host.popen(argv, env=self.environment, stderr=log)
        wait_until(self.answers, what=lambda: self.log)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        try:
            self.status()
        except BrokerUnavailableError:
            return False
        return True

    def status(self) -> dict[str, Any]:
        return client.status(str(self.folder / "run/broker.sock"))

    def flows(self) -> list[dict[str, Any]]:
        found = json.loads(client.fetch("/v1/flows", socket_path=str(self.folder / "run/broker.sock")))
        return list(found["flows"])

    def sent_bytes(self, traffic_class: str) -> int:
        text = client.fetch("/metrics", socket_path=str(self.folder / "run/broker.sock")).decode()
        found = re.search(
            rf'^hive_qos_class_sent_bytes_total{{class="{traffic_class}",.*?}} (\S+)$', text, re.MULTILINE
        )
        assert found is not None, text
        return int(float(found[1]))

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def stop(self) -> None:
        """End it, where it has been started and lives still."""
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGTERM)

    def watchdogs(self) -> list[int]:
        """The watchdogs that live for this broker, by the state directory on their command line."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")  # of what has ended and is not waited for, nothing
            except OSError:  # it ended meanwhile
                continue
            if b"broker.process.watchdog" in words and str(self.folder / "state").encode() in words:
                found.append(int(path.parent.name))
        return found

    def root_qdisc(self) -> str:
        return self.host.run(["tc", "qdisc", "show", "dev", "eth0", "root"]).stdout


@contextmanager
def two_hosts(name: str, **options: Any) -> Iterator[Lab]:
    """A lab with hosts a and b on one link. `options` are a's."""
    with Lab(name) as lab:
        lab.host("a", **options)
        lab.host("b")
        lab.link("a", "b")
        lab.up()
        yield lab


@contextmanager
def broker_in(host: Host, **options: Any) -> Iterator[Broker]:
    """A broker that is not started, in a folder of its own; it has ended afterwards. `options` are `Broker`'s."""
    with tempfile.TemporaryDirectory(prefix="hq") as path:
        broker = Broker(host, Path(path), **options)
        try:
            yield broker
        finally:
            broker.stop()

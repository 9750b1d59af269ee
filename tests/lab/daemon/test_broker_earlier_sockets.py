"""Sockets that were open before the broker get their class: the bytes that their programs send afterwards count in it.

The programs know nothing of hive-qos. Each is told over its standard input what to do, and when.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_host import Broker, broker_in, two_hosts
from patience import wait_until

from shaping.classify import cgroup
from tools.lab import Lab
from tools.lab.host import Host

USER = 61_237
"""Nobody's, so that its rule concerns no process but ours."""
PORT, LISTEN_PORT = 4000, 4500
PAYLOAD_BYTES = 200_000
RULES = f"""
version = 1
[[interface]]
name = "eth0"
egress = "50 Mbit/s"
[class.storage]
match = [{{ cgroup = '%s' }}]
[class.compute]
match = [{{ uid = {USER} }}]
[daemon]
group = "nogroup"
"""
SINK = """
import socket, sys, threading
def take(connection):
    while connection.recv(65536):
        pass
server = socket.create_server(("", 4000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", 4000))
print(flush=True)
while True:
    threading.Thread(target=take, args=(server.accept()[0],)).start()
"""
PROGRAM = """
import os, socket, sys, threading, time
def drain(sock):
    while sock.recv(65536):
        pass
group, user = sys.argv[1:]
if group:
    with open(group + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
if user:
    os.setuid(int(user))
sock = parked = None
for line in sys.stdin:
    word, *rest = line.split()
    if word == "connect":
        sock = socket.create_connection((rest[0], int(rest[1])))
        threading.Thread(target=drain, args=(sock,), daemon=True).start()
    elif word == "udp":
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect((rest[0], int(rest[1])))
    elif word == "listen":
        server = socket.create_server(("", int(rest[0])))
    elif word == "accept":
        sock = server.accept()[0]
    elif word == "send":
        for _ in range(int(rest[0]) // 1000):
            sock.sendall(bytes(1000))
            time.sleep(0.0002)
    elif word == "park":  # in a queue, where no process has it
        parked = socket.socketpair()
        sock.shutdown(socket.SHUT_RD)  # ends the thread
        socket.send_fds(parked[0], [b"."], [sock.fileno()])
        sock.close()
    print(word, flush=True)
"""


class Program:
    """A program in a host that does one thing after the other."""

    def __init__(self, host: Host, *, group: Path | None = None, user: int | None = None) -> None:
        argv = [sys.executable, "-c", PROGRAM, str(group or ""), str(user or "")]
        self._process = host.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self._process.stdin.flush()

    def finish(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().decode().strip() == word

    def do(self, *words: object) -> None:
        self.start(*words)
        self.finish(str(words[0]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


@contextmanager
def program(host: Host, *, group: Path | None = None, user: int | None = None) -> Iterator[Program]:
    made = Program(host, group=group, user=user)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Beside eth0 host a has an interface whose name is no text: a broker does not mind."""
    with two_hosts("earlier") as lab:
        lab["a"].run(["ip", "link", "add", "no\udcfftext\x1b[2J", "type", "veth", "peer", "name", "peer0"])
        sink = lab["b"].popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
        assert sink.stdout is not None
        sink.stdout.readline()
        sink.stdout.close()
        yield lab


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of our own, named as systemd escapes a dash; removed when the processes in it have ended."""
    path = cgroup.mount() / f"hqearlier\\x2d{os.getpid()}.slice"
    path.mkdir()
    yield path
    path.rmdir()


def sends(broker: Broker, sender: Program, traffic_class: str) -> None:
    """The bytes that a program sends now count in a class."""
    before = broker.sent_bytes(traffic_class)
    sender.do("send", PAYLOAD_BYTES)
    wait_until(
        lambda: broker.sent_bytes(traffic_class) - before >= PAYLOAD_BYTES,
        what=lambda: f"{broker.status()['interfaces']} {broker.log}",
    )


def locals_of(broker: Broker, traffic_class: str) -> set[str]:
    """The own ends of the TCP connections of a class, as of its last look: once a second at least."""
    flows = [flow for flow in broker.status()["flows"] if flow["kind"] == "tcp"]
    return {flow["local"] for flow in flows if flow["class"] == traffic_class}


def marked(broker: Broker, count: int) -> bool:
    return bool(broker.status()["daemon"]["sockets_marked"] >= count)


def test_connections_and_listeners_of_before_are_in_their_class(lab: Lab, group: Path) -> None:
    a, b = lab["a"], lab["b"]
    with (
        broker_in(a, configuration=RULES % group.name) as broker,
        program(a, group=group) as of_group,
        program(a, user=USER) as of_user,
        program(a, group=group) as datagrams,
        program(a, group=group) as server,
        program(b) as client,
    ):
        of_group.do("connect", b.address, PORT)
        of_user.do("connect", b.address, PORT)
        datagrams.do("udp", b.address, PORT)
        server.do("listen", LISTEN_PORT)
        broker.start()
        wait_until(lambda: marked(broker, 4), what=lambda: broker.log)
        sends(broker, of_group, "storage")
        sends(broker, datagrams, "storage")
        sends(broker, of_user, "compute")
        server.start("accept")
        client.do("connect", a.address, LISTEN_PORT)
        server.finish("accept")
        sends(broker, server, "storage")
        accepted = f"{a.address}:{LISTEN_PORT}"  # the kernel gave it its class
        wait_until(lambda: accepted in locals_of(broker, "storage"), what=lambda: broker.status()["flows"])
        assert broker.status()["daemon"]["sockets_marked"] == 4, "and not the sweep"
        assert broker.status()["alarms"] == []


def test_a_cgroup_that_is_made_again_is_classified_again(lab: Lab, group: Path) -> None:
    a, b = lab["a"], lab["b"]
    with broker_in(a, configuration=RULES % group.name) as broker:
        group.rmdir()
        broker.start()
        for _ in range(2):
            group.mkdir()
            with program(a, group=group) as service:
                service.do("connect", b.address, PORT)  # before anybody may have seen the new cgroup
                wait_until(lambda: locals_of(broker, "storage"), what=lambda: broker.log)
                sends(broker, service, "storage")
            wait_until(lambda: not (group / "cgroup.procs").read_text())
            wait_until(lambda: not locals_of(broker, "storage"))  # what is seen next is another one
            group.rmdir()
        group.mkdir()


def test_the_processes_and_cgroups_of_connections_are_shown(lab: Lab, group: Path) -> None:
    a, b = lab["a"], lab["b"]
    nested = group / "named\x1b[2J\u202e"
    nested.mkdir()
    try:
        with broker_in(a, configuration=RULES % group.name) as broker, program(a, group=nested) as service:
            broker.start()
            service.do("connect", b.address, PORT)

            def shown() -> Any:
                flows = [flow for flow in broker.status()["flows"] if flow["class"] == "storage"]
                return flows[0] if flows and flows[0]["pid"] and flows[0]["cgroup"] else None

            flow = wait_until(shown, what=lambda: broker.status()["flows"])
            assert flow["pid"] == service.pid
            assert flow["command"] == Path(f"/proc/{service.pid}/comm").read_text().strip()
            assert flow["cgroup"] == f"/{group.name}/named\\x1b[2J\\u202e"
        wait_until(lambda: not (nested / "cgroup.procs").read_text())
    finally:
        nested.rmdir()


def test_a_socket_in_nobodys_hands_is_told_and_left(lab: Lab, group: Path) -> None:
    a, b = lab["a"], lab["b"]
    with broker_in(a, configuration=RULES % group.name) as broker, program(a, group=group) as service:
        service.do("connect", b.address, PORT)
        service.do("park")
        broker.start()
        alarm = wait_until(lambda: broker.status()["alarms"], what=lambda: broker.log)[0]
        assert (alarm["code"], alarm["subject"]) == ("sockets-not-classified", "rules")
        assert "1: no process holds them" in alarm["text"]
        said = [line for line in broker.log.splitlines() if "no process holds them" in line]
        assert len([line for line in said if " alarm-raised " not in line]) == 1

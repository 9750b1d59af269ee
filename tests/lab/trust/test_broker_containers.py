"""What crosses a veth or a bridge out of a container or a virtual machine is classified on the host by its address,
whether or not that is translated on the way out.

The priority of the container's sockets does not arrive there: each of these sends with a class of ours on its socket,
and the host's broker counts its bytes where the address rule says, or in `other`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from address_translation import masquerade
from broker_host import COMMAND, SINK, Broker, broker_in
from patience import LIMIT_S, wait_until

from broker.policy.types import CLASS_NAMES
from shaping.model.names import LEAF_MINOR, classid
from tools.lab import Lab
from tools.lab.host import Host

PAYLOAD_BYTES = 100_000
NOISE_BYTES = PAYLOAD_BYTES // 4
BRIDGED, BRIDGED6 = "10.231.7", "fd23:7::"
RULES = """
version = 1
[[interface]]
name = "%s"
egress = "50 Mbit/s"
[class.storage]
match = [%s]
[daemon]
group = "nogroup"
"""
SEND = """
import socket, struct, sys
address, priority, size = sys.argv[1:]
sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=I", int(priority)))
sock.connect((address, 4000))
sock.sendall(bytes(int(size)))
"""
MARKED_COMPUTE = classid(LEAF_MINOR["compute"])


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Container c behind host a; b is somewhere else. And the same once more over a bridge in a."""
    with Lab("containers") as lab:
        lab.host("c")
        lab.router("a")
        lab.host("b")
        lab.link("c", "a")
        lab.link("a", "b")
        lab.up()
        sink = SINK.replace('create_server(("", 4000))', 'create_server(("::", 4000), family=10, dualstack_ipv6=True)')
        process = lab["b"].popen([sys.executable, "-c", sink], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        yield lab


def configuration(lab: Lab, *addresses: str) -> str:
    matches = ", ".join(f'{{ address = "{address}" }}' for address in addresses)
    return RULES % (lab["a"].interface_on("b"), matches)


def sent_by(broker: Broker, sender: Host, address: str, *, priority: int, expected: str) -> None:
    """All that a host sends is counted in one class."""
    before = {name: broker.sent_bytes(name) for name in CLASS_NAMES}

    def sent() -> dict[str, int]:
        return {name: broker.sent_bytes(name) - before[name] for name in CLASS_NAMES}

    sender.run([sys.executable, "-c", SEND, address, str(priority), str(PAYLOAD_BYTES)])
    wait_until(lambda: sent()[expected] >= PAYLOAD_BYTES, what=sent)
    assert all(count < NOISE_BYTES for name, count in sent().items() if name != expected), sent()


def test_a_container_behind_a_veth_is_classified_by_its_address(lab: Lab) -> None:
    a, b, c = lab["a"], lab["b"], lab["c"]
    with broker_in(a, configuration=configuration(lab, c.address, f"{c.address6}/128")) as broker:
        broker.start()
        sent_by(broker, c, b.address, priority=MARKED_COMPUTE, expected="storage")
        sent_by(broker, c, b.address6, priority=MARKED_COMPUTE, expected="storage")
        sent_by(broker, a, b.address, priority=0, expected="other")
        sent_by(broker, a, b.address, priority=MARKED_COMPUTE, expected="compute")
    with broker_in(a, configuration=configuration(lab, "192.0.2.0/24")) as broker:
        broker.start()
        sent_by(broker, c, b.address, priority=MARKED_COMPUTE, expected="other")


PEER = """
import socket
with socket.create_server(("::", 4001), family=10, dualstack_ipv6=True) as server:
    print(flush=True)
    for _ in range(2):
        print(server.accept()[1][0].removeprefix("::ffff:"), flush=True)
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 4001), 30)"


def seen_from(lab: Lab) -> list[str]:
    """By which addresses b sees what c sends over IPv4 and IPv6."""
    b = lab["b"]
    with b.popen([sys.executable, "-c", PEER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for address in (b.address, b.address6):
            lab["c"].run([sys.executable, "-c", CONNECT, address])
        return process.communicate(timeout=LIMIT_S)[0].decode().split()


def test_a_container_behind_nat_is_classified_by_its_own_address_also_after_a_crash(lab: Lab) -> None:
    a, b, c = lab["a"], lab["b"], lab["c"]
    outbound = next(one for one in a.interfaces if one.name == a.interface_on("b"))
    with (
        masquerade(a),
        broker_in(a, configuration=configuration(lab, c.address, f"{c.address6}/128")) as broker,
    ):
        assert seen_from(lab) == [outbound.address, outbound.address6]
        broker.start()
        for end in (signal.SIGKILL, signal.SIGTERM):
            sent_by(broker, c, b.address, priority=0, expected="storage")
            sent_by(broker, c, b.address6, priority=0, expected="storage")
            sent_by(broker, a, b.address, priority=0, expected="other")
            assert "NAT" not in broker.log
            broker.end(end)
            if end is signal.SIGKILL:
                broker.start()
        with broker_in(a, configuration=configuration(lab, "192.0.2.0/24")) as another:
            another.start()
            sent_by(another, c, b.address, priority=0, expected="other")


def test_a_machine_behind_a_bridge_is_classified_by_its_address_at_the_port_that_leads_out(lab: Lab) -> None:
    a, c = lab["a"], lab["c"]
    a.run(["ip", "link", "add", "br0", "up", "type", "bridge"])
    for neighbour, number in (("b", 2), ("c", 3)):
        a.run(["ip", "link", "set", a.interface_on(neighbour), "master", "br0"])
        host = lab[neighbour]
        host.run(["ip", "address", "add", f"{BRIDGED}.{number}/24", "dev", host.interface_on("a")])
        host.run(["ip", "address", "add", f"{BRIDGED6}{number}/64", "dev", host.interface_on("a"), "nodad"])
    with broker_in(a, configuration=configuration(lab, f"{BRIDGED}.3", f"{BRIDGED6}3")) as broker:
        broker.start()
        sent_by(broker, c, f"{BRIDGED}.2", priority=MARKED_COMPUTE, expected="storage")
        sent_by(broker, c, f"{BRIDGED6}2", priority=MARKED_COMPUTE, expected="storage")
        assert "is a bridge" not in broker.log
    with broker_in(a, configuration=configuration(lab).replace(f'"{a.interface_on("b")}"', '"br0"')) as broker:
        broker.start()
        assert "what virtual machines and containers send passes its ports" in broker.log
        doctor = a.run([*COMMAND, "doctor", "--socket", str(broker.folder / "run/broker.sock")], check=False)
        assert "interface br0: is a bridge" in doctor.stdout
        assert "classification behind NAT: nftables" in doctor.stdout


REGISTER = """
import json, socket, sys
mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as session:
    session.connect(sys.argv[1])
    session.send(json.dumps({"v": 1, "op": "hello", "client": "test", "job": "j"}).encode())
    session.recv(65536)
    register = json.dumps({"op": "register", "id": 1, "class": "storage", "role": "storage"}).encode()
    socket.send_fds(session, [register], [mine.fileno()])
    print(session.recv(65536).decode())
"""


def test_a_socket_of_a_container_is_marked_and_told_where_its_class_ends(lab: Lab) -> None:
    with broker_in(lab["a"], configuration=configuration(lab, "192.0.2.0/24")) as broker:
        broker.start()
        answers = {
            name: json.loads(lab[name].run([sys.executable, "-c", REGISTER, broker.sessions]).stdout) for name in "ac"
        }
    assert {answer["op"] for answer in answers.values()} == {"registered"}
    assert "another network namespace: its class ends at a veth" in answers["c"]["note"]
    assert "note" not in answers["a"]

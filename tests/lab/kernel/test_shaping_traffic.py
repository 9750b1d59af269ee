"""Real packets land in the right class, whoever sends them and however the class is told."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until
from shaping_bench import FAMILIES, INTERFACE, PAYLOAD_BYTES, RECEIVER, SENDER, Bench
from shaping_contract import make_shape

from shaping.classify import cgroup
from shaping.classify.cgroup import SocketClassifier
from shaping.classify.socket_priority import mark_socket, priority_of
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.model.names import BULK_NAME, DSCP, LEAF_MINOR, MARK_MINOR, classid
from shaping.model.shapes import Rule
from shaping.shaper import Shaper
from tools.lab.kernel import entered

USER = 61_234
"""Nobody's: so that a rule on it, which hangs at the top of all cgroups, concerns no process but ours."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of our own, removed when the processes in it have ended."""
    path = cgroup.mount() / f"hqshaping-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


def sent_by_class(shaper: Shaper, send: Callable[[], None]) -> dict[str, int]:
    """Packets that each class sent while `send` ran and until nothing waits any more; classes with none left out."""
    before = shaper.counters(INTERFACE)
    send()
    wait_until(
        lambda: not any(found.backlog_packets for found in shaper.counters(INTERFACE).classes.values()),
        what=lambda: "a backlog does not drain",
    )
    after = shaper.counters(INTERFACE)
    assert after.direct_packets == 0
    counts = {name: found.sent_packets - before.classes[name].sent_packets for name, found in after.classes.items()}
    counts["other"] = without_strays(
        packets=counts["other"], sent_bytes=after.classes["other"].sent_bytes - before.classes["other"].sent_bytes
    )
    return {name: count for name, count in counts.items() if count}


def without_strays(*, packets: int, sent_bytes: int) -> int:
    """How many of these packets are a test's (1042 to 1062 bytes), and not the kernel's own (70 to 130 bytes).

    IPv6 reports its multicast groups and looks for routers, to `other`, for as long as a slow machine gives it.
    """
    return max(0, round((sent_bytes - 90 * packets) / 960))


def send_some(sock: socket.socket, family: socket.AddressFamily, *, port: int = 9, count: int = 20) -> None:
    for _ in range(count):
        sock.sendto(bytes(PAYLOAD_BYTES), (RECEIVER[family], port))


@pytest.mark.parametrize("family", FAMILIES)
def test_unmarked_traffic_goes_to_other(shaper: Shaper, bench: Bench, family: socket.AddressFamily) -> None:
    shaper.attach(make_shape(INTERFACE))
    with bench.socket(family) as sock:
        assert sent_by_class(shaper, lambda: send_some(sock, family)) == {"other": 20}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("leaf", sorted(LEAF_MINOR))
def test_a_marked_socket_goes_to_its_leaf_and_carries_its_codepoint(
    shaper: Shaper, bench: Bench, family: socket.AddressFamily, leaf: str
) -> None:
    shaper.attach(make_shape(INTERFACE))
    with bench.socket(family) as sock, bench.sink(family) as sink:
        level, option, receive = (
            (socket.IPPROTO_IP, socket.IP_TOS, socket.IP_RECVTOS)
            if family == socket.AF_INET
            else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, socket.IPV6_RECVTCLASS)
        )
        sink.setsockopt(level, receive, 1)
        mark_socket(sock, minor=MARK_MINOR[leaf], dscp=DSCP[leaf])
        port = sink.getsockname()[1]
        expected = {"compute": 20, BULK_NAME: 20} if leaf == BULK_NAME else {leaf: 20}
        assert sent_by_class(shaper, lambda: send_some(sock, family, port=port)) == expected
        _, ancillary, _, _ = sink.recvmsg(2000, 100)
        found = [data[0] for at, kind, data in ancillary if (at, kind) == (level, option)]
        assert found == [(DSCP[leaf] or 0) << 2]


def test_a_later_tos_takes_the_class_away_so_the_priority_is_set_last(bench: Bench) -> None:
    with bench.socket(socket.AF_INET) as sock:
        mark_socket(sock, minor=MARK_MINOR["storage"], dscp=1)
        assert priority_of(sock) == classid(MARK_MINOR["storage"])
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0)
        assert priority_of(sock) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_ports_go_to_their_class_in_both_directions_and_protocols(
    shaper: Shaper, bench: Bench, family: socket.AddressFamily
) -> None:
    rules = (Rule("storage", port=873), Rule("control", port=5353))
    shaper.attach(make_shape(INTERFACE, rules=rules))
    with bench.socket(family) as sock:
        assert sent_by_class(shaper, lambda: send_some(sock, family, port=873)) == {"storage": 20}
        assert sent_by_class(shaper, lambda: send_some(sock, family, port=5353)) == {"control": 20}
        assert sent_by_class(shaper, lambda: send_some(sock, family, port=874)) == {"other": 20}
    with bench.socket(family) as sock:
        sock.bind(("", 873))
        assert sent_by_class(shaper, lambda: send_some(sock, family, port=874)) == {"storage": 20}
    with entered(bench.receiver), socket.socket(family) as listener:
        listener.bind((RECEIVER[family], 873))
        listener.listen()
        with entered(bench.sender), socket.socket(family) as client:
            found = sent_by_class(shaper, lambda: client.connect((RECEIVER[family], 873)))
    assert set(found) == {"storage"}


@pytest.mark.parametrize("family", FAMILIES)
def test_codepoints_go_to_their_class_whatever_the_congestion_bits(
    shaper: Shaper, bench: Bench, family: socket.AddressFamily
) -> None:
    shaper.attach(make_shape(INTERFACE, rules=(Rule("storage", dscp=1),)))
    with bench.socket(family) as sock:
        for ecn in (0, 2):
            if family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 1 << 2 | ecn)
            else:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 1 << 2 | ecn)
            assert sent_by_class(shaper, lambda: send_some(sock, family)) == {"storage": 20}


CHILD = """
import os, socket, sys
way, where, family, address = sys.argv[1], sys.argv[2], socket.AddressFamily(int(sys.argv[3])), sys.argv[4]
if way == "cgroup":
    with open(where + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
else:
    os.setgroups([]); os.setuid(int(where))
datagrams, listener = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family)
listener.bind(("", 7000)); listener.listen()
print("ready", flush=True)
for command in sys.stdin:
    if command == "datagrams\\n":
        for _ in range(20):
            datagrams.sendto(bytes(1000), (address, 9))
    else:
        accepted, _ = listener.accept()
        accepted.sendall(bytes(50_000)); accepted.recv(1)
    print("done", flush=True)
"""


@contextlib.contextmanager
def child(bench: Bench, way: str, where: str, family: socket.AddressFamily) -> Iterator[Callable[[str], None]]:
    """A process of a cgroup or of a user at the sender, which sends when told."""
    words = ["nsenter", f"--net=/run/netns/{bench.sender}", sys.executable, "-c", CHILD, way, where, str(int(family))]
    with subprocess.Popen(
        [*words, RECEIVER[family]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def tell(command: str) -> None:
            stdin.write(command + "\n")
            stdin.flush()
            assert stdout.readline() == "done\n"

        try:
            assert stdout.readline() == "ready\n"
            yield tell
        finally:
            process.kill()
            process.wait()


def fetch(family: socket.AddressFamily, bench: Bench, tell: Callable[[str], None]) -> None:
    """Have the child at the sender accept a connection from the receiver and answer with 50 000 bytes."""
    with entered(bench.receiver):
        client = socket.socket(family)
    client.settimeout(LIMIT_S)
    with client:
        client.connect((SENDER[family], 7000))
        thread = threading.Thread(target=tell, args=("accept",))
        thread.start()
        left = 50_000
        while left:
            left -= len(client.recv(left))
        client.sendall(b".")
        thread.join()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["cgroup", "user"])
def test_a_process_of_a_cgroup_or_user_goes_to_its_class_with_the_connections_that_it_accepts(
    shaper: Shaper, bench: Bench, group: Path, family: socket.AddressFamily, way: str
) -> None:
    rule = Rule("storage", cgroup=group.name) if way == "cgroup" else Rule("storage", uid=USER)
    attachment = shaper.attach(make_shape(INTERFACE, rules=(rule,)))
    assert attachment.notes == ()
    with child(bench, way, str(group) if way == "cgroup" else str(USER), family) as tell:
        assert sent_by_class(shaper, lambda: tell("datagrams")) == {"storage": 20}
        found = sent_by_class(shaper, lambda: fetch(family, bench, tell))
        assert found["storage"] >= 2
        assert "other" not in found


def test_a_listener_from_before_a_restart_still_classifies_what_it_accepts(
    shaper: Shaper, bench: Bench, group: Path, tmp_path: Path
) -> None:
    shape = make_shape(INTERFACE, rules=(Rule("storage", cgroup=group.name),))
    shaper.attach(shape)
    with child(bench, "cgroup", str(group), socket.AF_INET) as tell:
        again = Shaper(RealKernel(), Journal(tmp_path), classifier=SocketClassifier())
        assert again.attach(shape).operations == ()
        found = sent_by_class(again, lambda: fetch(socket.AF_INET, bench, tell))
        again.close()
    assert found["storage"] >= 2


def test_the_nearest_cgroup_wins_over_its_parents_and_over_users(shaper: Shaper, bench: Bench, group: Path) -> None:
    inner = group / "inner"
    inner.mkdir()
    try:
        rules = (
            Rule("storage", cgroup=group.name),
            Rule("control", cgroup=f"{group.name}/inner"),
            Rule(BULK_NAME, uid=os.getuid() or USER),
        )
        shaper.attach(make_shape(INTERFACE, rules=rules))
        with child(bench, "cgroup", str(inner), socket.AF_INET) as tell:
            assert sent_by_class(shaper, lambda: tell("datagrams")) == {"control": 20}
    finally:
        inner.rmdir()


def test_a_rule_waits_for_its_cgroup_and_finds_it_again_when_it_was_made_anew(
    shaper: Shaper, bench: Bench, group: Path
) -> None:
    name = f"{group.name}/later"
    attachment = shaper.attach(make_shape(INTERFACE, rules=(Rule("storage", cgroup=name),)))
    assert any("waits until there is" in note for note in attachment.notes)
    for _ in range(2):
        (group / "later").mkdir()
        try:
            assert shaper.classify() == ()
            with child(bench, "cgroup", str(group / "later"), socket.AF_INET) as tell:
                assert sent_by_class(shaper, lambda tell=tell: tell("datagrams")) == {"storage": 20}
        finally:
            (group / "later").rmdir()


def test_another_namespaces_sockets_are_left_alone(shaper: Shaper, bench: Bench, group: Path) -> None:
    shaper.attach(make_shape(INTERFACE, rules=(Rule("storage", cgroup=group.name),)))
    code = (
        "import os,socket,sys; open(sys.argv[1]+'/cgroup.procs','w').write(str(os.getpid()));"
        "print(socket.socket().getsockopt(1, 12) & 0xffffffff)"
    )
    words = [sys.executable, "-c", code, str(group)]
    here = subprocess.run(
        ["nsenter", f"--net=/run/netns/{bench.sender}", *words], capture_output=True, text=True, check=True
    )
    there = subprocess.run(
        ["nsenter", f"--net=/run/netns/{bench.receiver}", *words], capture_output=True, text=True, check=True
    )
    assert (int(here.stdout), int(there.stdout)) == (classid(MARK_MINOR["storage"]), 0)


def test_a_passed_socket_wins_over_ports_and_codepoints(shaper: Shaper, bench: Bench) -> None:
    shaper.attach(make_shape(INTERFACE, rules=(Rule("storage", port=873), Rule("storage", dscp=18))))
    with bench.socket(socket.AF_INET) as sock:
        mark_socket(sock, minor=MARK_MINOR["compute"], dscp=18)
        assert sent_by_class(shaper, lambda: send_some(sock, socket.AF_INET, port=873)) == {"compute": 20}

"""What arrives is shaped on an IFB, and whatever becomes of the IFB, of us or of the daemon, it goes on arriving."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import LIMIT_S, most_of, wait_until
from shaping_bench import FAMILIES, INTERFACE, PAYLOAD_BYTES, SENDER, Bench, tool
from shaping_contract import MBIT, make_shape

from hive_qos.errors import ConfigurationError
from shaping.journal import Journal
from shaping.model.names import CLASS_NAMES, device_of
from shaping.model.shapes import IngressShape, Rule
from shaping.netlink.link_events import LinkEvents
from shaping.shaper import Shaper
from tools.lab.kernel import entered

ROOT = Path(__file__).parents[3]
STORAGE_PORT = 873
SOMEBODYS_FILTER = "filter add dev v0 parent ffff: protocol ip prio 7 u32 match ip dport 9 0xffff flowid :1"


def arriving(*, capacity: int = 40 * MBIT, rules: tuple[Rule, ...] = (), **rates: int) -> IngressShape:
    shape = make_shape(INTERFACE, capacity=capacity, **rates)  # type: ignore[arg-type]  # the same keywords
    return IngressShape(INTERFACE, capacity, shape.classes, rules)


class Arrivals:
    """The shaped host (`bench.sender`) receives here what its neighbour sends."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def count(
        self, family: socket.AddressFamily = socket.AF_INET, *, port: int = 9, dscp: int = 0, number: int = 10
    ) -> int:
        """Have datagrams sent, and count those that arrive within a second of silence."""
        with entered(self.bench.sender), socket.socket(family, socket.SOCK_DGRAM) as sink:
            sink.bind((SENDER[family], port))
            sink.settimeout(1.0)
            with entered(self.bench.receiver), socket.socket(family, socket.SOCK_DGRAM) as sock:
                if family == socket.AF_INET:
                    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
                else:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
                for _ in range(number):
                    sock.sendto(bytes(PAYLOAD_BYTES), (SENDER[family], port))
            arrived = 0
            while arrived < number:
                try:
                    sink.recv(2000)
                except TimeoutError:
                    return arrived
                arrived += 1
            return arrived


@pytest.fixture
def arrivals(bench: Bench) -> Arrivals:
    return Arrivals(bench)


@pytest.fixture
def device(bench: Bench) -> str:
    with entered(bench.sender):
        return device_of(socket.if_nametoindex(INTERFACE))


@pytest.fixture(autouse=True)
def nothing_is_left(bench: Bench, shaper: Shaper) -> Iterator[None]:
    """Whatever a test did, clearing removes it."""
    before = everything(bench)
    yield
    shaper.clear()
    assert everything(bench) == before


def everything(bench: Bench) -> tuple[list[str], list[str]]:
    links = tool("ip", "-n", bench.sender, "-br", "link").split("\n")
    return [line.split()[0] for line in links if line], bench.tc("qdisc", "show").splitlines()


def redirected(bench: Bench) -> bool:
    return "mirred" in bench.tc("filter", "show", "dev", INTERFACE, "ingress")


def by_class(shaper: Shaper, receive: Callable[[], object]) -> dict[str, int]:
    """Packets of about a kilobyte that each class let arrive meanwhile."""
    before = shaper.ingress.counters(INTERFACE).classes
    receive()
    after = shaper.ingress.counters(INTERFACE).classes
    grown = {name: (after[name].sent_bytes - before[name].sent_bytes) // PAYLOAD_BYTES for name in CLASS_NAMES}
    return {name: count for name, count in grown.items() if count}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_arrives_is_told_by_port_codepoint_and_source(
    shaper: Shaper, arrivals: Arrivals, family: socket.AddressFamily
) -> None:
    rules = (Rule("storage", port=STORAGE_PORT), Rule("compute", dscp=18))
    shaper.ingress.attach(arriving(rules=rules))
    assert by_class(shaper, lambda: arrivals.count(family)) == {"other": 10}
    assert by_class(shaper, lambda: arrivals.count(family, port=STORAGE_PORT)) == {"storage": 10}
    assert by_class(shaper, lambda: arrivals.count(family, dscp=18)) == {"compute": 10}
    sources = (Rule("control", address="10.211.0.2"), Rule("control", address="fd21::2"))
    assert shaper.ingress.apply(arriving(rules=(*rules, *sources)))
    assert by_class(shaper, lambda: arrivals.count(family)) == {"control": 10}
    assert by_class(shaper, lambda: arrivals.count(family, port=STORAGE_PORT)) == {"storage": 10}


SEND_TCP = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
    while True:
        sock.sendall(bytes(1 << 16))
"""


def test_tcp_gets_the_rate_of_its_class_and_no_more(shaper: Shaper, bench: Bench) -> None:
    shape = arriving(storage=8 * MBIT, storage_ceil=20 * MBIT, rules=(Rule("storage", port=STORAGE_PORT),))
    shaper.ingress.attach(shape)
    with entered(bench.sender), socket.socket() as listener:
        listener.bind((SENDER[socket.AF_INET], STORAGE_PORT))
        listener.listen()
        with entered(bench.receiver):
            sending = subprocess.Popen(
                [sys.executable, "-c", SEND_TCP, SENDER[socket.AF_INET], str(STORAGE_PORT)], stderr=subprocess.DEVNULL
            )
        try:
            listener.settimeout(LIMIT_S)
            connection, _ = listener.accept()
            with connection:

                def bits_per_s() -> float:
                    began_s, received = time.monotonic(), 0
                    while received < 5_000_000:
                        received += len(connection.recv(1 << 20))
                    return 8 * received / (time.monotonic() - began_s)

                connection.recv(1 << 20)
                found = most_of(bits_per_s, lambda rate: rate > 17 * MBIT)
                assert found < 21 * MBIT
                shaper.ingress.apply(arriving(rules=shape.rules))  # up to the capacity
                most_of(bits_per_s, lambda rate: rate > 34 * MBIT)
        finally:
            sending.kill()
            sending.wait()


@pytest.mark.parametrize("harm", ["down", "deleted", "replaced"])
def test_an_ifb_that_fails_is_noticed_and_what_arrives_goes_on_and_is_shaped_again(
    shaper: Shaper, bench: Bench, arrivals: Arrivals, device: str, harm: str
) -> None:
    shaper.ingress.attach(arriving())
    assert shaper.ingress.check(INTERFACE)
    assert arrivals.count() == 10
    with entered(bench.sender):
        events = LinkEvents()
    if harm == "down":
        tool("ip", "-n", bench.sender, "link", "set", device, "down")
    else:
        tool("ip", "-n", bench.sender, "link", "del", device)
        if harm == "replaced":
            tool("ip", "-n", bench.sender, "link", "add", device, "type", "ifb")
            tool("ip", "-n", bench.sender, "link", "set", device, "up")
    assert device in events.changes().names
    events.close()
    assert not shaper.ingress.check(INTERFACE)
    assert not redirected(bench)
    assert arrivals.count() == 10
    assert shaper.ingress.attach(arriving()).adopted == (harm == "down")
    assert shaper.ingress.verify(INTERFACE)
    assert by_class(shaper, arrivals.count) == {"other": 10}


CRASHING = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.model.shapes import IngressShape
from shaping.shaper import Shaper
from shaping_contract import make_shape
shape = make_shape("v0")
wanted = IngressShape("v0", shape.capacity_bits_per_s, shape.classes)
Shaper(RealKernel(), Journal(Path(sys.argv[1]))).ingress.attach(wanted)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash(bench: Bench, state: Path) -> None:
    """Leave an ingress as a daemon does that is killed."""
    command = [sys.executable, "-c", CRASHING, str(state), str(ROOT / "tests" / "unit" / "shaping")]
    with entered(bench.sender):
        killed = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert redirected(bench)


def test_after_a_kill_everything_arrives_and_the_next_start_adopts(
    shaper: Shaper, bench: Bench, arrivals: Arrivals, tmp_path: Path
) -> None:
    crash(bench, tmp_path)
    assert arrivals.count() == 10
    attachment = shaper.ingress.attach(arriving(storage=6 * MBIT))
    assert attachment.adopted
    assert len(attachment.operations) == 2
    assert arrivals.count() == 10
    assert shaper.ingress.detach(INTERFACE) == ()
    assert Journal(tmp_path).interfaces() == ()


def test_clearing_removes_what_no_journal_knows(shaper: Shaper, bench: Bench, device: str, tmp_path: Path) -> None:
    crash(bench, tmp_path / "elsewhere")
    notes = shaper.clear()
    assert f"{device}: removed" in notes
    assert not redirected(bench)


def watchdog(bench: Bench, *arguments: str, **options: object) -> subprocess.Popen[str]:
    with entered(bench.sender):
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "broker.process.watchdog", *arguments],
            cwd=ROOT, text=True, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,  # type: ignore[call-overload]  # those of Popen
        )  # fmt: skip


@pytest.mark.parametrize("end", ["death", "silence"])
@pytest.mark.parametrize("harm", ["none", "deleted"])
def test_the_watchdog_lets_everything_arrive_when_the_daemon_is_dead_or_hangs(
    bench: Bench, arrivals: Arrivals, shaper: Shaper, device: str, tmp_path: Path, end: str, harm: str
) -> None:
    crash(bench, tmp_path)
    if harm == "deleted":
        tool("ip", "-n", bench.sender, "link", "del", device)
        assert arrivals.count(number=1) == 0
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, watchdog(bench, str(theirs.fileno()), str(tmp_path), pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.settimeout(LIMIT_S)
        ours.recv(64)
        assert redirected(bench)  # it has 10 s for the first beat
        ours.send(b"b 1")
        ours.recv(64)
        if end == "death":
            ours.close()
        wait_until(lambda: not redirected(bench))
        assert arrivals.count() == 10
        if end == "silence":
            ours.send(b"q")
        process.wait(LIMIT_S)
    assert shaper.ingress.attach(arriving()).adopted == (harm == "none")
    assert redirected(bench)


def test_the_restore_units_command_stops_redirecting_and_is_harmless_twice(bench: Bench, tmp_path: Path) -> None:
    crash(bench, tmp_path)
    for stopped in (True, False):
        with watchdog(bench, "--once", str(tmp_path)) as process:
            assert process.wait(LIMIT_S) == 0
            assert process.stderr is not None
            assert ("what arrives at 1 interfaces is not shaped any more" in process.stderr.read()) == stopped
        assert not redirected(bench)


@pytest.mark.parametrize("kind", ["ingress", "clsact", "ingress with a filter"])
def test_somebody_elses_ingress_is_refused_and_left(shaper: Shaper, bench: Bench, kind: str) -> None:
    bench.tc("qdisc", "add", "dev", INTERFACE, kind.split()[0])
    try:
        if "filter" in kind:
            bench.tc(*SOMEBODYS_FILTER.split())
        before = everything(bench), bench.tc("filter", "show", "dev", INTERFACE, "ingress")
        with pytest.raises(ConfigurationError, match="somebody has a qdisc"):
            shaper.ingress.attach(arriving())
        shaper.clear()
        assert (everything(bench), bench.tc("filter", "show", "dev", INTERFACE, "ingress")) == before
    finally:
        bench.tc("qdisc", "del", "dev", INTERFACE, kind.split()[0])


def test_a_filter_that_somebody_adds_beside_ours_outlives_us(shaper: Shaper, bench: Bench, device: str) -> None:
    shaper.ingress.attach(arriving())
    bench.tc(*SOMEBODYS_FILTER.split())
    try:
        shaper.ingress.detach(INTERFACE)
        assert not redirected(bench)
        assert "pref 7" in bench.tc("filter", "show", "dev", INTERFACE, "ingress")
        assert device not in tool("ip", "-n", bench.sender, "-br", "link")
    finally:
        bench.tc("qdisc", "del", "dev", INTERFACE, "ingress")


def test_taking_the_ingress_away_loses_nothing_of_what_waits_in_it(shaper: Shaper, bench: Bench) -> None:
    slow = replace(arriving(other=40_000), classes=make_shape(INTERFACE, other=40_000).classes)
    slow = replace(
        slow,
        classes=tuple(replace(one, ceil_bits_per_s=40_000) if one.name == "other" else one for one in slow.classes),
    )
    shaper.ingress.attach(slow)
    with entered(bench.sender), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind((SENDER[socket.AF_INET], 9))
        sink.settimeout(LIMIT_S)
        with entered(bench.receiver), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for number in range(50):
                sock.sendto(number.to_bytes(2, "big") + bytes(PAYLOAD_BYTES), (SENDER[socket.AF_INET], 9))
        assert shaper.ingress.counters(INTERFACE).classes["other"].backlog_packets > 10
        shaper.ingress.detach(INTERFACE)
        assert [int.from_bytes(sink.recv(2000)[:2], "big") for _ in range(50)] == list(range(50))

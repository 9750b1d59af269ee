"""The real kernel keeps the contract, what was at the root comes back, and a crash leaves something to adopt."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shaping_bench import INTERFACE, Bench
from shaping_contract import CLAIMS, MBIT, RULES, make_shape

from hive_qos.errors import ConfigurationError, KernelRejectedError, PrivilegeError
from hive_qos.netlink import NetlinkSocket
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.kernel_api import Kernel
from shaping.model.names import INNER_MINOR, LEAF_MINOR
from shaping.model.tree import AddClass, AddRoot
from shaping.netlink.link_events import LinkChanges, LinkEvents
from shaping.netlink.links import read_link
from shaping.netlink.root import knows_qdisc
from shaping.netlink.route_events import RouteEvents
from shaping.plan.desired_tree import desired_tree
from shaping.plan.diff import diff
from shaping.shaper import Shaper
from tools.lab.kernel import entered


@pytest.fixture
def kernel(bench: Bench) -> Iterator[RealKernel]:
    """A kernel in the sender's namespace, whose interface has the default root before and after."""
    with entered(bench.sender):
        made = RealKernel()
        yield made
        made.close()
    subprocess.run(
        ["tc", "-n", bench.sender, "qdisc", "del", "dev", INTERFACE, "root"], capture_output=True, check=False
    )


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_real_kernel_keeps_the_contract(kernel: RealKernel, claim: Callable[[Kernel, str], None]) -> None:
    claim(kernel, INTERFACE)


def test_probing_says_what_this_kernel_has_and_touches_nothing(kernel: RealKernel, bench: Bench) -> None:
    before = bench.tc("qdisc", "show")
    found = kernel.capabilities()
    assert found.htb
    modules = subprocess.run(
        ["tc", "-n", bench.sender, "qdisc", "add", "dev", INTERFACE, "root", "fq_codel"],
        capture_output=True,
        check=False,
    )
    assert found.fq_codel == (modules.returncode == 0)
    subprocess.run(
        ["tc", "-n", bench.sender, "qdisc", "del", "dev", INTERFACE, "root"], capture_output=True, check=False
    )
    assert bench.tc("qdisc", "show") == before


@pytest.mark.parametrize("root", ["tbf rate 1gbit burst 1mb limit 1mb", "bfifo limit 123456", "htb default 10"])
def test_probing_is_not_deceived_by_a_root_that_somebody_configured_and_leaves_it(bench: Bench, root: str) -> None:
    bench.tc(*f"qdisc add dev lo root handle 5: {root}".split())
    try:
        before = bench.tc("qdisc", "show", "dev", "lo")
        with entered(bench.sender), contextlib.closing(NetlinkSocket()) as tc:
            known = {kind: knows_qdisc(tc, kind) for kind in ("htb", "nosuchkind")}
        assert known == {"htb": True, "nosuchkind": False}
        assert bench.tc("qdisc", "show", "dev", "lo") == before
    finally:
        bench.tc("qdisc", "del", "dev", "lo", "root")


def test_answers_that_do_not_fit_are_reported_and_the_next_question_is_answered(kernel: RealKernel) -> None:
    tree = desired_tree(make_shape(INTERFACE), kernel.capabilities())
    kernel._tc._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least that the kernel allows
    with pytest.raises(KernelRejectedError) as caught:
        kernel.apply(INTERFACE, diff(None, tree))
    assert caught.value.errno_value == errno.ENOBUFS
    kernel._tc._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    assert kernel.observe(INTERFACE) == tree


@pytest.mark.parametrize("name", [b"q\xff\xfe", "q\xe40".encode(), b"q0"])
def test_a_link_is_heard_of_and_found_whatever_bytes_its_name_is(bench: Bench, name: bytes) -> None:
    with entered(bench.sender), contextlib.ExitStack() as held:
        events = held.enter_context(contextlib.closing(LinkEvents()))
        asking = held.enter_context(contextlib.closing(NetlinkSocket()))
        subprocess.run([b"ip", b"link", b"add", name, b"type", b"ifb"], check=True)
        held.callback(subprocess.run, [b"ip", b"link", b"del", name], check=True)
        link = read_link(asking, os.fsdecode(name))
        assert link is not None
        assert link.kind == "ifb"
        assert events.changes() == LinkChanges(frozenset({link.number}), frozenset({os.fsdecode(name)}))
        assert read_link(asking, "nobody") is None


def test_a_change_of_routes_and_of_rules_is_heard_of_once_and_a_storm_is_too(bench: Bench) -> None:
    with entered(bench.sender), contextlib.closing(RouteEvents()) as events:
        for what in ("route", "rule", "-6 route", "-6 rule"):
            about = "table 7 unreachable default" if "route" in what else "from all table 7"
            for verb in ("add", "del"):
                subprocess.run(["ip", *what.split(), verb, *about.split()], check=True)
                assert events.changed(), (what, verb)
                assert not events.changed(), (what, verb)
        lines = "".join(f"route add unreachable 10.0.{number}.0/24 table 7\n" for number in range(250))
        subprocess.run(["ip", "-batch", "-"], input=3 * (lines + lines.replace("add", "del")), text=True, check=True)
        assert events.changed(), "also where some were lost"
        assert not events.changed()


def test_the_kernels_own_words_reach_the_error(kernel: RealKernel) -> None:
    tree = desired_tree(make_shape(INTERFACE), kernel.capabilities())
    kernel.apply(INTERFACE, diff(None, tree))
    with pytest.raises(KernelRejectedError) as caught:
        kernel.apply(INTERFACE, [AddRoot(tree.qdisc)])
    assert caught.value.detail == "Change operation not supported by specified qdisc"


BY_HAND = """
qdisc add dev v0 root handle ffe0: htb default 410
class add dev v0 parent ffe0: classid ffe0:1 htb rate 8mbit burst 20kb cburst 20kb quantum 2000
class add dev v0 parent ffe0:1 classid ffe0:410 htb rate 1mbit ceil 2mbit burst 20kb cburst 30kb quantum 2000 prio 3
qdisc add dev v0 parent ffe0:410 handle f410: bfifo limit 70000
filter add dev v0 parent ffe0: protocol ipv6 prio 7 u32 match ip6 dport 80 0xffff flowid ffe0:410
"""


def test_a_tree_built_by_hand_with_tc_is_read_as_it_is(kernel: RealKernel, bench: Bench) -> None:
    for line in BY_HAND.strip().splitlines():
        bench.tc(*line.split())
    tree = kernel.observe(INTERFACE)
    assert tree is not None
    root, leaf = tree.classes
    assert (root.rate_bits_per_s, root.ceil_bits_per_s, root.parent_minor) == (8 * MBIT, 8 * MBIT, 0)
    assert (leaf.rate_bits_per_s, leaf.ceil_bits_per_s, leaf.parent_minor, leaf.priority) == (MBIT, 2 * MBIT, 1, 3)
    assert (leaf.burst_bytes, leaf.cburst_bytes, leaf.quantum_bytes) == (20 * 1024, 30 * 1024, 2000)
    assert [(queue.kind, queue.limit) for queue in tree.leaves] == [("bfifo", 70_000)]
    assert tree.filters[0].matches == ((40, 0x0000FFFF, 80),)
    assert (tree.filters[0].family, tree.filters[0].preference, tree.filters[0].target_minor) == (6, 7, 0x410)


def shaper_of(kernel: RealKernel, directory: Path) -> Shaper:
    return Shaper(kernel, Journal(directory))


def test_a_clean_stop_brings_the_default_root_back(kernel: RealKernel, bench: Bench, tmp_path: Path) -> None:
    before = bench.tc("qdisc", "show", "dev", INTERFACE)
    shaper = shaper_of(kernel, tmp_path)
    attachment = shaper.attach(make_shape(INTERFACE, rules=RULES))
    assert not attachment.adopted
    assert "htb ffe0:" in bench.root()
    assert shaper.detach(INTERFACE) == ()
    assert bench.tc("qdisc", "show", "dev", INTERFACE) == before
    assert Journal(tmp_path).interfaces() == ()


@pytest.mark.parametrize(
    "options",
    [
        "handle 7: tbf rate 30mbit burst 32kb limit 100000",
        "handle 8: pfifo limit 77",
        "handle 9: bfifo limit 99000",
        "handle 5: htb default 20 r2q 12",
    ],
)
def test_a_users_own_root_is_refused_then_replaced_when_told_and_put_back(
    kernel: RealKernel, bench: Bench, tmp_path: Path, options: str
) -> None:
    bench.tc(*f"qdisc add dev {INTERFACE} root {options}".split())

    def configured() -> str:
        """Without what is a counter: neighbour discovery may pass at any time."""
        return re.sub(r"direct_packets_stat \d+ ", "", bench.root())

    before = configured()
    shaper = shaper_of(kernel, tmp_path)
    with pytest.raises(ConfigurationError, match="somebody configured"):
        shaper.attach(make_shape(INTERFACE))
    assert configured() == before
    shaper.attach(make_shape(INTERFACE), replace_foreign=True)
    assert "htb ffe0:" in bench.root()
    shaper.detach(INTERFACE)
    assert configured() == before


def test_what_hung_below_a_users_root_is_named_as_lost(kernel: RealKernel, bench: Bench, tmp_path: Path) -> None:
    bench.tc(*f"qdisc add dev {INTERFACE} root handle 5: htb default 20".split())
    bench.tc(*f"class add dev {INTERFACE} parent 5: classid 5:20 htb rate 10mbit".split())
    bench.tc(*f"qdisc add dev {INTERFACE} parent 5:20 handle 20: htb".split())
    bench.tc(*f"class add dev {INTERFACE} parent 20: classid 20:1 htb rate 1mbit".split())  # part of the queue
    shaper = shaper_of(kernel, tmp_path)
    attachment = shaper.attach(make_shape(INTERFACE), replace_foreign=True)
    assert any("2 classes, queues and filters below htb 5:" in note for note in attachment.notes)
    assert any("are lost" in note for note in shaper.detach(INTERFACE))
    assert "htb 5:" in bench.root()


CRASHING = """
import os, signal, sys
from pathlib import Path
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.shaper import Shaper
sys.path.insert(0, sys.argv[2])
from shaping_contract import make_shape
Shaper(RealKernel(), Journal(Path(sys.argv[1]))).attach(make_shape("v0"), replace_foreign=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_shapers_tree_is_adopted_and_the_users_root_still_comes_back(
    kernel: RealKernel, bench: Bench, tmp_path: Path
) -> None:
    bench.tc(*f"qdisc add dev {INTERFACE} root handle 8: pfifo limit 77".split())
    before = bench.root()
    contract = Path(__file__).parents[2] / "unit" / "shaping"
    killed = subprocess.run(
        [sys.executable, "-c", CRASHING, str(tmp_path), str(contract)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shaper = shaper_of(kernel, tmp_path)
    attachment = shaper.attach(make_shape(INTERFACE, storage=6 * MBIT))
    assert attachment.adopted
    assert attachment.prior.kind == "pfifo"
    changed = [operation.spec.minor for operation in attachment.operations if not isinstance(operation, AddClass)]
    assert changed == [LEAF_MINOR["storage"], INNER_MINOR["storage"]]
    shaper.detach(INTERFACE)
    assert bench.root() == before


@pytest.mark.parametrize("kind", ["tbf rate 7mbit burst 20k limit 100k", "mq"])
def test_classes_that_a_kind_comes_with_are_no_loss(
    kernel: RealKernel, bench: Bench, tmp_path: Path, kind: str
) -> None:
    bench.tc(*f"qdisc add dev {INTERFACE} root handle 8: {kind}".split())
    before = bench.root()
    shaper = shaper_of(kernel, tmp_path)
    assert shaper.attach(make_shape(INTERFACE), replace_foreign=True).notes == ()
    assert shaper.detach(INTERFACE) == ()
    assert bench.root() == before


def test_a_size_table_that_cannot_be_put_back_is_told(kernel: RealKernel, bench: Bench, tmp_path: Path) -> None:
    table = "stab overhead 24 linklayer ethernet mpu 64"
    bench.tc(*f"qdisc add dev {INTERFACE} root handle 8: {table} pfifo limit 77".split())
    shaper = shaper_of(kernel, tmp_path)
    attachment = shaper.attach(make_shape(INTERFACE), replace_foreign=True)
    assert "the size table (stab) of pfifo 8: will not be put back" in attachment.notes[0]
    shaper.detach(INTERFACE)
    assert "pfifo 8: root" in bench.root()
    assert "stab" not in bench.root()


def test_another_structure_is_built_anew(kernel: RealKernel, bench: Bench, tmp_path: Path) -> None:
    shaper = shaper_of(kernel, tmp_path)
    shaper.attach(make_shape(INTERFACE))
    bench.tc(*f"class add dev {INTERFACE} parent ffe0:1 classid ffe0:50 htb rate 1mbit".split())
    again = shaper_of(kernel, tmp_path)
    attachment = again.attach(make_shape(INTERFACE))
    assert not attachment.adopted
    assert "ffe0:50 that we would not make" in attachment.notes[0]
    assert again.verify(INTERFACE)


def test_a_second_writer_is_noticed_and_corrected(kernel: RealKernel, bench: Bench, tmp_path: Path) -> None:
    shaper = shaper_of(kernel, tmp_path)
    shape = make_shape(INTERFACE)
    shaper.attach(shape)
    assert shaper.verify(INTERFACE)
    bench.tc(*f"class change dev {INTERFACE} classid ffe0:310 htb rate 3mbit burst 20kb cburst 20kb".split())
    assert not shaper.verify(INTERFACE)
    assert [type(operation).__name__ for operation in shaper.apply(shape)] == ["ChangeClass"]
    assert shaper.verify(INTERFACE)


def test_without_privilege_the_error_says_which_capability(bench: Bench, tmp_path: Path) -> None:
    """In a child: giving up the capability cannot be undone."""
    child = (
        "import ctypes, os, sys; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from shaping.kernel import RealKernel; from shaping.journal import Journal\n"
        "from shaping.shaper import Shaper\n"
        "from shaping_contract import make_shape; from hive_qos.errors import PrivilegeError\n"
        "kernel = RealKernel(); tree = kernel.capabilities()\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: Shaper(RealKernel(), Journal(Path(sys.argv[1]))).attach(make_shape('v0'))\n"
        "except PrivilegeError as error: print(error)\n"
    )
    root = Path(__file__).parents[3]
    contract = root / "tests" / "unit" / "shaping"
    tmp_path.chmod(0o777)
    with entered(bench.sender):
        done = subprocess.run(
            [sys.executable, "-c", child, str(tmp_path), str(contract)],
            env={**os.environ, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "CAP_NET_ADMIN" in done.stdout, done.stderr
    assert PrivilegeError.code in done.stdout


def test_clearing_takes_away_all_that_is_ours(kernel: RealKernel, bench: Bench, tmp_path: Path) -> None:
    before = bench.tc("qdisc", "show")
    shaper_of(kernel, tmp_path).attach(make_shape(INTERFACE, rules=RULES))
    notes = shaper_of(kernel, tmp_path).clear()
    assert notes == (f"{INTERFACE}: put back what was there before",)
    assert bench.tc("qdisc", "show") == before
    assert shaper_of(kernel, tmp_path).clear() == ()


def test_the_number_of_a_request_begins_anew_after_32_bits(bench: Bench) -> None:
    with entered(bench.sender), contextlib.closing(NetlinkSocket()) as kernel:
        kernel._sequence = 2**32 - 2
        numbers = [link.number for _ in range(4) if (link := read_link(kernel, "lo")) is not None]
    assert len(set(numbers)) == 1
    assert len(numbers) == 4

"""A daemon that is killed between any two of its requests to the kernel: traffic flows, and the next one is right."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import broker_host
import pytest
from broker_host import COMMAND, CONFIGURATION, SEND_TCP, SINK, Broker, broker_in, two_hosts
from patience import LIMIT_S, wait_until

from tools.lab import Lab

# From when a file is there on, so many requests, one by one instead of some at a time; then the end.
DYING = """
import os, signal
from hive_qos.netlink import NetlinkSocket
left = int(os.environ["DIES_AFTER"])
def one_by_one(socket, requests):
    global left
    errors = []
    for request in requests:
        if os.path.exists(os.environ["DIES_ONCE"]):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        errors += whole(socket, [request])
    return errors
whole, NetlinkSocket._execute_batch = NetlinkSocket._execute_batch, one_by_one
from broker.cli import main
main()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("dies") as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    """One that looks after the way in, too."""
    configuration = CONFIGURATION.replace('egress = "20 Mbit/s"', 'egress = "20 Mbit/s"\ningress = "20 Mbit/s"')
    with broker_in(lab["a"], configuration=configuration) as broker:
        yield broker


@pytest.fixture(scope="module")
def sink(lab: Lab) -> Iterator[str]:
    process = lab["b"].popen(["python3", "-c", SINK], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    yield lab["b"].address
    process.kill()
    process.wait()


def tree(broker: Broker) -> list[str]:
    text = broker.host.run(["tc", "class", "show", "dev", "eth0"]).stdout
    return sorted(line.split(" leaf ")[0] for line in text.splitlines())


def run_until_it_dies(broker: Broker, monkeypatch: pytest.MonkeyPatch, *, after: int, at_the_end: bool) -> None:
    trigger = broker.folder / "now"
    broker.environment = {"DIES_AFTER": str(after), "DIES_ONCE": str(trigger)}
    with monkeypatch.context() as patch:
        patch.setattr(broker_host, "COMMAND", [sys.executable, "-c", DYING])
        if at_the_end:
            broker.start()
            trigger.touch()
            assert broker.end(signal.SIGTERM) == -signal.SIGKILL
        else:
            trigger.touch()
            with pytest.raises(AssertionError):  # it never answers
                broker.start()
            assert broker.process is not None
            assert broker.process.wait(LIMIT_S) == -signal.SIGKILL
    trigger.unlink()
    broker.environment = {}


@pytest.mark.parametrize(
    ("after", "at_the_end"), [pytest.param(4, False, marks=pytest.mark.long), (8, False), (40, False), (0, True)]
)
def test_whenever_it_dies_traffic_flows_and_the_next_one_is_right_and_puts_everything_back(
    broker: Broker, sink: str, monkeypatch: pytest.MonkeyPatch, after: int, at_the_end: bool
) -> None:
    before = broker.root_qdisc()
    broker.start()
    whole = tree(broker)
    broker.end(signal.SIGTERM)
    assert broker.root_qdisc() == before

    run_until_it_dies(broker, monkeypatch, after=after, at_the_end=at_the_end)
    wait_until(lambda: not broker.watchdogs())
    broker.host.run(["python3", "-c", SEND_TCP, sink, "20000"])
    broker.start()
    wait_until(lambda: tree(broker) == whole, what=lambda: (tree(broker), broker.log))
    wait_until(lambda: broker.status()["interfaces"][0]["shaped"], what=broker.status)
    assert broker.end(signal.SIGTERM) == 0
    assert broker.root_qdisc() == before
    assert (
        "nothing of ours is here"
        in broker.host.run([*COMMAND, "clear", "--state-dir", str(broker.folder / "state")]).stdout
    )

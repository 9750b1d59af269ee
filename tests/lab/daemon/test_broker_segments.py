"""The daemon limits the segments of a slow interface, says why, and gives the own limit back however it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from patience import LIMIT_S, wait_until

from tools.lab import Lab
from tools.lab.model import GSO_SEGMENTS_MAX

OFF = CONFIGURATION.replace('egress = "20 Mbit/s"', 'egress = "20 Mbit/s"\ngso_max_segs = "off"')


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("segments", gso_max_segs=GSO_SEGMENTS_MAX) as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    """Not started; ended with the test, and the device as it was before."""
    with broker_in(lab["a"]) as broker:
        yield broker
        broker.stop()
        set_limit(broker, GSO_SEGMENTS_MAX)


def limit(broker: Broker) -> int:
    words = broker.host.run(["ip", "-d", "link", "show", "dev", "eth0"]).stdout.split()
    return int(words[words.index("gso_max_segs") + 1])


def set_limit(broker: Broker, segments: int) -> None:
    broker.host.run(["ip", "link", "set", "dev", "eth0", "gso_max_segs", str(segments)])


def shown(broker: Broker) -> tuple[int, str]:
    interface: dict[str, Any] = broker.status()["interfaces"][0]
    return interface["gso_max_segs"], interface["gso_reason"]["code"]


def test_a_slow_interface_gets_a_limit_with_its_reason_and_a_stop_gives_it_back(broker: Broker) -> None:
    assert limit(broker) == GSO_SEGMENTS_MAX
    broker.start()
    assert limit(broker) == 2
    assert shown(broker) == (2, "gso-piece-time")
    assert broker.end(signal.SIGTERM) == 0
    assert limit(broker) == GSO_SEGMENTS_MAX
    assert not list((broker.folder / "state").glob("gso-*"))


def test_a_killed_daemons_limit_is_adopted_by_the_next_which_gives_the_devices_own_back(broker: Broker) -> None:
    broker.start()
    broker.end(signal.SIGKILL)
    assert limit(broker) == 2
    broker.start()
    assert "adopted=true" in broker.log
    assert (limit(broker), shown(broker)) == (2, (2, "gso-piece-time"))
    assert broker.end(signal.SIGTERM) == 0
    assert limit(broker) == GSO_SEGMENTS_MAX


def test_clear_gives_back_what_a_killed_daemon_set(broker: Broker) -> None:
    broker.start()
    broker.end(signal.SIGKILL)
    broker.host.run([*COMMAND, "clear", "--state-dir", str(broker.folder / "state")])
    assert limit(broker) == GSO_SEGMENTS_MAX


def test_what_the_operator_set_stays_unless_told(broker: Broker) -> None:
    set_limit(broker, 7)
    broker.start()
    assert (limit(broker), shown(broker)) == (7, (7, "gso-not-in-force"))
    assert broker.end(signal.SIGTERM) == 0
    assert limit(broker) == 7
    broker.arguments = ("--take-over",)
    broker.start()
    assert (limit(broker), shown(broker)) == (2, (2, "gso-piece-time"))
    assert broker.end(signal.SIGTERM) == 0
    assert limit(broker) == 7


def test_off_leaves_the_device_alone_and_a_reload_changes_it(broker: Broker) -> None:
    broker.configuration = OFF
    broker.start()
    assert (limit(broker), shown(broker)) == (GSO_SEGMENTS_MAX, (GSO_SEGMENTS_MAX, "gso-off"))
    assert broker.process is not None
    for configuration, wanted in ((CONFIGURATION, 2), (OFF, GSO_SEGMENTS_MAX)):
        (broker.folder / "broker.toml").write_text(configuration)
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: limit(broker) == wanted, what=broker.status, limit_s=LIMIT_S)  # noqa: B023 - waited for here


def test_a_limit_that_somebody_takes_away_is_set_again(broker: Broker) -> None:
    broker.start()
    set_limit(broker, GSO_SEGMENTS_MAX)
    wait_until(lambda: limit(broker) == 2, what=broker.status)

"""New configurations in the middle of real traffic: no packet is lost; what is not confirmed ends where it began."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest
from broker_host import CONFIGURATION, Broker, broker_in, two_hosts
from paced import paced
from patience import wait_until

from broker.client import http
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError
from shaping.kernel import RealKernel
from tools.lab import Lab
from tools.lab.kernel import entered

RELOADS = 60


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("reload") as lab:
        yield lab


@pytest.fixture
def broker(lab: Lab) -> Iterator[Broker]:
    with broker_in(lab["a"]) as broker:
        broker.start()
        yield broker


def with_rates(mbit: int, *, weight: int = 2) -> str:
    return CONFIGURATION.replace("20 Mbit/s", f"{mbit} Mbit/s").replace(
        "[class.storage]", f"[class.storage]\nweight = {weight}\nguarantee = '{10 + weight} %'"
    )


def post(broker: Broker, target: str) -> str:
    """Ask the broker to do something; again where a machine that stood still let the request's time run out."""

    def asked() -> str | None:
        try:
            return str(http.post(target, socket_path=str(broker.folder / "run/broker.sock")))
        except BrokerUnavailableError:
            return None
        except BrokerRejectedError as refused:
            if ": 503 " in str(refused):
                return None
            raise

    return wait_until(asked) or ""


def reload_somehow(broker: Broker, number: int) -> None:
    """One reload, each of the ways in turn; some are bad, some are confirmed, some are left to go back."""
    (broker.folder / "broker.toml").write_text(with_rates(14 + number % 7, weight=1 + number % 5))
    way = number % 5
    if way == 0:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
    elif way == 1:
        post(broker, "/v1/reload")
    elif way == 2:
        post(broker, "/v1/reload?confirm_s=60")
        with contextlib.suppress(BrokerRejectedError):  # the first answer came too late: it is confirmed already
            post(broker, "/v1/confirm")
    elif way == 3:
        post(broker, "/v1/reload?confirm_s=1")
    else:
        (broker.folder / "broker.toml").write_text("version = 1\n")
        with pytest.raises(BrokerRejectedError):
            post(broker, "/v1/reload")


def test_traffic_flows_through_reloads_and_rollbacks_without_losing_a_packet(broker: Broker, lab: Lab) -> None:
    with entered(broker.host.namespace):
        kernel = RealKernel()
    with contextlib.closing(kernel), paced(broker.host, lab["b"]) as traffic:
        for number in range(RELOADS):
            reload_somehow(broker, number)
            time.sleep(0.06)  # traffic in between
        assert broker.status()["daemon"]["applied"] >= RELOADS // 2
        assert traffic.lost() == []
        assert traffic.sent > 1000
        by_minor, direct_packets = kernel.counters("eth0")
        assert direct_packets == 0
        assert sum(found.dropped_packets for found in by_minor.values()) == 0

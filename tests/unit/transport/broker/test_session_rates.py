"""The broker's rate on its way to the engine: given while it holds, taken away once when it ends."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker.client import SessionState
from hive_qos.errors import ConfigurationError
from transport.broker.session import REPORT_S, BrokerSession
from transport.mesh.one_way_delay import OneWayDelay
from transport.settings import Settings


class Told:
    """A session whose rate a test sets."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self.value: int | None = None

    def rate(self, _traffic_class: str) -> int | None:
        return self.value

    def report(self, _connections: object) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to close."""


class Noted:
    """An engine that notes its rates."""

    def __init__(self) -> None:
        self.rates: list[tuple[int, int | None]] = []

    def set_rate(self, endpoint: int, bits_per_s: int | None) -> None:
        self.rates.append((endpoint, bits_per_s))

    def statistics(self) -> dict[int, Any]:
        return {}


def link(*, rates: bool) -> tuple[BrokerSession, Told, Noted]:
    made = BrokerSession(
        job="j", socket_path="off", delays=OneWayDelay(lambda *_: None), rank_of=lambda _: None, rates=rates
    )
    reported = Told()
    made._session.close()
    made._session = reported  # type: ignore[assignment]
    made.serves(7)
    return made, reported, Noted()


def test_a_rate_is_given_again_at_every_report_and_taken_away_once_when_it_ends() -> None:
    made, reported, engine = link(rates=True)
    made.tick(0.0, engine)  # type: ignore[arg-type]
    assert engine.rates == []
    reported.value = 5000
    for number in range(1, 4):
        made.tick(number * REPORT_S * 1.01, engine)  # type: ignore[arg-type]
    assert engine.rates == [(7, 5000)] * 3
    reported.value = None
    for number in range(5, 8):
        made.tick(number * REPORT_S * 1.01, engine)  # type: ignore[arg-type]
    assert engine.rates[3:] == [(7, None)]


def test_a_broker_that_is_lost_takes_its_rate_with_it() -> None:
    made, reported, engine = link(rates=True)
    reported.value = 5000
    made.tick(0.0, engine)  # type: ignore[arg-type]
    reported.value, reported.state = None, SessionState.CONNECTING
    made.tick(1.0, engine)  # type: ignore[arg-type]
    made.tick(2.0, engine)  # type: ignore[arg-type]
    assert engine.rates == [(7, 5000), (7, None)]


def test_under_another_congestion_control_no_rate_is_passed_on() -> None:
    made, reported, engine = link(rates=False)
    reported.value = 5000
    made.tick(0.0, engine)  # type: ignore[arg-type]
    assert engine.rates == []


def test_the_congestion_control_comes_from_the_environment() -> None:
    assert Settings.from_environment({}).congestion == "auto"
    assert Settings.from_environment({"HIVE_CONGESTION": "cubic"}).congestion == "cubic"
    assert Settings(engine="native", congestion="bbr").congestion == "bbr"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"congestion": "vegas"}, "one of auto, cubic, reno, bbr"),
        ({"congestion": "bbr", "engine": "aioquic"}, "the aioquic engine has auto, cubic, reno"),
    ],
)
def test_a_control_that_there_is_not_or_not_in_this_engine_names_those_that_there_are(
    fields: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        Settings(**fields)  # type: ignore[arg-type]

"""What the environment may ask of a transport, and what is refused before anything runs."""

from __future__ import annotations

import re

import pytest

from hive_qos.errors import ConfigurationError
from transport.engine import create_engine
from transport.engine.base import EngineSettings
from transport.settings import Settings


def test_the_congestion_control_comes_from_the_environment() -> None:
    assert Settings.from_environment({}).congestion == "auto"
    assert Settings.from_environment({"HIVE_CONGESTION": "cubic"}).congestion == "cubic"
    assert Settings(engine="native", congestion="bbr").congestion == "bbr"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"congestion": "vegas"}, "one of auto, cubic, bbr"),
        ({"congestion": "bbr", "engine": "aioquic"}, "the aioquic engine has auto, cubic"),
    ],
)
def test_a_control_that_there_is_not_or_not_in_this_engine_names_those_that_there_are(
    fields: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        Settings(**fields)  # type: ignore[arg-type]


def test_an_engine_that_lacks_a_congestion_control_names_those_that_it_has() -> None:
    with pytest.raises(ConfigurationError, match=r"bbr.*aioquic engine has auto, cubic"):
        create_engine("aioquic", EngineSettings(congestion="bbr"), lambda events: None)

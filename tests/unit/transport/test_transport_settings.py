"""What the environment may ask of a transport, and what is refused before anything runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hive_qos.errors import ConfigurationError
from transport.engine import create_engine
from transport.engine.base import EngineSettings
from transport.settings import VARIABLES, Settings


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


def test_a_variable_that_is_nearly_a_setting_is_named_and_those_of_other_programs_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Settings.from_environment({"HIVE_LISTN": "127.0.0.1", "HIVE_HOME": "/opt/hive", "HIVE_JOB": "a"})
    assert caplog.messages == ["HIVE_LISTN is no setting, and is ignored: HIVE_LISTEN is one"]
    caplog.clear()
    Settings.from_environment({"HIVE_SECRET": "without it nobody is verified", "HIVE_CONF_DIR": "/etc/hive"})
    assert caplog.messages == ["HIVE_SECRET is no setting, and is ignored: HIVE_JOB_SECRET is one"]


def test_each_variable_is_read_and_documented() -> None:
    class Read(dict[str, str]):
        def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]  # of strings alone
            self[name] = ""
            return default

    read = Read()
    Settings.from_environment(read)
    assert sorted(read) == sorted(VARIABLES)
    reference = (Path(__file__).parents[3] / "docs/reference/transport.md").read_text()
    assert all(f"| `{name}`" in reference or f"`{name}`" in reference for name in VARIABLES)


def test_a_secret_that_is_set_and_empty_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it is empty: give it the job's secret"):
        Settings.from_environment({"HIVE_JOB_SECRET": ""})


def test_a_secret_may_be_any_bytes_and_a_job_s_name_that_is_no_text_is_named() -> None:
    secret, name = b"0123456789abcde\xff", b"llm\xff"
    assert Settings.from_environment({"HIVE_JOB_SECRET": os.fsdecode(secret)}).job_secret == secret
    with pytest.raises(ConfigurationError, match=r"HIVE_JOB = .*: at most 128 bytes of UTF-8"):
        Settings.from_environment({"HIVE_JOB": os.fsdecode(name)})


def test_addresses_are_told_as_others_read_them() -> None:
    settings = Settings.from_environment({"HIVE_LISTEN": "FD00:0::1", "HIVE_ADVERTISE": "2001:db8:0:0:0:0:0:7"})
    assert (settings.listen, settings.advertise) == ("fd00::1", "2001:db8::7")

"""The tables of the pages for who trains and who stores hold against the code: errors, settings, defaults, screens."""

from __future__ import annotations

import pytest
from documents import DOCS, table_below, tables_of

from broker.law.sharing.guarantee import AT_RISK
from broker.law.sharing.storage_needs import RISK_REFILL, RISK_S_MAX
from broker.policy.toml import load
from broker.policy.types import Share
from hive_qos import errors
from hive_qos.units import format_size
from transport.engine.base import DEAD_AFTER_S
from transport.engine.native import NATIVE_DEAD_AFTER_S
from transport.settings import Settings

REFERENCE, TRAIN, STORE = DOCS / "reference" / "transport.md", DOCS / "train.md", DOCS / "store.md"


def test_each_code_of_an_error_is_that_of_its_class_and_none_is_missing() -> None:
    listed = {code.strip("[]"): name for code, name, *_ in table_below(TRAIN, "Errors").rows}
    kinds: list[type[errors.HiveError]] = [
        errors.ConfigurationError,
        errors.TransportError,
        *errors.TransportError.__subclasses__(),
    ]
    assert listed == {kind.code: kind.__name__ for kind in kinds if kind.__module__ == errors.__name__}


@pytest.mark.parametrize("name", ["reconnect_s", "chunk_bytes", "receive_bytes_max"])
def test_each_default_of_the_settings_is_the_codes(name: str) -> None:
    (table,) = [one for one in tables_of(REFERENCE) if one.titles[0] == "setting without a variable"]
    default = getattr(Settings(), name)
    assert {row[0]: row[1] for row in table.rows}[name] == (
        f"{default:g} s" if name.endswith("_s") else format_size(default)
    )


def test_the_time_until_a_rank_counts_as_dead_is_the_codes() -> None:
    text = TRAIN.read_text(encoding="utf-8")
    assert f"silent for {NATIVE_DEAD_AFTER_S:g} s, or {DEAD_AFTER_S:g} s with\n`aioquic`" in text
    assert f"Both add {Settings.reconnect_s:g} s to reconnect" in text
    both_s = [one + Settings.reconnect_s for one in (NATIVE_DEAD_AFTER_S, DEAD_AFTER_S)]
    assert f"after {both_s[0]:g} s or {both_s[1]:g} s" in text


def percent(share: Share) -> float:
    assert share.fraction is not None
    return 100 * share.fraction


def test_the_defaults_of_storage_are_the_policys() -> None:
    policy = load('version = 1\n[[interface]]\nname = "eth0"\n')
    (storage,) = [one for one in policy.classes if one.name == "storage"]
    text = STORE.read_text(encoding="utf-8")
    assert f"{percent(storage.guarantee):g} % of the link on average over {storage.guarantee_window_s:g} s" in text
    assert f"{percent(storage.floor):g} % at every moment" in text


def test_the_constants_of_lending_and_of_data_at_risk_are_the_laws() -> None:
    text = STORE.read_text(encoding="utf-8")
    assert f"more than {AT_RISK * 100:g} % of the window's promise" in text
    assert f"goes first for {RISK_S_MAX / 60:g} minutes" in text
    assert RISK_REFILL == 1 / 5
    assert "a fifth of the time" in text

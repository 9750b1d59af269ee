"""In which order a decision is brought about: what others wait for comes first. Real parts over a kernel in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel

from broker.daemon.composition import Components, Environment, compose
from broker.daemon.config_store import ConfigStore, Source
from broker.events.log import open_log
from broker.model.leases import Hold
from broker.policy.toml import load
from broker.policy.types import Policy
from shaping.journal import Journal


def text(egress: str) -> str:
    return f'version = 1\n[[interface]]\nname = "eth0"\negress = "{egress}"\ningress = "auto"\n'


def policy(egress: str) -> Policy:
    return load(text(egress))


class Kernel(FakeKernel):
    """Notes when it is written to."""

    def __init__(self, order: list[str]) -> None:
        super().__init__(("eth0",))
        self._order = order

    def apply(self, interface: str, operations: Sequence[Any]) -> None:
        self._order.append("kernel")
        super().apply(interface, operations)


def made(tmp_path: Path, order: list[str]) -> Components:
    source, log = Source(read=lambda: text("20 Mbit/s"), parse=load, state_dir=str(tmp_path)), open_log()
    configurations = ConfigStore(source, log=log)
    given = Environment(configurations, Kernel(order), classifier=None, mark=lambda *_, **__: None, log=log)
    return compose(given, Journal(tmp_path))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(False, ["others", "kernel"], id="a burst: who is asked"),
        pytest.param(True, ["kernel", "others"], id="a lease: what was asked for"),
    ],
)
def test_what_somebody_waits_for_is_done_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, expected: list[str]
) -> None:
    order: list[str] = []
    parts = made(tmp_path, order)
    try:
        parts.deciding.attach_all(policy("20 Mbit/s"))
        order.clear()

        def ask(_: Sequence[Hold]) -> None:
            order.append("others")

        monkeypatch.setattr(parts.peer_link, "ask", ask)
        parts.deciding.decide(policy("10 Mbit/s"), between=True, asked=asked)
        assert order == expected
    finally:
        parts.close()

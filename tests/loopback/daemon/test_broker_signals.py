"""Signals that come while the broker starts: what was touched is put back, and what was not stays untouched."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from broker_support import claim_of
from fake_kernel import FakeClassifier, FakeKernel
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.exits import ExitCode
from broker.process.locks import NamespaceLock
from shaping.model.tree import Operation


class Interrupted(FakeKernel):
    """A kernel at which a signal comes at one moment of the start."""

    def __init__(self, moment: str, number: signal.Signals) -> None:
        super().__init__(["lo"])
        self.moment, self.number, self.writes = moment, number, 0
        if moment == "open":
            signal.raise_signal(number)

    def apply(self, interface: str, operations: Sequence[Operation]) -> None:
        super().apply(interface, operations)
        self.writes += 1
        if self.moment == "attach":
            self.moment = ""
            signal.raise_signal(self.number)


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("moment", ["open", "attach"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, 0)])
def test_a_signal_during_the_start_puts_back_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, number: signal.Signals, code: int
) -> None:
    kernels: list[Interrupted] = []

    def kernel() -> Interrupted:
        kernels.append(Interrupted(moment, number))
        return kernels[0]

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a test that fails here must not end the run
    monkeypatch.setattr("shaping.kernel.RealKernel", kernel)
    monkeypatch.setattr("shaping.classify.cgroup.SocketClassifier", FakeClassifier)
    monkeypatch.setattr("broker.daemon.daemon.NamespaceLock", lambda _: NamespaceLock(claim_of(tmp_path)))
    config = tmp_path / "broker.toml"
    config.write_text('version = 1\n[[interface]]\nname = "lo"\negress = "8 Mbit/s"\n')
    directories = ["--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state")]
    result = CliRunner().invoke(app, ["broker", "--config", str(config), *directories])
    assert result.exit_code == code, result.output
    assert (kernels[0].writes > 0) == (moment == "attach")
    assert kernels[0].observe("lo") is None

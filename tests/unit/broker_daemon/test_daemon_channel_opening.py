"""When the way to other brokers is tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from broker.daemon.channel_opening import RETRY_S, ChannelOpening
from broker.daemon.log import open_log
from broker.daemon.own_certificate import OwnCertificate
from broker.peers.channel import PeerChannel
from broker.policy import PeersPolicy
from transport.identity import ca_init, ca_issue


class Trying:
    """An opening with a clock of its own, and a channel that needs no socket."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now_s, self.patience = folder, 0.0, 0
        self.channel = cast("PeerChannel", object())
        monkeypatch.setattr("broker.peers.channel.PeerChannel", lambda *_, **__: self.channel)
        files = PeersPolicy("[::]:4710", str(folder / "ca/ca.crt"), str(folder / "host.crt"), str(folder / "host.key"))
        self.opening = ChannelOpening(
            files,
            certificate=OwnCertificate(files, log=open_log()),
            patience=self._wait,
            wake=lambda: None,
            log=open_log(),
            clock=lambda: self.now_s,
            mark=lambda _: None,
        )

    def issue(self) -> None:
        ca_init(self.folder / "ca")
        ca_issue(self.folder / "ca", "host", role="broker", out=self.folder)

    def codes(self) -> list[str]:
        return [alarm.code for alarm in self.opening.alarms()]

    def _wait(self) -> None:
        self.patience += 1


@pytest.fixture
def trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trying:
    return Trying(tmp_path, monkeypatch)


def test_what_fails_is_an_alarm_and_tried_again_a_minute_later(trying: Trying) -> None:
    for trying.now_s in (0.0, 1.0, RETRY_S - 1):
        assert trying.opening.look() is None
        assert trying.codes() == ["peers-unavailable"]
    assert trying.patience == 1
    trying.issue()
    trying.now_s = RETRY_S
    assert trying.opening.look() is trying.channel
    assert (trying.codes(), trying.patience) == ([], 2)


def test_what_a_channel_needs_is_imported_by_itself_so_that_it_is_there_before_precedence_is() -> None:
    program = """
import sys
from broker.daemon.channel_opening import load_channel
assert "broker.peers.channel" not in sys.modules
load_channel("aioquic")
before = set(sys.modules)
from broker.peers.channel import PeerChannel
from transport.engine.aioquic_engine import AioquicEngine
assert set(sys.modules) == before
load_channel("none such")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

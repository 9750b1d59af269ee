"""When the way to other brokers is tried."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from broker.daemon.peer_link import PeerLink
from broker.daemon.peer_opening import RETRY_S, PeerOpening
from broker.events.log import open_log
from broker.peers.channel import PeerChannel
from broker.peers.own_certificate import OwnCertificate
from broker.peers.peer_status import PeerStatus
from broker.policy.types import PeersPolicy
from transport.identity import ca_init, ca_issue


class Trying:
    """An opening with a clock of its own, and a channel that needs no socket."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now_s, self.patience = folder, 0.0, 0
        self.utc, self.closed = datetime.datetime.now(datetime.UTC), 0
        self.channel = cast("PeerChannel", self)
        monkeypatch.setattr("broker.peers.channel.PeerChannel", lambda *_, **__: self.channel)
        files = PeersPolicy("[::]:4710", str(folder / "ca/ca.crt"), str(folder / "host.crt"), str(folder / "host.key"))
        self.certificate = OwnCertificate(files, log=open_log(), utc=lambda: self.utc)
        self.opening = PeerOpening(
            files,
            certificate=self.certificate,
            patience=self._wait,
            wake=lambda: None,
            log=open_log(),
            clock=lambda: self.now_s,
            mark=lambda _: None,
        )

    def issue(self) -> None:
        ca_init(self.folder / "ca")
        ca_issue(self.folder / "ca", "host", role="broker", addresses=["10.0.0.1"], out=self.folder)

    def codes(self) -> list[str]:
        return [alarm.code for alarm in self.opening.alarms()]

    def status(self) -> tuple[PeerStatus, ...]:
        return ()

    def close(self) -> None:
        self.closed += 1

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


def test_the_channel_is_closed_when_its_certificate_ends_and_opened_with_another(trying: Trying) -> None:
    peer_link = PeerLink()
    trying.issue()
    peer_link.meet(trying.opening, trying.certificate, now_s=0.0)
    trying.utc += datetime.timedelta(days=300)
    peer_link.look(now_s=1.0)
    assert trying.closed == 0
    trying.utc += datetime.timedelta(days=10_000)
    peer_link.look(now_s=2.0)
    assert trying.closed == 1
    peer_link.look(now_s=3.0)
    assert trying.closed == 1, "there is none"
    (trying.folder / "host.crt").unlink()
    trying.now_s = RETRY_S
    peer_link.look(now_s=RETRY_S)
    assert trying.codes() == ["peers-unavailable"]
    ca_issue(trying.folder / "ca", "host", role="broker", addresses=["10.0.0.1"], out=trying.folder / "another")
    for name in ("host.crt", "host.key"):
        (trying.folder / "another" / name).replace(trying.folder / name)
    trying.utc = datetime.datetime.now(datetime.UTC)
    trying.now_s = 2 * RETRY_S
    peer_link.look(now_s=2 * RETRY_S)
    assert trying.codes() == []
    peer_link.close()
    assert trying.closed == 2


def test_what_a_channel_needs_is_imported_by_itself_so_that_it_is_there_before_precedence_is() -> None:
    program = """
import sys
from broker.daemon.peer_opening import load_channel
assert "broker.peers.channel" not in sys.modules
load_channel("aioquic")
before = set(sys.modules)
from broker.peers.channel import PeerChannel
from transport.engine.aioquic.engine import AioquicEngine
assert set(sys.modules) == before
load_channel("none such")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

"""A daemon whose certificate is renewed on disk: others meet it after a reload, and a bad one changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_support import CONFIGURATION, Running
from msgspec.structs import replace
from patience import wait_until
from peers_support import A_HOST, B_HOST, Broker, Cluster, free_port, until

from broker.client import http
from broker.policy.types import PeersPolicy
from transport.identity import ca_revoke

PEERS = """
[peers]
listen = "{listen}"
ca = "{ca}"
certificate = "{certificate}"
key = "{key}"
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.stop()


def test_after_a_reload_others_meet_the_renewed_certificate(running: Running, tmp_path: Path) -> None:
    cluster, port = Cluster(tmp_path), free_port(A_HOST, B_HOST)
    first, second = (cluster.policy(name, f"{A_HOST}:{port}") for name in ("first", "second"))
    mine = PeersPolicy(first.listen, first.ca, str(tmp_path / "mine.crt"), str(tmp_path / "mine.key"))

    def install(policy: PeersPolicy) -> None:
        shutil.copy2(policy.certificate, mine.certificate)
        shutil.copy2(policy.key, mine.key)

    install(first)
    section = PEERS.format(listen=mine.listen, ca=mine.ca, certificate=mine.certificate, key=mine.key)
    running.write(CONFIGURATION + section)
    running.start()
    other = Broker(cluster.policy("other", f"{B_HOST}:{port}"))
    other.reach = [A_HOST]

    def met() -> set[str]:
        return {one.peer for one in other.channel.status() if one.state == "connected"}

    def alarms() -> set[str]:
        return {alarm["code"] for alarm in running.status()["alarms"]}

    def reload() -> None:
        assert running.daemon is not None
        running.daemon.reload()

    try:
        until(lambda: met() == {"first"}, other)
        install(second)
        reload()
        until(lambda: met() == {"second"}, other)
        Path(mine.certificate).write_bytes(Path(first.certificate).read_bytes())  # and not its key
        answer = str(http.post("/v1/reload", socket_path=running.api))
        assert answer.startswith("taken; but the renewed files are not taken, the former ones hold")
        assert "certificate-refused" in alarms()
        until(lambda: met() == {"second"}, other)
        install(second)
        reload()
        wait_until(lambda: "certificate-refused" not in alarms())
    finally:
        other.close()


def test_who_is_revoked_loses_the_connection_and_is_refused_from_then_on(running: Running, tmp_path: Path) -> None:
    cluster, port = Cluster(tmp_path), free_port(A_HOST, B_HOST)
    mine = cluster.policy("mine", f"{A_HOST}:{port}")
    section = PEERS.format(listen=mine.listen, ca=mine.ca, certificate=mine.certificate, key=mine.key)
    running.write(CONFIGURATION + section)
    running.start()
    policy = cluster.policy("other", f"{B_HOST}:{port}")
    theirs = tmp_path / "theirs.crt"
    shutil.copy2(policy.ca, theirs)  # no list is beside it
    other = Broker(replace(policy, ca=str(theirs)))
    other.reach = [A_HOST]
    try:
        until(lambda: other.state_of(A_HOST) == "connected", other)
        ca_revoke(cluster.ca, "other")
        assert running.daemon is not None
        running.daemon.reload()
        until(lambda: "has been revoked" in other.state_of(A_HOST), other, what=other.channel.status)
        assert other.connections() == []
    finally:
        other.close()

"""The files of `[peers]`: every mistake in them names the key, the file, and the command that mends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.peers.identity import broker_identity, certified_addresses
from broker.policy.types import PeersPolicy
from hive_qos.errors import ConfigurationError
from transport.identity import ca_init, ca_issue


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    for ca in ("ours", "theirs"):
        ca_init(folder / ca)
    ca_issue(folder / "ours", "host", role="broker", addresses=["10.0.0.1", "fd00::1"], out=folder)
    ca_issue(folder / "ours", "trainer", role="job", out=folder)
    ca_issue(folder / "theirs", "stranger", role="broker", addresses=["10.0.0.1"], out=folder)
    return folder


def files(folder: Path, node: str = "host") -> PeersPolicy:
    return PeersPolicy(
        "[::]:4710", str(folder / "ours" / "ca.crt"), str(folder / f"{node}.crt"), str(folder / f"{node}.key")
    )


def problem(settings: PeersPolicy) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        broker_identity(settings)
    return caught.value


def test_a_broker_is_who_its_files_say_and_believes_brokers_alone(folder: Path) -> None:
    identity = broker_identity(files(folder))
    assert identity.node == "host"
    assert identity.trust.roles == {"broker"}
    assert identity.trust.pins == {}
    assert certified_addresses(identity) == {"10.0.0.1", "fd00::1"}


def test_a_jobs_certificate_and_another_cas_are_named_before_any_peer_refuses_them(folder: Path) -> None:
    job, stranger = problem(files(folder, "trainer")), problem(files(folder, "stranger"))
    assert (job.key, stranger.key) == ("peers.certificate", "peers.certificate")
    assert "role job, needed is broker" in job.reason
    assert "hive-qos ca issue NODE --role broker" in job.reason
    assert "not of this cluster" in stranger.reason


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_may_read_is_not_used(folder: Path, tmp_path: Path, mode: int) -> None:
    key = tmp_path / "host.key"
    key.write_bytes((folder / "host.key").read_bytes())
    key.chmod(mode)
    found = problem(replace(files(folder), key=str(key)))
    assert found.key == "peers.key"
    assert f"chmod 600 {key}" in found.reason


def test_missing_and_mixed_up_files_are_named(folder: Path) -> None:
    good = files(folder)
    assert problem(replace(good, key="/nowhere/host.key")).key == "peers.key"
    assert problem(replace(good, certificate="/nowhere/host.crt")).key == "peers.certificate"
    assert problem(replace(good, ca="/nowhere/ca.crt")).key == "peers.ca"
    assert "is not the key of" in problem(replace(good, key=str(folder / "trainer.key"))).reason


def test_the_daemon_without_peers_loads_no_transport_and_the_channel_loads_no_numpy() -> None:
    program = (
        "import sys\n"
        "import broker.daemon.daemon\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not names & {'transport', 'aioquic', 'hive_qos_native', 'cryptography'}, names\n"
        "import broker.peers.channel\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not names & {'aioquic', 'hive_qos_native', 'numpy', 'torch'}, names\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

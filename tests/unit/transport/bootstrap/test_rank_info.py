"""What ranks publish of themselves, and the environment that they read: every bad input is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hive_qos.errors import ConfigurationError, MisuseError, PeerError, TimedOutError
from transport.bootstrap.rank_info import RankInfo, Run, decode, encode, own_identity
from transport.bootstrap.rendezvous import FileRendezvous, MemoryRendezvous
from transport.identity import ca_init, ca_issue, ca_revoke
from transport.mesh.paths import Location, plain_locations
from transport.settings import Settings

SECRET = Settings(job="j", job_secret=b"secret of the test")
RUN = Run("w", 4, bytes(16))
HERE = Location(0, "10.0.0.4", 4242, 4243)
ENTRY = RankInfo(rank=3, node="rank-3", locations=(HERE, Location(1, "fd00::4", 4242, 4244)), pin=bytes(range(32)))


def addresses(*changes: dict[str, object]) -> dict[str, object]:
    """What an entry says of where the rank listens, with changes to the first of them."""
    plain = plain_locations(ENTRY.locations)
    return {"addresses": [one | change for one, change in zip(plain, [*changes, {}], strict=False)]}


def test_an_entry_comes_back_as_it_was_written():
    assert decode(encode(ENTRY, SECRET, RUN), rank=3, settings=SECRET, run=RUN) == ENTRY
    assert decode(encode(ENTRY, Settings(), RUN), rank=3, settings=Settings(), run=RUN) == ENTRY
    assert ENTRY.contact.locations[0].of(bulk=True) == ("10.0.0.4", 4243)


@pytest.mark.parametrize(
    "change",
    [
        {"pin": bytes(32).hex()},
        {"mac": "00" * 32},
        {"node": "rank-4"},
        addresses({"address": "10.0.0.5"}),
        addresses({"port": 4244}),
        addresses({"bulk_port": 1}),
        addresses({"interface": 1}),
        {"addresses": plain_locations(ENTRY.locations)[:1]},
    ],
)
def test_a_forged_entry_is_refused_where_there_is_a_secret(change):
    forged = json.dumps(json.loads(encode(ENTRY, SECRET, RUN)) | change).encode()
    with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
        decode(forged, rank=3, settings=SECRET, run=RUN)


@pytest.mark.parametrize("settings", [Settings(), SECRET])
def test_an_entry_of_a_world_of_another_size_is_refused_by_both_sizes(settings):
    with pytest.raises(PeerError, match=f"one of 5 ranks, and this rank one of {RUN.world_size}"):
        decode(encode(ENTRY, settings, replace(RUN, world_size=5)), rank=3, settings=settings, run=RUN)


def test_a_member_cannot_publish_itself_in_the_name_of_another_rank() -> None:
    with pytest.raises(PeerError, match="rank 3: its rendezvous entry is in the name of rank-1"):
        decode(encode(replace(ENTRY, node="rank-1"), SECRET, RUN), rank=3, settings=SECRET, run=RUN)


@pytest.mark.parametrize("what", ["not of this cluster", "has role broker", "has been revoked"])
def test_a_rank_names_its_own_certificate_that_all_others_would_refuse(tmp_path: Path, what: str) -> None:
    """Not the host that refuses it: that one is well."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ca_init(ours)
    ca_init(theirs)
    role = "broker" if "role" in what else "job"
    files = ca_issue(theirs if "cluster" in what else ours, "node-b", role=role, addresses=["127.0.0.1"], out=tmp_path)
    if "revoked" in what:
        ca_revoke(ours, "node-b")
    settings = replace(SECRET, ca=str(ours / "ca.crt"), certificate=str(files.certificate), key=str(files.key))
    with pytest.raises(ConfigurationError, match=rf"(?s)HIVE_CERT = .*node-b.*{what}.*hive-qos ca issue NODE"):
        own_identity(settings, 0)


def test_an_entry_of_another_run_or_world_is_refused_where_there_is_a_secret():
    for run in (replace(RUN, nonce=bytes(15) + b"x"), replace(RUN, world="v")):
        with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
            decode(encode(ENTRY, SECRET, run), rank=3, settings=SECRET, run=RUN)


def test_the_secret_counts_with_certificates_of_a_ca_too(tmp_path):
    file = tmp_path / "file.pem"
    file.touch()
    configured = replace(SECRET, ca=str(file), certificate=str(file), key=str(file))
    entry = replace(ENTRY, pin=b"")
    assert decode(encode(entry, configured, RUN), rank=3, settings=configured, run=RUN) == entry
    for unsigned in (
        encode(entry, replace(configured, job_secret=b""), RUN),
        json.dumps(json.loads(encode(entry, configured, RUN)) | addresses({"address": "10.9.9.9"})).encode(),
    ):
        with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
            decode(unsigned, rank=3, settings=configured, run=RUN)


def test_an_entry_of_another_job_or_secret_is_refused():
    for settings in (replace(SECRET, job="other"), replace(SECRET, job_secret=b"another of the test"), Settings()):
        with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
            decode(encode(ENTRY, settings, RUN), rank=3, settings=SECRET, run=RUN)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 2},
        {"rank": -1},
        {"rank": "3"},
        {"rank": True},
        addresses({"address": "example.org"}),
        addresses({"address": "224.0.0.1"}),
        addresses({"address": "::"}),
        addresses({"address": "fd00::4"}),
        addresses({"port": 65536}),
        addresses({"port": 0}),
        addresses({"bulk_port": None}),
        addresses({"interface": 8}),
        {"addresses": []},
        {"addresses": 5 * plain_locations(ENTRY.locations)},
        {"addresses": ["10.0.0.4"]},
        {"addresses": {"address": "10.0.0.4"}},
        {"pin": "zz"},
        {"pin": "00"},
        {"pin": ""},
        {"node": "x" * 200},
        {"node": 7},
        {"v": 1},
        {"mac": 5},
    ],
)
def test_a_malformed_entry_is_refused(change):
    bad = json.dumps(json.loads(encode(ENTRY, Settings(), RUN)) | change).encode()
    with pytest.raises(PeerError, match="rank 3"):
        decode(bad, rank=3, settings=Settings(), run=RUN)


def test_a_rank_of_another_version_is_told_as_that():
    old = json.dumps({"v": 2, "rank": 3, "node": "rank-3", "address": "10.0.0.4", "port": 1, "bulk_port": 2}).encode()
    with pytest.raises(PeerError, match="version 2, of another hive-qos; all ranks need version 3"):
        decode(old, rank=3, settings=Settings(), run=RUN)


@pytest.mark.parametrize("entry", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_entry_are_refused(entry):
    with pytest.raises(PeerError):
        decode(entry, rank=3, settings=Settings(), run=RUN)


@pytest.mark.parametrize("secret", [b"s", b"x" * 15])
def test_a_secret_that_can_be_guessed_is_refused_and_not_told(secret):
    with pytest.raises(ConfigurationError, match="at least 16 bytes") as caught:
        Settings.from_environment({"HIVE_JOB_SECRET": secret.decode()})
    assert caught.value.key == "HIVE_JOB_SECRET"
    assert f"{len(secret)} bytes" in str(caught.value)
    assert "xx" not in str(caught.value)
    Settings(job_secret=b"x" * 16)


WRONG_PORTS = ("4242", "4242-4242", "0-5", "9-5", "65530-65536", "1-" + "9" * 5000, "-5-9", "4200-4219-", "a-b", "٤-٩")


def test_settings_come_from_the_environment():
    settings = Settings.from_environment(
        {
            "HIVE_LISTEN": "fd00::1",
            "HIVE_PORTS": "4200-4219",
            "HIVE_ADVERTISE": "10.1.1.1",
            "HIVE_JOB": "j",
            "HIVE_JOB_SECRET": "secret of the test",
            "HIVE_ENGINE": "aioquic",
            "HIVE_BROKER": "off",
        }
    )
    assert (settings.listen, settings.ports, settings.advertise) == ("fd00::1", range(4200, 4220), "10.1.1.1")
    assert (settings.job, settings.job_secret, settings.engine, settings.broker) == (
        "j",
        b"secret of the test",
        "aioquic",
        "off",
    )
    assert "secret of" not in repr(settings)
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"HIVE_ENGINE": "quick"}, "HIVE_ENGINE"),
        ({"HIVE_LISTEN": "localhost"}, "HIVE_LISTEN"),
        ({"HIVE_LISTEN": "10.0.0.1:4242"}, "HIVE_LISTEN"),
        *(({"HIVE_PORTS": ports}, "HIVE_PORTS") for ports in WRONG_PORTS),
        ({"HIVE_ADVERTISE": "me"}, "HIVE_ADVERTISE"),
        ({"HIVE_JOB": "j" * 200}, "HIVE_JOB"),
        ({"HIVE_CA": "/etc/hostname"}, "HIVE_CERT"),
        ({"HIVE_CA": "/nowhere", "HIVE_CERT": "/etc/hostname", "HIVE_KEY": "/etc/hostname"}, "HIVE_CA"),
    ],
)
def test_a_setting_that_cannot_work_is_named(environment, key):
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment(environment)
    assert caught.value.key == key


@pytest.mark.parametrize("make", [lambda path: MemoryRendezvous(), lambda path: FileRendezvous(path / "deep" / "er")])
def test_stores_hold_what_they_are_given_within_bounds(make, tmp_path):
    store = make(tmp_path)
    store.set("hive/a b/0", b"1")
    store.set("hive/a b/0", b"2")
    assert store.get("hive/a b/0", 0.0) == b"2"
    with pytest.raises(TimedOutError, match="hive/other"):
        store.get("hive/other", 0.0)
    with pytest.raises(MisuseError):
        store.set("k" * 600, b"")
    with pytest.raises(MisuseError):
        store.set("k", bytes(70_000))

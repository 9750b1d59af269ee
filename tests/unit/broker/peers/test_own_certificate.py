"""This host's certificate: said before it ends, taken when it was renewed, kept where the renewed one is no good."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest
from cryptography import x509

from broker.events.log import open_log
from broker.peers.own_certificate import CA_WARN_DAYS, LOOK_S, WARN_DAYS, OwnCertificate
from broker.policy.types import PeersPolicy
from hive_qos.errors import ConfigurationError
from transport.identity import ConfiguredIdentity, ca_init, ca_issue, ca_revoke, ca_rotate

DAY = datetime.timedelta(days=1)


class Files:
    """A host's files, which somebody renews, and the watch over them with a clock and a calendar of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 0.0
        self.utc = datetime.datetime.now(datetime.UTC)
        ca_init(folder / "ca")
        self.write(self.issue("first"))
        settings = PeersPolicy(
            "[::]:4710", str(folder / "ca/ca.crt"), str(folder / "host.crt"), str(folder / "host.key")
        )
        self.certificate = OwnCertificate(settings, log=open_log(), utc=lambda: self.utc)
        self.chain = self.certificate.load().credentials.certificate_chain_pem
        self.look()

    def issue(self, name: str, *, ca: str = "ca", role: str = "broker") -> Path:
        out = self.folder / name
        ca_issue(self.folder / ca, "host", role=role, addresses=["10.0.0.1"], out=out)
        return out

    def write(self, issued: Path, *, only: str = "") -> None:
        for name in ("host.crt", "host.key"):
            if name.endswith(only):
                new = self.folder / f"{name}.new"
                shutil.copy2(issued / name, new)
                new.replace(self.folder / name)  # another inode: the same in one second and size is another file

    def look(self, *, at_once: bool = False) -> ConfiguredIdentity | None:
        self.now_s += LOOK_S
        return self.certificate.renewed(now_s=self.now_s, at_once=at_once)

    def codes(self) -> list[str]:
        return [alarm.code for alarm in self.certificate.alarms()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_certificate_that_ends_soon_is_said_a_month_ahead(files: Files) -> None:
    assert files.codes() == []
    while not files.codes():
        files.utc += DAY
    (alarm,) = files.certificate.alarms()
    assert (alarm.code, str(files.folder / "host.crt") in alarm.text) == ("certificate-expires", True)
    assert str((files.utc + WARN_DAYS * DAY).date()) in alarm.text


def test_the_end_of_the_ca_is_said_a_season_ahead(files: Files) -> None:
    ca = x509.load_pem_x509_certificate((files.folder / "ca/ca.crt").read_bytes())
    ca_issue(files.folder / "ca", "host", role="broker", addresses=["10.0.0.1"], days=36500, out=files.folder / "long")
    files.write(files.folder / "long")
    files.look(at_once=True)
    files.utc = ca.not_valid_after_utc - (CA_WARN_DAYS + 1) * DAY
    assert files.codes() == []
    files.utc += DAY
    (alarm,) = files.certificate.alarms()
    assert (alarm.code, str(ca.not_valid_after_utc.date()) in alarm.text) == ("ca-expires", True)


def test_a_revocation_list_of_a_ca_that_ends_is_said_where_a_newer_one_signs(files: Files) -> None:
    """The list was left from before a rotation; the CA that signs now is good for longer."""
    folder = files.folder / "ca"
    ca_revoke(folder, "host")
    former = (folder / "ca.crl").read_bytes()
    for step in ("begin", "switch"):
        ca_rotate(folder, step, days=7300, force=False, now=files.utc)
    ca_issue(folder, "host", role="broker", addresses=["10.0.0.1"], days=7300, out=files.folder / "new")
    (folder / "ca.crl").write_bytes(former)
    files.write(files.folder / "new")
    assert files.look(at_once=True) is not None
    files.utc += (3650 - CA_WARN_DAYS + 1) * DAY
    (alarm,) = files.certificate.alarms()
    assert (alarm.code, "revocation list" in alarm.text) == ("ca-expires", True)


def test_it_has_ended_after_its_last_second_and_until_another_is_taken(files: Files) -> None:
    assert not files.certificate.has_ended
    (first,) = x509.load_pem_x509_certificates(files.chain)[:1]
    files.utc = first.not_valid_after_utc
    assert not files.certificate.has_ended
    files.utc += datetime.timedelta(seconds=1)
    assert files.certificate.has_ended


def test_a_renewed_pair_is_taken_when_it_has_stayed_as_it_is_from_one_look_to_the_next(files: Files) -> None:
    assert files.look() is None
    files.write(files.issue("second"))
    assert files.look() is None
    identity = files.look()
    assert identity is not None
    assert identity.credentials.certificate_chain_pem != files.chain
    assert files.look() is None
    assert files.codes() == []


def test_who_has_just_written_it_and_says_so_need_not_wait(files: Files) -> None:
    assert files.look(at_once=True) is None
    files.write(files.issue("second"))
    assert files.look(at_once=True) is not None


def test_it_is_looked_at_now_and_then_and_not_with_every_tick(files: Files) -> None:
    files.write(files.issue("second"))
    files.look()
    assert files.certificate.renewed(now_s=files.now_s + LOOK_S / 2) is None
    assert files.certificate.renewed(now_s=files.now_s + LOOK_S) is not None


def test_a_pair_that_is_half_written_is_not_looked_into(files: Files) -> None:
    second = files.issue("second")
    files.write(second, only=".crt")
    assert files.look() is None
    files.write(second, only=".key")
    assert files.look() is None
    assert files.codes() == []
    assert files.look() is not None


@pytest.mark.parametrize("what", ["half", "role", "ca", "gone", "empty", "readable"])
def test_a_pair_that_is_no_good_is_refused_and_said_until_there_is_a_good_one(files: Files, what: str) -> None:
    if what == "half":
        files.write(files.issue("second"), only=".crt")
    elif what == "role":
        files.write(files.issue("second", role="job"))
    elif what == "ca":
        ca_init(files.folder / "other")
        files.write(files.issue("second", ca="other"))
    elif what == "gone":
        (files.folder / "host.key").unlink()
    elif what == "empty":
        (files.folder / "host.crt").write_bytes(b"")
    else:
        files.write(files.issue("second"))
        (files.folder / "host.key").chmod(0o644)
    assert (files.look(), files.look()) == (None, None)
    (alarm,) = files.certificate.alarms()
    assert alarm.code == "certificate-refused"
    assert "the former ones hold" in alarm.text
    assert files.look() is None, "it is not tried again as long as it stays as it is"
    assert files.look(at_once=True) is None, "but where somebody asks"
    assert files.codes() == ["certificate-refused"]
    files.write(files.issue("third"))
    files.look()
    assert files.look() is not None
    assert files.codes() == []


def test_a_start_without_a_good_pair_is_an_error(files: Files) -> None:
    (files.folder / "host.crt").unlink()
    with pytest.raises(ConfigurationError, match=r"peers\.certificate"):
        files.certificate.load()

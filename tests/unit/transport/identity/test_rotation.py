"""A CA over its life: what it issued, what is due, another key for it, and what happens when a step breaks off."""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from hive_qos.errors import ConfigurationError
from transport.identity import (
    Phase,
    Standing,
    ca_init,
    ca_issue,
    ca_renew,
    ca_revoke,
    ca_rotate,
    ca_status,
    load_identity,
    verify_peer,
)
from transport.identity.register import ISSUED, locked, read_register
from transport.wire.error_codes import WireCode, WireError

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


class Site:
    """A CA, and nodes each with its own copy of the files, as an operator would carry them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca = folder, folder / "ca"
        ca_init(self.ca)

    def install(self, node: str, *, pair: Path | None = None) -> None:
        home = self.folder / node
        home.mkdir(exist_ok=True)
        for name in ("ca.crt", "ca.crl"):
            if (self.ca / name).exists():
                (home / name).write_bytes((self.ca / name).read_bytes())
        if pair is not None:
            for name in (f"{node}.crt", f"{node}.key"):
                (home / name).write_bytes((pair / name).read_bytes())
                (home / name).chmod(0o600)

    def add(self, node: str, *, days: int = 365) -> None:
        ca_issue(self.ca, node, addresses=["10.0.0.1", "a.example"], jobs=["one"], days=days, out=self.folder / "pairs")
        self.install(node, pair=self.folder / "pairs")

    def believes(self, who: str, whom: str) -> bool:
        mine, theirs = (
            load_identity(
                ca=self.folder / name / "ca.crt",
                certificate=self.folder / name / f"{name}.crt",
                key=self.folder / name / f"{name}.key",
            )
            for name in (who, whom)
        )
        chain = x509.load_pem_x509_certificates(theirs.credentials.certificate_chain_pem)
        try:
            return verify_peer(chain, mine.trust, now=NOW).name == whom
        except WireError as error:
            if error.wire_code in (WireCode.CERTIFICATE_UNTRUSTED, WireCode.CERTIFICATE_REVOKED):
                return False
            raise

    def all_believe(self, *nodes: str) -> bool:
        return all(self.believes(one, other) for one in nodes for other in nodes)

    def rotate(self, step: str, *, force: bool = False) -> Phase:
        return ca_rotate(self.ca, step, days=3650, force=force, now=NOW).phase

    def standing(self, *, within: datetime.timedelta = 30 * DAY, now: datetime.datetime = NOW) -> dict[str, Standing]:
        return {one.node: one.standing for one in ca_status(self.ca, within=within, now=now).nodes}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_node_believes_every_other_after_each_copy_of_a_rotation(site: Site) -> None:
    """Files reach one node after the other; in between, nodes before and behind a copy still believe each other."""
    nodes = ("a", "b", "lost")
    for node in nodes:
        site.add(node)
    ca_revoke(site.ca, "lost")
    good = nodes[:2]
    for node in nodes:
        site.install(node)
    assert site.all_believe(*good)
    assert site.rotate("begin") is Phase.BEGUN
    for node in good:
        site.install(node)
        assert site.all_believe(*good)
    assert site.rotate("switch") is Phase.SWITCHED
    made = ca_renew(site.ca, [], within=datetime.timedelta(), days=365, out=site.folder / "new", now=NOW)
    assert [one.certificate.name for one in made] == ["a.crt", "b.crt"], "who was revoked gets none"
    for node in good:
        site.install(node, pair=site.folder / "new")
        assert site.all_believe(*good)
    assert site.rotate("finish") is Phase.STEADY
    for node in good:
        site.install(node)
        assert site.all_believe(*good)
        assert not site.believes(node, "lost")
    assert len(x509.load_pem_x509_certificates((site.ca / "ca.crt").read_bytes())) == 1


def test_the_former_ca_is_believed_by_nobody_once_the_rotation_is_finished(site: Site) -> None:
    site.add("a")
    site.add("thief")
    for step in ("begin", "switch"):
        site.rotate(step)
    ca_renew(site.ca, ["a"], within=None, days=365, out=site.folder / "new", now=NOW)
    with pytest.raises(ConfigurationError, match="1 nodes have certificates of the former CA: thief"):
        site.rotate("finish")
    assert site.rotate("finish", force=True) is Phase.STEADY
    site.install("a", pair=site.folder / "new")
    assert not site.believes("a", "thief")


def test_a_rotation_can_be_cancelled_until_the_new_ca_signs(site: Site) -> None:
    site.add("a")
    before = (site.ca / "ca.crt").read_bytes()
    site.rotate("begin")
    assert site.rotate("cancel") is Phase.STEADY
    assert (site.ca / "ca.crt").read_bytes() == before
    assert not (site.ca / "next.key").exists()
    site.rotate("begin")
    site.rotate("switch")
    with pytest.raises(ConfigurationError, match="the rotation is switched; now use switch or finish"):
        site.rotate("cancel")


def test_a_renewal_keeps_what_the_certificate_says(site: Site) -> None:
    site.add("a")
    ca_renew(site.ca, ["a"], within=None, days=100, out=site.folder / "new", now=NOW)
    before, after = (
        x509.load_pem_x509_certificates((site.folder / name / "a.crt").read_bytes())[0] for name in ("pairs", "new")
    )
    kind = x509.SubjectAlternativeName
    assert before.extensions.get_extension_for_class(kind).value == after.extensions.get_extension_for_class(kind).value
    assert before.public_key() != after.public_key()


def test_only_what_ends_soon_is_renewed_where_that_is_asked(site: Site) -> None:
    for node, days in (("a", 10), ("b", 100), ("gone", 5)):
        site.add(node, days=days)
    ca_revoke(site.ca, "gone")
    assert site.standing() == {"a": Standing.ENDS_SOON, "b": Standing.GOOD, "gone": Standing.REVOKED}
    assert site.standing(now=NOW + 11 * DAY)["a"] is Standing.ENDED
    made = ca_renew(site.ca, [], within=30 * DAY, days=365, out=site.folder / "new", now=NOW)
    assert [one.certificate.name for one in made] == ["a.crt"]
    assert site.standing()["a"] is Standing.GOOD
    assert ca_renew(site.ca, [], within=30 * DAY, days=365, out=site.folder / "new", now=NOW) == []
    with pytest.raises(ConfigurationError, match="was revoked"):
        ca_renew(site.ca, ["gone"], within=None, days=365, out=site.folder / "new", now=NOW)


def test_a_node_that_got_another_certificate_after_it_was_revoked_is_good(site: Site) -> None:
    site.add("a")
    ca_revoke(site.ca, "a")
    ca_issue(site.ca, "a", out=site.folder / "again")
    assert site.standing() == {"a": Standing.GOOD}


def test_a_register_of_the_first_version_serves_revocation_and_says_that_it_knows_no_more(site: Site) -> None:
    site.add("a")
    path = site.ca / ISSUED
    path.write_text(" ".join(path.read_text().split(" ")[:2]) + "\n")
    assert site.standing() == {"a": Standing.UNKNOWN}
    with pytest.raises(ConfigurationError, match="hive-qos ca issue a"):
        ca_renew(site.ca, ["a"], within=None, days=365, out=site.folder / "new", now=NOW)
    ca_revoke(site.ca, "a")
    assert site.standing() == {"a": Standing.REVOKED}


def test_a_rotation_does_not_end_while_a_certificate_of_the_first_version_may_be_of_the_former_ca(site: Site) -> None:
    site.add("a")
    path = site.ca / ISSUED
    path.write_text(" ".join(path.read_text().split(" ")[:2]) + "\n")
    for step in ("begin", "switch"):
        ca_rotate(site.ca, step, days=3650, force=False, now=NOW)
    with pytest.raises(ConfigurationError, match=r"former CA: a; .*version 0\.1\.0 by hive-qos ca issue NODE --renew"):
        ca_rotate(site.ca, "finish", days=3650, force=False, now=NOW)
    ca_issue(site.ca, "a", out=site.folder / "pairs", renew=True)
    assert ca_rotate(site.ca, "finish", days=3650, force=False, now=NOW).phase is Phase.STEADY


def test_a_damaged_register_is_named(site: Site) -> None:
    (site.ca / ISSUED).write_text("12zz node\n")
    with pytest.raises(ConfigurationError, match=r"issued.*is damaged"):
        site.standing()


def test_a_certificate_ends_with_its_ca_at_the_latest(tmp_path: Path) -> None:
    ca_init(tmp_path / "ca", days=30)
    files = ca_issue(tmp_path / "ca", "a", days=365, out=tmp_path)
    ca = x509.load_pem_x509_certificate((tmp_path / "ca" / "ca.crt").read_bytes())
    assert ca.not_valid_after_utc - datetime.timedelta(minutes=1) < files.until <= ca.not_valid_after_utc


def test_two_commands_at_once_lose_none_of_each_others_lines(site: Site) -> None:
    threads = [
        threading.Thread(target=lambda name=name: ca_issue(site.ca, name, out=site.folder / "pairs"))
        for name in ("a", "b", "c", "d", "e", "f")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.node for one in read_register(site.ca)) == ["a", "b", "c", "d", "e", "f"]


def test_a_directory_that_another_command_holds_is_an_error_and_not_a_wait_for_ever(site: Site) -> None:
    descriptor = os.open(site.ca, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another hive-qos ca works there"), locked(site.ca, wait_s=0.0):
            pass
    finally:
        os.close(descriptor)
    with locked(site.ca, wait_s=0.0):
        pass


class FullDisk:
    """Writing a file fails from the n-th on, as where there is no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
        self.left = after
        real = os.fsync

        def sync(descriptor: int) -> None:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.left -= 1
                if self.left < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
            real(descriptor)

        monkeypatch.setattr("hive_qos.files.os.fsync", sync)


@pytest.mark.parametrize("step", ["begin", "switch", "finish"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_step_that_breaks_off_leaves_a_ca_that_nodes_believe_and_can_be_said_again(
    site: Site, step: str, after: int
) -> None:
    site.add("a")
    site.add("lost")
    ca_revoke(site.ca, "lost")
    for before in ("begin", "switch", "finish"):
        if before == step:
            break
        site.rotate(before)
    if step == "finish":
        ca_renew(site.ca, ["a"], within=None, days=365, out=site.folder / "pairs", now=NOW)
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, after=after)
        broken = False
        try:
            site.rotate(step)
        except OSError as problem:
            broken = problem.errno == errno.ENOSPC
    site.install("a", pair=site.folder / "pairs")
    assert site.all_believe("a")
    if broken:
        site.rotate(step)
        site.install("a")
        assert site.all_believe("a")
    assert not site.believes("a", "lost")


def test_a_ca_that_could_not_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        FullDisk(patch, after=1)
        with pytest.raises(OSError, match="No space left"):
            ca_init(tmp_path / "ca")
    ca_init(tmp_path / "ca")


def test_keys_are_of_their_owner_alone_through_all_steps(site: Site) -> None:
    site.add("a")
    site.rotate("begin")
    keys = [site.ca / "ca.key", site.ca / "next.key", site.folder / "pairs" / "a.key", site.ca / ISSUED]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    site.rotate("switch")
    assert stat.S_IMODE((site.ca / "ca.key").stat().st_mode) == 0o600


def test_who_has_a_clock_that_is_behind_is_told_so(site: Site) -> None:
    site.add("a")
    found = load_identity(
        ca=site.ca / "ca.crt", certificate=site.folder / "pairs" / "a.crt", key=site.folder / "pairs" / "a.key"
    )
    chain = x509.load_pem_x509_certificates(found.credentials.certificate_chain_pem)
    with pytest.raises(WireError, match=r"is not valid yet.*a clock is wrong"):
        verify_peer(chain, found.trust, now=NOW - 3 * DAY)
    with pytest.raises(WireError, match="has ended"):
        verify_peer(chain, found.trust, now=NOW + 400 * DAY)

"""Certificates, pins and what a configuration of them can get wrong."""

from __future__ import annotations

import datetime
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509

from hive_qos.errors import ConfigurationError
from transport.identity import (
    ca_init,
    ca_issue,
    ca_revoke,
    ephemeral_identity,
    load_identity,
    pin_of,
    sign_entry,
    verify_entry,
    verify_peer,
)
from transport.identity.credentials import Credentials, Trust
from transport.identity.names import claims_of, der_of
from transport.wire.error_codes import WireCode, WireError

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("identity")
    ca_init(path / "ca", name="test cluster", days=30)
    ca_init(path / "other")
    ca_issue(path / "ca", "n1", addresses=["10.0.0.1", "fd00::1", "n1.example"], out=path)
    ca_issue(path / "ca", "b1", role="broker", addresses=["10.0.0.2"], out=path)
    ca_issue(path / "other", "x1", out=path)
    return path


def chain(credentials: Credentials) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(credentials.certificate_chain_pem)


def loaded(folder: Path, name: str, ca: str = "ca") -> tuple[list[x509.Certificate], Trust]:
    found = load_identity(ca=folder / ca / "ca.crt", certificate=folder / f"{name}.crt", key=folder / f"{name}.key")
    assert found.node == name
    return chain(found.credentials), found.trust


def code_of(certificates: list[x509.Certificate], trust: Trust, **options: object) -> WireCode:
    with pytest.raises(WireError) as caught:
        verify_peer(certificates, trust, **{"now": NOW, **options})  # type: ignore[arg-type]  # a test's shorthand
    return caught.value.wire_code


def test_a_node_of_the_cluster_is_believed_by_name_and_role(folder: Path) -> None:
    certificates, trust = loaded(folder, "n1")
    peer = verify_peer(certificates, trust, now=NOW, expected_peer="n1")
    assert (peer.name, peer.roles, peer.pinned) == ("n1", {"job"}, False)


def test_addresses_stand_in_the_certificate(folder: Path) -> None:
    names = loaded(folder, "n1")[0][0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fd00::1"]
    assert names.get_values_for_type(x509.DNSName) == ["n1.example"]


def test_each_way_to_be_wrong_has_its_code(folder: Path) -> None:
    certificates, trust = loaded(folder, "n1")
    later = NOW + datetime.timedelta(days=400)
    assert code_of([], trust) == WireCode.CERTIFICATE_MISSING
    assert code_of(certificates, trust, now=later) == WireCode.CERTIFICATE_EXPIRED
    assert code_of(certificates, trust, now=NOW - datetime.timedelta(days=3)) == WireCode.CERTIFICATE_EXPIRED
    assert code_of(loaded(folder, "x1", "other")[0], trust) == WireCode.CERTIFICATE_UNTRUSTED
    assert code_of(loaded(folder, "b1")[0], trust) == WireCode.ROLE_REFUSED
    assert code_of(certificates, trust, expected_peer="n2") == WireCode.PEER_UNEXPECTED
    assert code_of(certificates * 6, trust) == WireCode.CERTIFICATE_UNTRUSTED
    assert code_of(chain(ephemeral_identity("n1").credentials), trust) == WireCode.CERTIFICATE_UNTRUSTED


def test_a_broker_is_believed_where_brokers_are_asked_for(folder: Path) -> None:
    certificates, trust = loaded(folder, "b1")
    brokers = Trust(ca_pem=trust.ca_pem, roles=frozenset({"broker"}))
    assert verify_peer(certificates, brokers, now=NOW).name == "b1"


@pytest.mark.parametrize(
    ("own", "theirs", "good"),
    [
        ([], [], True),
        ([], ["résnet 50/a"], True),
        ([], ["other"], False),
        (["résnet 50/a"], ["résnet 50/a"], True),
        (["résnet 50/a", "other"], ["résnet 50/a"], True),
        (["résnet 50/a"], ["other", "another"], False),
        (["résnet 50/a"], [], False),
    ],
)
def test_a_certificate_counts_for_the_jobs_that_it_names(
    folder: Path, tmp_path: Path, own: list[str], theirs: list[str], good: bool
) -> None:
    ca = folder / "ca"
    mine, other = (ca_issue(ca, name, jobs=jobs, out=tmp_path) for name, jobs in (("own", own), ("their", theirs)))
    identity = load_identity(ca=ca / "ca.crt", certificate=mine.certificate, key=mine.key, job="résnet 50/a")
    certificates = x509.load_pem_x509_certificates(other.certificate.read_bytes())
    if good:
        assert verify_peer(certificates, identity.trust, now=NOW).jobs == set(theirs)
    else:
        assert code_of(certificates, identity.trust) == WireCode.JOB_MISMATCH


def test_a_certificate_for_another_job_than_ones_own_is_found_before_any_peer_refuses_it(
    folder: Path, tmp_path: Path
) -> None:
    files = ca_issue(folder / "ca", "own", jobs=["one", "two"], out=tmp_path)
    with pytest.raises(ConfigurationError, match="is for 'one', 'two', and HIVE_JOB is 'three'"):
        load_identity(ca=folder / "ca" / "ca.crt", certificate=files.certificate, key=files.key, job="three")


@pytest.mark.parametrize(("job", "role"), [("", "job"), ("x" * 129, "job"), ("one", "broker")])
def test_a_job_that_no_certificate_can_be_for_is_refused(folder: Path, tmp_path: Path, job: str, role: str) -> None:
    with pytest.raises(ConfigurationError, match="job"):
        ca_issue(folder / "ca", "own", role=role, jobs=[job], out=tmp_path)


@pytest.fixture
def revoking(tmp_path: Path) -> Path:
    """A CA that has issued to n1, to n2 and to n2 again."""
    ca_init(tmp_path / "ca")
    for name, out in (("n1", "."), ("n2", "."), ("n2", "again")):
        ca_issue(tmp_path / "ca", name, out=tmp_path / out)
    return tmp_path


def test_what_was_issued_to_a_node_is_refused_once_it_is_revoked(revoking: Path) -> None:
    certificates, trust = loaded(revoking, "n2")
    assert trust.revoked == frozenset()
    listed = ca_revoke(revoking / "ca", "n2")
    again = x509.load_pem_x509_certificates((revoking / "again" / "n2.crt").read_bytes())
    trust = loaded(revoking, "n1")[1]
    assert code_of(certificates, trust) == code_of(again, trust) == WireCode.CERTIFICATE_REVOKED
    assert verify_peer(loaded(revoking, "n1")[0], trust, now=NOW).name == "n1"
    assert ca_revoke(revoking / "ca", "n1") == listed == revoking / "ca" / "ca.crl"
    assert len(loaded(revoking, "n1")[1].revoked) == 3
    ca_issue(revoking / "ca", "n2", out=revoking / "fresh")
    fresh = x509.load_pem_x509_certificates((revoking / "fresh" / "n2.crt").read_bytes())
    assert verify_peer(fresh, loaded(revoking, "n1")[1], now=NOW).name == "n2"


def test_one_certificate_alone_can_be_revoked_also_where_nobody_noted_it(revoking: Path) -> None:
    (revoking / "ca" / "issued").unlink()
    with pytest.raises(ConfigurationError, match="name the file with --certificate"):
        ca_revoke(revoking / "ca", "n2")
    with pytest.raises(ConfigurationError, match="is of n1, not of n2"):
        ca_revoke(revoking / "ca", "n2", certificate=revoking / "n1.crt")
    ca_revoke(revoking / "ca", "n2", certificate=revoking / "again" / "n2.crt")
    certificates, trust = loaded(revoking, "n2")
    assert verify_peer(certificates, trust, now=NOW).name == "n2"
    again = x509.load_pem_x509_certificates((revoking / "again" / "n2.crt").read_bytes())
    assert code_of(again, trust) == WireCode.CERTIFICATE_REVOKED


def test_a_list_that_is_not_this_cas_is_named_and_not_left_out(revoking: Path, folder: Path) -> None:
    ca_issue(folder / "other", "o1", out=revoking)
    foreign = ca_revoke(folder / "other", "o1")
    for content in (foreign.read_bytes(), b"", b"-----BEGIN X509 CRL-----"):
        (revoking / "ca" / "ca.crl").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"ca\.crl.*copy it again"):
            loaded(revoking, "n1")
    foreign.unlink()


def test_a_list_whose_time_is_over_counts_and_the_log_says_so(
    revoking: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ca_revoke(revoking / "ca", "n2")

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Later:
            return cls.fromtimestamp(NOW.timestamp() + 4000 * 86400, tz)

    monkeypatch.setattr("transport.identity.revocation.datetime.datetime", Later)
    assert len(loaded(revoking, "n1")[1].revoked) == 2
    assert "it still counts" in caplog.text


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused_with_what_to_do(folder: Path, tmp_path: Path, mode: int) -> None:
    key = tmp_path / "n1.key"
    key.write_bytes((folder / "n1.key").read_bytes())
    key.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {key}") as caught:
        load_identity(ca=folder / "ca" / "ca.crt", certificate=folder / "n1.crt", key=key)
    assert caught.value.key == "HIVE_KEY"
    key.chmod(0o400)
    assert load_identity(ca=folder / "ca" / "ca.crt", certificate=folder / "n1.crt", key=key).node == "n1"


def test_a_key_of_another_user_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its mode is, that user may replace it."""
    key = tmp_path / "n1.key"
    key.write_bytes((folder / "n1.key").read_bytes())
    key.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(key, 12345, -1)
    else:
        stranger = os.geteuid() + 1
        monkeypatch.setattr("os.geteuid", lambda: stranger)
    with pytest.raises(ConfigurationError, match="belongs to user"):
        load_identity(ca=folder / "ca" / "ca.crt", certificate=folder / "n1.crt", key=key)


def test_a_ca_certificate_is_not_a_node(folder: Path) -> None:
    certificates, trust = loaded(folder, "n1")
    assert code_of([certificates[1]], trust) == WireCode.CERTIFICATE_UNTRUSTED


def test_a_node_cannot_issue_certificates(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes((folder / "n1.crt").read_bytes())
    (tmp_path / "ca.key").write_bytes((folder / "n1.key").read_bytes())
    _, trust = loaded(folder, "n1")
    try:
        ca_issue(tmp_path, "child", out=tmp_path)
    except x509.ExtensionNotFound:
        return  # a node's certificate has no key identifier to refer to
    certificates = x509.load_pem_x509_certificates((tmp_path / "child.crt").read_bytes())
    assert code_of(certificates, trust) == WireCode.CERTIFICATE_UNTRUSTED


def test_a_pinned_certificate_is_believed_under_the_pinned_name_and_no_other_is() -> None:
    one, two = ephemeral_identity("one"), ephemeral_identity("two")
    trust = Trust(pins={one.pin: "rank-1"})
    assert verify_peer(chain(one.credentials), trust, now=NOW).name == "rank-1"
    assert code_of(chain(two.credentials), trust) == WireCode.CERTIFICATE_UNTRUSTED
    assert one.pin == pin_of(der_of(chain(one.credentials)[0]))


@pytest.mark.parametrize("years", [-60, -2, 2, 900])
def test_a_pinned_certificate_is_believed_whatever_the_clocks_of_both_hosts_say(years: int) -> None:
    one = ephemeral_identity("one")
    now = NOW + years * datetime.timedelta(days=365)
    assert verify_peer(chain(one.credentials), Trust(pins={one.pin: "rank-1"}), now=now).pinned


def test_an_entry_is_signed_as_a_whole() -> None:
    parts = (b"job", b"node", b"address")
    signature = sign_entry(b"secret", *parts)
    assert verify_entry(b"secret", *parts, signature=signature)
    assert not verify_entry(b"other", *parts, signature=signature)
    assert not verify_entry(b"secret", b"jobn", b"ode", b"address", signature=signature)
    assert not verify_entry(b"secret", b"job", b"node", signature=signature)
    assert not verify_entry(b"secret", *parts, signature=b"")
    with pytest.raises(ValueError, match="empty"):
        sign_entry(b"", *parts)


def test_keys_are_readable_by_their_owner_only(folder: Path) -> None:
    for name in ("n1.key", "ca/ca.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "ca").stat().st_mode) == 0o700


def test_nothing_is_overwritten(folder: Path) -> None:
    before = (folder / "n1.key").read_bytes()
    with pytest.raises(ConfigurationError, match="is there already"):
        ca_init(folder / "ca")
    with pytest.raises(ConfigurationError, match="is there already"):
        ca_issue(folder / "ca", "n1", out=folder)
    assert (folder / "n1.key").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"node": "../evil"}, "node"),
        ({"node": ""}, "node"),
        ({"role": "root"}, "role"),
        ({"addresses": ["not an address"]}, "addresses"),
        ({"addresses": ["999.1.1.1"]}, "addresses"),
        ({"addresses": ["10.0.0"]}, "addresses"),
        ({"days": 0}, "days"),
    ],
)
def test_a_wrong_argument_is_named(folder: Path, tmp_path: Path, options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ca_issue(folder / "ca", **{"node": "n9", "out": tmp_path, **options})  # type: ignore[arg-type]  # the test's point
    assert caught.value.key == key
    assert not list(tmp_path.iterdir())


def test_issuing_without_a_ca_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ca init"):
        ca_issue(tmp_path, "n1")


@pytest.mark.parametrize(
    ("variable", "file"),
    [
        ("HIVE_CA", "missing"),
        ("HIVE_CA", "n1.key"),
        ("HIVE_CERT", "ca/ca.crt"),
        ("HIVE_KEY", "b1.key"),
        ("HIVE_KEY", "n1.crt"),
    ],
)
def test_a_file_that_does_not_fit_is_named_by_its_variable(folder: Path, variable: str, file: str) -> None:
    files = {"HIVE_CA": "ca/ca.crt", "HIVE_CERT": "n1.crt", "HIVE_KEY": "n1.key", variable: file}
    with pytest.raises(ConfigurationError) as caught:
        load_identity(
            ca=folder / files["HIVE_CA"], certificate=folder / files["HIVE_CERT"], key=folder / files["HIVE_KEY"]
        )
    assert caught.value.key == variable


def test_a_certificate_with_two_names_claims_nothing() -> None:
    certificate = chain(ephemeral_identity("n").credentials)[0]
    assert claims_of(certificate).node == "n"
    with pytest.raises(ValueError, match="node name"):
        ephemeral_identity("two words")

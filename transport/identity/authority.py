"""The cluster's certificate authority: `hive-qos ca init` makes it once, `ca issue` gives each node a certificate.

Keys are ECDSA P-256, of mode 0600. A file is there whole or not at all, and nothing is overwritten but by a renewal.
Files of a CA directory: `ca.crt` (whom nodes believe: one CA, or two during a rotation), `ca.key` (the one that signs),
`issued` (`transport.identity.register`), once a certificate is revoked `ca.crl` (`transport.identity.revocation`), and
`next.key` while a rotation begins (`transport.identity.rotation`). Files of a node: `NODE.crt` (certificate and CA),
`NODE.key`. Whoever changes the directory holds its lock.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hive_qos.errors import ConfigurationError
from hive_qos.files import write_whole
from transport.identity.names import NODE_PREFIX, ROLE_PREFIX, ROLES, check_node_name, claims_of, job_uri
from transport.identity.register import locked, note_issued, read_register
from transport.identity.revocation import add_to_list
from transport.settings import JOB_BYTES_MAX

CLOCK_SKEW = datetime.timedelta(days=1)
"""Certificates begin to be valid a day ago, because hosts' clocks differ."""
DAYS_MAX = 36500


@dataclass(frozen=True)
class IssuedFiles:
    """Where a certificate and its key were written, and until when it is good."""

    certificate: Path
    key: Path
    until: datetime.datetime


@dataclass(frozen=True)
class Request:
    """What a certificate is to say; `jobs` only for the role `job`."""

    node: str
    role: str
    addresses: tuple[str, ...]
    jobs: tuple[str, ...]


def ca_init(directory: str | Path, *, name: str = "hive-qos", days: int = 3650) -> IssuedFiles:
    """Make a CA in `directory`, which is created with mode 0700 where it is not there.

    Args:
        name: common name of the CA, for people.
        days: how long it is valid.

    Raises:
        ConfigurationError: there is a CA already, or an argument cannot work.
    """
    _check_days(days)
    folder = Path(directory)
    certificate_path, key_path = folder / "ca.crt", folder / "ca.key"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder):
        for path in (certificate_path, key_path):
            if path.exists():
                reason = f"{path.name} is there already; nothing is overwritten"
                raise ConfigurationError("directory", str(directory), reason)
        certificate, key = new_authority(name, days=days)
        write_whole(key_path, private_pem(key).decode(), mode=0o600)
        try:
            write_whole(certificate_path, certificate.public_bytes(Encoding.PEM).decode(), mode=0o644)
        except OSError:
            key_path.unlink(missing_ok=True)  # or the next try would find half a CA
            raise
    return IssuedFiles(certificate=certificate_path, key=key_path, until=certificate.not_valid_after_utc)


def new_authority(name: str, *, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A key that nobody has yet, and the certificate by which it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise ConfigurationError("name", name, f"not the name of a CA: {error}") from error
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        certificate_builder(subject=subject, issuer=subject, public_key=key.public_key(), days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(ca=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def ca_issue(
    directory: str | Path,
    node: str,
    *,
    role: str | None = None,
    addresses: Sequence[str] = (),
    jobs: Sequence[str] = (),
    days: int = 365,
    out: str | Path | None = None,
    renew: bool = False,
) -> IssuedFiles:
    """Issue a certificate for a node, signed by the CA in `directory`.

    Args:
        node: the node's name, which peers will see.
        role: `job` for trainers, `broker` for the daemon; None for `job`, or for that of the certificate to renew.
        addresses: IP addresses or host names to certify. A broker needs one: others hold back only towards addresses
            that its certificate names. None given: those of the certificate to renew.
        jobs: the jobs that it is for, of the role `job`; none: any whose own certificates name none, or those of the
            certificate to renew.
        days: how long it is valid.
        out: where `NODE.crt` and `NODE.key` go; the working directory by default.
        renew: replace the pair that is there by a new certificate with a new key.

    Raises:
        ConfigurationError: no CA there, a bad role, name, address or job, files that exist, or none to renew.
    """
    _check_days(days)
    try:
        check_node_name(node)
    except ValueError as error:
        raise ConfigurationError("node", node, str(error)) from error
    home = Path(directory)
    folder = Path(out) if out is not None else Path()
    with locked(home):
        if renew:
            former = request_of(_of_node(folder / f"{node}.crt", node, load_ca(home).trusted))
            role, addresses, jobs = role or former.role, addresses or former.addresses, jobs or former.jobs
        else:
            for path in (folder / f"{node}.crt", folder / f"{node}.key"):
                if path.exists():
                    raise ConfigurationError("out", str(path), "is there already; to replace it, renew it (--renew)")
        wanted = Request(node, role or ROLES[0], tuple(addresses), tuple(jobs))
        return issue_all(home, [wanted], days=days, folder=folder)[0]


def issue_all(home: Path, wanted: Sequence[Request], *, days: int, folder: Path) -> list[IssuedFiles]:
    """Issue a pair to each node, noted in the register before the first is written. Under the directory's lock.

    Certificates end with their CA at the latest. Pairs that are there are replaced, the key first: whoever watches the
    files takes the pair once both have changed.

    Raises:
        ConfigurationError: no CA there, or something that no certificate can say.
        OSError: a file cannot be written. Pairs before it are there.
    """
    for one in wanted:
        _check(one)
    authority = load_ca(home)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for one in wanted:
        key = ec.generate_private_key(ec.SECP256R1())
        made.append((one.node, key, _certificate_for(one, key, authority, days=days)))
    note_issued(home, [(node, certificate) for node, _, certificate in made])
    found = []
    for node, key, certificate in made:
        files = IssuedFiles(folder / f"{node}.crt", folder / f"{node}.key", certificate.not_valid_after_utc)
        chain = certificate.public_bytes(Encoding.PEM) + authority.certificate.public_bytes(Encoding.PEM)
        write_whole(files.key, private_pem(key).decode(), mode=0o600)
        write_whole(files.certificate, chain.decode(), mode=0o644)
        found.append(files)
    return found


def _check(wanted: Request) -> None:
    if wanted.role not in ROLES:
        raise ConfigurationError("role", wanted.role, f"write one of {', '.join(ROLES)}")
    for job in wanted.jobs:
        if wanted.role != "job":
            raise ConfigurationError("job", job, f"a certificate with the role {wanted.role} is for no job")
        if not 1 <= len(job.encode()) <= JOB_BYTES_MAX:
            raise ConfigurationError("job", job, f"write 1 to {JOB_BYTES_MAX} bytes, as HIVE_JOB has them")
    if wanted.role == "broker" and not wanted.addresses:
        raise ConfigurationError(
            "address",
            "",
            "a broker's certificate names the addresses that others hold back towards: --address 10.0.0.1",
        )


def _certificate_for(
    wanted: Request, key: ec.EllipticCurvePrivateKey, authority: Authority, *, days: int
) -> x509.Certificate:
    issuer = authority.certificate
    left_days = (issuer.not_valid_after_utc - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1)
    if left_days <= 0:
        reason = f"has ended on {issuer.not_valid_after_utc:%Y-%m-%d}; make another: hive-qos ca rotate begin"
        raise ConfigurationError("directory", str(issuer.subject.rfc4514_string()), reason)
    return (
        certificate_builder(
            subject=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted.node)]),
            issuer=issuer.subject,
            public_key=key.public_key(),
            days=min(days, left_days),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(ca=False), critical=True)
        .add_extension(both_usages(), critical=False)
        .add_extension(
            subject_names(wanted.node, role=wanted.role, addresses=wanted.addresses, jobs=wanted.jobs), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )


def request_of(certificate: x509.Certificate) -> Request:
    """What would have to be asked for to get another certificate like this one."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    claims = claims_of(certificate)
    return Request(
        node=claims.node,
        role=next(iter(claims.roles), ROLES[0]),
        addresses=(*addresses, *names.get_values_for_type(x509.DNSName)),
        jobs=tuple(sorted(claims.jobs)),
    )


def ca_revoke(directory: str | Path, node: str, *, certificate: str | Path | None = None) -> Path:
    """Revoke what was issued to a node; the CA's list, which every node needs beside its copy of `ca.crt`.

    Args:
        certificate: revoke this one alone, also where the CA has no record of it.

    Raises:
        ConfigurationError: no CA there, nothing was issued to that node, or the certificate is not one of its.
    """
    folder = Path(directory)
    with locked(folder):
        authority = load_ca(folder)
        if certificate is None:
            serials = [one.serial for one in read_register(folder) if one.node == node]
            if not serials:
                reason = f"{folder / 'issued'} has no certificate of it; name the file with --certificate"
                raise ConfigurationError("node", node, reason)
        else:
            serials = [_of_node(Path(certificate), node, authority.trusted).serial_number]
        return add_to_list(
            folder, serials, authorities=authority.trusted, issuer=authority.certificate, key=authority.key
        )


def _of_node(path: Path, node: str, trusted: Sequence[x509.Certificate]) -> x509.Certificate:
    """A node's certificate in a file."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
        if not any(_was_issued_by(found, authority) for authority in trusted):
            raise ValueError("another CA signed it")
        name = claims_of(found).node
    except OSError as error:
        raise ConfigurationError("certificate", str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError("certificate", str(path), f"not a certificate of this CA: {error}") from error
    if name != node:
        raise ConfigurationError("certificate", str(path), f"is of {name}, not of {node}")
    return found


def _was_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificate_builder(
    *, subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    """The fields that every certificate of ours has; `days` from now, begun `CLOCK_SKEW` ago."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def subject_names(
    node: str, *, role: str, addresses: Sequence[str] = (), jobs: Sequence[str] = ()
) -> x509.SubjectAlternativeName:
    """Name, role and jobs as URIs, addresses as what they are.

    Raises:
        ConfigurationError: an address that is neither an IP address nor a host name.
    """
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(NODE_PREFIX + node),
        x509.UniformResourceIdentifier(ROLE_PREFIX + role),
        *(x509.UniformResourceIdentifier(job_uri(job)) for job in jobs),
    ]
    for address in addresses:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            try:
                if address.rpartition(".")[
                    2
                ].isdigit():  # no top-level domain is a number: an address with a slip in it
                    raise ValueError(f"{address!r} ends in a number, as only an IP address does")
                names.append(x509.DNSName(check_node_name(address)))
            except ValueError as error:
                raise ConfigurationError("addresses", address, "neither an IP address nor a host name") from error
    return x509.SubjectAlternativeName(names)


def key_usage(*, ca: bool) -> x509.KeyUsage:
    """A CA signs certificates; a node signs handshakes."""
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def both_usages() -> x509.ExtendedKeyUsage:
    """Either side may dial, so every node is client and server."""
    return x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS 8, not encrypted: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True)
class Authority:
    """A CA that can sign: the certificate of its key, and all that nodes are to trust (`ca.crt`)."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    trusted: tuple[x509.Certificate, ...]


def load_ca(folder: Path) -> Authority:
    """Read `ca.crt` and `ca.key`. Which of the certificates signs is what the key says.

    Raises:
        ConfigurationError: no CA there, or files that are none.
    """
    try:
        trusted = tuple(x509.load_pem_x509_certificates((folder / "ca.crt").read_bytes()))
    except OSError as error:
        raise ConfigurationError(
            "directory", str(folder), f"no CA there ({error.strerror}); run hive-qos ca init"
        ) from error
    except ValueError as error:
        raise ConfigurationError("directory", str(folder), f"ca.crt cannot be read: {error}") from error
    key = read_key(folder / "ca.key")
    signing = next((one for one in trusted if one.public_key() == key.public_key()), None)
    if signing is None:
        raise ConfigurationError("directory", str(folder), "ca.key is not the key of ca.crt; restore both together")
    return Authority(signing, key, trusted)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key of a CA.

    Raises:
        ConfigurationError: it cannot be read, or is none of ours.
    """
    folder = str(path.parent)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        reason = f"{path.name} cannot be read ({error.strerror}); restore it, or make a CA with hive-qos ca init"
        raise ConfigurationError("directory", folder, reason) from error
    except (ValueError, TypeError) as error:
        raise ConfigurationError("directory", folder, f"{path.name} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("directory", folder, f"{path.name} is not an elliptic-curve key")
    return key


def _check_days(days: int) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise ConfigurationError("days", days, f"write 1 to {DAYS_MAX}")

"""The cluster's certificate authority: `hive-qos ca init` makes it once, `ca issue` gives each node a certificate.

Keys are ECDSA P-256, written with mode 0600 before their content exists. Nothing is overwritten but by a renewal.
Files of a CA directory: `ca.crt`, `ca.key`, `issued` (a line for each certificate: serial number, node) and, once one
is revoked, `ca.crl` (`transport.identity.revocation`). Files of a node: `NODE.crt` (certificate and CA), `NODE.key`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
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
from transport.identity.names import JOB_BYTES_MAX, NODE_PREFIX, ROLE_PREFIX, ROLES, check_node_name, claims_of, job_uri
from transport.identity.revocation import add_to_list, issued_to, note_issued

CLOCK_SKEW = datetime.timedelta(days=1)
"""Certificates begin to be valid a day ago, because hosts' clocks differ."""
DAYS_MAX = 36500


@dataclass(frozen=True)
class IssuedFiles:
    """Where a certificate and its key were written."""

    certificate: Path
    key: Path


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
    files = IssuedFiles(certificate=folder / "ca.crt", key=folder / "ca.key")
    for path in (files.certificate, files.key):
        if path.exists():
            raise ConfigurationError(
                "directory", str(directory), f"{path.name} is there already; nothing is overwritten"
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        certificate_builder(subject=subject, issuer=subject, public_key=key.public_key(), days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(ca=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_private(files.key, private_pem(key))
    _write_public(files.certificate, certificate.public_bytes(Encoding.PEM))
    return files


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
    ca_certificate, ca_key = load_ca(Path(directory))
    folder = Path(out) if out is not None else Path()
    files = IssuedFiles(certificate=folder / f"{node}.crt", key=folder / f"{node}.key")
    if renew:
        former_role, former_addresses, former_jobs = _names_of(files.certificate, node, ca_certificate)
        role, addresses, jobs = role or former_role, addresses or former_addresses, jobs or former_jobs
    else:
        for path in (files.certificate, files.key):
            if path.exists():
                raise ConfigurationError("out", str(path), "is there already; to replace it, renew it (--renew)")
    role = role or ROLES[0]
    if role not in ROLES:
        raise ConfigurationError("role", role, f"write one of {', '.join(ROLES)}")
    for job in jobs:
        if role != "job":
            raise ConfigurationError("job", job, f"a certificate with the role {role} is for no job")
        if not 1 <= len(job.encode()) <= JOB_BYTES_MAX:
            raise ConfigurationError("job", job, f"write 1 to {JOB_BYTES_MAX} bytes, as HIVE_JOB has them")
    if role == "broker" and not addresses:
        raise ConfigurationError(
            "address",
            "",
            "a broker's certificate names the addresses that others hold back towards: --address 10.0.0.1",
        )
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        certificate_builder(
            subject=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)]),
            issuer=ca_certificate.subject,
            public_key=key.public_key(),
            days=days,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(ca=False), critical=True)
        .add_extension(both_usages(), critical=False)
        .add_extension(subject_names(node, role=role, addresses=addresses, jobs=jobs), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                ca_certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    note_issued(Path(directory), certificate.serial_number, node)
    chain = certificate.public_bytes(Encoding.PEM) + ca_certificate.public_bytes(Encoding.PEM)
    if renew:  # whoever watches the files takes the pair once both have changed
        write_whole(files.key, private_pem(key).decode(), mode=0o600)
        write_whole(files.certificate, chain.decode(), mode=0o644)
    else:
        _write_private(files.key, private_pem(key))
        _write_public(files.certificate, chain)
    return files


def _names_of(path: Path, node: str, ca_certificate: x509.Certificate) -> tuple[str, list[str], list[str]]:
    """Role, addresses and jobs of a certificate that is to be renewed."""
    certificate = _of_node(path, node, ca_certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    claims = claims_of(certificate)
    role = next(iter(claims.roles), ROLES[0])
    return role, addresses + names.get_values_for_type(x509.DNSName), sorted(claims.jobs)


def ca_revoke(directory: str | Path, node: str, *, certificate: str | Path | None = None) -> Path:
    """Revoke what was issued to a node; the CA's list, which every node needs beside its copy of `ca.crt`.

    Args:
        certificate: revoke this one alone, also where the CA has no record of it.

    Raises:
        ConfigurationError: no CA there, nothing was issued to that node, or the certificate is not one of its.
    """
    folder = Path(directory)
    ca_certificate, ca_key = load_ca(folder)
    if certificate is None:
        serials = issued_to(folder, node)
        if not serials:
            reason = f"{folder / 'issued'} has no certificate of it; name the file with --certificate"
            raise ConfigurationError("node", node, reason)
    else:
        serials = [_of_node(Path(certificate), node, ca_certificate).serial_number]
    return add_to_list(folder, serials, ca_certificate=ca_certificate, ca_key=ca_key)


def _of_node(path: Path, node: str, ca_certificate: x509.Certificate) -> x509.Certificate:
    """A node's certificate in a file."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
        found.verify_directly_issued_by(ca_certificate)
        name = claims_of(found).node
    except OSError as error:
        raise ConfigurationError("certificate", str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigurationError("certificate", str(path), f"not a certificate of this CA: {error}") from error
    if name != node:
        raise ConfigurationError("certificate", str(path), f"is of {name}, not of {node}")
    return found


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


def load_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except OSError as error:
        raise ConfigurationError(
            "directory", str(folder), f"no CA there ({error.strerror}); run hive-qos ca init"
        ) from error
    except ValueError as error:
        raise ConfigurationError("directory", str(folder), f"ca.crt or ca.key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("directory", str(folder), "ca.key is not an elliptic-curve key")
    return certificate, key


def _check_days(days: int) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise ConfigurationError("days", days, f"write 1 to {DAYS_MAX}")


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _write_public(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)

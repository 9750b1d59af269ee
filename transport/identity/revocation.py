"""Certificates that the CA has taken back: a list that it signs (RFC 5280 5), beside its own certificate.

The list of `ca.crt` is `ca.crl` in the same directory, on the CA's machine as on every node that it was copied to. What
it names is refused at every handshake that begins after it was read. A list does not end before the CA does, so that a
node to which no newer one was brought goes on; one that has ended still counts, and the log says so.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from hive_qos.errors import ConfigurationError
from hive_qos.files import write_whole

_COPY = "copy it again from the CA's directory"
_log = logging.getLogger("transport.identity")


def list_beside(ca: str | Path) -> Path:
    """Where the list of a CA is, or would be."""
    return Path(ca).with_suffix(".crl")


def revoked_beside(ca: str | Path, authorities: Sequence[x509.Certificate]) -> frozenset[int]:
    """The serial numbers on the list beside a CA's certificate; none where there is no list.

    Args:
        authorities: the certificates in that file, one of which must have signed the list.

    Raises:
        ConfigurationError: there is a list that cannot be read, or is not this CA's.
    """
    found = _read(list_beside(ca), authorities)
    return frozenset() if found is None else frozenset(entry.serial_number for entry in found)


def add_to_list(
    folder: Path,
    serials: Iterable[int],
    *,
    authorities: Sequence[x509.Certificate],
    issuer: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
) -> Path:
    """Add certificates to the CA's list, which is made where there is none, and replaced at once where there is.

    Serial numbers are random and of 159 bits, so one list serves both CAs of a rotation.

    Args:
        authorities: one of them must have signed the list that is there.
        issuer: who signs the new one.

    Raises:
        ConfigurationError: the list that is there cannot be read, or is not this CA's.
    """
    path = list_beside(folder / "ca.crt")
    now = datetime.datetime.now(datetime.UTC)
    before = _read(path, authorities)
    entries = {entry.serial_number: entry for entry in before or ()}
    for serial in serials:
        entries.setdefault(serial, x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build())
    number = 0 if before is None else before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now)
        .next_update(issuer.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number + 1), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )
    for entry in entries.values():
        builder = builder.add_revoked_certificate(entry)
    write_whole(path, builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), mode=0o644)
    return path


def list_until(ca: str | Path) -> datetime.datetime | None:
    """When the list beside a CA's certificate is to be replaced at the latest; None where there is none."""
    try:
        return x509.load_pem_x509_crl(list_beside(ca).read_bytes()).next_update_utc
    except (OSError, ValueError):
        return None


def _read(path: Path, authorities: Sequence[x509.Certificate]) -> x509.CertificateRevocationList | None:
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError("HIVE_CA", str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        reason = f"not a PEM list of revoked certificates: {error}; {_COPY}"
        raise ConfigurationError("HIVE_CA", str(path), reason) from error
    if not any(_is_signed_by(found, authority) for authority in authorities):
        raise ConfigurationError("HIVE_CA", str(path), f"is not signed by the CA beside it; {_COPY}")
    until = found.next_update_utc
    if until is not None and until < datetime.datetime.now(datetime.UTC):
        _log.warning("%s should have been replaced by %s; it still counts", path, until)
    return found


def _is_signed_by(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return (
        found.issuer == authority.subject
        and isinstance(key, ec.EllipticCurvePublicKey)
        and found.is_signature_valid(key)
    )

"""The configured identity of a process: what HIVE_CA, HIVE_CERT and HIVE_KEY name."""

from __future__ import annotations

import datetime
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hive_qos.errors import ConfigurationError
from transport.identity.credentials import Credentials, Trust
from transport.identity.names import claims_of
from transport.identity.revocation import revoked_beside
from transport.identity.verify import verify_peer
from transport.wire.error_codes import WireError


@dataclass(frozen=True)
class ConfiguredIdentity:
    """Who this process is by its certificate, and whom it believes."""

    node: str
    credentials: Credentials
    trust: Trust


def load_identity(
    *,
    ca: str | Path,
    certificate: str | Path,
    key: str | Path,
    roles: frozenset[str] = frozenset({"job"}),
    job: str | None = None,
) -> ConfiguredIdentity:
    """Load certificate, key and CA from PEM files and hold them against each other.

    A list of revoked certificates (`hive-qos ca revoke`) is taken from beside the CA's, where there is one: the file
    that is called alike but ends in `.crl`.

    Args:
        job: what the certificates are to be used for. Whoever's own names jobs believes only those that name this one;
            whoever's own names none believes those that name none, too.

    Raises:
        ConfigurationError: names the variable, the file and what is wrong with it, also that others may read the key.
    """
    ca_pem = _read("HIVE_CA", ca)
    certificate_pem = _read("HIVE_CERT", certificate)
    key_pem = _read_private("HIVE_KEY", key)
    try:
        authorities = x509.load_pem_x509_certificates(ca_pem)
    except ValueError as error:
        raise ConfigurationError("HIVE_CA", str(ca), f"not a PEM certificate: {error}") from error
    try:
        leaf = x509.load_pem_x509_certificates(certificate_pem)[0]
        claims = claims_of(leaf)
    except ValueError as error:
        raise ConfigurationError("HIVE_CERT", str(certificate), f"not a node's certificate: {error}") from error
    try:
        private = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError("HIVE_KEY", str(key), f"not an unencrypted PEM key: {error}") from error
    if private.public_key() != leaf.public_key():
        raise ConfigurationError("HIVE_KEY", str(key), f"is not the key of {certificate}")
    if job is not None and claims.jobs and job not in claims.jobs:
        jobs = ", ".join(map(repr, sorted(claims.jobs)))
        raise ConfigurationError("HIVE_CERT", str(certificate), f"is for {jobs}, and HIVE_JOB is {job!r}")
    return ConfiguredIdentity(
        node=claims.node,
        credentials=Credentials(certificate_chain_pem=certificate_pem, private_key_pem=key_pem),
        trust=Trust(
            ca_pem=ca_pem,
            roles=roles,
            job=job,
            job_needed=job is not None and bool(claims.jobs),
            revoked=revoked_beside(ca, authorities),
        ),
    )


def check_own(identity: ConfiguredIdentity, *, key: str, path: str, advice: str) -> None:
    """Judge an own certificate as others will: better that its own host says so than all the others.

    Args:
        key, path: what names the certificate's file, and the file. advice: what makes a better one.

    Raises:
        ConfigurationError: it is of another CA or for another role, has been revoked, or is not valid now.
    """
    chain = x509.load_pem_x509_certificates(identity.credentials.certificate_chain_pem)
    now = datetime.datetime.now(datetime.UTC)
    try:
        verify_peer(chain, identity.trust, now=now)
    except WireError as error:
        # Another certificate does not help a host whose clock is behind.
        hint = "" if now < chain[0].not_valid_before_utc else f"; {advice}"
        raise ConfigurationError(key, path, f"others would refuse this: {error.reason}{hint}") from error


def _read(variable: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(variable, str(path), f"cannot be read: {error.strerror}") from error


def _read_private(variable: str, path: str | Path) -> bytes:
    """A file that only its owner may read, who is this user or root: for root's programs, root alone."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise ConfigurationError(variable, str(path), f"cannot be read: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        reason = f"belongs to user {found.st_uid}, who may read and replace it; write `chown {os.geteuid()} {path}`"
    elif mode & 0o077:
        reason = f"others may read it (mode {mode:04o}), so it may be anybody's by now; write `chmod 600 {path}`"
    else:
        return content
    raise ConfigurationError(variable, str(path), f"{reason}, or issue a new certificate and key")

"""What an engine needs of an identity: the certificate chain to show with its key, and whom to believe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Credentials:
    """This side's certificate chain and key, PEM. The key never leaves the process."""

    certificate_chain_pem: bytes
    private_key_pem: bytes = field(repr=False)


@dataclass(frozen=True)
class Trust:
    """Whom to believe: a cluster's CA, or pinned fingerprints; never neither.

    Args:
        ca_pem: the CA's certificate; a peer's name is then the one in its certificate, and it must hold a role of
            `roles`.
        pins: SHA-256 of a peer's DER certificate (32 bytes) to that peer's name, for groups without configuration.
        roles: acceptable roles (`job`, `broker`) when the CA decides.
        job: when the CA decides, a certificate that names jobs has to name this one. None: jobs count for nothing.
        job_needed: a certificate that names no job is refused, too.
        revoked: serial numbers of certificates that the CA has taken back.
    """

    ca_pem: bytes | None = None
    pins: Mapping[bytes, str] = field(default_factory=dict)
    roles: frozenset[str] = frozenset({"job"})
    job: str | None = None
    job_needed: bool = False
    revoked: frozenset[int] = frozenset()

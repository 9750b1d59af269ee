"""Whether a peer is who it should be: its certificate against a cluster's CA or against pins.

Possession of the key was proved by the TLS handshake before; here only the certificate is judged. The order of checks
decides which code a peer is refused with: missing, expired, untrusted, revoked, role, job, name. A pin names one
certificate, so its dates say nothing more: hosts whose clocks are years apart train together.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from transport.identity.credentials import Trust
from transport.identity.ephemeral import pin_of
from transport.identity.names import claims_of, der_of
from transport.wire.error_codes import WireCode, WireError

CHAIN_CERTIFICATES_MAX = 5


@dataclass(frozen=True)
class VerifiedPeer:
    """Who is on the other side; `pinned` tells a pin from a CA's word, and only a CA vouches for `addresses`."""

    name: str
    roles: frozenset[str]
    pinned: bool
    addresses: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()


def verify_peer(
    chain: Sequence[x509.Certificate], trust: Trust, *, now: datetime.datetime, expected_peer: str | None = None
) -> VerifiedPeer:
    """Judge a certificate chain, the peer's own first.

    Args:
        chain: what the peer presented; empty where it presented none.
        trust: pins are looked up first, then the CA is asked.
        now: time-zone aware.
        expected_peer: the name that was dialled, where one was.

    Raises:
        WireError: with the code to close the connection with, and why.
    """
    if not chain:
        raise WireError(WireCode.CERTIFICATE_MISSING, "presented no certificate")
    try:
        return _judged(chain, trust, now=now, expected_peer=expected_peer)
    except WireError:
        raise
    except Exception as error:
        raise WireError(WireCode.CERTIFICATE_UNTRUSTED, f"its certificate cannot be judged: {error!r}") from error


def _judged(
    chain: Sequence[x509.Certificate], trust: Trust, *, now: datetime.datetime, expected_peer: str | None
) -> VerifiedPeer:
    peer = _pinned(chain[0], trust)
    if peer is None:
        _check_dates(chain[0], now)
        peer = _certified(chain, trust, now=now)
    if not peer.pinned and not peer.roles & trust.roles:
        roles = ", ".join(sorted(peer.roles)) or "none"
        raise WireError(WireCode.ROLE_REFUSED, f"{peer.name} has role {roles}, needed is {' or '.join(trust.roles)}")
    if not peer.pinned and trust.job is not None and trust.job not in peer.jobs and (peer.jobs or trust.job_needed):
        jobs = ", ".join(map(repr, sorted(peer.jobs))) or "no job"
        raise WireError(WireCode.JOB_MISMATCH, f"its certificate is for {jobs}, and this is job {trust.job!r}")
    if expected_peer is not None and peer.name != expected_peer:
        raise WireError(WireCode.PEER_UNEXPECTED, f"{expected_peer} was dialled and {peer.name} answered")
    return peer


def _check_dates(leaf: x509.Certificate, now: datetime.datetime) -> None:
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begin <= now <= end:
        what = "is not valid yet" if now < begin else "has ended"
        clock = "; a clock is wrong, here or where it was issued" if now < begin else ""
        raise WireError(
            WireCode.CERTIFICATE_EXPIRED,
            f"its certificate {what}: it is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, "
            f"and here it is {now:%Y-%m-%d %H:%M} UTC{clock}",
        )


def _pinned(leaf: x509.Certificate, trust: Trust) -> VerifiedPeer | None:
    # A plain look-up will do: a pin is public, its timing tells nothing.
    name = trust.pins.get(pin_of(der_of(leaf)))
    return None if name is None else VerifiedPeer(name=str.__str__(name), roles=frozenset(), pinned=True)


def _certified(chain: Sequence[x509.Certificate], trust: Trust, *, now: datetime.datetime) -> VerifiedPeer:
    if trust.ca_pem is None:
        raise WireError(WireCode.CERTIFICATE_UNTRUSTED, "its certificate is not among the pinned ones")
    if len(chain) > CHAIN_CERTIFICATES_MAX:
        raise WireError(WireCode.CERTIFICATE_UNTRUSTED, f"a chain of {len(chain)} certificates; 5 are allowed")
    store = Store(x509.load_pem_x509_certificates(trust.ca_pem))
    # The client profile fits both sides: it asks for the chain, usages and dates, and leaves names to us.
    verifier = PolicyBuilder().store(store).time(now).max_chain_depth(1).build_client_verifier()
    try:
        verifier.verify(chain[0], list(chain[1:]))
        claims = claims_of(chain[0])
    except (VerificationError, ValueError) as error:
        raise WireError(WireCode.CERTIFICATE_UNTRUSTED, f"its certificate is not of this cluster: {error}") from error
    if any(certificate.serial_number in trust.revoked for certificate in chain):
        raise WireError(WireCode.CERTIFICATE_REVOKED, f"the certificate of {claims.node} has been revoked")
    return VerifiedPeer(
        name=claims.node, roles=claims.roles, pinned=False, addresses=claims.addresses, jobs=claims.jobs
    )

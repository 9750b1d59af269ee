"""Identities for a process group without configuration: a self-signed certificate each, pinned through the rendezvous.

A pin is the SHA-256 of the DER certificate. Whoever can write to the rendezvous store can replace a pin; with a job
secret each entry carries an HMAC over all that it says and the run that it is of: a store alone cannot forge one.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from transport.identity.authority import both_usages, certificate_builder, key_usage, private_pem, subject_names
from transport.identity.credentials import Credentials
from transport.identity.names import check_node_name, der_of

EPHEMERAL_DAYS = 365
"""As a certificate has to say something: its pin dies with the rendezvous, and nobody asks for its dates."""


@dataclass(frozen=True)
class EphemeralIdentity:
    """Credentials that live as long as the process, and the pin to publish for them."""

    node: str
    credentials: Credentials
    pin: bytes


def ephemeral_identity(node: str, *, role: str = "job") -> EphemeralIdentity:
    """Make a self-signed certificate that nobody trusts until its pin is known. The key exists in memory alone.

    Raises:
        ValueError: `node` is not a node name.
    """
    check_node_name(node)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    certificate = (
        certificate_builder(subject=name, issuer=name, public_key=key.public_key(), days=EPHEMERAL_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(ca=False), critical=True)
        .add_extension(both_usages(), critical=False)
        .add_extension(subject_names(node, role=role), critical=False)
        .sign(key, hashes.SHA256())
    )
    return EphemeralIdentity(
        node=node,
        credentials=Credentials(
            certificate_chain_pem=certificate.public_bytes(Encoding.PEM), private_key_pem=private_pem(key)
        ),
        pin=pin_of(der_of(certificate)),
    )


def pin_of(certificate_der: bytes) -> bytes:
    """SHA-256 of a certificate, 32 bytes."""
    return hashlib.sha256(certificate_der).digest()


def sign_entry(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA-256 over all that an entry says, each part behind its length, so that no two lists share bytes.

    Raises:
        ValueError: the secret is empty.
    """
    if not secret:
        raise ValueError("an empty job secret authenticates nothing")
    message = b"".join(len(part).to_bytes(4, "big") + part for part in (b"hive-qos entry 3", *parts))
    return hmac.new(secret, message, hashlib.sha256).digest()


def verify_entry(secret: bytes, *parts: bytes, signature: bytes) -> bool:
    """Whether `signature` was made by a holder of the secret over these parts, in constant time."""
    return hmac.compare_digest(sign_entry(secret, *parts), signature)

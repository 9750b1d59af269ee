"""Who this broker is to others: the files of `[peers]`, held against each other before anything is opened."""

from __future__ import annotations

import datetime

from cryptography import x509

from broker.policy.types import PeersPolicy
from hive_qos.errors import ConfigurationError
from transport.identity import ConfiguredIdentity, load_identity, verify_peer
from transport.identity.names import claims_of
from transport.wire.error_codes import WireError

_KEYS = {"HIVE_CA": "peers.ca", "HIVE_CERT": "peers.certificate", "HIVE_KEY": "peers.key"}
_ISSUE = "`hive-qos ca issue NODE --role broker --address ADDRESS` makes one"


def broker_identity(settings: PeersPolicy) -> ConfiguredIdentity:
    """Load certificate, key and CA; peers of the role `broker` are believed, and nobody else.

    Raises:
        ConfigurationError: a file cannot be read, others may read the key, or the certificate is one that every peer
            would refuse: of another CA, for another role, or not valid now.
    """
    try:
        identity = load_identity(
            ca=settings.ca, certificate=settings.certificate, key=settings.key, roles=frozenset({"broker"})
        )
    except ConfigurationError as error:
        hint = "" if error.key == "HIVE_CA" else f"; {_ISSUE}"
        raise ConfigurationError(_KEYS[error.key], error.value, error.reason + hint) from error
    chain = x509.load_pem_x509_certificates(identity.credentials.certificate_chain_pem)
    try:
        verify_peer(chain, identity.trust, now=datetime.datetime.now(datetime.UTC))
    except WireError as error:
        reason = f"other brokers would refuse this: {error.reason}; {_ISSUE}"
        raise ConfigurationError("peers.certificate", settings.certificate, reason) from error
    return identity


def certified_addresses(identity: ConfiguredIdentity) -> frozenset[str]:
    """The addresses for which this broker may ask others."""
    chain = x509.load_pem_x509_certificates(identity.credentials.certificate_chain_pem)
    return claims_of(chain[0]).addresses


def good_until(identity: ConfiguredIdentity) -> datetime.datetime:
    """When this broker's certificate, or one that it is signed by, ends."""
    chain = x509.load_pem_x509_certificates(identity.credentials.certificate_chain_pem)
    return min(certificate.not_valid_after_utc for certificate in chain)

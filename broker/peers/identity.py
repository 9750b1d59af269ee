"""Who this broker is to others: the files of `[peers]`, held against each other before anything is opened."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509

from broker.policy.types import PeersPolicy
from hive_qos.errors import ConfigurationError
from transport.identity import ConfiguredIdentity, check_own, load_identity
from transport.identity.names import claims_of

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
    check_own(identity, key="peers.certificate", path=settings.certificate, advice=_ISSUE)
    return identity


def certified_addresses(identity: ConfiguredIdentity) -> frozenset[str]:
    """The addresses for which this broker may ask others."""
    chain = x509.load_pem_x509_certificates(identity.credentials.certificate_chain_pem)
    return claims_of(chain[0]).addresses


@dataclass(frozen=True)
class Ends:
    """When what this broker needs to be believed ends: its certificate, and the CA that signed it."""

    certificate: datetime.datetime
    authority: datetime.datetime

    @property
    def first(self) -> datetime.datetime:
        return min(self.certificate, self.authority)


def ends_of(identity: ConfiguredIdentity) -> Ends:
    """When this broker's certificate, and the one that it is signed by, end."""
    leaf, *above = x509.load_pem_x509_certificates(identity.credentials.certificate_chain_pem)
    above += x509.load_pem_x509_certificates(identity.trust.ca_pem or b"") if not above else []
    return Ends(
        certificate=leaf.not_valid_after_utc,
        authority=min((one.not_valid_after_utc for one in above), default=leaf.not_valid_after_utc),
    )

"""Who a node is and whom it believes: a cluster's CA with roles, or ephemeral certificates pinned for one job.

There is no mode without encryption and none without authentication; both sides of a connection are verified.
"""

from transport.identity.authority import IssuedFiles, ca_init, ca_issue, ca_revoke
from transport.identity.environment import ConfiguredIdentity, check_own, load_identity
from transport.identity.ephemeral import EphemeralIdentity, ephemeral_identity, pin_of, sign_entry, verify_entry
from transport.identity.rotation import CaStatus, Phase, Standing, ca_renew, ca_rotate, ca_status
from transport.identity.verify import VerifiedPeer, verify_peer

__all__ = [
    "CaStatus",
    "ConfiguredIdentity",
    "EphemeralIdentity",
    "IssuedFiles",
    "Phase",
    "Standing",
    "VerifiedPeer",
    "ca_init",
    "ca_issue",
    "ca_renew",
    "ca_revoke",
    "ca_rotate",
    "ca_status",
    "check_own",
    "ephemeral_identity",
    "load_identity",
    "pin_of",
    "sign_entry",
    "verify_entry",
    "verify_peer",
]

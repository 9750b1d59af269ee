"""Whom an engine lets in and how many of them, by the same rules and with the same codes whichever engine it is.

A connection is judged three times: by its first packet, by its certificate when the handshake is complete, and by its
hello. Each time it is counted against others of its kind; who counts them is the engine, which knows its connections.

First packets (the native engine has this rule in `native/src/session/endpoints.rs`, with the same numbers): a
connection that was dialled by others is half open until its certificate is found good.
- At most `HALF_OPEN_MAX` are, and of one source (`source_of`) at most `HALF_OPEN_PER_SOURCE_MAX`; what comes beyond
  that is ignored, as if it had been lost, and the client sends it again.
- While fewer than `UNPROVED_MAX` are, a first packet is taken at once, which costs no round trip. From then on it is
  taken only with the token of a Retry (RFC 9000 8.1.2), which proves the address; one without is answered with a Retry
  and nothing is kept for it. So forged addresses take `UNPROVED_MAX` places at most.
- Where the address is not proved within `UNPROVED_S_MAX`, the connection ends.
"""

from __future__ import annotations

import datetime
import enum
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cryptography import x509

from transport.identity.credentials import Trust
from transport.identity.verify import VerifiedPeer, verify_peer
from transport.wire.control_frames import APPLICATION_KEY_MIN, HelloKey, LimitKey, check_hello
from transport.wire.error_codes import WireCode, WireError
from transport.wire.varint import VARINT_MAX

HALF_OPEN_MAX = 256
HALF_OPEN_PER_SOURCE_MAX = 64
"""The ranks of a host that dial one rank at once."""
UNPROVED_MAX = 32
UNPROVED_S_MAX = 3.0
"""Two round trips of a satellite, and a lost packet that is sent again."""
SOURCE_PREFIX_V6 = 64
"""Whoever has one IPv6 address has all of its network."""
LINKS_PER_PEER_MAX = 8
"""Of one name, rank and kind. Ranks: dialled by both sides, and again before the loss of the old ones was noticed.

Of brokers, which have no rank: two addresses each way, dialled by both sides."""
LINKS_PER_NAME_MAX = 512
"""A host's certificate may serve all its ranks: 64 of them, compute and bulk, as many of each as ranks have."""

Identity: TypeAlias = tuple[str, int | None, bool]
"""As whom the other end of a connection is counted: name, rank (where its hello has one), bulk or not."""


class FirstPacket(enum.Enum):
    """What becomes of the first packet of a connection."""

    TAKEN = enum.auto()
    TO_PROVE = enum.auto()
    IGNORED = enum.auto()


def admit_first_packet(*, half_open: int, of_source: int, proved: bool) -> FirstPacket:
    """Judge a first packet, where so many connections are half open, and so many of them of its source.

    Args:
        proved: it carries the token of a Retry of ours to its address.
    """
    if half_open >= HALF_OPEN_MAX or of_source >= HALF_OPEN_PER_SOURCE_MAX:
        return FirstPacket.IGNORED
    return FirstPacket.TAKEN if proved or half_open < UNPROVED_MAX else FirstPacket.TO_PROVE


def source_of(host: str) -> str:
    """As whom an address is counted: IPv4 itself, of IPv6 its network."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), SOURCE_PREFIX_V6), strict=False))


def admit_chain(chain: Sequence[x509.Certificate], trust: Trust, *, expected_peer: str | None) -> VerifiedPeer:
    """Verify who is at the other end.

    Raises:
        WireError: it is not to be believed, with the code to close with.
    """
    return verify_peer(chain, trust, now=datetime.datetime.now(datetime.UTC), expected_peer=expected_peer)


def admit_to_name(others: int) -> None:
    """Let in one more verified connection of a name that has `others`.

    Raises:
        WireError: they are too many.
    """
    _admit_beside(others, LINKS_PER_NAME_MAX)


def admit_hello(own: Mapping[int, object], theirs: Mapping[int, Any]) -> None:
    """Hold a peer's hello against the protocol, and against our own where that says of which job and run we are.

    Raises:
        WireError: it is malformed, or of another job or run.
    """
    check_hello(theirs)
    job = own.get(HelloKey.JOB)
    if job and job != theirs.get(HelloKey.JOB):
        reason = f"is of job {theirs.get(HelloKey.JOB)!r}, and this is job {job!r}"
        raise WireError(WireCode.JOB_MISMATCH, reason)
    run = own.get(HelloKey.RUN)
    if run and run != theirs.get(HelloKey.RUN):
        raise WireError(WireCode.JOB_MISMATCH, f"is of another run of job {job!r}")


def identity_of(peer: str, own: Mapping[int, object], theirs: Mapping[int, Any], *, bulk: bool) -> Identity:
    """As whom a verified peer is counted: by its name, and by the rank in its hello where our own has one too.

    A rank is the peer's own word. Brokers have none, so what a peer says there gives its certificate no more room.
    """
    rank = theirs.get(APPLICATION_KEY_MIN) if APPLICATION_KEY_MIN in own else None
    return peer, rank if isinstance(rank, int) else None, bulk


def admit_to_identity(others: int) -> None:
    """Let in one more connection of an identity that has `others`.

    Raises:
        WireError: they are too many.
    """
    _admit_beside(others, LINKS_PER_PEER_MAX)


def message_bytes_accepted(hello: Mapping[int, Any]) -> int:
    """The longest message that a peer says it accepts."""
    return min(int(hello.get(HelloKey.LIMITS, {}).get(LimitKey.MESSAGE_BYTES, VARINT_MAX)), VARINT_MAX)


def _admit_beside(others: int, most: int) -> None:
    if others >= most:
        raise WireError(WireCode.TOO_MANY_CONNECTIONS, f"{others} connections between us already")

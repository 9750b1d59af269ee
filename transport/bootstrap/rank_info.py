"""What a rank publishes of itself through the rendezvous, and how the others check it before they believe it.

One JSON object says who (rank, node name), where (addresses, each with its interface and the ports of the compute and
the bulk socket), and the pin of the ephemeral certificate. With certificates of a CA the pin is empty, and the
certificate must carry the node name. Where the job has a secret, an HMAC covers all of it, with the job, the world and
the run. Entries without one are refused. A run is 16 random bytes that rank 0 publishes first, so that no entry of an
earlier run passes for one of it.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from hive_qos.errors import PeerError
from transport.identity import check_own, ephemeral_identity, load_identity, sign_entry, verify_entry
from transport.identity.credentials import Credentials, Trust
from transport.mesh.paths import Location, checked_integer, checked_text, plain_locations, read_locations
from transport.mesh.peers import Contact
from transport.settings import Settings

VERSION = 3
RUN_BYTES = 16
_log = logging.getLogger("transport.bootstrap.rank_info")


@dataclass(frozen=True)
class Run:
    """What an entry is of: a group's name, its size, and the random bytes of this one run of it."""

    world: str
    world_size: int
    nonce: bytes


@dataclass(frozen=True)
class Identity:
    """This rank's own: node name, credentials, and either a CA to believe or a pin to publish."""

    node: str
    credentials: Credentials
    ca: Trust | None
    pin: bytes


@dataclass(frozen=True)
class RankInfo:
    """One rank's entry."""

    rank: int
    node: str
    locations: tuple[Location, ...]
    pin: bytes

    @property
    def contact(self) -> Contact:
        return Contact(self.rank, self.node, self.locations)


def own_identity(settings: Settings, rank: int) -> Identity:
    """The configured certificate, or an ephemeral one for this run.

    Raises:
        ConfigurationError: the configured files do not fit, or the others would refuse the certificate.
    """
    if settings.ca:
        configured = load_identity(ca=settings.ca, certificate=settings.certificate, key=settings.key, job=settings.job)
        advice = "`hive-qos ca issue NODE` on the CA's machine makes one, `--renew` another for a node that has one"
        check_own(configured, key="HIVE_CERT", path=settings.certificate, advice=advice)
        return Identity(configured.node, configured.credentials, configured.trust, b"")
    ephemeral = ephemeral_identity(f"rank-{rank}")
    if not settings.job_secret:
        _say_once()
    return Identity(ephemeral.node, ephemeral.credentials, None, ephemeral.pin)


@functools.cache
def _say_once() -> None:
    _log.warning(
        "hive-qos: peers are trusted by what the rendezvous says of them; HIVE_JOB_SECRET, or HIVE_CA, HIVE_CERT and "
        "HIVE_KEY, would authenticate them"
    )


def encode(info: RankInfo, settings: Settings, run: Run) -> bytes:
    """Write an entry, signed where there is a secret."""
    fields: dict[str, object] = {
        "v": VERSION,
        "rank": info.rank,
        "node": info.node,
        "addresses": plain_locations(info.locations),
        "pin": info.pin.hex(),
        "world_size": run.world_size,
    }
    if settings.job_secret:
        fields["mac"] = sign_entry(settings.job_secret, *_signed_parts(info, settings, run)).hex()
    return json.dumps(fields).encode()


def decode(entry: bytes, *, rank: int, settings: Settings, run: Run) -> RankInfo:
    """Read the entry of `rank` and hold it against its bounds and, where there is a secret, its signature.

    Raises:
        PeerError: malformed, another rank's or in another's name, or not signed with our secret.
    """
    who = f"rank {rank}"
    info = read(entry, who=who, what="rendezvous entry", settings=settings, run=run)
    if info.rank != rank:
        raise PeerError(who, f"its rendezvous entry says rank {info.rank}")
    if info.pin and info.node != f"rank-{rank}":
        raise PeerError(who, f"its rendezvous entry is in the name of {info.node}")
    return info


def read(entry: bytes, *, who: str, what: str, settings: Settings, run: Run) -> RankInfo:
    """As `decode`, of whichever rank.

    Args:
        who, what: whose entry it is and what it is called, for errors.
    """
    try:
        fields = json.loads(entry)
        if fields.get("v") != VERSION:
            raise ValueError(f"version {fields.get('v')!r}, of another hive-qos; all ranks need version {VERSION}")
        info = RankInfo(
            rank=checked_integer(fields, "rank", 2**24),
            node=checked_text(fields, "node"),
            locations=read_locations(fields["addresses"]),
            pin=bytes.fromhex(checked_text(fields, "pin")),
        )
        mac = bytes.fromhex(checked_text(fields, "mac")) if "mac" in fields else b""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PeerError(who, f"its {what} is malformed: {error}") from error
    size = fields.get("world_size")
    if size != run.world_size:
        raise PeerError(who, f"it is one of {size!r:.20} ranks, and this rank one of {run.world_size}")
    if settings.job_secret:
        parts = _signed_parts(info, settings, run)
        if not (mac and verify_entry(settings.job_secret, *parts, signature=mac)):
            raise PeerError(who, f"its {what} is not signed with this job's HIVE_JOB_SECRET, or of another run")
    if bool(settings.ca) == bool(info.pin) or len(info.pin) not in (0, 32):
        raise PeerError(who, "one side has certificates of a CA configured and the other has not")
    return info


def _signed_parts(info: RankInfo, settings: Settings, run: Run) -> list[bytes]:
    """Everything that whoever believes an entry relies on."""
    texts = [settings.job, run.world, info.node, *(one.address for one in info.locations)]
    places = [(one.interface, one.port, one.bulk_port) for one in info.locations]
    numbers = [run.world_size, info.rank, len(places), *itertools.chain(*places)]
    return [
        run.nonce,
        *(text.encode() for text in texts),
        *(number.to_bytes(8, "big") for number in numbers),
        b"pin" if info.pin else b"ca",
        info.pin,
    ]


def trust_of(identity: Identity, rank_infos: Mapping[int, RankInfo]) -> Trust:
    """Whom to believe: the CA, or exactly the pins that were published, and our own, so that a world of one works."""
    if identity.ca is not None:
        return identity.ca
    return Trust(pins={identity.pin: identity.node} | {one.pin: one.node for one in rank_infos.values()})

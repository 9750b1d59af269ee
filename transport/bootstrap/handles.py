"""How ranks meet without a store: each is given a text of every rank, which says where that one listens.

A handle is the entry that a rank would publish (`rank_info`), signed for a run of its own whose random bytes stand in
front. It names no rank: the place in the list of handles does. The run that they form is a hash of that list, so that
ranks with different lists refuse each other. Who can change a handle on its way can pretend to be a rank, unless
`HIVE_JOB_SECRET` or a CA authenticates it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

from hive_qos.errors import MisuseError, PeerError
from transport.bootstrap.abort import LocalAbort
from transport.bootstrap.connect import Bootstrap, Factories
from transport.bootstrap.rank_info import RUN_BYTES, Identity, RankInfo, Run, encode, read
from transport.bootstrap.rendezvous import VALUE_BYTES_MAX
from transport.mesh.peers import PeerTable
from transport.mesh.sockets import Sockets, locations_of
from transport.settings import Settings

_PREFIX = "hive"
_WORLD = "handle"
"""In the run that a handle is signed for, with a world of 0 ranks: no entry in a store is of such a one."""


def write_handle(identity: Identity, sockets: Sequence[Sockets], settings: Settings, nonce: bytes) -> str:
    """The handle of who listens at these sockets.

    Args:
        nonce: RUN_BYTES random ones; no two handles share them.
    """
    own = RankInfo(rank=0, node=identity.node, locations=locations_of(sockets), pin=identity.pin)
    return f"{_PREFIX}:{nonce.hex()}:{encode(own, settings, Run(_WORLD, 0, nonce)).decode()}"


def read_handle(handle: str, *, rank: int, settings: Settings) -> RankInfo:
    """What a handle says, as the entry of `rank`.

    Raises:
        PeerError: malformed, not signed with our secret, or the other kind of certificates.
    """
    who, what = f"rank {rank}", "handle"
    prefix, _, rest = handle.partition(":")
    nonce, _, entry = rest.partition(":")
    if prefix != _PREFIX or len(nonce) != 2 * RUN_BYTES or len(handle) > VALUE_BYTES_MAX:
        raise PeerError(who, f"its handle is malformed: {handle!r:.64} does not begin as hive's do")
    try:
        run = Run(_WORLD, 0, bytes.fromhex(nonce))
    except ValueError as error:
        raise PeerError(who, f"its handle is malformed: {error}") from error
    info = read(entry.encode(), who=who, what=what, settings=settings, run=run)
    return replace(info, rank=rank, node=f"rank-{rank}" if info.pin else info.node)


def bootstrap_of(
    handles: Sequence[str],
    own: str,
    *,
    world: str,
    identity: Identity,
    sockets: Sequence[Sockets],
    settings: Settings,
    factories: Factories,
    abort: LocalAbort,
) -> Bootstrap:
    """What a rank knows once it has all handles. Nothing is sent, and the sockets stay the caller's where it raises.

    Args:
        handles: of all ranks, in rank order.
        own: this rank's.
        world: what all of them call the group.

    Raises:
        MisuseError: a handle is there twice, or ours is not among them.
        PeerError: as `read_handle`.
    """
    places: dict[str, int] = {}
    for rank, handle in enumerate(handles):
        if (first := places.setdefault(handle, rank)) != rank:
            raise MisuseError(f"handles {first} and {rank} are the same: each process gives one of its own")
    if own not in places:
        raise MisuseError(
            f"none of the {len(handles)} handles is this process' own of now: each is good for one attempt to connect;"
            " ask for a new one before the next, and exchange those"
        )
    rank = places[own]
    infos = {
        other: read_handle(handle, rank=other, settings=settings)
        for other, handle in enumerate(handles)
        if other != rank
    }
    peers = PeerTable(
        rank,
        locations_of(sockets),
        (one.contact for one in infos.values()),
        reconnect_s=settings.reconnect_s,
        now_s=time.monotonic(),
    )
    run = Run(world, len(handles), hashlib.sha256("\n".join([world, *handles]).encode()).digest()[:RUN_BYTES])
    named = replace(identity, node=f"rank-{rank}") if identity.pin else identity
    return Bootstrap(sockets, named, infos, peers, settings, factories, run, abort)

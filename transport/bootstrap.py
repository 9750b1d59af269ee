"""How a rank comes to be connected: open sockets, publish where they are, read where the others are, serve."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hive_qos.errors import PeerError, TimedOutError
from transport.engine import create_engine
from transport.engine.base import Engine, EngineSettings, Event
from transport.introduction import (
    RUN_BYTES,
    Identity,
    Introduction,
    Run,
    decode,
    encode,
    own_identity,
    trust_of,
)
from transport.peers import PeerTable
from transport.rendezvous import Rendezvous
from transport.settings import Settings
from transport.sockets import Sockets, open_sockets
from transport.wire.hello import HelloKey

OnEvents = Callable[[Sequence[Event]], None]


def _open_sockets(settings: Settings, hint: str) -> Sockets:
    return open_sockets(settings, hint=hint)


@dataclass(frozen=True)
class Plumbing:
    """What a rank is made with. The defaults are the real ones; tests put an engine in memory here."""

    make_engine: Callable[[str, EngineSettings, OnEvents], Engine] = create_engine
    open_sockets: Callable[[Settings, str], Sockets] = _open_sockets
    own_identity: Callable[[Settings, int], Identity] = own_identity


@dataclass(frozen=True)
class Meeting:
    """What is known when every rank has published itself."""

    sockets: Sockets
    identity: Identity
    introductions: Mapping[int, Introduction]
    peers: PeerTable
    settings: Settings
    plumbing: Plumbing
    run: Run

    def make_engine(self, on_events: OnEvents) -> Engine:
        """Start the engine that the settings name."""
        settings = EngineSettings(dead_after_s=self.settings.dead_after_s)
        return self.plumbing.make_engine(self.settings.engine, settings, on_events)

    def serve(self, engine: Engine, hello: Mapping[int, object]) -> tuple[int, int]:
        """Hand both sockets to the engine; its endpoints for compute and bulk.

        Args:
            hello: what the layer above says of itself; job and run are added, which the engine checks.
        """
        hello = {**hello, HelloKey.JOB: self.settings.job, HelloKey.RUN: self.run.nonce}
        trust = trust_of(self.identity, self.introductions)
        credentials = self.identity.credentials
        return (
            engine.add_endpoint(self.sockets.compute, credentials=credentials, trust=trust, hello=hello, bulk=False),
            engine.add_endpoint(self.sockets.bulk, credentials=credentials, trust=trust, hello=hello, bulk=True),
        )


def meet(
    rendezvous: Rendezvous,
    *,
    rank: int,
    world_size: int,
    world: str,
    give_up_s: float,
    settings: Settings,
    plumbing: Plumbing,
) -> Meeting:
    """Publish this rank and wait for the entries of all others.

    Args:
        give_up_s: on the monotonic clock.

    Raises:
        ConfigurationError, TimedOutError, PeerError: as `Group.connect`.
    """
    began_s = time.monotonic()
    identity = plumbing.own_identity(settings, rank)
    sockets = plumbing.open_sockets(settings, str(getattr(rendezvous, "host", "")))
    try:
        run = _run(rendezvous, rank=rank, world_size=world_size, world=world, give_up_s=give_up_s, began_s=began_s)
        own = Introduction(
            rank=rank,
            node=identity.node,
            address=sockets.advertise,
            port=sockets.compute_port,
            bulk_port=sockets.bulk_port,
            pin=identity.pin,
        )
        rendezvous.set(_key(world, rank), encode(own, settings, run))
        introductions: dict[int, Introduction] = {}
        for other in range(world_size):
            if other == rank:
                continue
            entry = _entry(rendezvous, _key(world, other), other, give_up_s=give_up_s, began_s=began_s)
            introductions[other] = decode(entry, rank=other, settings=settings, run=run)
        pins = [one.pin for one in introductions.values() if one.pin]
        if len(set(pins)) != len(pins):
            raise PeerError("rendezvous", "two ranks published the same certificate")
        peers = PeerTable(
            rank,
            (one.contact for one in introductions.values()),
            reconnect_s=settings.reconnect_s,
            now_s=time.monotonic(),
        )
    except BaseException:
        sockets.compute.close()
        sockets.bulk.close()
        raise
    return Meeting(sockets, identity, introductions, peers, settings, plumbing, run)


def _run(rendezvous: Rendezvous, *, rank: int, world_size: int, world: str, give_up_s: float, began_s: float) -> Run:
    """Publish the random bytes of this run, as rank 0, or read them."""
    key = f"hive/{world}/run"
    if rank == 0:
        nonce = os.urandom(RUN_BYTES)
        rendezvous.set(key, nonce)
    else:
        nonce = bytes(_entry(rendezvous, key, 0, give_up_s=give_up_s, began_s=began_s))
        if len(nonce) != RUN_BYTES:
            raise PeerError("rank 0", f"its run has {len(nonce)} bytes, not {RUN_BYTES}")
    return Run(world, world_size, nonce)


def _entry(rendezvous: Rendezvous, key: str, rank: int, *, give_up_s: float, began_s: float) -> bytes:
    """What a rank published.

    Raises:
        TimedOutError: nothing, and it names the rank.
    """
    try:
        return rendezvous.get(key, max(give_up_s - time.monotonic(), 0.0))
    except TimedOutError as error:
        raise nobody_there([rank], give_up_s - began_s) from error


def nobody_there(missing: Sequence[int], timeout_s: float) -> TimedOutError:
    """The error for ranks that did not come."""
    return TimedOutError(f"connecting: nothing from rank {', '.join(map(str, missing))}", timeout_s=timeout_s)


def _key(world: str, rank: int) -> str:
    return f"hive/{world}/{rank}"

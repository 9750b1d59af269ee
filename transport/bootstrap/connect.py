"""How a rank comes to be connected: open sockets, publish where they are, read where the others are, serve.

What can be known to be wrong with this rank alone is looked for first, before anybody is waited for; and a rank that
cannot go on says so to the others (`transport.bootstrap.abort`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hive_qos.errors import PeerError, TimedOutError
from transport.bootstrap.abort import Withdrawal, run_key
from transport.bootstrap.rank_info import (
    RUN_BYTES,
    Identity,
    Introduction,
    Run,
    decode,
    encode,
    own_identity,
    trust_of,
)
from transport.bootstrap.rendezvous import Rendezvous
from transport.engine import create_engine, find_engine
from transport.engine.base import Engine, EngineSettings, Event
from transport.mesh.peers import PeerTable
from transport.mesh.sockets import Sockets, open_sockets
from transport.settings import Settings
from transport.wire.control_frames import HelloKey

OnEvents = Callable[[Sequence[Event]], None]
LISTEN_EVERY_S = 0.5
"""How often a rank that waits looks whether another has given up: a small request of each rank to the store."""


def _open_sockets(settings: Settings, hint: str) -> Sockets:
    return open_sockets(settings, hint=hint)


@dataclass(frozen=True)
class Plumbing:
    """What a rank is made with. The defaults are the real ones; tests put an engine in memory here."""

    check_engine: Callable[[str], object] = find_engine
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
    withdrawal: Withdrawal

    def make_engine(self, on_events: OnEvents) -> Engine:
        """Start the engine that the settings name."""
        settings = EngineSettings(dead_after_s=self.settings.dead_after_s, congestion=self.settings.congestion)
        return self.plumbing.make_engine(self.settings.engine, settings, on_events)

    def serve(self, engine: Engine, hello: Mapping[int, object]) -> tuple[int, int]:
        """Hand both sockets to the engine; its endpoints for compute and bulk.

        Args:
            hello: what the layer above says of itself; job and run are added, which the engine checks.
        """
        return (
            self._serve(engine, hello, self.sockets.compute, bulk=False),
            self._serve(engine, hello, self.sockets.bulk, bulk=True),
        )

    def _serve(self, engine: Engine, hello: Mapping[int, object], sock: socket.socket, *, bulk: bool) -> int:
        return engine.add_endpoint(
            sock,
            credentials=self.identity.credentials,
            trust=trust_of(self.identity, self.introductions),
            hello={**hello, HelloKey.JOB: self.settings.job, HelloKey.RUN: self.run.nonce},
            bulk=bulk,
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
    withdrawal = Withdrawal(rendezvous, rank=rank, world=world, world_size=world_size, settings=settings)
    with withdrawal.told_on_failure():
        if rank == 0:
            withdrawal.run = _begin_run(rendezvous, world=world, world_size=world_size)
        plumbing.check_engine(settings.engine)
        identity = plumbing.own_identity(settings, rank)
        sockets = plumbing.open_sockets(settings, str(getattr(rendezvous, "host", "")))
        try:
            waiting = _Waiting(rendezvous, withdrawal, began_s=time.monotonic(), give_up_s=give_up_s)
            run = withdrawal.run = withdrawal.run or _read_run(waiting, world=world, world_size=world_size)
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
                if other != rank:
                    entry = waiting.for_entry(_key(world, other), other)
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
    return Meeting(sockets, identity, introductions, peers, settings, plumbing, run, withdrawal)


def _begin_run(rendezvous: Rendezvous, *, world: str, world_size: int) -> Run:
    """Publish the random bytes of this run, as rank 0."""
    nonce = os.urandom(RUN_BYTES)
    rendezvous.set(run_key(world), nonce)
    return Run(world, world_size, nonce)


def _read_run(waiting: _Waiting, *, world: str, world_size: int) -> Run:
    nonce = bytes(waiting.for_entry(run_key(world), 0))
    if len(nonce) != RUN_BYTES:
        raise PeerError("rank 0", f"its run has {len(nonce)} bytes, not {RUN_BYTES}")
    return Run(world, world_size, nonce)


@dataclass(frozen=True)
class _Waiting:
    """Waiting for what others publish, with an ear for those that give up."""

    rendezvous: Rendezvous
    withdrawal: Withdrawal
    began_s: float
    give_up_s: float

    def for_entry(self, key: str, rank: int) -> bytes:
        """What a rank published.

        Raises:
            TimedOutError: nothing, and it names the rank.
            PeerError: a rank has given up.
        """
        while True:
            left_s = max(self.give_up_s - time.monotonic(), 0.0)
            try:
                return self.rendezvous.get(key, min(left_s, LISTEN_EVERY_S))
            except TimedOutError as error:
                if time.monotonic() >= self.give_up_s:
                    raise nobody_there([rank], self.give_up_s - self.began_s) from error
            self.withdrawal.listen()


def nobody_there(missing: Sequence[int], timeout_s: float) -> TimedOutError:
    """The error for ranks that did not come."""
    return TimedOutError(f"connecting: nothing from rank {', '.join(map(str, missing))}", timeout_s=timeout_s)


def _key(world: str, rank: int) -> str:
    return f"hive/{world}/{rank}"

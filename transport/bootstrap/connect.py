"""How ranks find each other: open sockets, publish a rank info, read those of the others, serve.

A rank first checks what can be wrong with itself alone, before it waits for anybody. A rank that cannot go on tells the
others (`transport.bootstrap.abort`).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hive_qos.errors import PeerError, TimedOutError
from transport.bootstrap.abort import BootstrapAbort, LocalAbort, run_key
from transport.bootstrap.rank_info import (
    RUN_BYTES,
    Identity,
    RankInfo,
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
from transport.mesh.sockets import Sockets, locations_of, open_all_sockets
from transport.settings import Settings
from transport.wire.control_frames import HelloKey

OnEvents = Callable[[Sequence[Event]], None]
ABORT_CHECK_S = 0.5
"""How often a rank that waits looks whether another has given up: a small request of each rank to the store."""
LATE_S = 20.0
"""After so long it is said whom a rank waits for. Who gives up sooner says it in the error."""
_log = logging.getLogger("transport.bootstrap.connect")


def _open_sockets(settings: Settings, hint: str) -> Sequence[Sockets]:
    return open_all_sockets(settings, hint=hint)


@dataclass(frozen=True)
class Factories:
    """Makes the parts of a rank. The defaults are the real ones; tests put an engine in memory here."""

    check_engine: Callable[[str], object] = find_engine
    make_engine: Callable[[str, EngineSettings, OnEvents], Engine] = create_engine
    open_sockets: Callable[[Settings, str], Sequence[Sockets]] = _open_sockets
    own_identity: Callable[[Settings, int], Identity] = own_identity


@dataclass(frozen=True)
class Bootstrap:
    """What this rank knows when every rank has published its info."""

    sockets: Sequence[Sockets]
    identity: Identity
    rank_infos: Mapping[int, RankInfo]
    peers: PeerTable
    settings: Settings
    factories: Factories
    run: Run
    abort: BootstrapAbort | LocalAbort

    def make_engine(self, on_events: OnEvents) -> Engine:
        """Start the engine that the settings name."""
        settings = EngineSettings(
            dead_after_s=self.settings.dead_after_s,
            congestion=self.settings.congestion,
            shared_memory=self.settings.shared_memory,
        )
        return self.factories.make_engine(self.settings.engine, settings, on_events)

    def serve(self, engine: Engine, hello: Mapping[int, object]) -> list[tuple[int, int]]:
        """Hand the sockets to the engine; its endpoints for compute and bulk of each pair.

        Args:
            hello: what the layer above says of itself; job and run are added, which the engine checks.
        """
        return [
            (
                self._serve(engine, hello, pair.compute, bulk=False),
                self._serve(engine, hello, pair.bulk, bulk=True),
            )
            for pair in self.sockets
        ]

    def close_sockets(self) -> None:
        """Where the engine has not taken them."""
        for pair in self.sockets:
            pair.close()

    def _serve(self, engine: Engine, hello: Mapping[int, object], sock: socket.socket, *, bulk: bool) -> int:
        return engine.add_endpoint(
            sock,
            credentials=self.identity.credentials,
            trust=trust_of(self.identity, self.rank_infos),
            hello={**hello, HelloKey.JOB: self.settings.job, HelloKey.RUN: self.run.nonce},
            bulk=bulk,
        )


def exchange_rank_infos(
    rendezvous: Rendezvous,
    *,
    rank: int,
    world_size: int,
    world: str,
    give_up_s: float,
    settings: Settings,
    factories: Factories,
    is_cancelled: Callable[[], bool],
) -> Bootstrap:
    """Publish this rank and wait for the entries of all others.

    Args:
        give_up_s: on the monotonic clock.
        is_cancelled: asked every half second, from the thread of the caller.

    Raises:
        ConfigurationError, TimedOutError, PeerError: as `Group.connect`.
        CancelledError: it is.
    """
    abort = BootstrapAbort(
        rendezvous, rank=rank, world=world, world_size=world_size, settings=settings, is_cancelled=is_cancelled
    )
    with abort.published_on_failure():
        if rank == 0:
            abort.run = _begin_run(rendezvous, world=world, world_size=world_size)
        factories.check_engine(settings.engine)
        identity = factories.own_identity(settings, rank)
        sockets = factories.open_sockets(settings, str(getattr(rendezvous, "host", "")))
        try:
            waiting = _Waiting(rendezvous, abort, rank, began_s=time.monotonic(), give_up_s=give_up_s)
            run = abort.run = abort.run or _read_run(waiting, world=world, world_size=world_size)
            locations = locations_of(sockets)
            own = RankInfo(rank=rank, node=identity.node, locations=locations, pin=identity.pin)
            rendezvous.set(_key(run, rank), encode(own, settings, run))
            keys = {other: _key(run, other) for other in range(world_size) if other != rank}
            rank_infos = {
                other: decode(entry, rank=other, settings=settings, run=run)
                for other, entry in waiting.for_entries(keys)
            }
            pins = [one.pin for one in rank_infos.values() if one.pin]
            if len(set(pins)) != len(pins):
                raise PeerError("rendezvous", "two ranks published the same certificate")
            peers = PeerTable(
                rank,
                locations,
                (one.contact for one in rank_infos.values()),
                reconnect_s=settings.reconnect_s,
                now_s=time.monotonic(),
            )
        except BaseException:
            for pair in sockets:
                pair.close()
            raise
    return Bootstrap(sockets, identity, rank_infos, peers, settings, factories, run, abort)


def _begin_run(rendezvous: Rendezvous, *, world: str, world_size: int) -> Run:
    """Publish the random bytes of this run, as rank 0."""
    nonce = os.urandom(RUN_BYTES)
    rendezvous.set(run_key(world), nonce)
    return Run(world, world_size, nonce)


def _read_run(waiting: _Waiting, *, world: str, world_size: int) -> Run:
    [(_, entry)] = waiting.for_entries({0: run_key(world)})
    nonce = bytes(entry)
    if len(nonce) != RUN_BYTES:
        raise PeerError("rank 0", f"its run has {len(nonce)} bytes, not {RUN_BYTES}")
    return Run(world, world_size, nonce)


@dataclass
class _Waiting:
    """Waits for what others publish, and raises when one of them has given up."""

    rendezvous: Rendezvous
    abort: BootstrapAbort
    rank: int
    began_s: float
    give_up_s: float
    _said: bool = False

    def for_entries(self, keys: Mapping[int, str]) -> Iterator[tuple[int, bytes]]:
        """Each of these ranks, with what it published under its key.

        Raises:
            TimedOutError: some have published nothing, and it names them.
            PeerError: a rank has given up.
        """
        for rank in keys:
            yield rank, self._entry(rank, keys)

    def _entry(self, rank: int, keys: Mapping[int, str]) -> bytes:
        while True:
            left_s = max(self.give_up_s - time.monotonic(), 0.0)
            try:
                return self.rendezvous.get(keys[rank], min(left_s, ABORT_CHECK_S))
            except TimedOutError as error:
                self._not_yet(rank, keys, error)
            self.abort.check()

    def _not_yet(self, rank: int, keys: Mapping[int, str], error: TimedOutError) -> None:
        """Raise where the time is over; say once whom this rank waits for."""
        now_s = time.monotonic()
        over = now_s >= self.give_up_s
        if isinstance(error.__cause__, OSError):  # nobody serves the store, which has said so
            if over:
                raise TimedOutError(f"connecting: {error.what}", timeout_s=self._timeout_s) from error
            return
        if not over and (self._said or now_s < self.began_s + LATE_S):
            return
        missing = [rank, *(one for one in keys if one > rank and not self._is_there(keys[one]))]
        if over:
            raise missing_ranks_error(missing, self._timeout_s) from error
        self._say(missing, now_s - self.began_s)

    @property
    def _timeout_s(self) -> float:
        return self.give_up_s - self.began_s

    def _say(self, missing: Sequence[int], waited_s: float) -> None:
        self._said = True
        _log.warning(
            "hive-qos: rank %d has waited %.0f s for rank %s, of %.0f s. Has each been started, and only one rank %d?",
            self.rank,
            waited_s,
            ", ".join(map(str, missing)),
            self._timeout_s,
            self.rank,
        )

    def _is_there(self, key: str) -> bool:
        try:
            self.rendezvous.get(key, 0.0)
        except TimedOutError:
            return False
        return True


def missing_ranks_error(missing: Sequence[int], timeout_s: float) -> TimedOutError:
    """The error for ranks that did not come."""
    return TimedOutError(f"connecting: nothing from rank {', '.join(map(str, missing))}", timeout_s=timeout_s)


def unconnected_error(waiting: Mapping[int, tuple[str, str]], timeout_s: float) -> TimedOutError:
    """The error for ranks whose addresses are known, and to whom no connection came to stand.

    Args:
        waiting: of each rank where it was dialled, and why the last attempt failed; "" where none has.
    """
    shown = ", ".join(f"rank {rank} at {address}{why and f' ({why})'}" for rank, (address, why) in waiting.items())
    what = (
        f"connecting: nothing from {shown}, although the address is known. Let UDP pass between the hosts (HIVE_PORTS),"
        " or say by HIVE_INTERFACE or HIVE_LISTEN which addresses reach each other; or look whether its process has"
        " ended"
    )
    return TimedOutError(what, timeout_s=timeout_s)


def _key(run: Run, rank: int) -> str:
    """Of this run alone: whoever tries again may meet what it published before."""
    return f"hive/{run.world}/{run.nonce.hex()}/{rank}"

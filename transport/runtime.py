"""Everything of one connected rank: its thread, endpoint, collectives, messages and session with the broker.

Calls come from user threads, events from the engine's; both are put into the loop, and everything else happens there.
An operation's number in its group is given out in the caller's thread, so that the order of calls is the order of
numbers. When a rank is lost, whoever notices tells all others.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from hive_qos.errors import CancelledError, HiveError, MisuseError, PeerError
from transport.arguments import is_index
from transport.bootstrap.connect import (
    ABORT_CHECK_S,
    LATE_S,
    Bootstrap,
    Factories,
    exchange_rank_infos,
    unconnected_error,
)
from transport.bootstrap.rendezvous import Rendezvous
from transport.broker.session import BrokerSession
from transport.collectives.aborts import REASON_CHARS_MAX, sent_reason
from transport.collectives.agreements import Request
from transport.collectives.algorithms.registry import check_name
from transport.collectives.calls import Call, Heard
from transport.collectives.in_flight import RETURN_S_MAX, InFlight
from transport.collectives.membership import Memberships
from transport.collectives.planning.link_rates import LinkRates, LinkReport, together
from transport.control_messages import ControlMessages
from transport.engine.base import ConnectionStatistics, Engine, Event, Priority
from transport.event_loop import EventLoop
from transport.inspection.inspection import Inspection
from transport.mesh.address_watcher import AddressWatcher
from transport.mesh.endpoint import Endpoint
from transport.mesh.one_way_delay import OneWayDelay
from transport.mesh.sockets import Sockets, machine
from transport.p2p.engine import TAG_MAX, P2PEngine
from transport.p2p.operation import P2POp
from transport.settings import Settings
from transport.tensors import TensorView
from transport.wire.header import Header, Kind
from transport.work import THREAD_NAME, Work, unforeseen, wait_until

REFUSALS_MAX = 3
"""Attempts that end with a peer's fault before `connect` raises it: one may be a packet of an earlier run."""
DRAIN_S = 2.5
"""How long `close` waits for acknowledgements of collectives that have ended: a link that was cut is noticed, and what
was lost has gone over another."""
UNCONNECTED_S = 5.0
"""All ranks are known, and a connection takes two round trips: somebody has to hear what is in its way. Who gives up
before `LATE_S` hears it of the error: members of volatile groups try again and again."""
AGAIN_S = 1.0
"""After periodic work has failed, which it never should."""
_log = logging.getLogger("transport.runtime")


class Runtime:
    """One rank that is connected to all others. `connect` makes one; `transport.group.Group` is its public face."""

    def __init__(self, *, rank: int, world: str, settings: Settings) -> None:
        self.rank = rank
        self._world = world
        self._settings = settings
        self._lock = threading.RLock()  # a signal's handler may close the group in the middle of a call
        self._groups = Memberships(rank=rank, site=settings.site, host=machine())
        self._rates = LinkRates()
        self._order = itertools.count()
        self._lost: dict[int, str] = {}
        self._on_loss: Callable[[], None] | None = None
        self._connected = threading.Event()
        self._refusals = 0
        self._refusal: PeerError | None = None
        self._closed = False
        self._process = os.getpid()
        self._loop = EventLoop(f"{THREAD_NAME}-{rank}", self._tick)
        self._engine: Engine | None = None
        self._endpoint: Endpoint
        self._in_flight: InFlight
        self._control: ControlMessages
        self._p2p: P2PEngine
        self._delays: OneWayDelay
        self._broker: BrokerSession | None = None
        self._address_watcher: AddressWatcher | None = None
        self.inspection: Inspection

    @classmethod
    def connect(
        cls,
        rendezvous: Rendezvous,
        *,
        rank: int,
        world_size: int,
        name: str,
        timeout_s: float,
        settings: Settings | None = None,
        factories: Factories | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Runtime:
        """Meet the others and connect to all of them. Arguments and errors as `Group.connect`.

        Args:
            factories: how to make engine, sockets and identity; None for the real ones.
            is_cancelled: asked every half second; then it raises `CancelledError`. The others are told once they may
                have read of this rank.
        """
        if not (hasattr(world_size, "__index__") and is_index(rank, world_size)):
            raise MisuseError(f"rank is {rank!r}, and world_size {world_size!r}: ranks are numbers below that")
        settings = Settings.from_environment() if settings is None else settings
        check_name(settings.algorithm)
        give_up_s = time.monotonic() + timeout_s
        bootstrap = exchange_rank_infos(
            rendezvous,
            rank=rank,
            world_size=world_size,
            world=name,
            give_up_s=give_up_s,
            settings=settings,
            factories=factories or Factories(),
            is_cancelled=is_cancelled,
        )
        return cls.over(bootstrap, rank=rank, give_up_s=give_up_s, timeout_s=timeout_s)

    @classmethod
    def over(cls, bootstrap: Bootstrap, *, rank: int, give_up_s: float, timeout_s: float) -> Runtime:
        """Connect to all others, whose infos are known. Errors as `Group.connect`.

        Args:
            bootstrap: its sockets are closed where this raises.
            give_up_s: on the monotonic clock, `timeout_s` after the beginning.
        """
        settings = bootstrap.settings
        runtime = cls(rank=rank, world=bootstrap.run.world, settings=settings)
        try:
            with bootstrap.abort.published_on_failure():
                runtime._begin(bootstrap)
                runtime._await_everybody(bootstrap, give_up_s, timeout_s)
        except BaseException:
            runtime.close(timeout_s=0.5)
            bootstrap.close_sockets()
            raise
        _living.add(runtime)
        _leave_at_exit()
        if settings.inspect:
            runtime.inspection.listen()
        return runtime

    def _begin(self, bootstrap: Bootstrap) -> None:
        self._endpoint = Endpoint(
            rank=self.rank,
            job=self._settings.job,
            world=self._world,
            peers=bootstrap.peers,
            silence_ends=self._settings.silence_ends,
            on_gone=lambda gone: self._control.gone(gone),
            on_control=lambda rank, message: self._control.received(rank, message),
            on_unexpected=self._unexpected,
            on_refused=self._refused,
        )
        self._delays = OneWayDelay(self._endpoint.control)
        broker = self._broker = BrokerSession(
            job=self._settings.job,
            socket_path=self._settings.broker,
            delays=self._delays,
            rank_of=bootstrap.peers.rank_of,
        )
        self._in_flight = InFlight(
            endpoint=self._endpoint,
            announcer=broker,
            groups=self._groups.by_name,
            order=self._order,
            chunk_bytes=self._settings.chunk_bytes,
            report=self._report_links,
        )
        self._p2p = P2PEngine(
            self._endpoint,
            lambda group, rank: self._groups.by_name[group].ranks.index(rank),
            self._anybody_left,
            receive_bytes_max=self._settings.receive_bytes_max,
        )
        self.inspection = Inspection(
            job=self._settings.job,
            endpoint=self._endpoint,
            groups=self._groups,
            in_flight=self._in_flight,
            p2p=self._p2p,
            statistics=self.statistics,
            call=self._loop.call,
        )
        self._control = ControlMessages(
            endpoint=self._endpoint,
            in_flight=self._in_flight,
            delays=self._delays,
            lost=self._lost,
            on_gone=self._somebody_is_gone,
            on_abort=self._aborted_by,
            on_moved=self._rates.forget,
            on_taken=self._p2p.taken,
            survey=self.inspection.survey,
        )
        self._loop.start()
        engine = self._engine = bootstrap.make_engine(self._events)
        endpoints = bootstrap.serve(engine, self._endpoint.hello)
        for pair in bootstrap.sockets:
            broker.register(pair)  # marks come last: what an engine sets (ECN in the TOS) would undo them
        self._loop.call(lambda: self._serves(engine, endpoints))
        peers = bootstrap.peers

        def move(before: Sockets, sockets: Sockets, number: int) -> None:
            self._endpoint.move(sockets, number=number)
            self._rates.forget()
            broker.register(sockets, instead_of=before)

        self._address_watcher = AddressWatcher(
            settings=self._settings,
            sockets=bootstrap.sockets[0],
            peers=lambda: [peers.address(rank) for rank in peers.peers],
            others=lambda: [one.address for one in peers.own[1:]],
            on_move=move,
        )

    def _await_everybody(self, bootstrap: Bootstrap, give_up_s: float, timeout_s: float) -> None:
        warn_s = time.monotonic() + UNCONNECTED_S if timeout_s > LATE_S else math.inf
        while not wait_until(self._connected, min(give_up_s, time.monotonic() + ABORT_CHECK_S)):
            now_s, missing = time.monotonic(), self._endpoint.peers.missing()
            if now_s >= min(give_up_s, warn_s):
                tried, why = self._endpoint.peers.tried, self._endpoint.dial_errors
                waiting = {rank: (tried(rank), why.get(rank, "")) for rank in missing}
                if now_s >= give_up_s:
                    raise unconnected_error(waiting, timeout_s)
                _log.warning("%s", unconnected_error(waiting, UNCONNECTED_S))
                warn_s = math.inf
            bootstrap.abort.check(missing=missing)
        if self._refusal is not None:
            raise self._refusal

    # For groups; from any thread.

    def add_group(self, name: str, ranks: tuple[int, ...], *, algorithm: str | None = None) -> None:
        """Begin numbering operations of a group.

        Args:
            algorithm: to use wherever it can be, "" for the best, None for what the settings say.

        Raises:
            ConfigurationError: there is no such algorithm.
            MisuseError: the name is taken, too long, or the transport is closed.
        """
        algorithm = check_name(self._settings.algorithm if algorithm is None else algorithm)
        self._check_process()
        with self._lock:
            self._check_open()
            self._groups.add(name, ranks, algorithm=algorithm)

    def remove_group(self, name: str) -> None:
        """End everything under way in a group. Its name stays taken for a while: late messages may still carry it."""
        if self._closed or os.getpid() != self._process:
            return
        with self._lock:
            if not self._groups.close(name):
                return
        self._loop.call(lambda: self._retire(name))

    def _retire(self, name: str) -> None:
        """In the loop's thread."""
        self._cancel(name, "the group was closed")

        def is_busy(group: str) -> bool:
            return self._in_flight.is_running(group) or any(self._p2p.of_group(group))

        self._in_flight.close(name)
        self._p2p.close(name)
        for oldest in self._groups.retire(name, is_busy=is_busy):
            self._in_flight.forget(oldest)
            self._p2p.forget(oldest)

    def start(self, calls: Sequence[Call], *, timeout_s: float, priority: Priority) -> list[Work]:
        """Begin collectives of one group, all of them or none: where this raises, none of their tensors is in use."""
        works: list[Work] = []
        try:
            self._start(calls, works, timeout_s=timeout_s, priority=priority)
        except BaseException:
            for work in works:
                with contextlib.suppress(HiveError):  # it was given up; the log says so where that takes too long
                    work.wait(RETURN_S_MAX)
            raise
        return works

    def _start(self, calls: Sequence[Call], works: list[Work], *, timeout_s: float, priority: Priority) -> None:
        self._check_process()
        with self._lock:
            self._check_open()
            group, count = calls[0].context.group, len(calls)
            membership = self._groups.open(group)
            # Taken without a call, for an interrupt comes at one: between taking a number and knowing it, where nobody
            # would tell the others not to wait for that operation.
            first = membership.next_number
            try:
                membership.next_number = first + count
                for number, call in enumerate(calls, first):
                    what = f"{call.operation.name.lower().replace('_', '-')} {number} of group {group}"
                    works.append(Work(what))
                    self._hand_over(call, works[-1], number=number, timeout_s=timeout_s, priority=priority)
            except BaseException:
                # An interrupt, perhaps after some have begun: the others must not wait. So they come first: the rest
                # may be interrupted, too.
                for number, begun in itertools.zip_longest(range(first, first + count), works):
                    reason = "the call was interrupted"
                    self._loop.call(functools.partial(self._in_flight.give_up, group, number, reason, work=begun))
                for number in range(first, first + count):
                    self._in_flight.end_announcement(group, number)
                raise

    def _hand_over(self, call: Call, work: Work, *, number: int, timeout_s: float, priority: Priority) -> None:
        request = Request(call, number, work, time.monotonic(), timeout_s, priority)
        if call.partial is not None:
            key = (call.context.group, number)
            call.partial.tell(lambda: self._loop.call(lambda: self._in_flight.more_is_there(key)))
        failed = self._in_flight.announce(call, number=number, priority=priority)
        self._call_open(lambda: self._in_flight.start(request, failed))

    def next_number(self, group: str) -> int:
        """As `Group`; 0 of one that is forgotten."""
        membership = self._groups.by_name.get(group)
        return 0 if membership is None else membership.next_number

    def give_up(self, group: str, reason: str) -> None:
        """Let the group's next collective fail on its other members: this rank cannot begin it."""
        self._check_process()
        with self._lock:
            self._check_open()
            membership = self._groups.open(group)
            number = membership.next_number  # as in `start`
            try:
                membership.next_number = number + 1
                self._call_open(lambda: self._in_flight.give_up(group, number, reason))
            except BaseException:  # an interrupt, perhaps before it was handed over; a second time nothing comes of it
                self._loop.call(lambda: self._in_flight.give_up(group, number, reason))
                raise

    def send(self, group: str, rank: int, tag: int, tensor: object, *, timeout_s: float, priority: Priority) -> Work:
        """Begin to send to a rank of the endpoint."""
        self._check_point_to_point(rank, tag)
        view = TensorView.of(tensor, writable=False)
        with self._lock:
            self._check_open()
            to = self._groups.open(group).ranks.index(rank)
            work = Work(f"send with tag {tag} to rank {to} of group {group}", bytes_total=view.data.nbytes)
            op = P2POp(work, group, tag, timeout_s, time.monotonic() + timeout_s, peer=rank)
            order = next(self._order)
            self._begin_p2p(op, lambda: self._p2p.send(op, rank, view, priority=priority, order=order))
        return work

    def recv(self, group: str, rank: int | None, tag: int, into: object | None, *, timeout_s: float) -> Work:
        """Begin to receive from a rank of the endpoint, or from any member of the group."""
        self._check_point_to_point(rank, tag)
        view = None if into is None else TensorView.of(into, writable=True)
        with self._lock:
            self._check_open()
            ranks = self._groups.open(group).ranks
            source = "anybody" if rank is None else f"rank {ranks.index(rank)}"
            what = f"receive with tag {tag} from {source} of group {group}"
            work = Work(what, bytes_total=view.data.nbytes if view else 0)
            op = P2POp(work, group, tag, timeout_s, time.monotonic() + timeout_s, peer=rank, into=view)
            reason = CancelledError(f"{what}: the caller has cancelled it")
            work.cancel_by(lambda: self._loop.call(lambda: self._p2p.cancel(op, reason)))
            self._begin_p2p(op, lambda: self._p2p.receive(op, rank))
        return work

    def _begin_p2p(self, op: P2POp, begin: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                begin()
            except Exception as error:  # noqa: BLE001 - this message ends, others go on
                self._p2p.fail(op, unforeseen(op.work.what, error))

        self._call_open(guarded)

    def _call_open(self, item: Callable[[], None]) -> None:
        """Run `item` in the loop. Raises where a signal's handler has closed this since it was looked at: then nobody
        may run it, and its operation would never end. After the item is in the queue, `close` ends the operation."""
        self._loop.call(item)
        self._check_open()

    def abort_group(self, name: str, reason: str) -> None:
        """End everything under way in a group with `CancelledError`, here and on its other members."""
        self._check_process()
        self._loop.call(lambda: self._abort(name, reason))

    def lost(self) -> dict[int, str]:
        """Ranks that are gone, and why."""
        return dict(self._lost)

    def call_on_loss(self, callback: Callable[[], None]) -> None:
        """As `Group.call_on_loss`."""
        self._on_loss = callback
        if self._lost:
            callback()

    def statistics(self) -> Mapping[int, ConnectionStatistics]:
        """What every living connection measured, by connection."""
        return {} if self._engine is None else self._engine.statistics()

    def round_trips_s(self) -> dict[int, float]:
        """To each connected rank, as the engine measured it."""
        return {rank: one.rtt_s for rank, one in self._connections().items()}

    def close(self, *, timeout_s: float) -> None:
        """Leave: cancel what is under way, say goodbye to everybody, close the engine. Idempotent.

        In a forked child it does nothing: the connections are the parent's.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _living.discard(self)
        give_up_s = time.monotonic() + timeout_s
        # The last comes first. An interrupt ends one of them alone: where a program goes on after it, the others would
        # wait for a rank that has not said goodbye, and threads and sockets would stay.
        with contextlib.ExitStack() as leaving:
            if self._loop.started:
                leaving.callback(self._end_loop, give_up_s)
            if self._broker is not None:
                leaving.callback(self._broker.close)
            if self._engine is not None:
                leaving.callback(self._end_engine, self._engine, give_up_s)
                leaving.callback(self._take_leave, timeout_s / 2)
                leaving.callback(self._endpoint.collectives.drain, min(timeout_s / 2, DRAIN_S))
                leaving.callback(self.inspection.close)

    def _take_leave(self, timeout_s: float) -> None:
        said = threading.Event()
        self._loop.call(lambda: self._say_goodbye(said))
        said.wait(timeout_s)

    def _end_engine(self, engine: Engine, give_up_s: float) -> None:
        engine.close(timeout_s=max(give_up_s - time.monotonic(), 0.1))

    def _end_loop(self, give_up_s: float) -> None:
        self._loop.call(self._abandon_all)
        self._loop.stop(timeout_s=max(give_up_s - time.monotonic(), 0.5))

    # In the loop's thread, except `_events`.

    def _events(self, events: Sequence[Event]) -> None:
        """From the engine's thread."""
        self._loop.call(functools.partial(self._handle, tuple(events)))

    def _serves(self, engine: Engine, endpoints: Sequence[tuple[int, int]]) -> None:
        self._endpoint.begin(engine, endpoints)
        self._handle(())  # what came before may have connected everybody

    def _handle(self, events: tuple[Event, ...]) -> None:
        self._endpoint.handle(events)
        if not self._connected.is_set() and not self._endpoint.peers.missing():
            self._connected.set()

    def _tick(self, now_s: float) -> float:
        """Each part by itself: a mistake in one must not keep the timeouts of the others from passing."""
        if not self._endpoint.peers.peers:
            self._connected.set()  # a world of one
        wake_s = math.inf
        parts = (
            self._endpoint.tick,
            self._in_flight.tick,
            self._p2p.tick,
            self._tick_broker,
            self._tick_address_watcher,
            self._tick_rates,
        )
        for tick in parts:
            try:
                wake_s = min(wake_s, tick(now_s))
            except Exception:  # noqa: BLE001 - the docstring says why
                _log.exception("the transport's periodic work failed in part")
                wake_s = min(wake_s, now_s + AGAIN_S)
        return wake_s

    def _tick_broker(self, now_s: float) -> float:
        return math.inf if self._broker is None or self._closed else self._broker.tick(now_s, self._engine)

    def _tick_address_watcher(self, now_s: float) -> float:
        return math.inf if self._address_watcher is None or self._closed else self._address_watcher.tick(now_s)

    def _connections(self) -> dict[int, ConnectionStatistics]:
        """What the connections to each rank but those for bulk measured together."""
        found: dict[int, ConnectionStatistics] = {}
        for number, one in self.statistics().items():
            rank = self._endpoint.peers.rank_of(number)
            if rank is not None and not one.bulk:
                found[rank] = one if rank not in found else together(found[rank], one)
        return found

    def _report_links(self, far: frozenset[int]) -> LinkReport:
        self._rates.see_round_trips(self._connections())
        return self._rates.report(far)

    def _tick_rates(self, now_s: float) -> float:
        """Measure what the links carry, as long as a collective is under way."""
        if self._closed or self._engine is None or not self._in_flight.is_busy():
            return math.inf
        if now_s >= self._rates.next_s():
            self._rates.sample(now_s, self._connections())
        return self._rates.next_s()

    def _unexpected(self, rank: int, header: Header) -> None:
        """A message waits that nobody has asked for."""
        if header.kind is Kind.COLLECTIVE:
            self._in_flight.heard_call(rank, (header.group, header.step), Heard(header.call))
        else:
            self._p2p.unexpected(rank, header)

    def _refused(self, rank: int, error: PeerError) -> None:
        """Dialling a rank ended with its fault, or what looks so. While we connect, that does not mend itself."""
        if self._connected.is_set():
            _log.warning("rank %d could not be connected: %s", rank, error)
            return
        self._refusals += 1
        if self._refusals >= REFUSALS_MAX:
            self._refusal = error
            self._connected.set()

    def _cancel(self, group: str | None, reason: str) -> None:
        self._in_flight.cancel(group, reason)
        for op in self._p2p.of_group(group):
            self._p2p.fail(op, CancelledError(f"{op.work.what}: {reason}"))

    def _abort(self, group: str, reason: str) -> None:
        """Collectives that are under way tell the others by themselves; messages to this rank and from it do not."""
        self._cancel(group, reason)
        message = {"op": "abort", "group": group, "reason": sent_reason(reason)}
        for rank in self._groups.by_name[group].ranks if group in self._groups.by_name else ():
            if rank != self.rank and self._endpoint.peers.error(rank) is None:
                self._endpoint.control(rank, message)

    def _aborted_by(self, rank: int, group: str, reason: str) -> None:
        """Another rank takes no part any more in what this one sends it, or waits for from it."""
        membership = self._groups.by_name.get(group)
        if membership is None or rank not in membership.ranks:
            return
        for op in self._p2p.of_group(group):
            if op.peer == rank:
                who = f"rank {membership.ranks.index(rank)} gave up"
                self._p2p.fail(op, CancelledError(f"{op.work.what}: {who}: {reason[:REASON_CHARS_MAX]}"))

    def _say_goodbye(self, said: threading.Event) -> None:
        self._endpoint.closing = True
        self._cancel(None, "the transport was closed")
        self._control.say_goodbye(said)

    def _abandon_all(self) -> None:
        self._in_flight.abandon()
        for op in self._p2p.of_group(None):
            self._p2p.abandon(op)

    def _somebody_is_gone(self) -> None:
        self._p2p.gone()
        if self._on_loss is not None:
            self._on_loss()

    def _anybody_left(self, group: str) -> bool:
        others = [rank for rank in self._groups.by_name[group].ranks if rank != self.rank]
        return any(self._endpoint.peers.error(rank) is None for rank in others)

    def _check_process(self) -> None:
        """Before any lock is taken: in a forked child it may be held for ever."""
        if os.getpid() != self._process:
            raise MisuseError("a group cannot be used in a forked child: its thread and connections are the parent's")

    def _check_open(self) -> None:
        if self._closed:
            raise MisuseError("the transport is closed")

    def _check_point_to_point(self, rank: int | None, tag: int) -> None:
        self._check_process()
        if rank == self.rank:
            raise MisuseError("a rank cannot exchange messages with itself")
        if not is_index(tag, TAG_MAX + 1):
            raise MisuseError(f"a tag is a number from 0 to {TAG_MAX}, not {tag!r}")


_living: weakref.WeakSet[Runtime] = weakref.WeakSet()


@functools.cache
def _leave_at_exit() -> None:
    """A program that ends without closing still says goodbye, so that the others learn it at once.

    Registered when an engine is there, because what is registered last runs first, and engines close themselves too.
    """

    def leave() -> None:
        for runtime in tuple(_living):  # in a forked child some are the parent's, whose `close` does nothing
            runtime.close(timeout_s=5.0)

    atexit.register(leave)

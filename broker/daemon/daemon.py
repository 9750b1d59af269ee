"""The daemon: a loop of measure, decide, apply, record, ten times a second and on every announcement. One thread.

    selector --packets--> sessions --hub--> flows, bursts
    tick: counters, flows, bursts -> decide (pure) -> plant.apply -> recorder, snapshot -> HTTP threads

Everything that may block is bounded: netlink answers at once, clients are never waited for. `stop`, `reload` may be
called from a signal handler or another thread; they only set a flag and wake the loop.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.client.mailbox import Wake
from broker.daemon import cgroups
from broker.daemon.authority import Authority
from broker.daemon.bursts import BurstBook
from broker.daemon.channel_opening import ChannelOpening, load_channel
from broker.daemon.configurations import Configurations
from broker.daemon.control import Control
from broker.daemon.deciding import Decided, Deciding
from broker.daemon.earlier_sockets import EarlierSockets
from broker.daemon.flows import FlowTable
from broker.daemon.going_first import GoingFirst
from broker.daemon.guardian import Guardian
from broker.daemon.http_api import HttpApi
from broker.daemon.hub import SessionHub
from broker.daemon.ingress_plant import IngressPlant
from broker.daemon.job_book import JobBook
from broker.daemon.link_events import LinkEvents
from broker.daemon.link_layers import misplaced
from broker.daemon.links import Links, Routes, Traffic
from broker.daemon.log import Log
from broker.daemon.measuring import Measuring
from broker.daemon.needs import NeedBook
from broker.daemon.neighbours import Neighbours
from broker.daemon.netlink import Kernel as Netlink
from broker.daemon.notify import Notifier
from broker.daemon.own_certificate import OwnCertificate
from broker.daemon.own_cgroups import OwnCgroups
from broker.daemon.pace_watch import PaceWatch
from broker.daemon.plant import Plant
from broker.daemon.probes import Probes
from broker.daemon.publishing import Publishing
from broker.daemon.rates import RateBook
from broker.daemon.recorder import Recorder
from broker.daemon.reloads import Reloads
from broker.daemon.rhythm import Moment, Occasions, Rhythm
from broker.daemon.roster import Roster
from broker.daemon.runtime import NAMESPACE, Lock, NamespaceLock, directory
from broker.daemon.sessions import SessionServer
from broker.daemon.showing import Showing
from broker.daemon.status import Snapshot
from broker.daemon.tcp_watch import TcpWatch
from broker.guard import BEATS_WITHIN_S
from broker.model import Policy
from broker.policy import PeersPolicy
from hive_qos.errors import HiveError, ShapingError
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel
from shaping.model import DSCP, JOB_MINOR
from shaping.shaper import Shaper
from shaping.sockets import mark_socket


@dataclass(frozen=True)
class Options:
    """How this daemon was started.

    Args:
        configurations: what to start with, and what to do at each reload.
        take_over, rebuild: as `Plant`.
        earlier_sockets: whether sockets that were there before their rule are looked for, and get its class.
    """

    configurations: Configurations
    take_over: bool = False
    rebuild: bool = False
    earlier_sockets: bool = False


class Daemon:
    """One broker for one network namespace.

    Args:
        kernel: the kernel side; the daemon closes it.
        classifier: enforces rules on cgroups and users; None where this host cannot.
        clock: monotonic seconds.
        mark: how a passed socket gets its class; another one where SO_PRIORITY is not allowed.
        namespace: the file that is locked against a second broker; another one beside a kernel in memory.
        guardian: keeps a guard that opens the ceilings when we die; None beside a kernel in memory.
        going_first: lets the loop and the channel go before other programs; None leaves them among those.
    """

    def __init__(
        self,
        options: Options,
        *,
        kernel: Kernel,
        classifier: Classifier | None,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        notifier: Notifier | None = None,
        mark: Callable[..., None] = mark_socket,
        namespace: str = NAMESPACE,
        guardian: Guardian | None = None,
        going_first: GoingFirst | None = None,
    ) -> None:
        self._guardian, self._going_first = guardian, going_first
        self._mark, self._namespace = mark, namespace
        self._options, self._kernel, self._classifier = options, kernel, classifier
        self._log, self._clock = log, clock
        self._notifier = notifier or Notifier({})
        self._configurations = options.configurations
        self._policy = self._configurations.first
        self._authority = Authority.of(self._policy)
        self._selector = selectors.DefaultSelector()
        self._wake = Wake()
        self._control, self._showing = Control(self._wake.set), Showing(self._wake.set, clock=clock)
        self._made: Decided | None = None
        self._reloads = Reloads(
            self._configurations,
            control=self._control,
            force=self._put_in_force,
            shaping=self._shaping,
            patience=lambda: self._beat(busy=True),
            notifier=self._notifier,
            log=log,
        )
        self._stopping = self._links_changed = False
        self._cgroups = OwnCgroups(wanted=classifier is not None, log=log)
        self._tick_s_max = 0.0

    # --- from outside --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the loop soon. Safe in a signal handler."""
        self._stopping = True
        self._wake.set()

    def reload(self) -> None:
        """Read the configuration again soon. Safe in a signal handler."""
        self._reloads.want()
        self._wake.set()

    @property
    def snapshot(self) -> Snapshot | None:
        """The last tick, None before the first."""
        return self._showing.last

    def run(self) -> None:
        """Take the interfaces over, serve until `stop`, and put everything back.

        Raises:
            HiveError: something that is needed at start is not there or not allowed; nothing was left behind.
        """
        daemon = self._policy.daemon
        try:
            with NamespaceLock(self._namespace) as namespace:
                for path in {os.path.dirname(daemon.api_socket), os.path.dirname(daemon.session_socket)}:
                    directory(path, key="runtime-dir", mode=0o755)
                directory(daemon.state_dir, key="daemon.state_dir", mode=0o700)
                with Lock(daemon.session_socket + ".lock"), Lock(os.path.join(daemon.state_dir, "broker.lock")):
                    self._run_locked(namespace.fileno())
        finally:
            self._kernel.close()
            self._selector.close()
            self._wake.close()

    # --- start and stop ------------------------------------------------------------------------------------------

    def _run_locked(self, namespace: int) -> None:
        for note in self._authority.notes:
            self._log.warning("groups", note=note)
        journal = Journal(Path(self._policy.daemon.state_dir))
        self._compose(journal)
        problems: tuple[str, ...] = ()
        served = False
        try:
            if not self._stopping:
                if self._guardian is not None:
                    self._guardian.start(journal, lock=namespace)
                self._begin()
                if self._policy.peers is not None:
                    self._beat(busy=True)
                    load_channel(self._policy.peers.engine)
                if self._going_first is not None:
                    self._going_first.begin()
                if self._policy.peers is not None:
                    self._meet_neighbours(self._policy.peers)
                self._configurations.started()
                self._serve()
            served = True
        finally:
            self._notifier.stopping()
            self._ingress_plant.close()
            problems = (*self._plant.close(), *self._cgroups.remove())
            if self._guardian is not None:
                self._guardian.end(restored=served and not problems)
            if self._recorder is not None:
                self._recorder.close()
            self._netlink.close()
            self._link_events.close()
            self._traffic.close()
            self._probes.close()
            self._leave_neighbours()
        self._log.info("stopped", ticks=self._deciding.ticks)
        if problems:
            raise ShapingError(f"not everything was put back: {'; '.join(problems)}")

    def _compose(self, journal: Journal) -> None:
        """Make the parts. Nothing in the kernel is touched yet."""
        self._netlink = Netlink()
        self._routes, self._links, self._link_events = Routes(self._netlink), Links(), LinkEvents()
        self._traffic = Traffic()
        self._paces = PaceWatch(self._traffic.sent_bytes, clock=self._clock)
        self._flows, self._bursts, self._needs = FlowTable(), BurstBook(), NeedBook()
        self._jobs, self._neighbours = JobBook(len(JOB_MINOR)), Neighbours()
        self._rates = RateBook(self._flows)
        record_file = self._policy.daemon.record_file
        self._recorder = Recorder(record_file, log=self._log) if record_file else None
        shaper = Shaper(self._kernel, journal, classifier=self._classifier)
        self._plant = Plant(
            shaper,
            log=self._log,
            clock=self._clock,
            take_over=self._options.take_over,
            rebuild=self._options.rebuild,
        )
        self._ingress_plant = IngressPlant(shaper, log=self._log, clock=self._clock)
        self._probes = Probes(mark=self._mark_control, log=self._log, clock=self._clock)
        self._roster = Roster(
            self._plant,
            kernel=self._kernel,
            journal=journal,
            links=self._links,
            slots=self._jobs.slots,
            log=self._log,
            clock=self._clock,
        )
        cgroup_mount = cgroups.mount_point()
        earlier = None
        if self._options.earlier_sockets:
            earlier = EarlierSockets(
                mount=Path(cgroup_mount) if cgroup_mount is not None else None,
                mark=self._mark,
                remember=self._classifier.remember if self._classifier is not None else lambda *_: False,
                log=self._log,
                mark_minor=self._plant.mark_minor,
            )
        measuring = Measuring(
            plant=self._plant,
            links=self._links,
            traffic=self._traffic,
            paces=self._paces,
            flows=self._flows,
            bursts=self._bursts,
            needs=self._needs,
            jobs=self._jobs,
            neighbours=self._neighbours,
            probes=self._probes,
            interface_of=self._interface_of,
            clock=self._clock,
        )
        self._deciding = Deciding(
            measuring=measuring,
            plant=self._plant,
            roster=self._roster,
            ingress_plant=self._ingress_plant,
            neighbours=self._neighbours,
            paces=self._paces,
            tcp_watch=TcpWatch(log=self._log, clock=self._clock),
            flows=self._flows,
            earlier=earlier,
            own_cgroups=self._cgroups,
            clock=self._clock,
        )
        self._publishing = Publishing(
            plant=self._plant,
            ingress_plant=self._ingress_plant,
            roster=self._roster,
            flows=self._flows,
            jobs=self._jobs,
            neighbours=self._neighbours,
            probes=self._probes,
            configurations=self._configurations,
            guardian=self._guardian,
            going_first=self._going_first,
            earlier=earlier,
            recorder=self._recorder,
            cgroup_mount=cgroup_mount,
            started_s=self._clock(),
        )

    def _leave_neighbours(self) -> None:
        try:
            self._neighbours.close()
        except Exception as problem:  # noqa: BLE001 - what was asked of others ends by itself
            self._log.error("peers", error=str(problem))

    def _begin(self) -> None:
        """Take up the policy to start with, or the last good one where that one cannot be."""
        try:
            self._take_over_interfaces()
        except (HiveError, OSError, ValueError) as problem:
            instead = self._configurations.instead(self._policy, problem)
            if instead is None:
                raise
            self._policy, self._authority = instead, Authority.of(instead)
            self._take_over_interfaces()

    def _take_over_interfaces(self) -> None:
        self._roster.require_one(self._policy)
        self._roster.give_back_strays(self._policy)
        self._ingress_plant.clear(entry.name for entry in self._policy.interfaces)
        self._cgroups.make()
        self._attach_all()
        self._roster.keep(self._policy)

    def _warn_of_layers(self) -> None:
        for one in misplaced(entry.name for entry in self._policy.interfaces):
            self._log.warning("interface", interface=one.interface, note=f"{one.text}; {one.advice}")

    def _attach_all(self) -> None:
        """Attach what policy names and is there, and bring what we hold already to it."""
        self._deciding.attach_all(self._policy)
        self._warn_of_layers()

    def _serve(self) -> None:
        self._selector.register(self._wake.reader, selectors.EVENT_READ, self._wake.clear)
        self._selector.register(self._link_events, selectors.EVENT_READ, self._hear_of_links)
        daemon = self._policy.daemon
        hub = SessionHub(
            flows=self._flows,
            bursts=self._bursts,
            jobs=self._jobs,
            needs=self._needs,
            clock=self._clock,
            interface_of=self._interface_of,
            cgroup_mount=self._cgroups.mount,
            mark=self._mark,
            authority=lambda: self._authority,
            reclassify=lambda: self._plant.classify(at_once=True),
            settle=lambda: self._tick(between=True),
            log=self._log,
            mark_minor=self._plant.mark_minor,
        )
        self._hub = hub
        sessions = SessionServer(
            path=daemon.session_socket,
            selector=self._selector,
            authority=self._authority,
            host=socket.gethostname(),
            hub=hub,
            log=self._log,
            clock=self._clock,
        )
        self._sessions = sessions
        try:
            self._beat()
            self._rhythm = Rhythm(tick_s=daemon.tick_s, now_s=self._clock())
            self._tick(between=False)
            self._show(self._clock())
            api = HttpApi(
                path=daemon.api_socket,
                snapshot=self._showing.ask,
                authority=lambda: self._authority,
                ask=self._control.ask,
            )
            try:
                self._notifier.ready(self._shaping())
                self._log.info("ready", interfaces=",".join(sorted(self._plant.names)), socket=daemon.session_socket)
                self._loop()
            finally:
                api.close()
        finally:
            sessions.close()

    def _loop(self) -> None:
        watchdog_s = self._clock()
        while not self._stopping:
            self._beat()
            wake_s = min(self._rhythm.due_s(self._occasions()), self._paces.next_s, self._clock() + BEATS_WITHIN_S)
            for key, _ in self._selector.select(max(0.0, wake_s - self._clock())):
                key.data()  # one whose session an earlier one of this round has ended does nothing
            self._reloads.heed()
            self._paces.look()
            now_s = self._clock()
            occasions = self._occasions()
            moment = self._rhythm.moment(occasions, now_s=now_s)
            if moment is not None:
                self._decide_at(moment, now_s, asked=occasions.asked and not occasions.announced)
            self._show(now_s)
            if self._notifier.watchdog_s is not None and now_s - watchdog_s >= self._notifier.watchdog_s:
                watchdog_s = now_s
                self._notifier.watchdog()

    def _occasions(self) -> Occasions:
        return Occasions(
            announced=self._hub.urgent or self._paces.crossed,
            asked=self._neighbours.urgent,
            links=self._links_changed,
            again_s=self._deciding.again_s,
            expected_s=self._hub.habits.expected_s(now_s=self._clock()),
        )

    def _decide_at(self, moment: Moment, now_s: float, *, asked: bool) -> None:
        if moment is Moment.LINKS:
            self._links_changed = False
            self._routes.forget()
            self._roster.follow(self._policy)
        elif moment is Moment.TICK:
            self._sessions.housekeeping()
            if self._going_first is not None:
                self._going_first.look()
            self._neighbours.look(now_s=now_s)
            self._probes.go(self._policy.probe, interface_of=self._interface_of, now_s=now_s)
        self._tick(between=moment is Moment.SOON, asked=asked)
        self._rhythm.decided(moment, began_s=now_s, ended_s=self._clock(), tick_s=self._policy.daemon.tick_s)

    def _put_in_force(self, policy: Policy, *, whatever: bool = False) -> None:
        """As `reloads.Force`."""
        self._beat(busy=True)
        old, self._policy = self._policy, policy
        if (policy.daemon, policy.peers) != (old.daemon, old.peers):
            note = "changes of [daemon] and [peers] need a restart; files that [peers] names are read again without one"
            self._log.warning("reload", note=note)
        try:
            self._attach_all()
        except (HiveError, OSError, ValueError) as problem:
            if not whatever:
                self._policy = old
                self._roster.keep(old)
                raise
            self._log.error("configuration", error=str(problem))  # the ticks try again
        self._roster.keep(policy)
        self._neighbours.renew(now_s=self._clock(), at_once=True)
        self._authority = Authority.of(policy)
        self._sessions.authority = self._authority
        self._showing.hurry()

    def _beat(self, *, busy: bool = False) -> None:
        if self._guardian is not None and self._guardian.beat(busy=busy):
            self._plant.reopened()
            self._ingress_plant.reopened()

    def _hear_of_links(self) -> None:
        heard = self._link_events.heard()
        self._ingress_plant.hear(heard)
        self._links_changed |= self._roster.concerned(heard, self._policy)

    # --- the tick ------------------------------------------------------------------------------------------------

    def _tick(self, *, between: bool, asked: bool = False) -> None:
        started_s = self._clock()
        made = self._deciding.decide(self._policy, between=between, asked=asked)
        decision = made.decision
        self._hub.answer(decision.credits, self._sessions.sessions)
        living = self._sessions.sessions.values()
        self._rates.tell(decision.allocation, living, interface_of=self._interface_of, now_s=made.now_s)
        if self._recorder is not None:
            self._recorder.write(
                now_s=made.now_s,
                before=made.before,
                measurements=made.measurements,
                decision=decision,
                policy=self._policy,
            )
        self._tick_s_max = max(self._tick_s_max * 0.999, self._clock() - started_s)
        if not between:
            self._publishing.look(now_s=made.now_s)
        self._made = made
        self._showing.outdate()

    def _show(self, now_s: float) -> None:
        """Put together what readers see, where that is due."""
        made = self._made
        if made is None or not self._showing.due(now_s=now_s):
            return
        snapshot = self._publishing.snapshot(
            made.decision,
            measurements=made.measurements,
            policy=self._policy,
            sessions=self._sessions.sessions,
            now_s=made.now_s,
            ticks=self._deciding.ticks,
            late_ticks=self._rhythm.late_ticks,
            tick_s_max=self._tick_s_max,
        )
        self._showing.show(snapshot, now_s=now_s)

    # --- small parts ---------------------------------------------------------------------------------------------

    def _meet_neighbours(self, peers: PeersPolicy) -> None:
        certificate = OwnCertificate(peers, log=self._log)
        opening = ChannelOpening(
            peers,
            certificate=certificate,
            patience=lambda: self._beat(busy=True),
            wake=self._wake.set,
            log=self._log,
            clock=self._clock,
            mark=self._mark_control,
        )
        self._neighbours.meet(opening, certificate, now_s=self._clock())

    def _mark_control(self, own: socket.socket) -> None:
        self._mark(own, minor=self._plant.mark_minor("control"), dscp=DSCP["control"])

    def _shaping(self) -> str:
        return f"shaping {', '.join(sorted(self._plant.names))}"

    def _interface_of(self, address: str) -> str | None:
        return self._routes.interface_towards(address, shaped=self._plant.names, now_s=self._clock())

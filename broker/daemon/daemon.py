"""The daemon: a loop of measure, decide, apply, record, ten times a second and on every announcement. One thread.

    selector --packets--> sessions --hub--> flows, bursts
    tick: counters, flows, bursts -> decide (pure) -> plant.apply -> recorder, snapshot -> HTTP threads

Everything that may block is bounded: netlink answers at once, clients are never waited for. `stop`, `reload` may be
called from a signal handler or another thread; they only set a flag and wake the loop.
"""

from __future__ import annotations

import functools
import os
import resource
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from broker.client.mailbox import Wake
from broker.daemon import cgroups
from broker.daemon.authority import Authority
from broker.daemon.bursts import BurstBook
from broker.daemon.channel_opening import ChannelOpening
from broker.daemon.configurations import Configurations
from broker.daemon.control import Control
from broker.daemon.earlier_sockets import EarlierSockets
from broker.daemon.flows import FlowTable
from broker.daemon.guardian import Guardian
from broker.daemon.http_api import HttpApi
from broker.daemon.hub import SessionHub
from broker.daemon.ingress_plant import IngressPlant
from broker.daemon.job_book import JobBook
from broker.daemon.link_events import LinkEvents
from broker.daemon.link_layers import misplaced
from broker.daemon.links import Links, Routes, Traffic
from broker.daemon.log import Log
from broker.daemon.matching import Matching
from broker.daemon.needs import EVERYWHERE, NeedBook
from broker.daemon.neighbours import Neighbours
from broker.daemon.netlink import Kernel as Netlink
from broker.daemon.notify import Notifier
from broker.daemon.origins import Origins
from broker.daemon.pace_watch import PaceWatch
from broker.daemon.plant import Plant
from broker.daemon.rates import RateBook
from broker.daemon.recorder import Recorder
from broker.daemon.reloads import Reloads
from broker.daemon.roster import Roster
from broker.daemon.runtime import NAMESPACE, Lock, NamespaceLock, directory
from broker.daemon.sessions import SessionServer
from broker.daemon.shapes import rules_of
from broker.daemon.status import DaemonInfo, SessionInfo, Snapshot
from broker.daemon.tcp_watch import TcpWatch
from broker.daemon.wall_clock import WallClocks
from broker.decide import decide
from broker.guard import BEATS_WITHIN_S
from broker.model import Alarm, Decision, InterfaceSample, Measurements, Policy, State, WallClock
from hive_qos.errors import HiveError, ShapingError
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel
from shaping.model import DSCP, JOB_MINOR, Rule
from shaping.shaper import Shaper
from shaping.sockets import mark_socket

COUNTERS_FRESH_S = 0.02
"""An announcement between two ticks is decided on the counters of the last tick, unless they are older than this."""

URGENT_S = 0.005
"""Announcements that come closer together than this share a decision, so that no client can make us decide all day."""

PEERS_S = 0.001
"""The same for what other brokers ask: the channel lets few changes a second of each be as urgent as that."""

LINKS_S = 0.02
"""Links are looked at so soon after they changed, and not more often: a rename is three events, a storm is hundreds."""


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
    ) -> None:
        self._guardian = guardian
        self._mark, self._namespace = mark, namespace
        self._options, self._kernel, self._classifier = options, kernel, classifier
        self._log, self._clock = log, clock
        self._notifier = notifier or Notifier({})
        self._host = socket.gethostname()
        self._configurations = options.configurations
        self._policy = self._configurations.first
        self._authority = Authority.of(self._policy)
        self._state = State()
        self._snapshot: Snapshot | None = None
        self._selector = selectors.DefaultSelector()
        self._wake = Wake()
        self._control = Control(self._wake.set)
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
        self._cgroup_mount: str | None = None
        self._class_paths = cgroups.class_paths()
        self._earlier: EarlierSockets | None = None
        self._ticks = self._late_ticks = 0
        self._tick_s_max = 0.0
        self._record_alarm: Alarm | None = None

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
        return self._snapshot

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
        daemon = self._policy.daemon
        for note in self._authority.notes:
            self._log.warning("groups", note=note)
        self._started_s = self._clock()
        self._netlink = Netlink()
        self._routes, self._links, self._link_events = Routes(self._netlink), Links(), LinkEvents()
        self._traffic = Traffic()
        self._paces = PaceWatch(self._traffic.sent_bytes, clock=self._clock)
        self._flows, self._bursts, self._needs = FlowTable(), BurstBook(), NeedBook()
        self._jobs, self._wall_clocks = JobBook(len(JOB_MINOR)), WallClocks()
        self._rates = RateBook(self._flows)
        self._neighbours = Neighbours(None)
        self._again_s: float | None = None
        cgroup_mount = cgroups.mount_point()
        self._origins = Origins(cgroup_mount)
        if self._options.earlier_sockets:
            self._earlier = EarlierSockets(
                mount=Path(cgroup_mount) if cgroup_mount is not None else None,
                mark=self._mark,
                remember=self._classifier.remember if self._classifier is not None else lambda *_: False,
                log=self._log,
                mark_minor=lambda target: self._plant.mark_minor(target),
            )
        self._tcp_watch, self._matching = TcpWatch(log=self._log, clock=self._clock), Matching(self._policy)
        self._recorder = Recorder(daemon.record_file) if daemon.record_file else None
        journal = Journal(Path(daemon.state_dir))
        shaper = Shaper(self._kernel, journal, classifier=self._classifier)
        self._plant = Plant(
            shaper,
            log=self._log,
            clock=self._clock,
            take_over=self._options.take_over,
            rebuild=self._options.rebuild,
        )
        self._ingress_plant = IngressPlant(shaper, log=self._log, clock=self._clock)
        self._roster = Roster(
            self._plant,
            kernel=self._kernel,
            journal=journal,
            links=self._links,
            slots=self._jobs.slots,
            log=self._log,
            clock=self._clock,
        )
        problems: tuple[str, ...] = ()
        served = False
        try:
            if not self._stopping:
                if self._guardian is not None:
                    self._guardian.start(journal, lock=namespace)
                self._begin()
                self._neighbours = Neighbours(self._channel_opening())
                self._neighbours.look()
                self._configurations.started()
                self._serve()
            served = True
        finally:
            self._notifier.stopping()
            self._ingress_plant.close()
            problems = (*self._plant.close(), *self._remove_cgroups())
            if self._guardian is not None:
                self._guardian.end(restored=served and not problems)
            if self._recorder is not None:
                self._recorder.close()
            self._netlink.close()
            self._link_events.close()
            self._traffic.close()
            self._leave_neighbours()
        self._log.info("stopped", ticks=self._ticks)
        if problems:
            raise ShapingError(f"not everything was put back: {'; '.join(problems)}")

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
        self._cgroup_mount = self._make_cgroups()
        self._attach_all()
        self._roster.keep(self._policy)

    def _warn_of_layers(self) -> None:
        for one in misplaced(entry.name for entry in self._policy.interfaces):
            self._log.warning("interface", interface=one.interface, note=f"{one.text}; {one.advice}")

    def _attach_all(self) -> None:
        """Attach what policy names and is there, and bring what we hold already to it."""
        decision = decide(
            now_s=self._clock(), state=self._state, measurements=self._measure_with_links(), policy=self._policy
        )
        self._roster.attach_all(decision.allocation, policy=self._policy, class_cgroups=self._class_cgroups())
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
            cgroup_mount=self._cgroup_mount,
            mark=self._mark,
            authority=lambda: self._authority,
            reclassify=lambda: self._plant.classify(at_once=True),
            settle=lambda: self._tick(fresh_s=COUNTERS_FRESH_S),
            log=self._log,
            mark_minor=self._plant.mark_minor,
        )
        self._hub = hub
        sessions = SessionServer(
            path=daemon.session_socket,
            selector=self._selector,
            authority=self._authority,
            host=self._host,
            hub=hub,
            log=self._log,
            clock=self._clock,
        )
        self._sessions = sessions
        try:
            self._beat()
            self._tick(fresh_s=0.0)
            api = HttpApi(
                path=daemon.api_socket,
                snapshot=lambda: self._snapshot,
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
        last_s = watchdog_s = self._clock()
        next_s = last_s + self._policy.daemon.tick_s
        while not self._stopping:
            self._beat()
            soon_s = last_s + URGENT_S if self._hub.urgent else self._clock() + BEATS_WITHIN_S
            if self._again_s is not None:
                soon_s = min(soon_s, max(self._again_s, last_s + URGENT_S))
            if self._neighbours.urgent:
                soon_s = min(soon_s, last_s + PEERS_S)
            if self._links_changed:
                soon_s = min(soon_s, last_s + LINKS_S)
            wake_s = min(next_s, soon_s, self._paces.next_s)
            for key, _ in self._selector.select(max(0.0, wake_s - self._clock())):
                key.data()  # one whose session an earlier one of this round has ended does nothing
            self._reloads.heed()
            crossed = self._paces.look()
            now_s = self._clock()
            if self._links_changed and now_s >= last_s + LINKS_S:
                self._links_changed = False
                self._routes.forget()
                self._roster.follow(self._policy)
                self._tick(fresh_s=0.0)
                last_s = now_s
            if now_s >= next_s:
                self._sessions.housekeeping()
                self._neighbours.look()
                self._tick(fresh_s=0.0)
                last_s = now_s
                tick_s = self._policy.daemon.tick_s
                missed = int((self._clock() - next_s) / tick_s)
                self._late_ticks += missed
                next_s += (missed + 1) * tick_s  # ticks that were missed are not made up for
            elif crossed or self._is_due(now_s, last_s):
                self._tick(fresh_s=COUNTERS_FRESH_S)
                last_s = now_s
            if self._notifier.watchdog_s is not None and now_s - watchdog_s >= self._notifier.watchdog_s:
                watchdog_s = now_s
                self._notifier.watchdog()

    def _is_due(self, now_s: float, last_s: float) -> bool:
        """Whether to decide between two ticks."""
        if self._hub.urgent or (self._again_s is not None and now_s >= self._again_s):
            return now_s >= last_s + URGENT_S
        return self._neighbours.urgent and now_s >= last_s + PEERS_S

    def _put_in_force(self, policy: Policy, *, whatever: bool = False) -> None:
        """As `reloads.Force`."""
        self._beat(busy=True)
        old, self._policy = self._policy, policy
        if (policy.daemon, policy.peers) != (old.daemon, old.peers):
            self._log.warning("reload", note="changes of [daemon] and [peers] need a restart")
        try:
            self._attach_all()
        except (HiveError, OSError, ValueError) as problem:
            if not whatever:
                self._policy = old
                self._roster.keep(old)
                raise
            self._log.error("configuration", error=str(problem))  # the ticks try again
        self._roster.keep(policy)
        self._authority = Authority.of(policy)
        self._sessions.authority = self._authority

    def _beat(self, *, busy: bool = False) -> None:
        if self._guardian is not None and self._guardian.beat(busy=busy):
            self._plant.reopened()
            self._ingress_plant.reopened()

    def _hear_of_links(self) -> None:
        heard = self._link_events.heard()
        self._ingress_plant.hear(heard)
        self._links_changed |= self._roster.concerned(heard, self._policy)

    # --- the tick ------------------------------------------------------------------------------------------------

    def _tick(self, *, fresh_s: float) -> None:
        started_s = self._clock()
        if self._matching.policy is not self._policy:
            self._matching = Matching(self._policy)
        self._tcp_watch.look(self._flows, matching=self._matching, now_s=started_s)
        measurements = self._measure(fresh_s=fresh_s)
        now_s, before = self._clock(), self._state
        decision = decide(now_s=now_s, state=before, measurements=measurements, policy=self._policy)
        self._state = decision.state
        self._ticks += 1
        self._again_s = None if decision.again_s is None else now_s + decision.again_s
        self._paces.want(decision.watches)
        self._neighbours.ask(decision)
        if decision.holds:
            self._tcp_watch.hasten()  # how much of what comes is storage?
        self._roster.apply(decision.allocation, policy=self._policy, class_cgroups=self._class_cgroups())
        self._neighbours.answer(decision)
        self._ingress_plant.check()
        self._ingress_plant.apply(
            decision.allocation,
            policy=self._policy,
            passed=self._flows.passed.values(),
            present=self._plant.names,
        )
        classified = self._plant.classify()
        if self._earlier is not None:
            self._earlier.look(self._rules, classified=classified, now_s=now_s, urgent=fresh_s > 0.0)
        self._hub.answer(decision.credits, self._sessions.sessions)
        living = self._sessions.sessions.values()
        self._rates.tell(decision.allocation, living, interface_of=self._interface_of, now_s=now_s)
        if self._recorder is not None:
            ended = self._recorder.write(
                now_s=now_s, before=before, measurements=measurements, decision=decision, policy=self._policy
            )
            if ended is not None:
                self._log.error("recording ended", error=ended)
                self._record_alarm = Alarm(code="recording-ended", subject="record_file", text=ended)
        self._tick_s_max = max(self._tick_s_max * 0.999, self._clock() - started_s)
        self._publish(decision, measurements, now_s)

    def _measure(self, *, fresh_s: float) -> Measurements:
        now_s = self._clock()
        flows = self._flows.samples(interface_of=self._interface_of, now_s=now_s)
        bursts = self._bursts.current(now_s=now_s)
        needs = self._needs.current(now_s=now_s)
        received = self._traffic.received_bytes()
        senders = self._neighbours.senders(self._flows, interface_of=self._interface_of, now_s=now_s)
        leases = self._neighbours.leases(interface_of=self._interface_of)
        interfaces = []
        for entry in self._policy.interfaces:
            if entry.name in self._plant.names:
                samples, age_s = self._plant.read(entry.name, fresh_s=fresh_s)
                interfaces.append(
                    InterfaceSample(
                        name=entry.name,
                        link_bits_per_s=self._links.link_bits_per_s(entry.name, now_s=now_s),
                        counters_age_s=age_s,
                        classes=samples,
                        flows=flows.get(entry.name, ()),
                        bursts=bursts.get(entry.name, ()),
                        needs=(*needs.get(entry.name, ()), *needs.get(EVERYWHERE, ())),
                        received_bytes=received.get(entry.name),
                        pace_bits_per_s=self._paces.pace_bits_per_s(entry.name),
                        jobs=self._jobs.samples(entry.name, self._plant.leaves(entry.name), now_s=now_s),
                        senders=senders.get(entry.name, ()),
                        destinations=self._plant.destinations(entry.name),
                        leases=leases.get(entry.name, ()),
                    )
                )
        return Measurements(interfaces=tuple(interfaces), wall=self._wall())

    def _measure_with_links(self) -> Measurements:
        """What a tick would measure, so that leaves of jobs and leases keep what they have; of interfaces that we do
        not hold yet the link alone."""
        held, now_s = self._measure(fresh_s=COUNTERS_FRESH_S), self._clock()
        links = (
            InterfaceSample(name=entry.name, link_bits_per_s=self._links.link_bits_per_s(entry.name, now_s=now_s))
            for entry in self._policy.interfaces
            if entry.name not in self._plant.names
        )
        return replace(held, interfaces=(*held.interfaces, *links))

    def _wall(self) -> WallClock | None:
        return self._wall_clocks.read(entry.timezone for entry in self._policy.schedules)

    def _publish(self, decision: Decision, measurements: Measurements, now_s: float) -> None:
        guard = self._guardian.alarms() if self._guardian is not None else ()
        earlier = self._earlier.alarm() if self._earlier is not None else None
        own = (
            *self._configurations.alarms(),
            self._record_alarm,
            earlier,
            *self._roster.alarms(),
            *self._neighbours.alarms(),
            *guard,
        )
        refused = {
            alarm.subject for alarm in self._roster.alarms()
        }  # there, but not to be shaped: that is said instead
        decided = [one for one in decision.alarms if one.code != "interface-missing" or one.subject not in refused]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._snapshot = Snapshot(
            host=self._host,
            daemon=DaemonInfo(
                pid=os.getpid(),
                up_s=now_s - self._started_s,
                ticks=self._ticks,
                applied=self._plant.applied,
                late_ticks=self._late_ticks,
                cpu_s=usage.ru_utime + usage.ru_stime,
                tick_s_max=self._tick_s_max,
                sockets_marked=self._earlier.marked if self._earlier is not None else 0,
                guard=None if self._guardian is None else self._guardian.info(),
            ),
            policy=self._policy,
            decision=decision,
            measurements=measurements,
            segments=self._roster.segments(),
            slots=self._jobs.slots(),
            sessions=tuple(
                SessionInfo(
                    name=one.name, client=one.machine.hello.client, job=one.job, pid=one.peer.pid, uid=one.peer.uid
                )
                for one in self._sessions.sessions.values()
            ),
            passed=tuple(self._flows.passed.values()),
            tcp=self._flows.tcp_shown,
            tcp_connections=self._flows.tcp_count,
            origins=self._origins.look(self._flows.tcp_shown, now_s=now_s),
            alarms=(
                *decided,
                *self._plant.alarms(),
                *self._ingress_plant.alarms(),
                *(alarm for alarm in own if alarm is not None),
            ),
            holds=self._neighbours.info(decision),
        )

    # --- small parts ---------------------------------------------------------------------------------------------

    def _channel_opening(self) -> ChannelOpening | None:
        """The way to other brokers, where the configuration wants one."""
        if self._policy.peers is None:
            return None
        return ChannelOpening(
            self._policy.peers,
            patience=lambda: self._beat(busy=True),
            wake=self._wake.set,
            log=self._log,
            clock=self._clock,
            mark=functools.partial(self._mark, minor=self._plant.mark_minor("control"), dscp=DSCP["control"]),
        )

    def _shaping(self) -> str:
        return f"shaping {', '.join(sorted(self._plant.names))}"

    def _interface_of(self, address: str) -> str | None:
        return self._routes.interface_towards(address, shaped=self._plant.names, now_s=self._clock())

    def _rules(self) -> tuple[Rule, ...]:
        return rules_of(self._policy, class_cgroups=self._class_cgroups())

    def _class_cgroups(self) -> tuple[tuple[str, str], ...]:
        return self._class_paths if self._cgroup_mount is not None else ()

    def _make_cgroups(self) -> str | None:
        mount = cgroups.mount_point()
        if self._classifier is None or mount is None:
            self._log.warning("cgroups", note="`hive-qos run` cannot classify here: no cgroup v2 with BPF")
            return None
        try:
            cgroups.make(mount)
        except HiveError as problem:
            self._log.warning("cgroups", note=f"`hive-qos run` cannot classify here: {problem}")
            return None
        return mount

    def _remove_cgroups(self) -> tuple[str, ...]:
        if self._cgroup_mount is None:
            return ()
        try:
            busy = cgroups.remove(self._cgroup_mount)
        except (HiveError, OSError) as problem:
            return (f"cgroups: {problem}",)
        if busy:
            self._log.info("cgroups", note=f"programs still run in {', '.join(busy)}; they stay there, unshaped")
        return ()

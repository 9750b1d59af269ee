"""Builds the snapshot that the API shows: a decision, its measurements, and the state of every part."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from broker.accounting.accounts import Accounts
from broker.api.documents.class_averages import ClassAverages
from broker.api.documents.limits import LimitHistory, limits
from broker.api.documents.snapshot import ConfigurationInfo, DaemonInfo, SessionInfo, Snapshot
from broker.daemon.config_store import ConfigStore
from broker.daemon.pause import Pause
from broker.daemon.peer_link import PeerLink
from broker.daemon.recorder import Recorder
from broker.daemon.settings_store import SettingsStore
from broker.enforce.egress import EgressTrees
from broker.enforce.ingress import IngressTrees
from broker.enforce.interfaces import ShapedInterfaces
from broker.enforce.reclassify import Reclassifier
from broker.enforce.socket_marks import CLASS_OF_PRIORITY, JOB_LEAVES
from broker.events.log import Log
from broker.law.capacity import outbound
from broker.law.capacity.quorum import DestinationReport
from broker.law.decision import Decision
from broker.measure.flow_table import FlowTable
from broker.measure.host_load import HostLoads
from broker.measure.port_classes import PortClasses
from broker.measure.probes import Probes
from broker.measure.socket_owners import Shown, SocketOwner, SocketOwners, command_of
from broker.measure.sockets import UdpWatch
from broker.model.values import Alarm, Measurements
from broker.page.page import Page
from broker.policy.types import Policy
from broker.process.watchdog_client import WatchdogClient
from broker.sessions.job_table import JobTable
from broker.sessions.program_table import ProgramTable
from broker.sessions.session import Session


class SnapshotBuilder:
    """For the loop's thread. A part that is None does not exist in this daemon.

    Args:
        started_s: when the daemon began.
    """

    def __init__(
        self,
        *,
        egress_trees: EgressTrees,
        ingress_trees: IngressTrees,
        shaped_interfaces: ShapedInterfaces,
        flows: FlowTable,
        jobs: JobTable,
        programs: ProgramTable,
        peer_link: PeerLink,
        probes: Probes,
        configurations: ConfigStore,
        settings: SettingsStore,
        pause: Pause,
        watchdog: WatchdogClient | None,
        earlier: Reclassifier | None,
        recorder: Recorder | None,
        accounts: Accounts,
        page: Page,
        socket_owners: SocketOwners,
        log: Log,
        started_s: float,
        wall_clock: Callable[[], float],
    ) -> None:
        self._egress_trees, self._ingress_trees, self._shaped_interfaces = (
            egress_trees,
            ingress_trees,
            shaped_interfaces,
        )
        self._flows, self._jobs, self._peer_link, self._probes = flows, jobs, peer_link, probes
        self._configurations, self._watchdog, self._earlier = configurations, watchdog, earlier
        self._recorder, self._accounts, self._page, self._origins = recorder, accounts, page, socket_owners
        self._programs = programs
        self._settings, self._pause = settings, pause
        self._host, self._started_s = socket.gethostname(), started_s
        self._known: Mapping[int, SocketOwner] = {}
        self._loads = HostLoads()
        self._udp, self._averages = UdpWatch(log=log), ClassAverages()
        self._limits, self._wall_clock = LimitHistory(), wall_clock
        self._port_classes: PortClasses | None = None
        self._wanted: tuple[object, object] | None = None
        self._looked_for: Shown = ()
        self._commands: dict[str, str | None] = {}

    def look(self, policy: Policy, *, now_s: float) -> None:
        """Look for owners of connections, one slice: at every tick, so that they are known when somebody asks."""
        if self._port_classes is None or self._port_classes.policy is not policy:
            self._port_classes = PortClasses(policy, CLASS_OF_PRIORITY)
        self._udp.look(matching=self._port_classes, now_s=now_s)
        tcp, udp = self._flows.tcp_shown, self._udp.shown
        if self._wanted is None or self._wanted[0] is not tcp or self._wanted[1] is not udp:
            self._wanted = tcp, udp
            self._looked_for = (*((one, name) for one, name, _ in udp), *tcp)
        self._known = self._origins.look(self._looked_for, now_s=now_s)

    def snapshot(
        self,
        decision: Decision,
        *,
        measurements: Measurements,
        policy: Policy,
        sessions: Mapping[str, Session],
        now_s: float,
        ticks: int,
        late_ticks: int,
        tick_s_max: float,
    ) -> Snapshot:
        """All of one tick, frozen."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        tcp = self._flows.tcp_shown
        self._commands = {
            name: self._commands[name] if name in self._commands else command_of(one.peer.pid)
            for name, one in sessions.items()
        }
        snapshot = Snapshot(
            host=self._host,
            daemon=DaemonInfo(
                pid=os.getpid(),
                up_s=now_s - self._started_s,
                ticks=ticks,
                applied=self._egress_trees.applied,
                late_ticks=late_ticks,
                cpu_s=usage.ru_utime + usage.ru_stime,
                tick_s_max=tick_s_max,
                sockets_marked=self._earlier.marked if self._earlier is not None else 0,
                watchdog=None if self._watchdog is None else self._watchdog.info(),
            ),
            policy=policy,
            decision=decision,
            measurements=measurements,
            segments=self._shaped_interfaces.segments(),
            leaves={job: JOB_LEAVES[slot] for job, slot in self._jobs.slots().items()},
            sessions=tuple(
                SessionInfo(
                    name=one.name,
                    client=one.machine.hello.client,
                    job=one.job,
                    pid=one.peer.pid,
                    uid=one.peer.uid,
                    command=self._commands[one.name],
                )
                for one in sessions.values()
            ),
            passed=tuple(self._flows.passed.values()),
            tcp=tcp,
            udp=self._udp.shown,
            figures=self._averages.follow(measurements, tcp, decision=decision, policy=policy, now_s=now_s),
            tcp_connections=self._flows.tcp_count,
            origins=self._known,
            programs=self._programs.infos(now_s=now_s),
            alarms=self._alarms(decision, policy, now_s=now_s),
            holds=self._peer_link.info(decision),
            load=self._loads.look(now_s=now_s),
            destinations=destination_reports(decision, measurements),
            wall_s=self._wall_clock(),
            configuration=ConfigurationInfo(
                file=self._configurations.file,
                trial_left_s=self._configurations.trial_left_s,
                paused_left_s=self._pause.left_s,
                settings=self._settings.info(),
                schedules=tuple(one.name for one in policy.schedules),
                take_over=self._egress_trees.take_over,
            ),
        )
        return replace(snapshot, lasting=self._limits.follow(limits(snapshot), now_s=now_s))

    def _alarms(self, decision: Decision, policy: Policy, *, now_s: float) -> tuple[Alarm, ...]:
        of_roster, trees = self._shaped_interfaces.alarms(), self._egress_trees
        refused = {alarm.subject for alarm in of_roster}
        lost = {name for name in trees.names if trees.segments(name) is None}
        single = (
            self._recorder.alarm if self._recorder is not None else None,
            self._earlier.alarm() if self._earlier is not None else None,
        )
        return (
            *unexplained(decision.alarms, refused=refused, lost=lost),
            *trees.alarms(),
            *self._ingress_trees.alarms(),
            *(alarm for alarm in self._configurations.alarms() if alarm is not None),
            *self._pause.alarms(),
            *self._settings.alarms(),
            *(alarm for alarm in single if alarm is not None),
            *of_roster,
            *self._peer_link.alarms(),
            *self._probes.alarms(),
            *self._accounts.alarms(),
            *self._page.alarms(),
            *self._programs.alarms((one.name for one in policy.storage_programs), now_s=now_s),
            *(self._watchdog.alarms() if self._watchdog is not None else ()),
        )


def unexplained(alarms: Iterable[Alarm], *, refused: Collection[str], lost: Collection[str]) -> tuple[Alarm, ...]:
    """A decision's alarms but those whose cause has an alarm of its own.

    Args:
        refused: interfaces that are there, but cannot be shaped.
        lost: interfaces that we hold and that have no tree of ours now: there is nothing to count.
    """
    known = {"interface-missing": refused, "counters-stale": lost}
    return tuple(alarm for alarm in alarms if alarm.subject not in known.get(alarm.code, ()))


def destination_reports(decision: Decision, measurements: Measurements) -> dict[str, tuple[DestinationReport, ...]]:
    """By interface, the destinations' reports behind its capacity."""
    flows = {sample.name: sample.flows for sample in measurements.interfaces}
    return {
        one.name: tuple(outbound.destination_reports(one.capacity, flows[one.name]))
        for one in decision.state.interfaces
        if one.capacity is not None and one.name in flows
    }

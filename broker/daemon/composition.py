"""What a daemon is made of, and who knows whom. Making the parts touches nothing in the kernel.

reported by sessions    flows, bursts, needs, jobs
measured                routes, links, link events, traffic, rate watch
enforced through        egress and ingress trees, shaped interfaces, own cgroups, probes, peer link
for every decision      deciding, publishing, accounts, recorder
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from broker.accounting.accounts import Accounts
from broker.daemon.collect import Collector
from broker.daemon.config_store import ConfigStore
from broker.daemon.pause import Pause
from broker.daemon.peer_link import PeerLink
from broker.daemon.publish import SnapshotBuilder
from broker.daemon.recorder import Recorder
from broker.daemon.settings_store import SettingsStore
from broker.daemon.tick import TickRunner
from broker.enforce import cgroups
from broker.enforce.egress import EgressTrees
from broker.enforce.inbound_rules import InboundRules
from broker.enforce.ingress import IngressTrees
from broker.enforce.interfaces import ShapedInterfaces
from broker.enforce.own_cgroups import OwnCgroups
from broker.enforce.reclassify import Reclassifier
from broker.enforce.socket_marks import JOB_LEAVES, SocketMarks
from broker.events.log import Log
from broker.events.recent import RecentEvents
from broker.events.telemetry import Telemetry
from broker.measure.flow_table import FlowTable
from broker.measure.interfaces import InterfaceCounters, Links, Routes
from broker.measure.probes import Probes
from broker.measure.rate_watch import RateWatch
from broker.measure.socket_owners import SocketOwners
from broker.measure.sockets import TcpWatch
from broker.page.page import Page
from broker.process import proc_fds
from broker.process.closer_client import CloserClient
from broker.process.notify import Notifier
from broker.process.socket_finder_client import SocketFinder
from broker.process.watchdog_client import WatchdogClient
from broker.sessions.burst_table import BurstTable
from broker.sessions.job_table import JobTable
from broker.sessions.need_table import NeedTable
from broker.sessions.program_table import ProgramTable
from hive_qos.netlink import NetlinkSocket
from shaping.classify.socket_priority import mark_socket
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel
from shaping.netlink.link_events import LinkEvents
from shaping.netlink.links import read_link
from shaping.netlink.route_events import RouteEvents
from shaping.netlink.routes import port_towards, route_to
from shaping.shaper import Shaper

NETLINK_TIMEOUT_S = 1.0
"""The kernel answers about routes and links at once; a lost answer must not stop the daemon."""


@dataclass(frozen=True, eq=False)
class Environment:
    """What a daemon is handed, and does not make itself.

    Args:
        configurations: what to start with, and what to do at each reload.
        kernel: the kernel side; the daemon closes it.
        recent: the last events of `log`, for readers.
        classifier: enforces rules on cgroups and users; None where this host cannot.
        mark: how a passed socket gets its class; another one where SO_PRIORITY is not allowed.
        watchdog: opens the ceilings when we die; None beside a kernel in memory.
        finder: looks into other processes, which this one may not any more then, so that sockets which were there
            before their rule get its class. None leaves them.
        notifier: reports our state to systemd.
        telemetry: gets what `log` writes; None sends nothing. The daemon starts and closes it.
        clock: monotonic seconds. wall_clock: seconds since 1970, for accounting by the hour.
        take_over: as `EgressTrees`.
    """

    configurations: ConfigStore
    kernel: Kernel
    classifier: Classifier | None
    log: Log
    recent: RecentEvents = field(default_factory=RecentEvents)
    mark: Callable[..., None] = mark_socket
    watchdog: WatchdogClient | None = None
    finder: SocketFinder | None = None
    notifier: Notifier = field(default_factory=lambda: Notifier({}))
    telemetry: Telemetry | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    take_over: bool = False


@dataclass(frozen=True, eq=False)
class Components:
    """For the loop's thread. `interface_of` names the shaped interface towards an address."""

    netlink: NetlinkSocket
    routes: Routes
    link_events: LinkEvents
    route_events: RouteEvents
    traffic: InterfaceCounters
    rate_watch: RateWatch
    flows: FlowTable
    bursts: BurstTable
    needs: NeedTable
    programs: ProgramTable
    jobs: JobTable
    egress_trees: EgressTrees
    ingress_trees: IngressTrees
    shaped_interfaces: ShapedInterfaces
    socket_marks: SocketMarks
    probes: Probes
    peer_link: PeerLink
    own_cgroups: OwnCgroups
    deciding: TickRunner
    publishing: SnapshotBuilder
    accounts: Accounts
    page: Page
    recorder: Recorder | None
    settings: SettingsStore
    pause: Pause
    closing: CloserClient
    watchdog: WatchdogClient | None
    interface_of: Callable[[str], str | None]

    def beat(self, *, busy: bool = False) -> None:
        """Send the watchdog a heartbeat. Where it has opened the ceilings meanwhile, all is written anew.

        Args:
            busy: what comes now may take long: the watchdog is patient until the next beat.
        """
        if self.watchdog is not None and self.watchdog.beat(busy=busy):
            self.egress_trees.reopened()
            self.ingress_trees.reopened()

    def summary(self) -> str:
        """One line on what is shaped now, for the supervisor."""
        return f"shaping {', '.join(sorted(self.egress_trees.names))}"

    def put_back(self) -> tuple[str, ...]:
        """Take away what was built, and put back what was there before. Returns what went wrong."""
        self.ingress_trees.close()
        return (*self.egress_trees.close(), *self.own_cgroups.remove())

    def close(self) -> None:
        """Release files and sockets, except those to other brokers."""
        if self.recorder is not None:
            self.recorder.close()
        self.page.close()
        self.accounts.close()
        self.netlink.close()
        self.link_events.close()
        self.route_events.close()
        self.traffic.close()
        self.probes.close()
        self.closing.close()


def compose(given: Environment, journal: Journal) -> Components:
    """Make the parts for the policy to start with."""
    log, clock, policy = given.log, given.clock, given.configurations.first
    netlink = NetlinkSocket(timeout_s=NETLINK_TIMEOUT_S)
    route_events = RouteEvents()
    routes = Routes(partial(route_to, netlink), partial(port_towards, netlink), changed=route_events.changed)
    links = Links(partial(read_link, netlink))
    traffic = InterfaceCounters()
    rate_watch = RateWatch(traffic.sent_bytes, clock=clock)
    flows, bursts, needs = FlowTable(), BurstTable(), NeedTable()
    programs = ProgramTable(now_s=clock())
    jobs, peer_link = JobTable(len(JOB_LEAVES)), PeerLink()
    recorder = Recorder(policy.daemon.record_file, log=log) if policy.daemon.record_file else None
    accounts = Accounts(policy.daemon.state_dir, log=log, clock=clock, wall_clock=given.wall_clock)
    page = Page(log=log, clock=clock)
    settings = SettingsStore(policy.daemon.state_dir, log=log, utc_s=given.wall_clock)
    pause = Pause(clock)
    shaper = Shaper(given.kernel, journal, classifier=given.classifier)
    egress_trees = EgressTrees(shaper, log=log, clock=clock, take_over=given.take_over)
    receivers = InboundRules(log=log, clock=clock)
    ingress_trees = IngressTrees(shaper.ingress, receivers=receivers, log=log, clock=clock)
    socket_marks = SocketMarks(given.mark, egress_trees.mark_minor)
    probes = Probes(mark=socket_marks.mark_control, log=log, clock=clock)
    shaped_interfaces = ShapedInterfaces(
        egress_trees, kernel=given.kernel, journal=journal, links=links, slots=jobs.slots, log=log, clock=clock
    )
    own_cgroups = OwnCgroups(wanted=given.classifier is not None, log=log)
    cgroup_mount = cgroups.mount_point()
    closing = CloserClient(log=log, clock=clock)
    finder, earlier = given.finder, None
    socket_owners = SocketOwners(cgroup_mount, sockets_of=proc_fds.sockets_of)
    if finder is not None:
        socket_owners = SocketOwners(cgroup_mount, sockets_of=finder.sockets_of, cpu_clock=finder.cpu_s)
        earlier = Reclassifier(
            mount=Path(cgroup_mount) if cgroup_mount is not None else None,
            mark=given.mark,
            remember=given.classifier.remember if given.classifier is not None else lambda *_: False,
            close=lambda descriptor, *, uid: closing.take([descriptor], uid=uid),
            log=log,
            mark_minor=egress_trees.mark_minor,
            slot_of_inode=lambda: flows.slots_by_inode(jobs.slots()),
            sockets_of=finder.sockets_of,
            duplicate=finder.duplicate,
            cpu_clock=finder.cpu_s,
        )

    def interface_of(address: str) -> str | None:
        return routes.interface_towards(address, shaped=egress_trees.names, now_s=clock())

    measuring = Collector(
        egress_trees=egress_trees,
        ingress_trees=ingress_trees,
        links=links,
        traffic=traffic,
        rate_watch=rate_watch,
        flows=flows,
        bursts=bursts,
        needs=needs,
        jobs=jobs,
        peer_link=peer_link,
        probes=probes,
        interface_of=interface_of,
        clock=clock,
    )
    deciding = TickRunner(
        measuring=measuring,
        egress_trees=egress_trees,
        shaped_interfaces=shaped_interfaces,
        ingress_trees=ingress_trees,
        peer_link=peer_link,
        rate_watch=rate_watch,
        tcp_watch=TcpWatch(log=log, clock=clock),
        flows=flows,
        earlier=earlier,
        own_cgroups=own_cgroups,
        pause=pause,
        clock=clock,
    )
    publishing = SnapshotBuilder(
        egress_trees=egress_trees,
        ingress_trees=ingress_trees,
        shaped_interfaces=shaped_interfaces,
        flows=flows,
        jobs=jobs,
        programs=programs,
        peer_link=peer_link,
        probes=probes,
        configurations=given.configurations,
        settings=settings,
        pause=pause,
        watchdog=given.watchdog,
        earlier=earlier,
        recorder=recorder,
        accounts=accounts,
        page=page,
        socket_owners=socket_owners,
        log=log,
        started_s=clock(),
        wall_clock=given.wall_clock,
    )
    return Components(
        netlink=netlink,
        routes=routes,
        link_events=LinkEvents(),
        route_events=route_events,
        traffic=traffic,
        rate_watch=rate_watch,
        flows=flows,
        bursts=bursts,
        needs=needs,
        programs=programs,
        jobs=jobs,
        egress_trees=egress_trees,
        ingress_trees=ingress_trees,
        shaped_interfaces=shaped_interfaces,
        socket_marks=socket_marks,
        probes=probes,
        peer_link=peer_link,
        own_cgroups=own_cgroups,
        deciding=deciding,
        publishing=publishing,
        accounts=accounts,
        page=page,
        recorder=recorder,
        settings=settings,
        pause=pause,
        closing=closing,
        watchdog=given.watchdog,
        interface_of=interface_of,
    )

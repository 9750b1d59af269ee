"""What a daemon is made of, and who knows whom. Making the parts touches nothing in the kernel.

told by sessions      flows, bursts, needs, jobs, rates
looked at             routes, links, link events, traffic, paces, readings
acted through         plant, ingress plant, roster, probes, neighbours
of every decision     deciding, publishing, recorder
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.daemon.collect import Measuring
from broker.daemon.config_store import Configurations
from broker.daemon.peer_link import Neighbours
from broker.daemon.publish import Publishing
from broker.daemon.recorder import Recorder
from broker.daemon.sample_buffer import Readings
from broker.daemon.tick import Deciding
from broker.enforce import cgroups
from broker.enforce.egress import Plant
from broker.enforce.inbound_rules import Receivers
from broker.enforce.ingress import IngressPlant
from broker.enforce.interfaces import Roster
from broker.enforce.own_cgroups import OwnCgroups
from broker.enforce.reclassify import EarlierSockets
from broker.measure.flow_table import FlowTable
from broker.measure.interfaces import Links, Routes, Traffic
from broker.measure.link_events import LinkEvents
from broker.measure.probes import Probes
from broker.measure.rate_watch import PaceWatch
from broker.measure.route_query import Kernel as Netlink
from broker.measure.tcp_sockets import TcpWatch
from broker.policy.types import Policy
from broker.process.closer_client import Closing
from broker.process.log import Log
from broker.process.proc_fds import sockets_of
from broker.process.rt_budget import GoingFirst
from broker.process.socket_finder_client import Finder
from broker.process.watchdog_client import Guardian
from broker.sessions.burst_table import BurstBook
from broker.sessions.job_table import JobBook
from broker.sessions.need_table import NeedBook
from broker.sessions.rate_notifier import RateBook
from shaping.classify.pidfd_getfd import duplicate
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel
from shaping.model import DSCP, JOB_MINOR
from shaping.shaper import Shaper


@dataclass(frozen=True, eq=False)
class Given:
    """What a daemon is handed, and does not make itself.

    Args:
        kernel: the kernel side.
        classifier: enforces rules on cgroups and users; None where this host cannot.
        mark: how a passed socket gets its class.
        guardian, going_first, finder: as `Daemon`.
        clock: monotonic seconds.
    """

    kernel: Kernel
    classifier: Classifier | None
    mark: Callable[..., None]
    guardian: Guardian | None
    going_first: GoingFirst | None
    finder: Finder | None
    log: Log
    clock: Callable[[], float]


@dataclass(frozen=True, eq=False)
class Parts:
    """For the loop's thread. `interface_of` names the shaped interface towards an address."""

    netlink: Netlink
    routes: Routes
    links: Links
    link_events: LinkEvents
    traffic: Traffic
    paces: PaceWatch
    flows: FlowTable
    bursts: BurstBook
    needs: NeedBook
    jobs: JobBook
    rates: RateBook
    plant: Plant
    ingress_plant: IngressPlant
    roster: Roster
    probes: Probes
    neighbours: Neighbours
    own_cgroups: OwnCgroups
    readings: Readings
    deciding: Deciding
    publishing: Publishing
    recorder: Recorder | None
    closing: Closing
    interface_of: Callable[[str], str | None]

    def put_back(self) -> tuple[str, ...]:
        """Take away what was built, and put back what was there before. Returns what went wrong."""
        self.ingress_plant.close()
        return (*self.plant.close(), *self.own_cgroups.remove())

    def close(self) -> None:
        """Release files and sockets, those of the neighbours aside."""
        if self.recorder is not None:
            self.recorder.close()
        self.netlink.close()
        self.link_events.close()
        self.traffic.close()
        self.probes.close()
        self.closing.close()


def compose(
    given: Given,
    policy: Policy,
    *,
    journal: Journal,
    configurations: Configurations,
    take_over: bool,
    rebuild: bool,
    earlier_sockets: bool,
) -> Parts:
    """Make the parts for a policy to start with. Arguments as of `daemon.Options`."""
    log, clock = given.log, given.clock
    netlink = Netlink()
    routes, links, traffic = Routes(netlink), Links(netlink.link), Traffic()
    paces = PaceWatch(traffic.sent_bytes, clock=clock)
    flows, bursts, needs = FlowTable(), BurstBook(), NeedBook()
    jobs, neighbours = JobBook(len(JOB_MINOR)), Neighbours()
    recorder = Recorder(policy.daemon.record_file, log=log) if policy.daemon.record_file else None
    shaper = Shaper(given.kernel, journal, classifier=given.classifier)
    plant = Plant(shaper, log=log, clock=clock, take_over=take_over, rebuild=rebuild)
    receivers = Receivers(log=log, clock=clock)
    ingress_plant = IngressPlant(shaper, receivers=receivers, log=log, clock=clock)
    probes = Probes(mark=marking_control(given.mark, plant), log=log, clock=clock)
    roster = Roster(plant, kernel=given.kernel, journal=journal, links=links, slots=jobs.slots, log=log, clock=clock)
    own_cgroups = OwnCgroups(wanted=given.classifier is not None, log=log)
    cgroup_mount = cgroups.mount_point()
    closing = Closing(log=log, clock=clock)
    earlier = _earlier_sockets(given, plant, closing, cgroup_mount=cgroup_mount) if earlier_sockets else None

    def interface_of(address: str) -> str | None:
        return routes.interface_towards(address, shaped=plant.names, now_s=clock())

    readings = Readings(plant=plant, traffic=traffic, flows=flows, interface_of=interface_of, clock=clock)
    measuring = Measuring(
        plant=plant,
        ingress_plant=ingress_plant,
        links=links,
        traffic=traffic,
        paces=paces,
        flows=flows,
        bursts=bursts,
        needs=needs,
        jobs=jobs,
        neighbours=neighbours,
        probes=probes,
        readings=readings,
        interface_of=interface_of,
        clock=clock,
    )
    deciding = Deciding(
        measuring=measuring,
        plant=plant,
        roster=roster,
        ingress_plant=ingress_plant,
        neighbours=neighbours,
        readings=readings,
        paces=paces,
        tcp_watch=TcpWatch(log=log, clock=clock),
        flows=flows,
        earlier=earlier,
        own_cgroups=own_cgroups,
        clock=clock,
    )
    publishing = Publishing(
        plant=plant,
        ingress_plant=ingress_plant,
        roster=roster,
        flows=flows,
        jobs=jobs,
        neighbours=neighbours,
        probes=probes,
        configurations=configurations,
        guardian=given.guardian,
        going_first=given.going_first,
        earlier=earlier,
        recorder=recorder,
        cgroup_mount=cgroup_mount,
        finder=given.finder,
        log=log,
        started_s=clock(),
    )
    return Parts(
        netlink=netlink,
        routes=routes,
        links=links,
        link_events=LinkEvents(),
        traffic=traffic,
        paces=paces,
        flows=flows,
        bursts=bursts,
        needs=needs,
        jobs=jobs,
        rates=RateBook(flows),
        plant=plant,
        ingress_plant=ingress_plant,
        roster=roster,
        probes=probes,
        neighbours=neighbours,
        own_cgroups=own_cgroups,
        readings=readings,
        deciding=deciding,
        publishing=publishing,
        recorder=recorder,
        closing=closing,
        interface_of=interface_of,
    )


def marking_control(mark: Callable[..., None], plant: Plant) -> Callable[[socket.socket], None]:
    """How a socket of the daemon's own gets the class `control`."""

    def mark_control(own: socket.socket) -> None:
        mark(own, minor=plant.mark_minor("control"), dscp=DSCP["control"])

    return mark_control


def _earlier_sockets(given: Given, plant: Plant, closing: Closing, *, cgroup_mount: str | None) -> EarlierSockets:
    finder = given.finder
    return EarlierSockets(
        mount=Path(cgroup_mount) if cgroup_mount is not None else None,
        mark=given.mark,
        remember=given.classifier.remember if given.classifier is not None else lambda *_: False,
        close=lambda descriptor, *, uid: closing.take([descriptor], uid=uid),
        log=given.log,
        mark_minor=plant.mark_minor,
        sockets_of=sockets_of if finder is None else finder.sockets_of,
        duplicate=duplicate if finder is None else finder.duplicate,
        cpu_clock=time.thread_time if finder is None else finder.cpu_s,
    )

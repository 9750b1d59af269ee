"""A scenario set in motion: hosts, links, jobs that take steps, brokers that tick, and what is kept of it."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from broker.model.values import Burst
from broker.policy.types import CLASS_NAMES, Policy
from tools.simulate.brokers import HostBroker, by_priority
from tools.simulate.fluid import QUIC, STEP_S, TCP, Flows, Kind, Network, Shapers
from tools.simulate.leases import Leases
from tools.simulate.scenario import Job, Scenario, Site

CONTROLS = ("idle", "none", "priority", "brokered", "leased")
"""No storage; no control; on every host a fixed tree with priorities at its own link's rate; the broker's decision for
each host's way out; the same, and brokers that hold storage back for each other's way in."""
BROKERED = ("brokered", "leased")
SETTLE_S = 5.0
"""Of each run, not counted: windows open, and brokers learn a job's bursts."""
HEADROOM, FLOOR = 0.97, 0.02
HOST_BUFFER_S = 0.05
BASE_S_SPREAD = 0.1
"""Round trips differ by so much from each other: connections that are all alike would move in step."""
DEADLINE_S = 1.0
COMPUTE, STORAGE = CLASS_NAMES.index("compute"), CLASS_NAMES.index("storage")


@dataclass
class _Running:
    """A job under way."""

    job: Job
    flows: list[int]
    think_until_s: float
    begun_s: float = 0.0
    burst_s: float | None = None
    step: int = 0
    lasted_s: float = DEADLINE_S
    steps: list[tuple[float, float]] = field(default_factory=list)  # when it ended, how long it took


@dataclass(frozen=True)
class Outcome:
    """What one run gave.

    Fields: `steps` by job: (when, seconds); `delivered_bits` by class, after `SETTLE_S`; `uplink_delay_s` of all
    uplinks, both ways, ten times a second; `uplink_used` the part of what they could have carried outwards that
    arrived; `decisions` made; `wall_s` it took.
    """

    control: str
    steps: dict[str, list[tuple[float, float]]]
    delivered_bits: dict[str, float]
    uplink_delay_s: list[float]
    uplink_used: float
    decisions: int
    wall_s: float


def simulate(
    scenario: Scenario, control: str, *, policy: Policy, progress: Callable[[float], None] = lambda now_s: None,
    record: Path | None = None,
) -> Outcome:  # fmt: skip
    """Run a scenario under one of `CONTROLS`.

    Args:
        scenario: what there is.
        policy: classes and tick of every host; the interface is each host's own.
        progress: told the simulated time now and then.
        record: a folder for each broker's recording; None keeps none.
    """
    with ExitStack() as files:
        return _World(scenario, control, policy, record, files).run(progress)


class _World:
    def __init__(self, scenario: Scenario, control: str, policy: Policy, record: Path | None, files: ExitStack) -> None:
        self.scenario, self.control, self.policy = scenario, control, policy
        self.random = random.Random(scenario.seed)
        self.site_of = scenario.host_sites()
        self.hosts = len(self.site_of)
        self.changes = sorted(
            (change.at_s, number, change.uplink_bits_per_s)
            for number, site in enumerate(scenario.sites)
            for change in site.changes
        )
        self.jobs: list[_Running] = []
        self.network = self._network()
        self.links = np.array([scenario.sites[site].link_bits_per_s for site in self.site_of])
        self.brokers: list[HostBroker] = []
        self.leases: Leases | None = None
        self.again: dict[int, float] = {}
        if control in BROKERED:
            names = [f"10.{host >> 16}.{host >> 8 & 255}.{host & 255}" for host in range(self.hosts)]
            self.leases = Leases(names, self._way_s) if control == "leased" else None
            for host in range(self.hosts):
                file = None
                if record is not None:
                    path = record / (scenario.host_name(host).replace("/", "-") + ".jsonl")
                    file = files.enter_context(path.open("w", encoding="utf-8"))
                link = int(self.links[host])
                broker = HostBroker(
                    host, network=self.network, policy=policy, link_bits_per_s=link, addresses=names,
                    leases=self.leases, record=file,
                )  # fmt: skip
                self.brokers.append(broker)
        self.uplink_delay_s: list[float] = []

    # --- building ------------------------------------------------------------------------------------------------

    def _network(self) -> Network:
        sites, hosts = self.scenario.sites, self.hosts
        host, target, classes, paths, bases, kinds, left = [], [], [], [], [], [], []

        def connect(source: int, to: int, traffic_class: int, kind: Kind, bits: float) -> int:
            a, b = self.site_of[source], self.site_of[to]
            nothing = 2 * hosts + 2 * len(sites)
            up, down = (2 * hosts + a, 2 * hosts + len(sites) + b) if a != b else (nothing, nothing)
            host.append(source)
            target.append(to)
            classes.append(traffic_class)
            paths.append((source, up, down, hosts + to))
            bases.append(2 * self._way_s(source, to) * (1 + BASE_S_SPREAD * self.random.random()))
            kinds.append(kind)
            left.append(bits)
            return len(host) - 1

        for job in self.scenario.jobs:
            members = [
                connect(one, job.hosts[(i + 1) % len(job.hosts)], COMPUTE, QUIC, 0.0) for i, one in enumerate(job.hosts)
            ]
            self.jobs.append(_Running(job, members, self.random.random() * job.think_s))
        if self.control != "idle":
            for copy in self.scenario.copies:
                for _ in range(copy.streams):
                    connect(copy.source, copy.target, STORAGE, TCP, float("inf"))
        flows = Flows(
            host=np.array(host, dtype=np.int64), target=np.array(target, dtype=np.int64),
            traffic_class=np.array(classes, dtype=np.int64), path=np.array(paths, dtype=np.int64),
            base_s=np.array(bases), shrink=np.array([kind.shrink for kind in kinds]),
            growth=np.array([kind.growth for kind in kinds]),
            local_max=np.array([kind.local_bits_max for kind in kinds]), left=np.array(left),
        )  # fmt: skip
        own = [float(sites[site].link_bits_per_s) for site in self.site_of]
        uplinks = [float(site.uplink_bits_per_s) for site in sites]
        rates = np.array([*own, *own, *uplinks, *uplinks, np.inf])
        buffers = [rate * HOST_BUFFER_S for rate in own]
        held = [_buffer_bits(site) for site in sites]
        return Network(
            flows, self._shapers(np.array(own)), rates=rates,
            buffer_bits=np.array([*buffers, *buffers, *held, *held, np.inf]), hosts=hosts,
        )  # fmt: skip

    def _way_s(self, source: int, to: int) -> float:
        a, b = (self.scenario.sites[self.site_of[host]] for host in (source, to))
        return a.delay_s + b.delay_s if a is not b else 2 * min(a.delay_s, 0.0005)

    def _shapers(self, own: np.ndarray) -> Shapers:
        shaped = self.control in ("priority", *BROKERED)
        capacity = own * (HEADROOM if shaped else 1.0)
        rate = np.repeat(capacity[:, None] * FLOOR, len(CLASS_NAMES), axis=1)
        ceil = np.repeat(capacity[:, None], len(CLASS_NAMES), axis=1)
        return Shapers(capacity, rate, ceil, by_priority(self.policy), fifo=not shaped)

    # --- running -------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[float], None]) -> Outcome:
        begun_s = time.monotonic()
        network, tick_s = self.network, self.policy.daemon.tick_s
        due = [(tick_s * (1 + host / self.hosts), host) for host in range(self.hosts)]
        heapq.heapify(due)
        steps = round(self.scenario.seconds / STEP_S)
        before = network.flows.delivered.copy()
        decisions = 0
        for number in range(steps):
            self._change()
            announced = self._train()
            network.step()
            now_s = network.now_s
            if abs(now_s - SETTLE_S) < STEP_S / 2:
                before = network.flows.delivered.copy()
            for host in sorted(announced | self._concerned()) if self.brokers else ():
                self._tick(host)
                decisions += 1
            while due[0][0] <= now_s:
                at_s, host = heapq.heappop(due)
                heapq.heappush(due, (at_s + tick_s, host))
                if self.brokers:
                    self._tick(host)
                    decisions += 1
            if number % 20 == 0:
                self._look()
                progress(now_s)
        moved = network.flows.delivered - before
        return Outcome(
            control=self.control,
            steps={entry.job.name: entry.steps for entry in self.jobs},
            delivered_bits={
                name: float(moved[network.flows.traffic_class == k].sum()) for k, name in enumerate(CLASS_NAMES)
            },
            uplink_delay_s=self.uplink_delay_s,
            uplink_used=self._uplink_used(moved),
            decisions=decisions,
            wall_s=time.monotonic() - begun_s,
        )

    def _tick(self, host: int) -> None:
        now_s = self.network.now_s
        bursts = []
        for entry in self.jobs:
            if entry.burst_s is not None and host in entry.job.hosts:
                age_s = now_s - entry.burst_s
                deadline_s = max(entry.lasted_s, 0.05)
                bursts.append(Burst(entry.job.name, entry.step, entry.job.burst_bytes, age_s, deadline_s - age_s, None))
        again_s = self.brokers[host].tick(bursts)
        self.again.pop(host, None)
        if again_s is not None and again_s < self.policy.daemon.tick_s:
            self.again[host] = now_s + again_s

    def _concerned(self) -> set[int]:
        """Hosts that are held otherwise from now on, and those that wanted to decide again by now."""
        now_s = self.network.now_s
        found = self.leases.deliver(now_s) if self.leases is not None else set()
        return found | {host for host, at_s in self.again.items() if at_s <= now_s}

    def _change(self) -> None:
        first = 2 * self.hosts
        while self.changes and self.changes[0][0] <= self.network.now_s:
            _, site, rate = self.changes.pop(0)
            self.network.rates[[first + site, first + len(self.scenario.sites) + site]] = rate

    def _train(self) -> set[int]:
        """Begin and end the jobs' bursts; the hosts on which something was announced."""
        flows, now_s = self.network.flows, self.network.now_s
        announced: set[int] = set()
        for entry in self.jobs:
            if entry.burst_s is None:
                if now_s >= entry.think_until_s:
                    flows.left[entry.flows] = entry.job.burst_bytes * 8.0
                    entry.burst_s, entry.step = now_s, entry.step + 1
                    announced.update(entry.job.hosts)
            elif not flows.left[entry.flows].any() and flows.inflight[entry.flows].max() < 1.0:
                entry.lasted_s = now_s - entry.burst_s
                entry.steps.append((now_s, now_s - entry.begun_s))
                entry.begun_s, entry.think_until_s, entry.burst_s = now_s, now_s + entry.job.think_s, None
                announced.update(entry.job.hosts)
        return announced

    def _look(self) -> None:
        if self.network.now_s > SETTLE_S:
            first = 2 * self.hosts
            self.uplink_delay_s += self.network.queue_s[first : first + 2 * len(self.scenario.sites)].tolist()

    def _uplink_used(self, moved: np.ndarray) -> float:
        """Part of the uplinks' outward capacity, as it was over time, that was filled with what arrived."""
        sites, first = self.scenario.sites, 2 * self.hosts
        could = sum(_carried(site, SETTLE_S, self.scenario.seconds) for site in sites)
        crossing = self.network.flows.path[:, 1]
        across = (crossing >= first) & (crossing < first + len(sites))
        return float(moved[across].sum() / could) if could else 0.0


def _buffer_bits(site: Site) -> float:
    return site.buffer_s * site.uplink_bits_per_s


def _carried(site: Site, from_s: float, until_s: float) -> float:
    """Bits that an uplink could have carried one way in this time."""
    marks = [(0.0, site.uplink_bits_per_s), *((change.at_s, change.uplink_bits_per_s) for change in site.changes)]
    total = 0.0
    for (at_s, rate), end_s in zip(marks, [*(at_s for at_s, _ in marks[1:]), until_s], strict=True):
        total += rate * max(0.0, min(end_s, until_s) - max(at_s, from_s))
    return total

"""Flows as fluids over queues, all hosts at once: windows, shapers, links with buffers, acknowledgements. Virtual time.

    offer       each flow puts what its window and its data allow into its class' queue at its host
    shape       HTB in small: each class its rate, then what is left by priority up to the ceil, all within the capacity
    carry       own link, site's uplink, uplink towards the other site, the target's link: a FIFO with a buffer each
    acknowledge what came through, a round trip later; what was lost likewise, and then the window shrinks

Amounts are bits, rates bits per second. A queue is shared as what is in it, so a flow's part of a queue leaves in the
part's proportion: a FIFO on average, not packet by packet. Loss takes from all flows of a full queue alike. What this
cannot show: single packets, timers of TCP, the processor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP_S = 0.005
PACKET_BITS = 1_514 * 8.0
WINDOW_BITS = 10 * PACKET_BITS
"""Where a window begins (RFC 6928)."""
HOPS = 4
CLASSES = 4
HERE_S_MAX = 1.0
"""A class that nothing leaves has no time of waiting; it counts as this much."""
SMOOTH = 0.125
"""Of a new sample in the smoothed round-trip time (RFC 6298)."""


@dataclass(frozen=True)
class Kind:
    """How a kind of connection behaves: what a loss leaves of its window, packets that it grows a round trip, bits that
    wait in this host at most."""

    shrink: float
    growth: float
    local_bits_max: float


QUIC = Kind(0.7, 1.0, 212_992 * 8.0)
TCP = Kind(0.7, 3.0, 24_000 * 8.0)


@dataclass
class Flows:
    """All connections, one entry each: where from and to, which class, and what they have done."""

    host: Ints
    target: Ints
    traffic_class: Ints
    path: Ints  # (flows, HOPS): numbers of links
    base_s: Floats
    shrink: Floats
    growth: Floats
    local_max: Floats
    left: Floats  # still to send; infinite for what has no end
    window: Floats = field(init=False)
    threshold: Floats = field(init=False)
    inflight: Floats = field(init=False)
    waiting: Floats = field(init=False)  # in the class' queue at the host
    delivered: Floats = field(init=False)
    sent: Floats = field(init=False)
    lost: Floats = field(init=False)
    latest_s: Floats = field(init=False)
    smooth_s: Floats = field(init=False)
    least_s: Floats = field(init=False)
    way_s: Floats = field(init=False)
    recover_s: Floats = field(init=False)
    held: Floats = field(init=False)  # at most this much a second leaves its host, held by a lease

    def __post_init__(self) -> None:
        count = len(self.host)
        self.window = np.full(count, WINDOW_BITS)
        self.threshold = np.full(count, np.inf)
        self.held = np.full(count, np.inf)
        for name in ("inflight", "waiting", "delivered", "sent", "lost", "recover_s"):
            setattr(self, name, np.zeros(count))
        self.smooth_s, self.latest_s, self.least_s = self.base_s.copy(), self.base_s.copy(), self.base_s.copy()
        self.way_s = self.base_s / 2

    def __len__(self) -> int:
        return len(self.host)


@dataclass
class Shapers:
    """The shaper of each host, as the broker set it. `by_priority` are the classes, the first served first."""

    capacity: Floats  # (hosts,)
    rate: Floats  # (hosts, CLASSES)
    ceil: Floats  # (hosts, CLASSES)
    by_priority: tuple[int, ...]
    fifo: bool = False  # no shaper at all: everything leaves as it comes
    sent: Floats = field(init=False)  # (hosts, CLASSES), since the beginning
    backlog: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sent, self.backlog = np.zeros_like(self.rate), np.zeros_like(self.rate)


class Network:
    """The whole of it, advanced by `step`.

    Args:
        flows: the connections.
        shapers: of all hosts.
        rates: of every link; may be written between steps.
        buffer_bits: of every link.
        hosts: how many.
    """

    def __init__(self, flows: Flows, shapers: Shapers, *, rates: Floats, buffer_bits: Floats, hosts: int) -> None:
        self.flows, self.shapers, self.rates, self.buffer_bits = flows, shapers, rates, buffer_bits
        self.hosts = hosts
        self.now_s = 0.0
        self.queue_s = np.zeros(len(rates))
        self.received = np.zeros(hosts)
        self.arrived = np.zeros(len(flows))
        self._queues = np.zeros((HOPS, len(flows)))
        self._steps_back = np.maximum(1, np.round(flows.base_s / STEP_S)).astype(np.int64)
        length = int(self._steps_back.max(initial=1)) + 1
        self._acknowledged = np.zeros((length, len(flows)))
        self._lost = np.zeros((length, len(flows)))
        self._here_s = np.zeros((hosts, CLASSES))  # how long a class' queue at a host takes to leave
        self._at = 0
        self._node = flows.host * CLASSES + flows.traffic_class
        self._every = np.arange(len(flows))

    def step(self) -> None:
        """Advance by `STEP_S`."""
        self.now_s += STEP_S
        self._acknowledge()
        self._offer()
        self._carry(self._shape())
        self._at = (self._at + 1) % len(self._acknowledged)

    def _acknowledge(self) -> None:
        flows = self.flows
        got, lost = self._acknowledged[self._at], self._lost[self._at]
        used = flows.inflight >= 0.5 * flows.window  # a window that is not used does not grow
        flows.inflight -= got + lost
        np.maximum(flows.inflight, 0.0, out=flows.inflight)
        flows.delivered += got
        flows.lost += lost
        flows.left += lost
        starting = flows.window < flows.threshold
        grown = np.where(starting, got, flows.growth * PACKET_BITS * got / flows.window)
        flows.window += np.where(used, grown, 0.0)
        shrinking = (lost > 0.01 * PACKET_BITS) & (self.now_s >= flows.recover_s)
        flows.window = np.where(shrinking, np.maximum(2 * PACKET_BITS, flows.window * flows.shrink), flows.window)
        flows.threshold = np.where(shrinking, flows.window, flows.threshold)
        flows.recover_s = np.where(shrinking, self.now_s + flows.smooth_s, flows.recover_s)
        self._measure(got > 0)
        got[:] = 0.0
        lost[:] = 0.0

    def _measure(self, heard: NDArray[np.bool_]) -> None:
        flows = self.flows
        here_s = self._here_s[flows.host, flows.traffic_class]
        queued_s = self.queue_s[flows.path].sum(axis=1) + here_s
        sample = flows.base_s + queued_s
        flows.latest_s = np.where(heard, sample, flows.latest_s)
        flows.smooth_s = np.where(heard, flows.smooth_s + SMOOTH * (sample - flows.smooth_s), flows.smooth_s)
        flows.least_s = np.where(heard, np.minimum(flows.least_s, sample), flows.least_s)
        flows.way_s = flows.base_s / 2 + queued_s  # a transport asks for it ten times a second, sending or not

    def _offer(self) -> None:
        flows = self.flows
        room = np.minimum(flows.window - flows.inflight, flows.local_max - flows.waiting)
        room = np.minimum(room, flows.left)
        room = np.where((room >= PACKET_BITS) | ((room > 0) & (room == flows.left)), room, 0.0)
        flows.left -= room
        flows.inflight += room
        flows.waiting += room
        flows.sent += room

    def _shape(self) -> Floats:
        """What leaves each flow's host in this step."""
        flows, shapers = self.flows, self.shapers
        may = np.minimum(flows.waiting, flows.held * STEP_S)
        wanted = np.bincount(self._node, may, self.hosts * CLASSES).reshape(self.hosts, CLASSES)
        budget = shapers.capacity * STEP_S
        given: Floats
        if shapers.fifo:
            total = wanted.sum(axis=1)
            given = wanted * np.minimum(1.0, budget / np.maximum(total, 1e-9))[:, None]
        else:
            given = np.minimum(wanted, shapers.rate * STEP_S)
            left = np.maximum(budget - given.sum(axis=1), 0.0)
            for number in shapers.by_priority:
                upto = np.minimum(wanted[:, number], shapers.ceil[:, number] * STEP_S) - given[:, number]
                more = np.minimum(np.maximum(upto, 0.0), left)
                given[:, number] += more
                left -= more
        part = np.minimum(given / np.maximum(wanted, 1e-9), 1.0)
        out: Floats = may * part.ravel()[self._node]
        flows.waiting = np.maximum(flows.waiting - out, 0.0)  # a rounding error must not become a debt
        shapers.sent += given
        stays = np.bincount(self._node, flows.waiting, self.hosts * CLASSES).astype(np.float64)
        shapers.backlog = stays.reshape(wanted.shape)
        self._here_s = np.minimum(shapers.backlog / np.maximum(given / STEP_S, 1.0), HERE_S_MAX)
        return out

    def _carry(self, inflow: Floats) -> None:
        flows = self.flows
        count = len(self.rates)
        at_once = self.rates * STEP_S
        lost = np.zeros(len(flows))
        for hop in range(HOPS):
            queue, links = self._queues[hop], flows.path[:, hop]
            queue += inflow
            total = np.bincount(links, queue, count)
            served = np.minimum(1.0, at_once / np.maximum(total, 1e-9))
            inflow = queue * served[links]
            queue -= inflow
            rest = total * (1.0 - served)
            kept = np.minimum(1.0, self.buffer_bits / np.maximum(rest, 1e-9))
            overflow = queue * (1.0 - kept)[links]
            queue -= overflow
            lost += overflow
            here = np.bincount(links, minlength=count) > 0
            self.queue_s = np.where(here, rest * kept / self.rates, self.queue_s)
        due = (self._at + self._steps_back) % len(self._acknowledged)
        self._acknowledged[due, self._every] += inflow
        self._lost[due, self._every] += lost
        self.arrived += inflow
        self.received += np.bincount(flows.target, inflow, self.hosts)

"""What this rank's link carried while it was busy: its part of the table that the group agrees on. Pure.

A rate is the most that went through in one SAMPLE_S of the last busy seconds. A mean would be too low: an algorithm
leaves fast links idle while it waits for slow ones. Moments in which no sender here had more to send say nothing of a
link. So what was measured stays until there is something new to measure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from transport.engine.base import ConnectionStatistics

SAMPLE_S = 0.2
"""Long beside a round trip and a burst of acknowledgements, short beside a training step."""
SAMPLES_KEPT = 20
"""4 s of busy links: a link that got slower is known within these."""


@dataclass(frozen=True)
class LinkReport:
    """What one rank says of its link.

    Args:
        up_bits_per_s, down_bits_per_s: over all peers; 0 where nothing was measured.
        far_up_bits_per_s, far_down_bits_per_s: to and from ranks of other sites.
        rtt_us: the shortest round trip to each peer, by rank of the endpoint.
    """

    up_bits_per_s: int
    down_bits_per_s: int
    far_up_bits_per_s: int
    far_down_bits_per_s: int
    rtt_us: Mapping[int, int]


@dataclass(frozen=True)
class _Sample:
    took_s: float
    sent: Mapping[int, int]
    received: Mapping[int, int]


class LinkRates:
    """The samples of one rank. In the transport's thread."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_KEPT)
        self._counters: dict[int, tuple[int, int]] = {}
        self._rtt_us: dict[int, int] = {}
        self._since_s = 0.0

    def due(self, now_s: float) -> bool:
        """Whether it is time for a sample."""
        return now_s >= self.next_s()

    def next_s(self) -> float:
        """When it is time for the next one."""
        return self._since_s + SAMPLE_S

    def sample(self, now_s: float, connections: Mapping[int, ConnectionStatistics]) -> None:
        """Take what was carried since the last call.

        Args:
            connections: to each peer, by rank of the endpoint; those for bulk left out.
        """
        counters = {rank: (one.delivered_bytes, one.received_bytes) for rank, one in connections.items()}
        took_s = now_s - self._since_s
        known = [rank for rank in counters if rank in self._counters]
        sent = {rank: max(counters[rank][0] - self._counters[rank][0], 0) for rank in known}
        received = {rank: max(counters[rank][1] - self._counters[rank][1], 0) for rank in known}
        # A sample that spans an idle time says little; one taken late on a busy processor spans a little more.
        busy = any(not one.application_limited for one in connections.values())
        if busy and took_s < 2 * SAMPLE_S and any(sent.values()):
            self._samples.append(_Sample(took_s, sent, received))
        for rank, one in connections.items():
            if one.rtt_s_min > 0:
                self._rtt_us[rank] = round(one.rtt_s_min * 1e6)
        self._counters, self._since_s = counters, now_s

    def report(self, far: frozenset[int]) -> LinkReport:
        """What was measured.

        Args:
            far: ranks of the endpoint that are at other sites.
        """
        return LinkReport(
            up_bits_per_s=max((_rate(one.sent, one.took_s, None) for one in self._samples), default=0),
            down_bits_per_s=max((_rate(one.received, one.took_s, None) for one in self._samples), default=0),
            far_up_bits_per_s=max((_rate(one.sent, one.took_s, far) for one in self._samples), default=0),
            far_down_bits_per_s=max((_rate(one.received, one.took_s, far) for one in self._samples), default=0),
            rtt_us=dict(self._rtt_us),
        )


def _rate(nbytes: Mapping[int, int], took_s: float, among: frozenset[int] | None) -> int:
    return int(8 * sum(count for rank, count in nbytes.items() if among is None or rank in among) / took_s)

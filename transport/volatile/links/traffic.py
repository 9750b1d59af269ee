"""What a member has sent and received since it joined, and what DDP would have sent of the model for the same steps.

It is counted on the wire: results, state for who joins, repeated attempts, headers. It is read off the connections with
each commit and each change of the view. So what a lost connection carried after the last commit is not counted, and a
member looks at most 100 ms back.

DDP all-reduces all gradients in each step. Of n members each then sends 2 (n - 1) / n of their bytes, by a ring or
directly (Patarasuk and Yuan 2009, section 2), without headers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from hive_qos.errors import HiveError
from transport.group import Group


class Traffic:
    """Sums over all connections that a member has had. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._living: Mapping[int, tuple[int, int]] = {}
        self._ended = 0, 0
        self._steps = 0
        self._ddp_bytes = 0

    def look(self, group: Group) -> None:
        """Read off what the connections of the present group carried; a closed one changes nothing."""
        try:
            carried = group.traffic_bytes()
        except HiveError:
            return
        with self._lock:
            goes_on = carried if group is self._group else {}
            ended = [count for one, count in self._living.items() if goes_on.get(one, (-1, -1)) < count]
            self._ended = _sum([self._ended, *ended])
            self._group, self._living = group, carried

    def stepped(self, gradient_bytes: int, *, members: int) -> None:
        """Count a step of training, of a model with so many bytes of gradients, by so many members."""
        with self._lock:
            self._steps += 1
            self._ddp_bytes += 2 * (members - 1) * gradient_bytes // members

    def document(self) -> dict[str, object]:
        """For `hive-qos job`. Without steps that were counted nobody can say what DDP would have sent."""
        with self._lock:
            sent, received = _sum([self._ended, *self._living.values()])
            found: dict[str, object] = {"sent_bytes": sent, "received_bytes": received}
            return {**found, "inner_steps": self._steps, "ddp_bytes": self._ddp_bytes} if self._steps else found


def _sum(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    sent, received = zip(*counts, strict=True)
    return sum(sent), sum(received)

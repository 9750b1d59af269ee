"""AsyncDiLoCo: members never wait for each other, in the manner of Decoupled DiLoCo (arXiv 2604.21428).

A thread of each member merges one fragment after the other with the others' threads. To each merge it brings the newest
snapshot that training left at a step's end, or nothing where there is none. Training leaves one when its next step may
end after the merge begins. It goes on meanwhile, and receives a merged fragment when its next step ends. A member that
is slow, stuck or lost delays merges, and nobody's training.

Each step of a member reaches one merge. What it has learned since the snapshot, or what no merge has taken, stays in
its parameters on top of what it receives, and is part of the next snapshot: nothing lost has to be kept or sent again.

- Weight: a member with c steps and t tokens in its snapshot counts t * t / c, its tokens by its tokens a step.
- Merge: per tensor the mean norm in the mean direction (`outer.radial_directional`); the mean for embeddings.
- Pace: a merge begins when the mean member has made `every / fragments` steps since the last one began.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hive_qos.errors import TimedOutError
from integrations.volatile import outer
from integrations.volatile.algorithm import GlobalAlgorithm, Layout
from transport.collectives.reduce_op import ReduceOp
from transport.volatile import interrupts
from transport.volatile.group import VolatileGroup

_log = logging.getLogger("integrations.volatile")
RATE_STEPS = 16
"""Steps over which a member measures its rate: enough that one slow step does not halve it."""
IDLE_S = 0.1
"""Between merges while nobody trains: they carry nothing, and admit who joins."""
_WEIGHT, _RATE, _MEMBERS, _ENDING, _LENGTHS = range(5)
"""What the second vector of a merge sums: weights, steps a second, members, those of them that have nothing more to
bring, and from there on each tensor's norms."""


@dataclass(frozen=True)
class _Snapshot:
    """A member's fragment when a step ended, and what it learned from since it received `base`."""

    base: torch.Tensor
    values: torch.Tensor
    steps: int
    tokens: int


@dataclass(frozen=True)
class _Merged:
    """New global values of a fragment, and what of this member is in them."""

    values: torch.Tensor
    taken: _Snapshot | None


class AsyncDiLoCo(GlobalAlgorithm):
    """See the module.

    Args:
        parameters: of the model.
        every: steps of the mean member between two merges of the same fragment, a multiple of the fragments. The
            paper's are 24; at 2 a third party lost 9 %.
        fragments: as of `StreamingDiLoCo`. The paper's are 24.
        embeddings: those of the parameters that take the weighted mean instead.
        outer_rate, outer_momentum: as of `StreamingDiLoCo`; the paper's are not known to us.
        compression: "int4", "int8", "bfloat16" or "" for none. With int4 the paper lost 0.1 %, as with bfloat16.
        quorum: with so many parts, and more than half of all, no merge waits for a late one; 0 waits for all. A late
            part is in the next merge of its fragment.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        every: int = 24,
        fragments: int | Iterable[Iterable[torch.nn.Parameter]] = 4,
        embeddings: Iterable[torch.nn.Parameter] = (),
        outer_rate: float = 0.4,
        outer_momentum: float = 0.9,
        compression: str = "int4",
        quorum: int = 0,
    ) -> None:
        super().__init__(
            parameters, every=every, fragments=fragments, outer_rate=outer_rate, outer_momentum=outer_momentum
        )
        self.compression, self.quorum = compression, quorum
        self._averaged = set(embeddings)
        self._thread: ThreadPoolExecutor | None = None
        self._merging: Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        """Training's own: what it has learned of each fragment since it received it."""
        self._steps = [0] * len(self._fragments)
        self._tokens = [0] * len(self._fragments)
        self._rounds_seen = self._rounds
        self._published = list(self._global)  # the newest that training has received, or is to receive
        # What both threads use, replaced or changed under the lock.
        self._snapshots: dict[int, _Snapshot] = {}
        self._arrived: dict[int, _Merged] = {}
        self._times_s: deque[float] = deque(maxlen=RATE_STEPS + 1)
        self._begun, self._due_s = self._rounds, 0.0
        """Merges that have begun, and when the next one is to."""
        self._hurry = threading.Event()
        self._ending = self._closing = False

    # The thread that trains.

    def _begin(self) -> None:
        super()._begin()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hive-merges")
        self._start_merging()

    def _start_merging(self) -> None:
        self._reset()
        self._times_s.append(time.monotonic())
        assert self._thread is not None
        self._merging = self._thread.submit(self._merge_in_turn, self._group)

    def _end(self) -> None:
        self._closing = True
        self._hurry.set()
        if self._thread is not None:
            self._thread.shutdown()
            self._take_arrived()  # else what is in them would count again in the next group
        self._thread = self._merging = None

    def _alike(self) -> dict[str, Any]:
        averaged = [number for number, one in enumerate(self.parameters) if one in self._averaged]
        return {**super()._alike(), "embeddings": averaged, "compression": self.compression}

    def _under_way(self) -> Future[None] | None:
        return self._merging

    def _after(self, tokens: int) -> None:
        if self._merging is None:
            self._start_merging()
        for place in range(len(self._fragments)):
            self._steps[place] += 1
            self._tokens[place] += tokens
        self._times_s.append(time.monotonic())
        self._meet_merges()

    def _meet_merges(self) -> None:
        """Receive what was merged, and leave snapshots of what comes next."""
        self._raise_failure()
        rounds = self._take_arrived()
        # As many merges as since the last look may come before the next one, and one that begins with it.
        ahead = min(rounds - self._rounds_seen + 1, len(self._fragments))
        self._rounds_seen = rounds
        if not self._hurry.is_set() and time.monotonic() + max(self._took_s(), default=math.inf) < self._due_s:
            return  # a snapshot of now would be replaced
        begun = max(rounds, self._begun)
        upcoming = {(begun + number) % len(self._fragments) for number in range(ahead)}
        made = {
            place: _Snapshot(self._held[place], self._fragments[place].read(), self._steps[place], self._tokens[place])
            for place in upcoming
        }
        with self._lock:
            self._snapshots.update(made)
            self._lock.notify_all()

    def _take_arrived(self) -> int:
        """Receive what was merged; how many merges there were."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
            rounds = self._rounds
        for place, merged in arrived.items():
            self._take(place, merged)
        return rounds

    def _take(self, place: int, merged: _Merged) -> None:
        fragment, taken = self._fragments[place], merged.taken
        began = fragment.rounded(self._held[place]) if taken is None else taken.values
        fragment.write(merged.values + (fragment.read() - began))
        self._held[place] = merged.values
        if taken is not None:
            self._steps[place] -= taken.steps
            self._tokens[place] -= taken.tokens

    def _finish(self) -> None:
        """Wait until all that the members have learned is merged: they end with the same merge."""
        self._hurry.set()
        while self._merging is not None and not self._merging.done():
            interrupts.raise_if_put_off()
            with self._lock:
                if self._rounds == self._rounds_seen:
                    self._lock.wait(IDLE_S)
            self._meet_merges()
            self._ending = not any(self._steps)
        self._raise_failure()
        self._merging = None
        self._write_global()

    def _raise_failure(self) -> None:
        _ = self._group  # raises where this member has not joined
        if self._merging is not None and self._merging.done():
            merging, self._merging = self._merging, None  # a caller that goes on begins to merge again
            self._take_arrived()
            merging.result()

    # The thread that merges.

    def _merge_in_turn(self, group: VolatileGroup) -> None:
        while self._inner < self._interval and not self._rounds and not self._hurry.is_set():
            self._hurry.wait(IDLE_S)
        waits, pause_s = False, 0.0
        while not self._closing:
            began_s = time.monotonic()
            place = self._place
            snapshot = self._newest(place)
            self._begun, self._due_s = self._rounds + 1, began_s + pause_s
            sums = self._contribution(place, snapshot)
            quorum = self._quorum(with_all=self._hurry.is_set())
            try:
                self.last = group.all_reduce(
                    sums, ReduceOp.SUM, quorum=quorum, compression=self.compression, feedback=place
                )
            except TimedOutError as error:
                if self._hurry.is_set():
                    raise
                if not waits:
                    _log.warning("nothing is merged, and training goes on: %s", error)
                waits = True
                continue
            waits = False
            with self._lock:
                if not self.last.applied:
                    self._apply_committed(sums)
                self._publish({place: snapshot} if snapshot is not None and self.last.contributed else {})
            if self.last.applied:  # this member was left behind, and has caught up with the merges of others
                continue
            if self._ending and sums[1][_ENDING] == sums[1][_MEMBERS]:  # who was late may still train
                return
            steps_per_s = float(sums[1][_RATE] / sums[1][_MEMBERS])
            pause_s = self._interval / steps_per_s if steps_per_s > 0 else IDLE_S
            self._due_s = began_s + pause_s
            self._hurry.wait(max(self._due_s - time.monotonic(), 0.0))

    def _newest(self, place: int) -> _Snapshot | None:
        """The snapshot of a fragment, unless it was taken before training received the newest global values."""
        with self._lock:
            found = self._snapshots.get(place)
        return found if found is not None and found.steps and found.base is self._global[place] else None

    def _contribution(self, place: int, snapshot: _Snapshot | None) -> list[torch.Tensor]:
        """What this member adds to the sums of a merge; nothing without a snapshot."""
        fragment = self._fragments[place]
        directions = torch.zeros(fragment.elems, dtype=torch.float32, device="cpu")
        scalars = torch.zeros(_LENGTHS + len(fragment.parameters), dtype=torch.float64, device="cpu")
        scalars[_RATE], scalars[_MEMBERS], scalars[_ENDING] = self._steps_per_s(), 1.0, float(self._ending)
        if snapshot is not None:
            weight = snapshot.tokens * snapshot.tokens / snapshot.steps
            scalars[_WEIGHT] = weight
            change = fragment.rounded(snapshot.base) - snapshot.values
            parts = zip(fragment.parameters, fragment.split(change), fragment.split(directions), strict=True)
            for number, (parameter, part, target) in enumerate(parts):
                length = outer.norm(part.numpy())
                scalars[_LENGTHS + number] = weight * length
                # Not part * (weight / length): float32 need not hold that factor.
                torch.mul(part if parameter in self._averaged or not length else part / length, weight, out=target)
        return [directions, scalars]

    def _result_layout(self) -> Layout:
        fragment = self._fragments[self._place]
        return (fragment.elems, torch.float32), (_LENGTHS + len(fragment.parameters), torch.float64)

    def _apply(self, result: Sequence[torch.Tensor]) -> None:
        """Step the outer optimiser with the sums of a merge; with those of nobody's changes only count it."""
        directions, scalars = result[0], result[1].numpy()
        place, weight = self._place, float(scalars[_WEIGHT])
        fragment = self._fragments[place]
        merged = [
            outer.weighted_mean(part.numpy(), weight)
            if parameter in self._averaged
            else outer.radial_directional(part.numpy(), float(length), weight)
            for parameter, part, length in zip(
                fragment.parameters, fragment.split(directions), scalars[_LENGTHS:], strict=True
            )
        ]
        gradient = torch.from_numpy(np.concatenate(merged))
        with self._lock:
            if weight > 0:
                self._step(self._global[place] - gradient, gradient)
            else:
                self._rounds += 1

    def _publish(self, taken: Mapping[int, _Snapshot]) -> None:
        """Training is to receive the global values that have changed, which have `taken` in them. The lock is held.

        It cannot receive them earlier: a member that was left behind hears only at last what of it the others have.
        """
        for place, values in enumerate(self._global):
            if values is not self._published[place]:
                if (snapshot := self._snapshots.get(place)) is not None and snapshot.base is not values:
                    del self._snapshots[place]  # it is of older ones, and no merge will take it
                earlier = self._arrived.get(place)
                self._arrived[place] = _Merged(values, taken.get(place, earlier.taken if earlier else None))
        self._published = list(self._global)
        self._lock.notify_all()

    def _steps_per_s(self) -> float:
        """Of the last steps; a rest between two of them, as for an evaluation, is no slow step."""
        took_s = self._took_s()
        return 1.0 / max(statistics.median(took_s), 1e-9) if took_s else 0.0

    def _took_s(self) -> list[float]:
        return [after - before for before, after in pairwise(list(self._times_s))]

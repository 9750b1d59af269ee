"""One direction of a relayed link: frames go in, and come out later, in order, some of them never.

Pure: time comes in as an argument, randomness from a seed. The delay is constant between changes, so a deque is
enough: due times never decrease. When the delay is shortened, frames behind those already under way wait for them
(a wire does not reorder).
"""

from __future__ import annotations

from collections import deque
from random import Random

QUEUE_BYTES_MAX = 64 * 2**20
"""512 Mbit in flight, 5 Gbit/s at 100 ms. With more, the relay has stalled; what comes then is dropped."""


class DelayLine:
    """Holds frames for `delay_s`, drops a share of `loss`.

    Args:
        delay_s: how long each frame stays, at least 0.
        loss: share dropped at random, 0 to 1.
        seed: of the random numbers; the same seed drops the same frames.
    """

    __slots__ = (
        "_frames",
        "_random",
        "delay_s",
        "loss",
        "lost_frames",
        "overrun_frames",
        "queued_bytes",
        "sent_frames",
    )

    def __init__(self, *, delay_s: float, loss: float, seed: int) -> None:
        self.delay_s = delay_s
        self.loss = loss
        self.lost_frames = 0
        self.overrun_frames = 0
        self.sent_frames = 0
        self.queued_bytes = 0
        self._frames: deque[tuple[float, bytes]] = deque()
        self._random = Random(seed)

    def push(self, frame: bytes, *, now_s: float) -> None:
        """Take a frame that arrived at `now_s`; it may be lost here and now."""
        if self.loss and self._random.random() < self.loss:
            self.lost_frames += 1
            return
        if self.queued_bytes + len(frame) > QUEUE_BYTES_MAX:
            self.overrun_frames += 1
            return
        due_s = now_s + self.delay_s
        if self._frames and self._frames[-1][0] > due_s:
            due_s = self._frames[-1][0]
        self._frames.append((due_s, frame))
        self.queued_bytes += len(frame)

    def pop_due(self, *, now_s: float) -> bytes | None:
        """The next frame whose time has come, or None."""
        if not self._frames or self._frames[0][0] > now_s:
            return None
        frame = self._frames.popleft()[1]
        self.queued_bytes -= len(frame)
        self.sent_frames += 1
        return frame

    @property
    def next_due_s(self) -> float | None:
        """When `pop_due` gives a frame next; None when empty."""
        return self._frames[0][0] if self._frames else None

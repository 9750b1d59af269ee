"""Signal handlers that start a collective and wait for it, in the middle of another one's call."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report

OURS = ("/transport/", "/integrations/torch_backend/", "/threading.py", "/queue.py", "/_weakrefset.py")
HANG_S = 20.0
RAISED_IN = (
    "/transport/runtime.py",
    "/torch_backend/operations.py",
    "/torch_backend/completion_threads.py",
)
RAISED_LINES = 150


class Countdown:
    """Traces lines of files that have one of `parts` in their names; raises SIGUSR1 when `left` of them have come."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.parts, self.left = parts, 0

    def on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._on_line if any(part in frame.f_code.co_filename for part in self.parts) else None

    def _on_line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self._on_line


def at_every_line(rank: int, size: int) -> None:
    """Call and await collectives again and again, each time with a handler one line further on."""
    connect()
    own = dist.new_group([0])
    faulthandler.dump_traceback_later(200, exit=True)
    countdown = Countdown(OURS)

    def handle(_number: int, _frame: object) -> None:
        works = [dist.all_reduce(torch.ones(10), group=own, async_op=True), dist.barrier(async_op=True)]
        for work in works:
            work.wait(timedelta(seconds=HANG_S))

    signal.signal(signal.SIGUSR1, handle)
    lines = 0
    while countdown.left <= 0:
        lines += 1
        countdown.left = lines
        tensors = [torch.ones(10), torch.ones(1000).view(10, 100).t()]
        sys.settrace(countdown.on_call)
        try:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            works.append(dist.barrier(async_op=True))
            for work in works:
                work.wait()
        finally:
            sys.settrace(None)
        assert all(tensor.eq(1).all() for tensor in tensors)
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    report(lines=lines)


class AlarmError(Exception):
    """What a program's own handler raises, as many do to bound a step's time."""


def raising(rank: int, size: int) -> None:
    """Rank 0's handler raises in the middle of a call, each time one line further on. What follows must match."""
    connect()
    faulthandler.dump_traceback_later(200, exit=True)
    countdown = Countdown(RAISED_IN)

    def handle(_number: int, _frame: object) -> None:
        raise AlarmError

    signal.signal(signal.SIGUSR1, handle)
    interrupted = 0
    for lines in range(1, RAISED_LINES):
        countdown.left = lines if rank == 0 else 0
        sys.settrace(countdown.on_call if rank == 0 else None)
        try:
            dist.all_reduce(torch.ones(10))
        except (AlarmError, dist.DistBackendError):  # the second of rank 1, where rank 0 gave up
            interrupted += 1
        finally:
            sys.settrace(None)
        tensor = torch.full((10,), float(lines))
        dist.all_reduce(tensor)
        assert tensor.eq(size * lines).all(), (lines, tensor)
    faulthandler.cancel_dump_traceback_later()
    report(interrupted=interrupted)


def storm(rank: int, size: int) -> None:
    """A timer fires all the time, and its handler reduces over a group of its own; so do the others'."""
    connect()
    own = dist.new_group(list(range(size)))
    faulthandler.dump_traceback_later(150, exit=True)
    rounds = 300
    handled: list[float] = []
    inside = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal inside
        if inside or len(handled) == rounds:
            return
        inside = True
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=own)
        handled.append(tensor.sum().item())
        inside = False

    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    reduced = 0
    while reduced < 200 or len(handled) < rounds:
        if reduced < 200:
            tensors = [torch.full((100,), float(reduced)) for _ in range(5)]
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()
            assert all(tensor.eq(size * reduced).all() for tensor in tensors)
            reduced += 1
        else:
            time.sleep(0.001)
    signal.setitimer(signal.ITIMER_REAL, 0, 0)
    faulthandler.cancel_dump_traceback_later()
    assert handled == [10.0 * size] * rounds
    dist.destroy_process_group()
    report(handled=len(handled))

"""A running operation as torch wants to see it: `wait`, `get_future`, `exception`, and no crash when a peer dies.

Why the future that torch gets is not the one that we complete
- `Future.set_exception` on the future of a Work ends in a segmentation fault inside DistributedDataParallel (torch 2.13
  to 2.15: its C++ reads the missing value). So the root future is always completed with success, and torch gets
  `root.then(outcome)`, whose callback raises: that path carries an error into C++ properly.
- The callback's error keeps its type for Python callers of `wait`, and through DDP its text, code first.

Order of events at the end of an operation, as over Gloo: the outcome is stored, the root future is completed, `wait`
returns. So what callbacks of the future did is there after `wait`. They are other people's code, and run on a
completion thread, where no lock is held. Most works are waited for and nothing else: they have no future, and end on
the transport's thread.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

import transport
from hive_qos.errors import MisuseError, TimedOutError, TransportError
from integrations.torch_backend.completion_threads import CompletionThreads
from integrations.torch_backend.errors import as_torch_error
from integrations.torch_backend.gpu import working_with
from transport.work import End, wait_until

_log = logging.getLogger("integrations.torch")

WAITING = "waiting for tensors on their devices, or for the sizes of a sparse one"
NO_LIMIT = timedelta(0)
"""torch's way to say that a wait has no timeout of its own."""


P = ParamSpec("P")
R = TypeVar("R")
_eval_frame: Any = torch._C._dynamo.eval_frame  # torch's stubs know half of it
_SKIP = _eval_frame._FrameExecStrategy(_eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.SKIP)


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep torch.compile from tracing what torch's C++ calls within a compiled region, as DDP's reducer does.

    It does what `torch.compiler.disable` does, by the part of that in C: to apply that one loads torch._dynamo, 5 s of
    processor time and 157 MB in each process that makes a group.
    """

    @functools.wraps(function)
    def apart(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    own: Any = apart
    _eval_frame.set_code_exec_strategy(own.__code__, _SKIP)  # this frame, and all that it calls
    for name, value in (("", True), ("_recursive", True), ("_msg", None)):  # for who traces Python and finds the method
        setattr(apart, f"_torchdynamo_disable{name}", value)
    return apart


class Outcome:
    """What came of an operation; shared by the Work and its future, so that neither has to hold the other."""

    __slots__ = ("error", "value")

    def __init__(self, value: object) -> None:
        self.error: BaseException | None = None
        self.value = value

    def __call__(self, _root: object) -> Any:
        if self.error is not None:
            raise as_torch_error(self.error)
        return self.value


class HiveWork(dist.Work):
    """One operation that was started through torch.

    Args:
        what: the operation in words, for errors.
        result: what the future gives: the output tensors, in a list.
        devices: GPUs that the outputs lie on, so that the future synchronises their streams with its callbacks.
        sequence: number of the operation in its group.
        threads: where `finish` runs, and whatever is not ours: callbacks of the future, and of an error.
        finish: brings what was received to the outputs; runs once, before anybody is told, only after success. None
            where it lies there already.
        before: what goes on until the transport has it.
    """

    def __init__(
        self,
        what: str,
        *,
        result: Sequence[torch.Tensor],
        devices: Sequence[torch.device] = (),
        sequence: int,
        threads: CompletionThreads,
        finish: Callable[[], None] | None = None,
        before: str = WAITING,
    ) -> None:
        super().__init__()
        self.what, self._before = what, before
        self.tensors = list(result)
        self._sequence = sequence
        self._threads = threads
        self._finish = finish
        self._process = os.getpid()
        self.calls_back = False
        """Its tensors are done, and it ends when the callbacks of its future have: they must not wait for it."""
        self._ended = End()
        self._outcome = Outcome(self.tensors)
        self._parts: tuple[transport.Work, ...] = ()
        self._expected = 0
        self._ends = itertools.count(1)
        self._devices = list(devices)
        self._futures: list[tuple[Any, Any]] = []
        self._roots: collections.deque[Any] = collections.deque()  # whoever takes one completes it

    # What torch calls.

    @uncompiled
    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Block until it has ended. The GIL is free meanwhile, and Ctrl-C interrupts the waiting.

        Raises:
            TorchConnectionLostError, TorchTimedOutError, ...: see `errors`; each is a `RuntimeError`, too.
        """
        if os.getpid() != self._process and not self._ended.is_set():
            raise as_torch_error(MisuseError(f"waiting for {self.what} in a forked child: it runs in the parent alone"))
        limit_s = timeout.total_seconds()
        give_up_s = time.monotonic() + limit_s if limit_s > 0 else math.inf
        if not wait_until(self._ended, give_up_s):
            # All that keeps an operation from beginning, its own or one before it.
            what = self.what if self._expected else f"{self.what}, {self._before}"
            raise as_torch_error(
                TimedOutError(what, timeout_s=limit_s, bytes_done=self.bytes_done, bytes_total=self.bytes_total)
            )
        if self._outcome.error is not None:
            raise as_torch_error(self._outcome.error)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        if not self._futures:
            root: Any = torch.futures.Future(devices=[*self._devices] or None)
            made = root, root.then(self._outcome)
            self._futures.append(made)
            if self._futures[0] is made:  # two threads may come here together, or a signal's handler in between
                self._roots.append(root)
                if self._ended.is_set():  # as after `wait`: callbacks that are added run at once, as torchft expects
                    self._complete_future()
                else:  # where it ends just now, without having seen that there is a future
                    self._ended.tell(lambda: self._threads.run(self._complete_future))
        return self._futures[0][1]

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._outcome.error is None

    def exception(self) -> BaseException | None:
        error = self._outcome.error
        return None if error is None else as_torch_error(error)

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.tensors

    def source_rank(self) -> int:
        """The rank that a finished receive came from, in its group."""
        for part in self._parts:
            if part.source is not None:
                return part.source
        raise as_torch_error(TransportError(f"{self.what} has no source rank"))

    def _source_rank(self) -> int:
        return self.source_rank()

    def _get_sequence_number(self) -> int:
        return self._sequence

    # Ours.

    @property
    def bytes_done(self) -> int:
        """Payload bytes that have been sent and received so far."""
        return sum(part.bytes_done for part in self._parts)

    @property
    def bytes_total(self) -> int:
        """Payload bytes to send and receive."""
        return sum(part.bytes_total for part in self._parts)

    def follow(self, parts: Sequence[transport.Work], *, also: Sequence[HiveWork] = ()) -> None:
        """End when all of `parts` have, and `also` has; with the first error among the parts, if any.

        All of them, even after an error: the tensors are the transport's until the last part has ended.
        """
        self._parts = tuple(parts)
        self._expected = len(parts) + len(also)
        if self._expected == 0:
            self._threads.run(self._complete)
            return
        for other in also:
            other.tell(self._one_ended)
        for part in parts:
            part.add_done_callback(lambda _part: self._one_ended())

    def fail(self, error: BaseException) -> None:
        """End with an error, without any part having been started."""
        self._outcome.error = error
        self._threads.run(self._complete)

    def show_in_profile(self, operation: str) -> None:
        """Have torch's profiler show it until it has ended, by Gloo's name: `hive:all_reduce`, `hive:recv`."""
        name = operation.partition(" to ")[0].partition(" from ")[0].replace("receive", "recv")
        span: Any = torch.autograd.profiler.record_function(f"hive:{name.replace(' ', '_').replace('-', '_')}")
        span.__enter__()
        span._call_end_callbacks_on_future(self.get_future())

    def tell(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it has ended, whatever the outcome; at once if it has."""
        self._ended.tell(functools.partial(_guarded, callback))

    def _one_ended(self) -> None:
        if next(self._ends) < self._expected:
            return
        if self._finish is None and not self._futures and all(part.exception() is None for part in self._parts):
            self._ended.set()
        else:
            self._threads.run(self._complete)

    def _complete(self) -> None:
        outcome = self._outcome
        for part in self._parts:
            error = part.exception()
            if error is not None:
                outcome.error = error
                break
        if outcome.error is None and self._finish is not None:
            try:
                with working_with(self._devices):
                    self._finish()
            except Exception as error:  # noqa: BLE001 - a copy to a GPU that failed, or a mistake: whoever waits is told
                outcome.error = error
        self._finish = None  # it holds the staging memory
        self.calls_back = True
        self._complete_future()
        self._ended.set()

    def _complete_future(self) -> None:
        with contextlib.suppress(IndexError):  # there is none, or it is complete
            root = self._roots.popleft()
            with working_with(self._devices):  # callbacks run there, and torch gives them the device of this thread
                root.set_result(None)


def _guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - it is another work's, and this one's future must be completed
        _log.exception("a work that waits for another one failed to hear of its end")

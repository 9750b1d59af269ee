"""Members of volatile groups in threads, each step of which a test allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from patience import wait_until

from hive_qos.errors import HiveError, PeerError
from transport.settings import Settings
from transport.tensors import TensorView
from transport.volatile.group import VolatileGroup
from transport.volatile.register.register import MemoryStore, Register, Store
from transport.volatile.steps import Committed

SECRET = b"0123456789abcdef"
LIMIT_S = 60.0


class Forgetful(MemoryStore):
    """A store that loses the view, goes back to an older one, takes a forged one, or falls silent, once told to."""

    def __init__(self) -> None:
        super().__init__()
        self.spoilt: Callable[[bytes], bytes | None] | None = None
        self.first = b""
        self.silent = threading.Event()
        self.speaks = threading.Event()

    def get(self, key: str) -> bytes | None:
        if self.silent.is_set():
            self.speaks.wait()
        held = super().get(key)
        if not key.endswith("/view") or held is None:
            return held
        self.first = self.first or held
        return held if self.spoilt is None else self.spoilt(held)

    def add(self, key: str, amount: int) -> int:
        if self.silent.is_set():
            self.speaks.wait()
        return super().add(key, amount)

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        if self.silent.is_set():
            self.speaks.wait()
        if self.spoilt is not None and key.endswith("/view"):
            return self.spoilt(value) or b""
        return super().compare_set(key, expected, value)


class Worker:
    """A member in a thread. Its weights are the sum of all results; it makes one step for each `allow()`.

    Args:
        fragments: in turn each step is of so many of the first weights; () for steps of all of them.
        wishes: arguments of `VolatileGroup`, and `quorum` and `compression` of its all-reduce.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        size: int = 1000,
        apply_s: float = 0.0,
        engine: str = "auto",
        fragments: Sequence[int] = (),
        ports: range = range(0),
        **wishes: object,
    ) -> None:
        self._ports = ports
        self._fragments = fragments or (size,)
        self.name, self._store, self._apply_s, self._engine = name, store, apply_s, engine
        self._how: dict[str, Any] = {"quorum": wishes.pop("quorum", 0), "compression": wishes.pop("compression", "")}
        self._wishes = wishes
        self.weights = np.zeros(size, np.float32)
        self.part = np.ones(size, np.float32)
        self.met: list[Committed] = []
        self.digests: dict[int, float] = {}
        self.group: VolatileGroup | None = None
        self.error: HiveError | None = None
        self._steps = threading.Semaphore(0)
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def allow(self, steps: int = 1) -> None:
        self._steps.release(steps)

    def end(self) -> None:
        self._ending = True
        self._steps.release()

    def wait(self) -> HiveError | None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        return self.error

    def kill(self) -> None:
        """As near to it as a thread comes: the others hear no word of the group's."""
        assert self.group is not None
        self.group.close()

    @property
    def step(self) -> int:
        return self.met[-1].step if self.met else 0

    def _elems(self, step: int) -> int:
        return self._fragments[step % len(self._fragments)]

    def _follow(self, step: int, tensors: Sequence[memoryview]) -> None:
        time.sleep(self._apply_s)
        self._applied(step, tensors)

    def _applied(self, step: int, tensors: Sequence[memoryview]) -> None:
        change = np.frombuffer(tensors[0], np.float32)
        assert change.size == self._elems(step)
        self.weights[: change.size] += change
        self.digests[step] = float(self.weights.sum())

    def _set(self, data: bytes) -> None:
        if len(data) != self.weights.nbytes:
            raise PeerError("the group", "it trains another model")
        self.weights[:] = np.frombuffer(data, np.float32)

    def _run(self) -> None:
        settings = Settings(
            listen="127.0.0.1",
            broker="off",
            engine=self._engine,
            receive_bytes_max=int(str(self._wishes.pop("bytes", 2**30))),
            ports=self._ports,
        )
        try:
            with VolatileGroup(
                Register(self._store, job="job", secret=SECRET, timeout_s=0.5),
                name=self.name,
                get_state=self.weights.tobytes,
                set_state=self._set,
                apply_result=self._follow,
                settings=settings,
                **self._wishes,  # type: ignore[arg-type]
            ) as self.group:
                while True:
                    self._steps.acquire()
                    if self._ending:
                        return
                    part = self.part[: self._elems(self.group.step + 1)]
                    change = part * (1.0 + sum(self.name.encode()) % 7)
                    met = self.group.all_reduce(change, feedback="weights", **self._how)
                    joined_again = not met.members
                    assert met.applied == (joined_again or part.size != self._elems(met.step))
                    if not met.applied:
                        self._applied(met.step, [TensorView.of(change, writable=False).data])
                    self.met.append(met)
        except HiveError as error:
            self.error = error


def alone(store: Store, get_state: Callable[[], bytes] = bytes, **wishes: Any) -> VolatileGroup:
    """The first member of a job, in the test's own thread."""
    return VolatileGroup(
        Register(store, job="job", secret=SECRET),
        name="a",
        get_state=get_state,
        settings=Settings(listen="127.0.0.1", broker="off"),
        **{"set_state": lambda _data: None, "apply_result": lambda _step, _tensors: None, **wishes},
    )


def works(worker: Worker, *names: str) -> bool:
    """Whether that member is in a group of exactly those who work."""
    assert worker.error is None, worker.error
    return worker.group is not None and [str(one) for one in worker.group.view.workers] == list(names)


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, limit_s=LIMIT_S)


def trio(start: Callable[..., Worker], store: Store, **wishes: object) -> list[Worker]:
    """Three that work, after one step with all of their parts."""
    members = [start(name, store, members_min=3, **wishes) for name in "abc"]
    for one in members:
        one.allow()
    until(lambda: all(one.met for one in members))
    for one in members:
        assert one.group is not None
        one.group.members_min = 1
    return members


def step_together(members: Sequence[Worker], steps: int) -> None:
    """Nobody has a call left then. With eight, 20 arrivals and more are known."""
    for _ in range(steps):
        step = members[0].step + 1
        for one in members:
            one.allow()
        until(lambda: all(one.step == step for one in members))  # noqa: B023 - called at once


def agree(*workers: Worker) -> None:
    """All had the same weights after each step."""
    found: dict[int, set[float]] = {}
    for one in workers:
        for step, digest in one.digests.items():
            found.setdefault(step, set()).add(digest)
    assert all(len(one) == 1 for one in found.values()), found

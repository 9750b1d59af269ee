"""A member of a volatile group that gets SIGINT at named points of its meetings, and goes on each time.

    python volatile_interrupted.py '{"name": "a", "kind": "DiLoCo", "port": 29500, "points": ["leave:applied"], ...}'

"a" learns 1 a step, and has nearly all the weight; "b" learns nothing. So what of "a" has counted is what the members
hold in common, and has to be as much as "a" has learned. The last line says both. Points are passed in the thread that
meets:

- `reducing`: its part is about to leave. `reduced`: it holds the result, and has not said so. `prepared`: it has.
  `committed`: all have. `applied`: the outer optimiser has stepped. `received`: the model gets the result.
- `leave:` before one: it leaves after that, and joins again. `die:`: it is killed there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from integrations.volatile import AsyncDiLoCo, DiLoCo, LocalSGD, PartialMean, StreamingDiLoCo
from integrations.volatile.algorithm import Algorithm
from integrations.volatile.fragments import Fragment
from integrations.volatile.torch_store import TorchStore
from transport.group import Group
from transport.settings import Settings
from transport.volatile.group import VolatileGroup
from transport.volatile.register.register import Register
from transport.volatile.steps import Steps

ELEMS, LIMIT_S = 100_000, 90.0
COMPUTING_S = 0.02
"""Of a step, as training has: members that only meet leave the two cores to nobody, and the register has to answer."""


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Interrupted:
    """See the module."""

    def __init__(self, *, name: str, kind: str, port: int, points: list[str]) -> None:
        self._name, self._points, self._learns = name, points, float(name == "a")
        self._tokens = 10**6 if name == "a" else 1
        self._register = Register(TorchStore(TCPStore("127.0.0.1", port)), job="test", secret=b"0123456789abcdef")
        self._armed, self._kills = "", False
        self._parameter = torch.nn.Parameter(torch.zeros(ELEMS))
        self._optimizer = torch.optim.SGD([self._parameter], lr=1.0)
        self._algorithm = self._made(kind)
        self.learned = 0
        places: dict[str, tuple[Any, str, bool]] = {
            "reducing": (Group, "allreduce", True),
            "reduced": (Steps, "_exchange", True),
            "prepared": (Group, "all_gather", False),
            "committed": (Steps, "_exchange", False),
            "applied": (type(self._algorithm), "_apply", False),
            "received": (Fragment, "write_gradients" if kind == "PartialMean" else "write", True),
        }
        for point, place in places.items():
            self._stop_at(point, *place)

    def _made(self, kind: str) -> Algorithm:
        parameters = [self._parameter]
        outer: dict[str, Any] = {"outer_rate": 1.0, "outer_momentum": 0.0}
        match kind:
            case "LocalSGD":
                return LocalSGD(parameters, every=2)
            case "DiLoCo":
                return DiLoCo(parameters, every=2, **outer)
            case "StreamingDiLoCo":
                return StreamingDiLoCo(parameters, every=2, fragments=1, overlap=0, compression="", **outer)
            case "AsyncDiLoCo":
                return AsyncDiLoCo(parameters, every=2, fragments=1, compression="", **outer)
            case _:
                return PartialMean(parameters, optimizer=self._optimizer)

    def _stop_at(self, point: str, owner: Any, name: str, before: bool) -> None:
        call = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if before:
                self._here(point)
            result = call(*arguments, **named)
            if not before:
                self._here(point)
            return result

        setattr(owner, name, wrapped)

    def _here(self, point: str) -> None:
        if point == self._armed:
            self._armed = ""
            if self._kills:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)  # where this is another thread, the main one hears of it now

    def _step(self) -> None:
        time.sleep(COMPUTING_S)
        parameter, learns = self._parameter, self._learns
        if isinstance(self._algorithm, PartialMean):
            parameter.grad = torch.full((ELEMS,), -learns)
            self._algorithm.last = None
            with self._algorithm.step(tokens=self._tokens):
                self._optimizer.step()
                parameter.grad = None
                # One that was left out repeats others' steps, and its own gradient is in none.
                self.learned += bool(learns and self._algorithm.last is not None and not self._algorithm.last.applied)
            return
        with self._algorithm.step(tokens=self._tokens), torch.no_grad():
            parameter.add_(learns)
            # What a member learns while its fragment is under way is not kept (`alpha`).
            self.learned += bool(learns and getattr(self._algorithm, "_flight", None) is None)

    def _holds(self) -> float:
        state = self._algorithm.state_dict()
        return float((state["parameters"] if "parameters" in state else state["global"])[0])

    def run(self) -> None:
        points, until_s = list(self._points), time.monotonic() + LIMIT_S
        while True:
            with self._algorithm.join(self._register, name=self._name, settings=SETTINGS) as group:
                try:
                    self._go_on(group, points, until_s)
                    return
                except KeyboardInterrupt:
                    continue  # it was to leave there, and joins again

    def _go_on(self, group: VolatileGroup, points: list[str], until_s: float) -> None:
        while points and time.monotonic() < until_s:
            how, _, point = points[0].rpartition(":")
            while len(group.view.workers) < 2 and time.monotonic() < until_s:
                self._step()
            self._armed, self._kills, began_s = point, how == "die", 0.0
            try:
                while time.monotonic() < until_s:
                    began_s = time.monotonic()
                    self._step()
            except KeyboardInterrupt:
                tell(interrupted=points.pop(0), within_s=time.monotonic() - began_s)
                if how == "leave":
                    raise
        self._learns, seen = 0.0, group.step
        while time.monotonic() < until_s:
            self._step()
            if self._name == "b" and os.path.exists(END):
                return
            if self._name == "a" and group.step > seen and abs(self._holds() - self.learned) < 0.5:
                break
        tell(learned=self.learned, holds=self._holds(), more=group.step > seen, points=points)


SETTINGS = Settings(listen="127.0.0.1", broker="off")
END = ""

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    wishes = json.loads(sys.argv[1])
    END = wishes.pop("end")
    Interrupted(**wishes).run()

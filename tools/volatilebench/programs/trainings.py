"""DDP and the algorithms of `integrations.volatile` behind one interface: `with training.step(): optimizer.step()`."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from integrations import volatile
from tools.volatilebench.programs import tasks
from transport.volatile.group import VolatileGroup
from transport.volatile.steps import Committed

TIMEOUT = datetime.timedelta(seconds=120)
"""For starting together, and for an all-reduce: members on a busy machine load torch in 30 s."""
HERE, POLL_S = "here", 0.05
"""How many of a job have joined, in its store; and how often to look."""
END = "end"
"""Of a job, in its store: the first step at which nobody goes on."""


class Training(Protocol):
    """One member's part.

    Attributes:
        model: what to call.
        group: None for DDP.
    """

    model: nn.Module
    group: VolatileGroup | None

    @property
    def last(self) -> Committed | None:
        """The last meeting; None before the first, and for DDP."""

    def together(self, order: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Be there with the others, inside this block."""

    def step(self, tokens: int) -> AbstractContextManager[None]:
        """The inner optimiser steps inside this block."""

    def end(self) -> None:
        """All end at the same step: agree, where the algorithm has members agree on nothing before."""

    def gather(self, members: int) -> None:
        """Go on when so many have joined; RuntimeError where they do not come in time."""

    def ends(self, step: int, *, late: bool) -> bool:
        """Whether to end at this step, of those after which this is asked, as soon as anybody is late."""

    def held(self) -> Tensor:
        """The parameters to evaluate: the global ones, where there are such."""


class Ddp:
    """See `Training`."""

    def __init__(self, order: Mapping[str, Any], model: nn.Module) -> None:
        self.model: nn.Module = model
        self.group: VolatileGroup | None = None
        self._plain, self._backend = model, order["backend"]

    @property
    def last(self) -> Committed | None:
        """See `Training`."""
        return None

    @contextlib.contextmanager
    def together(self, order: Mapping[str, Any]) -> Iterator[None]:
        """See `Training`."""
        world = {"rank": order["rank"], "world_size": order["world"]}
        dist.init_process_group(self._backend, store=store_of(order), timeout=TIMEOUT, **world)
        try:
            self.model = DistributedDataParallel(self._plain)
            dist.barrier()
            yield
        finally:
            dist.destroy_process_group()

    def step(self, tokens: int) -> AbstractContextManager[None]:
        """See `Training`."""
        return contextlib.nullcontext()

    def end(self) -> None:
        """See `Training`."""

    def gather(self, members: int) -> None:
        """See `Training`. They have met when they began."""

    def ends(self, step: int, *, late: bool) -> bool:
        """See `Training`."""
        shared = torch.tensor([float(late)])
        dist.all_reduce(shared)
        return bool(shared[0])

    def held(self) -> Tensor:
        """See `Training`."""
        return tasks.flat(self._plain)


class Volatile:
    """See `Training`."""

    def __init__(self, order: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        options = dict(order["options"])
        if order["kind"] == "PartialMean":
            options["optimizer"] = optimizer
        self._algorithm = getattr(volatile, order["kind"])(model.parameters(), **options)
        self.group: VolatileGroup | None = None
        self._store: PrefixStore | None = None

    @property
    def last(self) -> Committed | None:
        """See `Training`."""
        found: Committed | None = self._algorithm.last
        return found

    @contextlib.contextmanager
    def together(self, order: Mapping[str, Any]) -> Iterator[None]:
        """See `Training`."""
        limits = {"members_min": order["members_min"], "join_timeout_s": TIMEOUT.total_seconds()}
        self._store = store_of(order)
        with self._algorithm.join(volatile.torch_register(self._store), name=order["name"], **limits) as group:
            self.group = group
            self._store.add(HERE, 1)
            yield

    def step(self, tokens: int) -> AbstractContextManager[None]:
        """See `Training`."""
        found: AbstractContextManager[None] = self._algorithm.step(tokens=tokens)
        return found

    def end(self) -> None:
        """See `Training`."""
        if "global" not in self._algorithm.state_dict():
            self._algorithm.finish()

    def gather(self, members: int) -> None:
        """See `Training`."""
        assert self._store is not None, "a member asks while it is there"
        due_s = time.monotonic() + TIMEOUT.total_seconds()
        while (here := self._store.add(HERE, 0)) < members:
            if time.monotonic() > due_s:
                raise RuntimeError(f"only {here} of {members} members have joined")
            time.sleep(POLL_S)

    def ends(self, step: int, *, late: bool) -> bool:
        """See `Training`. Whoever is late first says so in the store: those who are in step end the time after."""
        assert self._store is not None, "a member asks while it is there"
        if late and not self._store.check([END]):
            self._store.set(END, str(step + 1))
        return self._store.check([END]) and step >= int(self._store.get(END))

    def held(self) -> Tensor:
        """See `Training`."""
        state = self._algorithm.state_dict()
        found: Tensor = state["global"] if "global" in state else state["parameters"]
        return found


def store_of(order: Mapping[str, Any]) -> PrefixStore:
    """The part of the crew's store that is a job's own."""
    host, port = order["store"]
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    return PrefixStore(order["job"], store)

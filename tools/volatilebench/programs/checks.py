"""Checks of algorithms in one process: members are threads, their register is memory, their network loopback.

DDP is done by its arithmetic: one model, and the mean of all workers' gradients. All see the same batches.

Losses are compared as DiLoCo's paper has it (arXiv 2311.08105): DDP trains the model for as many steps first, and the
inner rate warms up, then falls as a cosine over both. From scratch ten rounds are too few for an outer momentum of 0.9.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from integrations import volatile
from integrations.volatile import gossip, outer
from integrations.volatile.a2cid2 import approach, exchanged
from integrations.volatile.fragments import Fragment
from tools.bench.programs.conversation import Begun, Order, cpu_s, serve
from tools.collectivesbench.programs.training import Task
from tools.volatilebench.programs import tasks
from transport.settings import Settings
from transport.volatile.group import VolatileGroup
from transport.volatile.register.register import MemoryStore, Register
from transport.volatile.steps import Committed

TASK = "small transformer"
SETTINGS = Settings(listen="127.0.0.1", broker="off", job_secret=b"checks-only-secret-of-this-run")
MEMBER_S_MAX = 600.0
"""A member's thread that takes longer hangs."""
LOOK_S = 0.02
FEW_STEPS = 10
RATE = 0.05
"""Of SGD, where there is no AdamW: the loss falls by a third in FEW_STEPS steps."""
ROUNDS_BETWEEN = 5
DROPPED = 0.5
EVENTS = 100
"""Of each member in a ring: distances are steady after a tenth of them."""

WARM_UP, RATE_END = 0.05, 0.1
"""Of all steps, those in which the inner rate rises; and what is left of it at the end."""

Make: TypeAlias = Callable[[nn.Module], Any]
Inner: TypeAlias = Callable[[Task], torch.optim.Optimizer]
Heard: TypeAlias = Callable[[int, Any, VolatileGroup], None]
"""Called with a member's number, its algorithm and its group after each of its steps."""


def adamw(task: Task) -> torch.optim.Optimizer:
    """The inner optimiser of most checks."""
    return torch.optim.AdamW(task.model.parameters(), lr=task.learning_rate)


def sgd(task: Task) -> torch.optim.Optimizer:
    """The one with which DiLoCo can equal DDP: its step is linear in the gradient."""
    return torch.optim.SGD(task.model.parameters(), lr=RATE)


@dataclass(frozen=True)
class Span:
    """Which steps to train, of how many by which the inner rate falls; 0: it stays."""

    steps: int
    first: int = 1
    of: int = 0

    def each(self, optimizer: torch.optim.Optimizer) -> Iterator[int]:
        """The numbers of the steps, before each of which the optimiser gets its rate."""
        full = [group["lr"] for group in optimizer.param_groups]
        for step in range(self.first, self.first + self.steps):
            for group, rate in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = rate * self._part(step)
            yield step

    def _part(self, step: int) -> float:
        if not self.of:
            return 1.0
        falls = 0.5 + 0.5 * math.cos(math.pi * step / self.of)
        return min(1.0, step / (WARM_UP * self.of)) * (RATE_END + (1.0 - RATE_END) * falls)


def ddp(workers: int, seed: int, span: Span, *, inner: Inner = adamw, begin: torch.Tensor | None = None) -> Task:
    """What DDP trains, from the seed's model or from these parameters."""
    task = tasks.task_of(TASK, seed)
    if begin is not None:
        tasks.put(task.model, begin)
    optimizer = inner(task)
    for step in span.each(optimizer):
        optimizer.zero_grad()
        for rank in range(workers):
            loss = tasks.loss_of(task, task.model, seed=seed, step=step, rank=rank) / workers
            torch.autograd.backward(loss)
        optimizer.step()
    return task


@functools.cache
def ddp_loss(workers: int, seed: int, steps: int) -> float:
    """The loss after the second half of its training."""
    task = ddp(workers, seed, second_half(steps), begin=pretrained(workers, seed, steps))
    return tasks.evaluated(TASK, task, seed)


@functools.cache
def pretrained(workers: int, seed: int, steps: int) -> torch.Tensor:
    """The parameters after the first half."""
    return tasks.flat(ddp(workers, seed, Span(steps, of=2 * steps)).model)


def second_half(steps: int) -> Span:
    """Where losses are compared."""
    return Span(steps, first=steps + 1, of=2 * steps)


class Members:
    """Threads that train together.

    Args:
        make: an algorithm of a model.
        begin: parameters that all begin with; None: the seed's.
        heard: see `Heard`.
    """

    def __init__(
        self,
        make: Make,
        *,
        seed: int,
        inner: Inner = adamw,
        begin: torch.Tensor | None = None,
        heard: Heard | None = None,
    ) -> None:
        self._make, self._seed, self._inner, self._begin = make, seed, inner, begin
        self._heard = heard or (lambda member, algorithm, group: None)
        self._register = Register(MemoryStore(), job="checks")
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, member: int, span: Span, *, of: int = 1, wait: Callable[[], None] = lambda: None) -> Task:
        """Start one of at least `of` that meet; it joins when `wait` returns.

        Its model is made here: a seed is of the whole process.
        """
        task = tasks.task_of(TASK, self._seed)
        if self._begin is not None:
            tasks.put(task.model, self._begin)
        algorithm = self._make(task.model)

        def run() -> None:
            try:
                wait()
                name = f"m{member:02d}"
                with algorithm.join(self._register, name=name, members_min=of, settings=SETTINGS) as group:
                    self._train(member, task, algorithm, group, span)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        return task

    def join(self) -> None:
        """Wait for all.

        Raises:
            RuntimeError: one of them failed or hangs.
        """
        due_s = time.monotonic() + MEMBER_S_MAX
        while any(thread.is_alive() for thread in self._threads) and not self._errors and time.monotonic() < due_s:
            time.sleep(LOOK_S)
        if self._errors:
            raise RuntimeError("a member failed") from self._errors[0]
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError("a member hangs")

    def _train(self, member: int, task: Task, algorithm: Any, group: VolatileGroup, span: Span) -> None:
        optimizer = self._inner(task)
        for step in span.each(optimizer):
            loss = tasks.loss_of(task, task.model, seed=self._seed, step=step, rank=member)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            with algorithm.step():
                optimizer.step()
            self._heard(member, algorithm, group)
        if "global" in (state := algorithm.state_dict()):
            tasks.put(task.model, state["global"])
        else:
            algorithm.finish()


def trained(
    make: Make, members: int, seed: int, span: Span, *, inner: Inner = adamw, begin: torch.Tensor | None = None
) -> Task:
    """What the first of so many members has trained, of global parameters where there are such."""
    together = Members(make, seed=seed, inner=inner, begin=begin)
    found = [together.start(member, span, of=members) for member in range(members)]
    together.join()
    return found[0]


def loss_of(make: Make, members: int, seed: int, steps: int) -> float:
    """The loss of that after the second half of a training."""
    task = trained(make, members, seed, second_half(steps), begin=pretrained(members, seed, steps))
    return tasks.evaluated(TASK, task, seed)


def diloco(every: int, **options: Any) -> Make:
    """DiLoCo as it is, but for these."""
    return lambda model: volatile.DiLoCo(model.parameters(), every=every, **options)


def streaming(every: int, **options: Any) -> Make:
    """Streaming DiLoCo in three fragments, whose interval of ten steps has room for an overlap of five."""
    return lambda model: volatile.StreamingDiLoCo(model.parameters(), every=every, fragments=3, **options)


@functools.cache
def diloco_loss(every: int, members: int, seed: int, steps: int, *, outer_rate: float = 0.7) -> float:
    """The loss of DiLoCo, for the checks that compare with it."""
    return loss_of(diloco(every, outer_rate=outer_rate), members, seed, steps)


def streaming_of_diloco(overlap: int, seed: int, steps: int) -> float:
    """Streaming DiLoCo's loss by that of DiLoCo with the same outer rate: only fragments and overlap differ."""
    found = loss_of(streaming(30, overlap=overlap), 2, seed, steps)
    return found / diloco_loss(30, 2, seed, steps, outer_rate=0.4)


MEAN = {"outer_rate": 1.0, "outer_momentum": 0.0}
"""Of an outer optimiser that takes the mean as it is."""


def alone(seed: int, steps: int) -> float:
    """The largest difference of a parameter."""
    mine, plain = trained(diloco(1, **MEAN), 1, seed, Span(FEW_STEPS)), ddp(1, seed, Span(FEW_STEPS))
    return float((tasks.flat(mine.model) - tasks.flat(plain.model)).abs().max())


def as_ddp(seed: int, steps: int) -> float:
    """The norm of the difference of all parameters, by their norm."""
    few = Span(FEW_STEPS)
    mine, theirs = trained(diloco(1, **MEAN), 4, seed, few, inner=sgd), ddp(4, seed, few, inner=sgd)
    found, expected = tasks.flat(mine.model), tasks.flat(theirs.model)
    return float((found - expected).norm() / expected.norm())


class HalfDropped(volatile.DiLoCo):
    """DiLoCo in which each member's part of each round is lost at random; it goes on as the others do.

    All draw the same numbers for all `members`, so all know who is left. Where nobody is, nobody is dropped.
    """

    def __init__(self, model: nn.Module, *, every: int, seed: int, members: int) -> None:
        super().__init__(model.parameters(), every=every)
        self._dice, self._members = np.random.default_rng(seed), members

    @property
    def _group(self) -> Any:
        return _Dropping(super()._group, self._dice.random(self._members) >= DROPPED)


class _Dropping:
    """A group in whose next step only those take part that are drawn: by number, as `Members` names them."""

    def __init__(self, group: VolatileGroup, left: npt.NDArray[np.bool_]) -> None:
        self._group, self._left = group, left

    def all_reduce(self, weighted: list[torch.Tensor], *, quorum: int = 0) -> Committed:
        """The weighted mean of those that are left."""
        if self._left.any() and not self._left[int(self._group.member.name.removeprefix("m"))]:
            for one in weighted:
                one.zero_()
        return self._group.all_reduce(weighted, quorum=quorum)


def half_dropped(seed: int, steps: int) -> float:
    """Perplexity of DiLoCo's with all parts."""

    def make(model: nn.Module) -> Any:
        return HalfDropped(model, every=30, seed=seed, members=8)

    return math.exp(loss_of(make, 8, seed, steps) - diloco_loss(30, 8, seed, steps))


@functools.cache
def coming_and_going(seed: int, steps: int) -> tuple[float, float]:
    """Three members stay, a fourth is there in every other five rounds.

    Returns:
        How many commits left two members with different bits, and the loss of that of four members that train as much.
    """
    every = 10
    rounds = steps // every
    told: dict[int, set[bytes]] = {}
    trained_by: dict[int, int] = {}
    lock, moved = threading.Lock(), threading.Condition()

    def heard(member: int, algorithm: Any, group: VolatileGroup) -> None:
        met = algorithm.last
        if met is None or met.step in heard_of.setdefault(member, set()):
            return
        heard_of[member].add(met.step)
        state = algorithm.state_dict()
        bits = hashlib.blake2b(state["global"].numpy().tobytes() + state["buffer"].numpy().tobytes()).digest()
        with lock:
            told.setdefault(met.step, set()).add(bits)
            trained_by[met.step] = len(met.members)
        if member == 0:
            with moved:
                moved.notify_all()

    heard_of: dict[int, set[int]] = {}
    together = Members(diloco(every), seed=seed, heard=heard)

    def at(number: int) -> Callable[[], None]:
        def wait() -> None:
            with moved:
                if not moved.wait_for(lambda: len(heard_of.get(0, ())) >= number, MEMBER_S_MAX):
                    raise RuntimeError("the others do not go on")

        return wait

    first = together.start(0, Span(steps), of=3)
    for member in (1, 2):
        together.start(member, Span(steps), of=3)
    for guest, number in enumerate(range(ROUNDS_BETWEEN, rounds - ROUNDS_BETWEEN, 2 * ROUNDS_BETWEEN), 3):
        together.start(guest, Span(ROUNDS_BETWEEN * every), wait=at(number))
    together.join()
    differing = sum(len(bits) > 1 for bits in told.values())
    as_much = round(sum(trained_by.values()) / 4) * every
    steady = tasks.evaluated(TASK, trained(diloco(every), 4, seed, Span(as_much)), seed)
    return float(differing), tasks.evaluated(TASK, first, seed) / steady


def merged_norm(seed: int, steps: int) -> float:
    """The norm of the merge of n orthogonal changes apart from theirs, at most, over n from 2 to 16."""
    source, found = np.random.default_rng(seed), 0.0
    for members in range(2, 17):
        directions, _ = np.linalg.qr(source.standard_normal((256, members)))
        changes = [np.ascontiguousarray(one, np.float32) for one in directions.T]
        total: outer.Vector = np.stack([outer.unit(one) for one in changes]).sum(axis=0, dtype=np.float32)
        merged = outer.radial_directional(total, sum(map(outer.norm, changes)), float(members))
        found = max(found, abs(outer.norm(merged) - 1.0))
    return found


@functools.cache
def ring(size: int, seed: int) -> tuple[float, float]:
    """Members of a ring exchange after each step of noise, as gradients are.

    Returns:
        A2CiD2's mean squared distance to the mean by plain gossip's; and how much the exchanges change the sum of all.
    """
    line = [[min((one - two) % size, (two - one) % size) for two in range(size)] for one in range(size)]
    made = gossip.ring(line)
    momentum = gossip.pace(made.edges, size=size)
    distances, changed = [], 0.0
    for pace in (momentum, gossip.Pace(kept=1.0, pull=0.5)):
        source = torch.Generator().manual_seed(seed)
        members = [Fragment([nn.Parameter(torch.zeros(256))]) for _ in range(size)]
        ahead = [torch.zeros(256) for _ in range(size)]
        total = 0.0
        for event in range(EVENTS * size):
            for one in members:
                one.add(0.1 * torch.randn(256, generator=source))
            for one, shadow in zip(members, ahead, strict=True):
                approach(one, shadow, pace)
            before = torch.stack([one.read() for one in members])
            for rank, one in enumerate(members):
                partner = made.partner(rank, event)
                if partner is not None:
                    exchanged(one, ahead[rank], before[partner] - before[rank], pace)
            after = torch.stack([one.read() for one in members])
            changed = max(changed, float((after.sum(0) - before.sum(0)).norm() / before.norm()))
            total += float((after - after.mean(0)).square().mean())
        distances.append(total)
    return distances[0] / distances[1], changed


def lossless(seed: int, steps: int) -> float:
    """Streaming DiLoCo's loss with 4 bits by that with float32."""
    return loss_of(streaming(30), 2, seed, steps) / loss_of(streaming(30, compression=""), 2, seed, steps)


CHECKS: Mapping[str, Callable[[int, int], float]] = {
    "alone": alone,
    "as DDP": as_ddp,
    "DiLoCo 30": lambda seed, steps: diloco_loss(30, 2, seed, steps) / ddp_loss(2, seed, steps),
    "DiLoCo 100": lambda seed, steps: diloco_loss(100, 4, seed, steps) / ddp_loss(4, seed, steps),
    "streaming 1": lambda seed, steps: streaming_of_diloco(1, seed, steps),
    "streaming 5": lambda seed, steps: streaming_of_diloco(5, seed, steps),
    "4 bit": lossless,
    "half dropped": half_dropped,
    "bits": lambda seed, steps: coming_and_going(seed, steps)[0],
    "coming and going": lambda seed, steps: coming_and_going(seed, steps)[1],
    "merged norm": merged_norm,
    "ring of 8": lambda seed, steps: ring(8, seed)[0],
    "ring of 16": lambda seed, steps: ring(16, seed)[0],
    "sum": lambda seed, steps: max(ring(8, seed)[1], ring(16, seed)[1]),
}


def check(order: Order, begun: Begun) -> Mapping[str, Any]:
    """Carry out a check with a seed."""
    begin_cpu_s = cpu_s()
    value = CHECKS[order["check"]](order["seed"], order["steps"])
    return {"value": value, "cpu_s": cpu_s() - begin_cpu_s}


def main() -> None:
    """`python -m tools.volatilebench.programs.checks`: carry out orders until standard input ends."""
    torch.set_num_threads(1)
    serve({"check": check})


if __name__ == "__main__":
    main()

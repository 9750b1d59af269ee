"""Members of a volatile group as threads of one process, which train one small model on batches of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from patience import wait_until
from torch_ranks import DEVICE

from hive_qos.errors import EvictedError
from integrations.volatile.algorithm import Algorithm
from transport.settings import Settings
from transport.volatile.group import VolatileGroup
from transport.volatile.register.register import MemoryStore, Register

SETTINGS = Settings(listen="127.0.0.1", broker="off")


def register() -> Register:
    return Register(MemoryStore(), job="j", secret=b"0123456789abcdef")


def model(width: int = 32) -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)).to(DEVICE)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(number)
    return torch.randn(4, 16, generator=source).to(DEVICE), torch.randn(4, 1, generator=source).to(DEVICE)


def flat(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1).cpu() for one in network.parameters()])


def learn(network: torch.nn.Module, inner: torch.optim.Optimizer, number: int) -> None:
    """The gradients of a batch; `inner` is to step."""
    inputs, targets = batch(number)
    inner.zero_grad()
    torch.nn.functional.mse_loss(network(inputs), targets).backward()


def train(
    algorithm: Algorithm,
    network: torch.nn.Module,
    inner: torch.optim.Optimizer,
    where: Register,
    *,
    rank: int = 0,
    size: int = 1,
    steps: int = 6,
    after: Callable[[VolatileGroup], None] = lambda group: None,
) -> None:
    """Join as one of `size` members, train on every `size`-th batch, call `after`, and leave."""
    with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS) as group:
        for number in range(steps):
            learn(network, inner, number * size + rank)
            with algorithm.step():
                inner.step()
        after(group)


def train_on_unequal_batches(
    make: Callable[[torch.nn.Module, torch.optim.Optimizer], Algorithm],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Two members take one and three examples of each batch: what both end with, and who trains on all alone."""
    where, parts, steps, width = register(), (slice(0, 1), slice(1, 4)), 4, 1024
    networks = [model(width) for _ in parts]

    def run(rank: int) -> None:
        inner = torch.optim.SGD(networks[rank].parameters(), lr=0.002)
        algorithm = make(networks[rank], inner)
        with algorithm.join(where, name=f"member-{rank}", members_min=len(parts), settings=SETTINGS):
            for number in range(steps):
                inputs, targets = (one[parts[rank]] for one in batch(number))
                inner.zero_grad()
                torch.nn.functional.mse_loss(networks[rank](inputs), targets).backward()
                with algorithm.step(tokens=len(inputs)):
                    inner.step()

    in_threads(len(parts), run)
    whole = model(width)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.002)
    for number in range(steps):
        learn(whole, optimizer, number)
        optimizer.step()
    return [flat(one) for one in networks], flat(whole)


def in_threads(size: int, run: Callable[[int], None]) -> None:
    """Run a thread for each rank; what the first one raises is raised."""
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:  # noqa: BLE001 - shown in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(size)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(100.0)
    if errors:
        raise errors[0]
    assert not any(one.is_alive() for one in threads)


def adamw(network: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=1e-2)


def sgd(network: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.1)


def step_once(network: torch.nn.Module, inner: torch.optim.Optimizer, algorithm: Algorithm) -> None:
    """A step of training that may be made any number of times."""
    learn(network, inner, 7)
    with algorithm.step(tokens=4):
        inner.step()


def step_until(ended: threading.Event, step: Callable[[], object], *, pause_s: float) -> None:
    """Make steps until somebody else has ended. Who was behind by then is told so: nobody is left to give it more."""
    try:
        wait_until(lambda: ended.is_set() or step(), pause_s=pause_s, limit_s=90.0)
    except EvictedError:
        assert ended.is_set()


def step_beside_a_slower_one(
    group: VolatileGroup,
    step: Callable[[], None],
    *,
    slower: bool,
    size: int,
    enough: Callable[[], bool],
    ended: threading.Event,
) -> None:
    """Make steps, once `size` members are there, until `enough` holds for the slower one, which takes twice as long."""
    wait_until(lambda: len(group.view.members) == size or step(), pause_s=0.05)
    if not slower:
        step_until(ended, step, pause_s=0.05)
        return
    for _ in range(8):  # until they know how long arrivals take
        step()
    wait_until(lambda: step() or enough(), pause_s=0.09)
    ended.set()

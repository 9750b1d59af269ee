"""Members of AsyncDiLoCo wait for nobody, and hold the same global parameters all the same."""

from __future__ import annotations

import threading

import torch
from patience import wait_until
from volatile_members import SETTINGS, flat, in_threads, learn, model, register, sgd, step_once

from integrations.volatile import AsyncDiLoCo

SIZE = 2


def test_an_async_member_that_is_stuck_in_a_step_keeps_nobody_from_training_or_merging() -> None:
    networks, where = [model() for _ in range(SIZE)], register()
    algorithms = [AsyncDiLoCo(one.parameters(), every=4, fragments=2) for one in networks]
    both, stuck = threading.Barrier(SIZE), threading.Event()
    ends: list[torch.Tensor] = []

    def run(rank: int) -> None:
        network, algorithm = networks[rank], algorithms[rank]
        inner = sgd(network)
        with algorithm.join(where, name=f"member-{rank}", members_min=SIZE, settings=SETTINGS) as group:
            for number in range(4):
                learn(network, inner, number)
                with algorithm.step(tokens=4):
                    inner.step()
            both.wait(60.0)
            if rank == 1:
                with algorithm.step(tokens=4):
                    assert stuck.wait(60.0)
            else:
                before = group.step
                wait_until(lambda: step_once(network, inner, algorithm) or group.step > before + 2)
                stuck.set()
            algorithm.finish()
            ends.append(algorithm.state_dict()["global"])

    in_threads(SIZE, run)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    assert not torch.equal(ends[0], flat(model()))

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


def test_async_members_hold_the_same_global_bits_after_each_merge_and_who_comes_later_too() -> None:
    size, where = 3, register()
    networks = [model() for _ in range(size)]
    algorithms = [AsyncDiLoCo(one.parameters(), every=2, fragments=2) for one in networks]
    seen: list[dict[int, bytes]] = [{} for _ in range(size)]
    begun = threading.Event()

    def run(rank: int) -> None:
        algorithm, step = algorithms[rank], algorithms[rank]._step

        def recorded(*arguments: object) -> None:
            step(*arguments)  # type: ignore[arg-type]
            state = algorithm.state_dict()
            seen[rank][state["rounds"]] = b"".join(state[name].numpy().tobytes() for name in ("global", "buffer"))

        algorithm._step = recorded  # type: ignore[method-assign, assignment]
        if rank == 2:
            assert begun.wait(60.0)
        inner = sgd(networks[rank])
        with algorithm.join(where, name=f"member-{rank}", settings=SETTINGS):
            wait_until(lambda: step_once(networks[rank], inner, algorithm) or len(seen[rank]) >= 6)
            begun.set()
            wait_until(lambda: step_once(networks[rank], inner, algorithm) or len(seen[2]) >= 6)

    in_threads(size, run)
    everybody = set(seen[0]) & set(seen[1]) & set(seen[2])
    assert len(everybody) >= 4
    for number in set(seen[0]) | set(seen[1]) | set(seen[2]):
        assert len({one[number] for one in seen if number in one}) == 1, number

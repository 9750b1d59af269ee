"""Members of AsyncDiLoCo wait for nobody, and hold the same global parameters all the same."""

from __future__ import annotations

import threading
import time

import pytest
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
                wait_until(lambda: step_once(network, inner, algorithm) or group.step > before + 2, pause_s=0.01)
                stuck.set()
            algorithm.finish()
            ends.append(algorithm.state_dict()["global"])

    in_threads(SIZE, run)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    assert not torch.equal(ends[0], flat(model()))


@pytest.mark.parametrize("size", [2, 3])
def test_async_members_train_on_while_no_merge_comes_to_an_end(size: int, caplog: pytest.LogCaptureFixture) -> None:
    networks, where, begins = [model() for _ in range(size)], register(), threading.Event()
    merged, first = threading.Barrier(size), threading.Event()
    ends: list[torch.Tensor] = []

    def run(rank: int) -> None:
        network = networks[rank]
        inner, algorithm = sgd(network), AsyncDiLoCo(network.parameters(), every=2, fragments=2)
        assert rank == 0 or first.wait(60.0)  # who joins gets the state of one that trains
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS, timeout_s=0.3):
            first.set()
            if rank == size - 1:
                assert begins.wait(60.0)  # as one that compiles, or downloads what it learns from
            else:
                until_s = time.monotonic() + 2.0  # several times what a merge may take
                wait_until(lambda: step_once(network, inner, algorithm) or time.monotonic() > until_s, pause_s=0.01)
                assert "nothing is merged, and training goes on" in caplog.text
                begins.set()
            wait_until(lambda: step_once(network, inner, algorithm) or algorithm.state_dict()["rounds"], pause_s=0.01)
            merged.wait(60.0)
            algorithm.finish()
            ends.append(algorithm.state_dict()["global"])

    in_threads(size, run)
    assert caplog.text.count("nothing is merged, and training goes on") <= 2 * size
    assert all(torch.equal(ends[0], one) for one in ends)


def test_what_comes_too_late_for_an_async_merge_is_in_a_later_one() -> None:
    size, where = 3, register()
    parameters = [torch.nn.Parameter(torch.zeros(10)) for _ in range(size)]
    algorithms = [
        AsyncDiLoCo(
            [one], every=1, fragments=1, embeddings=[one], outer_rate=1.0, outer_momentum=0.0, compression="", quorum=2
        )
        for one in parameters
    ]
    missed, ended = threading.Event(), threading.Barrier(size)

    def run(rank: int) -> None:
        algorithm, parameter = algorithms[rank], parameters[rank]
        contribution, late = algorithm._contribution, []

        def slowly(*arguments: object) -> object:
            """The last member's parts come late, until it was left out."""
            if rank == size - 1 and not missed.is_set() and algorithm._rounds > 40:
                time.sleep(0.3)
                late.append(algorithm._rounds)
            return contribution(*arguments)  # type: ignore[arg-type]

        algorithm._contribution = slowly  # type: ignore[method-assign, assignment]
        with algorithm.join(where, name=f"member-{rank}", members_min=size, settings=SETTINGS):
            while not missed.is_set():
                with algorithm.step(), torch.no_grad():
                    parameter.add_(1.0)
                time.sleep(0.005)  # or training would leave the merges' threads little of the interpreter
                if late and algorithm.last is not None and not algorithm.last.contributed:
                    missed.set()
            algorithm.finish()
            ended.wait(60.0)

    in_threads(size, run)
    assert all(torch.equal(one, parameters[0]) for one in parameters)
    assert not any(any(one._steps) for one in algorithms)  # all that was learned is merged


def test_a_rest_between_two_steps_is_no_slow_step_and_merged_snapshots_are_let_go() -> None:
    network = model()
    algorithm = AsyncDiLoCo(network.parameters(), every=8, fragments=2)
    inner = sgd(network)
    with algorithm.join(register(), name="alone", settings=SETTINGS) as group:
        assert algorithm._steps_per_s() == 0.0
        wait_until(lambda: group.step > 4 or step_once(network, inner, algorithm), pause_s=0.01)
        assert len(algorithm._snapshots) <= 2
        for rest_s in (0.0, 60.0):  # as for an evaluation, behind which one step was made
            algorithm._times_s.clear()
            algorithm._times_s.extend([*(0.5 * number for number in range(10)), 4.5 + rest_s, 5.0 + rest_s])
            assert algorithm._steps_per_s() == 2.0


def test_only_steps_that_may_be_the_last_before_a_merge_leave_a_snapshot() -> None:
    network = model()
    algorithm = AsyncDiLoCo(network.parameters(), every=10_000, fragments=2)
    inner = sgd(network)
    with algorithm.join(register(), name="alone", settings=SETTINGS):
        for due_in_s, left in ((3600.0, []), (0.5, [0])):
            now_s = time.monotonic()
            algorithm._times_s.extend(now_s - before_s for before_s in (3.0, 2.0, 1.0))  # steps of a second
            algorithm._due_s = now_s + due_in_s
            step_once(network, inner, algorithm)
            assert list(algorithm._snapshots) == left
        algorithm._begun += 1  # that of the first fragment
        step_once(network, inner, algorithm)
        assert list(algorithm._snapshots) == [0, 1]

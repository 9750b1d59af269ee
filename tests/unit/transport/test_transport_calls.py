"""What a caller may do with an operation: wait for less, await it, hang callbacks on it; and what is misuse."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from hive_qos.errors import MisuseError, TimedOutError
from transport import Group, ReduceOp


def test_waiting_for_less_than_it_takes_leaves_the_operation_running(make_world):
    world = make_world(2)
    tensor = np.ones(4)
    work = world.groups[0].allreduce(tensor)
    with pytest.raises(TimedOutError):
        work.wait(0.01)
    world.groups[1].allreduce(np.ones(4)).wait(30)
    work.wait(30)
    assert tensor.tolist() == [2.0] * 4


def test_await_and_async_with(make_world):
    world = make_world(2)

    def body(group: Group) -> list[float]:
        async def main() -> list[float]:
            tensor = np.ones(3) * (group.rank + 1)
            await asyncio.gather(*(asyncio.ensure_future(_await(group.allreduce(tensor))) for _ in range(1)))
            async with group:
                await group.barrier()
            return tensor.tolist()

        return asyncio.run(main())

    async def _await(work):
        return await work

    assert world.results(body) == [[3.0] * 3] * 2


def test_a_callback_is_called_once_even_when_it_raises(make_world, caplog):
    world = make_world(2)
    called = []

    def bad(work):
        called.append(work)
        raise ValueError("a bug of the caller")

    def body(group: Group) -> None:
        work = group.barrier()
        work.add_done_callback(bad)
        work.wait(30)
        work.add_done_callback(called.append)
        group.barrier().wait(30)

    world.results(body)
    assert len(called) == 4


def test_waiting_in_a_callback_is_misuse_and_not_a_deadlock(make_world):
    world = make_world(2)
    caught = []

    def wait_for_another(_work):
        try:
            world.groups[0].barrier().wait()
        except MisuseError as error:
            caught.append(error)

    works = [group.barrier() for group in world.groups]
    works[0].add_done_callback(wait_for_another)
    works[1].wait(30)
    world.groups[1].barrier().wait(30)
    assert len(caught) <= 1  # called at once, in this thread, where the barrier had ended already
    late = world.groups[0].recv(None, 1)
    late.add_done_callback(wait_for_another)
    world.groups[1].send(np.ones(1), 0).wait(30)
    late.wait(30)
    world.groups[1].barrier().wait(30)
    assert caught


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda group: group.allreduce([1, 2]), "no tensor"),
        (lambda group: group.allreduce(b"bytes"), "read-only"),
        (lambda group: group.allreduce(np.zeros(3, "?"), ReduceOp.MEAN), "mean of bool"),
        (lambda group: group.allreduce(np.zeros(3, "c8"), ReduceOp.MAX), "no order"),
        (lambda group: group.allreduce(np.zeros(3), ReduceOp.BXOR), "integers or bool"),
        (lambda group: group.broadcast(np.zeros(3), 2), "ranks 0 to 1"),
        (lambda group: group.all_gather(np.zeros(5), np.zeros(3)), "5 elements"),
        (lambda group: group.all_gather([np.zeros(5)], np.zeros(5)), "as many tensors"),
        (lambda group: group.all_gather([np.zeros(4), np.zeros(4)], np.zeros(3)), "keeps"),
        (lambda group: group.gather(None, np.zeros(3), group.rank), "must pass the list"),
        (lambda group: group.all_to_all([np.zeros(3), np.zeros(3, "i4")], [np.zeros(3)] * 2), "different dtypes"),
        (lambda group: group.reduce_scatter(np.zeros(3), [np.zeros(2)] * 2), "they differ"),
        (lambda group: group.send(np.zeros(3), 5), "ranks 0 to 1"),
        (lambda group: group.send(np.zeros(3), group.rank), "with itself"),
        (lambda group: group.recv(None, 1 - group.rank, -1), "a tag is a number"),
        (lambda group: group.subgroup([0, 0]), "distinct"),
        (lambda group: group.subgroup([0, 1], name="w"), "already"),
        (lambda group: group.subgroup([0, 1], name="x" * 100), "at most"),
    ],
)
def test_what_the_caller_does_wrong_is_said_at_once(make_world, call, text):
    world = make_world(2)
    with pytest.raises(MisuseError, match=text):
        call(world.groups[0])
    world.results(lambda group: group.barrier().wait(30))

"""Ranks that do not call the same thing: each learns at once what it called and what the others did."""

from __future__ import annotations

import numpy as np
import pytest
from patience import LIMIT_S, wait_until

from hive_qos.errors import PeerError
from transport import Group, ReduceOp
from transport.collectives import calls
from transport.collectives.in_flight import LATE_STEPS

CHUNK = 4096
"""Bytes; sizes that are multiples of it are cut into chunks that look alike on every rank."""
ELEMS = CHUNK // 4


def zeros(elems: int, dtype: str = "f4") -> np.ndarray:
    return np.zeros(elems, dtype)


DISAGREEMENTS = {
    "reduction": (
        lambda group: group.allreduce(zeros(10), [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.SUM][group.rank]),
        ("allreduce sum of 10 float32", "allreduce max of 10 float32"),
    ),
    "reduction of a large one": (
        lambda group: group.allreduce(zeros(50_000), [ReduceOp.SUM, ReduceOp.SUM, ReduceOp.MEAN][group.rank]),
        ("allreduce sum of 50000 float32", "allreduce mean of 50000 float32"),
    ),
    "dtype of one size": (
        lambda group: group.allreduce(zeros(10, ["f4", "i4", "f4"][group.rank])),
        ("allreduce sum of 10 float32", "allreduce sum of 10 int32"),
    ),
    "root of a broadcast": (
        lambda group: group.broadcast(zeros(10), [0, 1, 0][group.rank]),
        ("broadcast from 0", "broadcast from 1"),
    ),
    "root of a reduce": (
        lambda group: group.reduce(zeros(10), [0, 0, 1][group.rank]),
        ("reduce sum to 0", "reduce sum to 1"),
    ),
    "size of a broadcast, at chunks": (
        lambda group: group.broadcast(zeros([32, 32, 16][group.rank] * ELEMS), 0),
        (f"of {32 * ELEMS} float32", f"of {16 * ELEMS} float32"),
    ),
    "size of a broadcast, the other way": (
        lambda group: group.broadcast(zeros([16, 32, 16][group.rank] * ELEMS), 0),
        (f"of {32 * ELEMS} float32", f"of {16 * ELEMS} float32"),
    ),
    "size of what is gathered": (
        lambda group: group.gather(
            [zeros(2 * ELEMS)] * 3 if group.rank == 0 else None, zeros([2, 2, 4][group.rank] * ELEMS), 0
        ),
        (f"{2 * ELEMS} elements", f"{4 * ELEMS} elements"),
    ),
    "size of what is exchanged": (
        lambda group: (
            group.all_to_all([zeros(ELEMS)] * 3, [zeros(ELEMS) for _ in range(2)] + [zeros(ELEMS)])
            if group.rank
            else group.all_to_all([zeros(ELEMS)] * 3, [zeros(ELEMS), zeros(2 * ELEMS), zeros(ELEMS)])
        ),
        (f"{ELEMS} elements", f"{2 * ELEMS} elements"),
    ),
    "parts of a reduce-scatter": (
        lambda group: group.reduce_scatter(
            zeros([1, 2, 1][group.rank]), [zeros(1), zeros(2 if group.rank == 1 else 1), zeros(1)]
        ),
        ("reduce-scatter sum of 1+1+1", "reduce-scatter sum of 1+2+1"),
    ),
    "compression": (
        lambda group: group.allreduce(zeros(50_000), compression=["int8", "int8", ""][group.rank]),
        ("allreduce sum of 50000 float32 as int8", "called allreduce sum of 50000 float32"),
    ),
    "compression to as many bytes": (
        lambda group: group.allreduce(zeros(50_000), compression=["int8", "int4", "bfloat16"][group.rank]),
        ("float32 as ", "; rank "),
    ),
    "operation": (
        lambda group: group.barrier() if group.rank == 2 else group.allreduce(zeros(10)),
        ("barrier", "allreduce sum of 10 float32"),
    ),
}


def until_told(group: Group) -> None:
    """What follows on a rank that was through before it could know: a barrier, or a few, until one says it.

    A barrier tells that all have begun it, not that they have read what was sent to them before.
    """
    for _ in range(LATE_STEPS // 2):
        group.barrier().wait(LIMIT_S)


@pytest.mark.parametrize("kind", DISAGREEMENTS)
def test_every_rank_learns_both_calls_at_once(make_world, kind):
    call, words = DISAGREEMENTS[kind]
    world = make_world(3, chunk_bytes=CHUNK)

    def body(group: Group) -> None:
        call(group).wait(LIMIT_S)
        until_told(group)

    for result in world.run(body):
        assert isinstance(result, PeerError), result
        assert all(word in str(result) for word in words), result


def test_sizes_that_differ_between_ranks_are_named_on_every_rank(make_world):
    world = make_world(2)

    def body(group: Group) -> object:
        return group.all_gather(np.zeros(2 * (5 + group.rank), "f4"), np.zeros(5 + group.rank, "f4")).wait(LIMIT_S)

    for _ in range(5):  # whoever posts first
        for error in world.run(body):
            assert isinstance(error, PeerError), error
            assert all(size in str(error) for size in ("5+5 float32", "6+6 float32")), error


def test_dtypes_that_differ_between_ranks_are_named(make_world):
    world = make_world(2)
    results = world.run(lambda group: group.allreduce(np.zeros(8, ["f4", "i4"][group.rank])).wait(LIMIT_S))
    assert any(isinstance(one, PeerError) and "float32" in str(one) and "int32" in str(one) for one in results)


def test_ranks_that_call_different_collectives_learn_it(make_world):
    world = make_world(2)

    def body(group: Group) -> object:
        tensor = np.zeros(8, "f4")
        return (group.allreduce(tensor) if group.rank else group.broadcast(tensor, 0)).wait(LIMIT_S)

    results = world.run(body)
    assert any(isinstance(one, PeerError) and "broadcast" in str(one) and "allreduce" in str(one) for one in results)


def names_both(error: PeerError) -> bool:
    """Whoever sees the other's message first says it, and names the other first: either order is right."""
    return all(f"rank {rank} called broadcast from {rank}" in str(error) for rank in (0, 1))


def test_a_rank_that_ended_before_it_could_know_is_told_at_its_next_operation_and_once(make_world):
    world = make_world(2)
    world.groups[0].broadcast(zeros(10), 0).wait(LIMIT_S)
    with pytest.raises(PeerError) as caught:
        world.groups[1].broadcast(zeros(10), 1).wait(LIMIT_S)
    assert names_both(caught.value)
    # Else it might begin the next one first, and with what that sends rank 1 ends well, as rank 0 has done here.
    runtime = world.groups[0]._runtime
    wait_until(lambda: runtime._in_flight._found_late)
    with pytest.raises(PeerError) as caught:
        world.groups[0].allreduce(zeros(10), timeout_s=60.0).wait(LIMIT_S)
    assert names_both(caught.value)
    late = world.run(
        lambda group: None if group.rank == 0 else group.allreduce(zeros(10), timeout_s=60.0).wait(LIMIT_S)
    )[1]
    assert "broadcast from 1" in str(late)
    assert world.run(lambda group: group.allreduce(np.ones(1)).wait(LIMIT_S)) == [None, None]


def test_what_is_said_of_a_group_that_is_not_there_yet_is_remembered(make_world):
    world = make_world(2)
    early = world.groups[0].subgroup([0, 1], name="later").broadcast(zeros(10), 0)
    early.wait(LIMIT_S)
    sub = world.groups[1].subgroup([0, 1], name="later")
    with pytest.raises(PeerError, match="rank 0 called broadcast from 0"):
        sub.broadcast(zeros(10), 1).wait(LIMIT_S)


def test_sizes_in_words_are_short_and_differ_when_the_sizes_do():
    many = list(range(10_000))
    words = {calls._sizes(sizes) for sizes in ([5], [5, 5], [5, 6], many, many[::-1], [*many[:-1], 0])}
    assert len(words) == 6
    assert max(map(len, words)) < 64

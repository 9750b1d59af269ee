"""Compression as groups offer it: defaults, what is kept between calls, what is dropped."""

from __future__ import annotations

import numpy as np
import pytest

from hive_qos.errors import HiveError, MisuseError
from transport import Group, ReduceOp
from transport.collectives import error_feedback
from transport.collectives.error_feedback import ErrorFeedback

ELEMS = 20_000


def gradient(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(ELEMS).astype("f4")


TOTAL = gradient(0) + gradient(1) + gradient(2)


def test_a_residual_is_taken_by_one_operation_at_a_time_and_forgotten_with_its_size():
    kept = ErrorFeedback()
    residual = kept.take("a", 10)
    assert not residual.any()
    residual[:] = 1
    kept.keep("a", residual)
    assert kept.take("a", 10) is residual
    assert not kept.take("a", 10).any()
    kept.keep("a", residual)
    assert not kept.take("a", 11).any()


def test_the_residuals_that_were_not_used_for_longest_are_dropped(monkeypatch):
    monkeypatch.setattr(error_feedback, "KEPT_BYTES_MAX", 100)
    kept = ErrorFeedback()
    for key in range(4):
        kept.keep(key, np.ones(10, np.float32))
    kept.keep(3, np.ones(10, np.float32))
    assert [bool(kept.take(key, 10).any()) for key in range(4)] == [False, False, True, True]


def test_a_group_s_compression_is_the_default_of_its_calls(make_world):
    world = make_world(3)

    def body(group: Group) -> list[np.ndarray]:
        some = group.subgroup([0, 1, 2], compression="int8")
        results = []
        for compression in (None, "", "bfloat16"):
            tensor = gradient(group.rank)
            some.allreduce(tensor, compression=compression).wait(30)
            results.append(tensor)
        return results

    ranks = world.results(body)
    by_default, exact, other = ranks[0]
    assert all(
        mine.tobytes() == theirs.tobytes() for rank in ranks for mine, theirs in zip(rank, ranks[0], strict=True)
    )
    assert np.array_equal(exact, TOTAL)
    assert 0 < np.abs(by_default - TOTAL).max() < 0.2
    assert not np.array_equal(by_default, other)


def test_feedback_makes_up_for_what_was_left_out_and_goes_by_its_name(make_world):
    world = make_world(3, algorithm="direct")

    def mean(group: Group, names: list[object]) -> np.ndarray:
        total = np.zeros(ELEMS)
        for name in names:
            tensor = gradient(group.rank)
            group.allreduce(tensor, ReduceOp.SUM, compression="int4", feedback=name).wait(30)
            total += tensor
        return total / len(names)

    off = {
        what: np.abs(world.results(lambda group, names=names: mean(group, names))[0] - TOTAL).max()
        for what, names in {"none": [None] * 16, "others": list(range(16)), "one": ["a"] * 16}.items()
    }
    assert off["none"] == off["others"]
    assert off["one"] < off["none"] / 4


def test_feedback_of_a_reduce_scatter_makes_up_for_what_was_left_out(make_world):
    world = make_world(3, algorithm="direct")
    elems = ELEMS // 3 * 3

    def mean(group: Group, name: object) -> np.ndarray:
        total = np.zeros(elems // 3)
        for _ in range(16):
            output = np.empty(elems // 3, "f4")
            group.reduce_scatter(output, gradient(group.rank)[:elems], compression="int4", feedback=name).wait(30)
            total += output
        return total / 16

    wanted = np.split(TOTAL[:elems], 3)
    off = {
        name: max(np.abs(one - part).max() for one, part in zip(world.results(body), wanted, strict=True))
        for name, body in ((name, lambda group, name=name: mean(group, name)) for name in (None, "a"))
    }
    assert 0 < off["a"] < off[None] / 4


def test_a_group_s_compression_leaves_what_is_gathered_exact_unless_it_is_asked_for(make_world):
    world = make_world(3)

    def body(group: Group) -> list[np.ndarray]:
        some = group.subgroup([0, 1, 2], compression="int8")
        exact, rounded = np.empty((3, ELEMS), "f4"), np.empty((3, ELEMS), "f4")
        some.all_gather(exact.reshape(-1), gradient(group.rank)).wait(30)
        some.all_gather(rounded.reshape(-1), gradient(group.rank), compression="int8").wait(30)
        return [exact, rounded]

    ranks = world.results(body)
    wanted = np.stack([gradient(rank) for rank in range(3)])
    assert all(np.array_equal(exact, wanted) for exact, _ in ranks)
    assert len({rounded.tobytes() for _, rounded in ranks}) == 1
    assert 0 < np.abs(ranks[0][1] - wanted).max() <= np.abs(wanted).max() / 254 + 1e-6


def test_ranks_that_compress_what_they_scatter_differently_are_told(make_world):
    world = make_world(2)

    def body(group: Group) -> str:
        output, codec = np.empty(ELEMS // 2, "f4"), ["int8", ""][group.rank]
        with pytest.raises(HiveError) as raised:
            group.reduce_scatter(output, gradient(group.rank), compression=codec).wait(30)
        return str(raised.value)

    assert any("as int8" in text for text in world.results(body))


def test_an_operation_that_fails_leaves_nothing_to_make_up_for(make_world):
    world = make_world(2)

    def body(group: Group) -> bool:
        for fails in (False, True):
            if fails and group.rank == 1:
                group.give_up("not today")
            else:
                work = group.allreduce(gradient(group.rank), compression="int8", feedback="a")
                if fails:
                    with pytest.raises(HiveError):
                        work.wait(30)
                else:
                    work.wait(30)
        return bool(group._kept.take("a", ELEMS).any())

    assert world.results(body) == [False, True]


def test_an_unknown_compression_is_refused_before_anything_is_sent(make_world):
    world = make_world(2)

    def body(group: Group) -> None:
        with pytest.raises(MisuseError, match="bfloat16, int8, int4, not 'int7'"):
            group.allreduce(np.zeros(4, "f4"), compression="int7")
        with pytest.raises(MisuseError, match="int7"):
            group.subgroup([0, 1], compression="int7")
        group.barrier().wait(30)

    world.results(body)

"""A collective whose input is still on its way into memory sends what is there, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from patience import wait_until

from hive_qos.errors import CancelledError, TimedOutError
from transport import Group, ReduceOp, Work
from transport.collectives import calls
from transport.collectives.algorithms.registry import ALGORITHMS
from transport.collectives.partial_input import PartialInput
from transport.collectives.problem import Operation

ELEMS = 60_000
"""Several chunks of 64 KiB."""
WRONG = 1e9


class Arriving:
    """A tensor of ones of which nothing is there yet."""

    def __init__(self) -> None:
        self.tensor = np.full(ELEMS, WRONG, "f4")
        self.partial = PartialInput(self.tensor.ctypes.data, self.tensor.nbytes, ready_bytes=0)

    def arrive(self, elems: int) -> None:
        """The next `elems` elements."""
        first = ELEMS - (self.partial.missing[1] - self.partial.missing[0]) // 4
        self.tensor[first : first + elems] = 1
        self.partial.reached(4 * (first + elems))

    def allreduce(self, group: Group, compression: str = "", *, timeout_s: float | None = None) -> Work:
        call = calls.allreduce(group.site, self.tensor, ReduceOp.SUM, group.compression(compression, "a name"))
        return group.start([replace(call, partial=self.partial)], timeout_s=timeout_s)[0]


@pytest.mark.parametrize("algorithm", ["", *ALGORITHMS[Operation.ALLREDUCE]])
@pytest.mark.parametrize("compression", ["", "int8"])
def test_the_result_is_as_if_all_had_been_there(make_world, algorithm, compression):
    world = make_world(3, algorithm=algorithm)
    pieces = [[ELEMS], [1, ELEMS - 1], [17_000, 20_000, 23_000]]

    def body(group: Group) -> np.ndarray:
        arriving = Arriving()
        work = arriving.allreduce(group, compression)
        for elems in pieces[group.rank]:
            arriving.arrive(elems)
        work.wait(30)
        return arriving.tensor

    results = world.results(body)
    assert len({result.tobytes() for result in results}) == 1
    assert np.allclose(results[0], 3, rtol=0.02)


def test_what_is_there_is_sent_while_the_rest_is_missing(make_world):
    world = make_world(2, algorithm="direct")
    arriving, other = Arriving(), np.ones(ELEMS, "f4")
    work, theirs = arriving.allreduce(world.groups[0]), world.groups[1].allreduce(other)
    arriving.arrive(ELEMS - 1)
    # All that is sent and received but the chunk with the last element, which rank 1 reduces and sends back.
    total = work.bytes_total
    wait_until(lambda: total - work.bytes_done <= 2 * 64 * 1024, what=lambda: work.bytes_done)
    assert not work.done()
    arriving.arrive(1)
    for one in (work, theirs):
        one.wait(30)
    assert (arriving.tensor == 2).all()
    assert (other == 2).all()


def test_input_that_never_comes_fails_the_collective_on_every_rank_and_the_next_one_works(make_world):
    world = make_world(2, algorithm="direct")
    arriving = Arriving()
    work, theirs = arriving.allreduce(world.groups[0]), world.groups[1].allreduce(np.ones(ELEMS, "f4"))
    arriving.arrive(ELEMS // 2)
    arriving.partial.failed(RuntimeError("an illegal address"))
    for one in (work, theirs):
        with pytest.raises(CancelledError, match="its input could not be read: an illegal address"):
            one.wait(30)
    results = world.results(lambda group: [tensor := np.ones(3), group.allreduce(tensor).wait(30)])
    assert [result[0].tolist() for result in results] == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    ("others_call", "text"),
    [
        (True, "waiting for this rank's own tensor, which has not come"),
        (False, "waiting for rank 1 and this rank's own"),
    ],
    ids=["alone", "beside-a-rank"],
)
def test_a_timeout_names_input_that_has_not_come(make_world, others_call, text):
    world = make_world(2, algorithm="direct")
    arriving = Arriving()
    if others_call:
        theirs = world.groups[1].allreduce(np.ones(ELEMS, "f4"))
    work = arriving.allreduce(world.groups[0], timeout_s=0.5)
    with pytest.raises(TimedOutError, match=re.escape(text)):
        work.wait(30)
    if others_call:
        with pytest.raises(CancelledError, match="own tensor"):
            theirs.wait(30)

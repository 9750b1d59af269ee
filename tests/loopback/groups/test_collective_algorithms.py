"""Every algorithm over real engines and sockets: the same bits on all ranks, and tables that all agree on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from engine_cases import need
from patience import wait_until

from transport import Group, MemoryRendezvous, Settings
from transport.collectives.algorithms.registry import NAMES

RANKS = 4
ELEMS = [1, 5_000, 300_001]
SETTINGS = Settings(listen="127.0.0.1", broker="off", job_secret=b"secret of the test", chunk_bytes=64 * 1024)


@pytest.fixture(params=["native", "aioquic"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Group], Any]], list[Any]]]:
    """Calls a body with the group of each of four ranks, two of which are at another site by name."""
    need(request.param)
    store = MemoryRendezvous()
    with ThreadPoolExecutor(RANKS) as pool:

        def connect(rank: int) -> Group:
            settings = dataclasses.replace(SETTINGS, engine=request.param, site="west" if rank % 2 else "east")
            return Group.connect(store, rank=rank, world_size=RANKS, settings=settings, timeout_s=60.0)

        groups = list(pool.map(connect, range(RANKS)))
        yield lambda body: list(pool.map(body, groups))
        list(pool.map(lambda group: group.close(), groups))


def values(rank: int, elems: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(elems).astype("f4")


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_gives_all_ranks_the_same_results(run, name):
    def body(group: Group) -> list[bytes]:
        forced = group.subgroup(range(RANKS), algorithm=name)
        for _ in range(3):  # until sites are agreed on
            forced.barrier().wait()
        results = []
        for elems in ELEMS:
            reduced, copied = values(group.rank, elems), values(group.rank, elems)
            gathered, part = np.zeros(RANKS * elems, "f4"), np.zeros(elems, "f4")
            works = [
                forced.allreduce(reduced),
                forced.broadcast(copied, 2),
                forced.all_gather(gathered, values(group.rank, elems)),
                forced.reduce_scatter(part, np.concatenate([values(10 * group.rank + i, elems) for i in range(RANKS)])),
            ]
            for work in works:
                work.wait()
            wanted = sum(values(10 * i + group.rank, elems).astype("f8") for i in range(RANKS))
            assert np.allclose(part, wanted, atol=1e-5)
            assert np.allclose(reduced, sum(values(i, elems).astype("f8") for i in range(RANKS)), atol=1e-5)
            assert np.array_equal(copied, values(2, elems))
            assert np.array_equal(gathered, np.concatenate([values(i, elems) for i in range(RANKS)]))
            results.append(reduced.tobytes())
        taken = {(one["operation"], one["algorithm"]) for one in forced.explain()["collectives"]}  # type: ignore[attr-defined]
        assert ("all_reduce", name) in taken or name in ("weighted", "tree")  # equal links, no all-reduce
        return results

    results = run(body)
    assert all(result == results[0] for result in results)


def counted(document: dict[str, Any]) -> int:
    """How many operations a group has counted."""
    return sum(int(one["count"]) for one in document["collectives"])


def test_ranks_agree_on_one_table_while_many_operations_are_under_way(run):
    def body(group: Group) -> str:
        tensors = [np.full(100_000, float(number), "f4") for number in range(40)]
        for work in [group.allreduce(tensor) for tensor in tensors]:
            work.wait()
        assert all((tensor == RANKS * number).all() for number, tensor in enumerate(tensors))
        wait_until(lambda: counted(group.explain()) == len(tensors))  # the last one is counted after it has ended
        return json.dumps(group.explain()["network"])

    (table,) = set(run(body))
    assert json.loads(table)["sites"] == [0, 1, 0, 1]
    assert json.loads(table)["number"] >= 1

"""A rank that was declared dead and lives: it learns it at once, and does not hammer those who go on without it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hive_qos.errors import ConnectionLostError
from transport import Group, MemoryRendezvous, Settings

LOCAL = Settings(listen="127.0.0.1", broker="off", engine="aioquic", job_secret=b"secret of the test")


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_resumes_after_it_was_declared_dead_raises_and_harms_nobody(size):
    store = MemoryRendezvous()
    with ThreadPoolExecutor(size) as pool:
        groups = list(
            pool.map(
                lambda rank: Group.connect(
                    store, rank=rank, world_size=size, settings=LOCAL, connect_timeout_s=60.0, timeout_s=60.0
                ),
                range(size),
            )
        )
        survivor, resumed = groups[0]._runtime, groups[1]._runtime
        ups = []
        count_up = resumed._endpoint._up
        resumed._endpoint._up = lambda event: (ups.append(event), count_up(event))  # type: ignore[method-assign, assignment]

        def silence() -> None:
            """What a survivor does when nothing has been heard for too long: the engine closes, the table buries."""
            for connection in survivor._endpoint.peers.connections(1):
                survivor._engine.disconnect(connection, wire_code=0x42, reason="nothing heard for 5 s")
            survivor._endpoint.report_gone(survivor._endpoint.peers.dead(1, "nothing heard for 5 s"))

        survivor._loop.call(silence)
        with pytest.raises(ConnectionLostError, match=r"counts this rank as gone|rank 0"):
            groups[1].allreduce(np.ones(1000, "f4")).wait()
        time.sleep(1.0)  # a window to look into: one that dials again at once comes up hundreds of times in it
        assert len(ups) <= 4
        assert 0 in groups[1].lost_ranks()
        assert "counts this rank as gone" in str(resumed._lost[0])
        if size == 3:  # those who go on do so, and nobody took the word of the dead against the living
            rest = [groups[rank].subgroup([0, 2], name="rest") for rank in (0, 2)]
            list(pool.map(lambda group: group.barrier(timeout_s=60).wait(), rest))
            assert set(groups[0].lost_ranks()) == {1}
            assert not groups[2].lost_ranks(), "to it rank 1 was never lost: it still answers"
        list(pool.map(lambda group: group.close(timeout_s=5.0), groups))

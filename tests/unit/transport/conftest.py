"""Worlds in memory: ranks as threads over the engine of `memory_engine`, which lies beside this file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from memory_engine import MemoryNetwork
from patience import wait_until

from transport import Group, MemoryRendezvous, Settings
from transport.runtime import Runtime


class World:
    """Ranks that are connected in memory."""

    def __init__(
        self,
        size: int,
        *,
        chunk_bytes: int = 64 * 1024,
        reconnect_s: float = 0.2,
        silence_ends: bool = False,
        timeout_s: float = 60.0,
        receive_bytes_max: int = 2**30,
        algorithm: str = "",
    ):
        self.network = MemoryNetwork()
        self.size = size
        self._pool = ThreadPoolExecutor(max_workers=size)
        rendezvous = MemoryRendezvous()
        settings = Settings(
            broker="off",
            inspect=False,
            chunk_bytes=chunk_bytes,
            reconnect_s=reconnect_s,
            silence_ends=silence_ends,
            receive_bytes_max=receive_bytes_max,
            algorithm=algorithm,
        )

        def connect(rank: int) -> Group:
            runtime = Runtime.connect(
                rendezvous,
                rank=rank,
                world_size=size,
                name="w",
                timeout_s=60.0,
                settings=settings,
                factories=self.network.factories(),
            )
            return Group(runtime, name="w", ranks=tuple(range(size)), timeout_s=timeout_s, parent=True)

        self.groups = list(self._pool.map(connect, range(size)))

    def run(self, body: Callable[[Group], Any]) -> list[Any]:
        """Call `body` with the group of each rank, at the same time; the results, or errors, in rank order."""

        def guarded(group: Group) -> Any:
            try:
                return body(group)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                return error

        return list(self._pool.map(guarded, self.groups))

    def results(self, body: Callable[[Group], Any]) -> list[Any]:
        """As `run`, where no rank may fail."""
        results = self.run(body)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def close(self) -> None:
        list(self._pool.map(lambda group: group.close(timeout_s=10.0), self.groups))
        self._pool.shutdown()


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """Make worlds that are closed at the end, and check that their threads have ended."""
    worlds: list[World] = []

    def make(size: int, **options: Any) -> World:
        world = World(size, **options)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.close()
    wait_until(lambda: not own_threads(), what=own_threads)  # told to end, but perhaps not yet over


def own_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("hive-transport", "memory-engine"))]

"""What tests of groups share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from volatile_workers import Worker

from transport.volatile.register.register import Store


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Starts members, and sees that all of them end."""
    workers: list[Worker] = []

    def begin(name: str, store: Store, **wishes: object) -> Worker:
        workers.append(Worker(name, store, **wishes))  # type: ignore[arg-type]
        return workers[-1]

    yield begin
    for one in workers:
        one.end()
        if one.group is not None:
            one.group.close()
    for one in workers:
        one.wait()

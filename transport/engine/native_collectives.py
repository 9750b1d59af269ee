"""Whole collectives in the native engine: arguments for `native/src/collective`, which does the work."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hive_qos.errors import MisuseError
from transport.engine.base import Collective, Collectives, Priority
from transport.engine.validation import check_taken, level_of

_native: Any = importlib.import_module("hive_qos_native")


class NativeCollectives(Collectives):
    """See `base`.

    Args:
        api: the engine's, of Rust.
        numbers: gives numbers that no operation of the engine has.
        check_open: raises where the engine is closed.
    """

    def __init__(self, api: Any, *, numbers: Iterator[int], check_open: Callable[[], None]) -> None:
        self._api = api
        self._numbers = numbers
        self._check_open = check_open

    def reduces(self, dtype: str, reduce_op: str) -> bool:
        return bool(_native.reduces(dtype, reduce_op))

    def start(self, collective: Collective) -> int:
        self._check_open()
        number = next(self._numbers)
        try:
            taken = self._api.start(
                number,
                schedule=collective.schedule,
                buffers=list(collective.buffers),
                dtype=collective.dtype,
                item_bytes=collective.item_bytes,
                reduce_op=collective.reduce_op,
                job=collective.job,
                group=collective.group,
                step=collective.step,
                operation=collective.operation,
                members=[(one.rank, one.name, one.says, one.hears) for one in collective.members],
                rank=collective.rank,
                level=level_of(collective.priority),
                bulk=collective.priority is Priority.BULK,
                order=collective.order,
                missing=collective.missing,
            )
        except ValueError as error:
            raise MisuseError(f"a collective that cannot be carried out: {error}") from error
        check_taken(taken)
        return number

    def read_on(self, collective: int, *, missing_from: int) -> None:
        self._api.read_on(collective, missing_from)

    def stop(self, collective: int) -> None:
        self._api.stop(collective)

    def route(self, rank: int, *, bulk: bool, connections: Sequence[int]) -> None:
        self._api.route(rank, bulk, list(connections))

    def gone(self, rank: int) -> None:
        self._api.gone(rank)

    def drain(self, timeout_s: float) -> bool:
        return bool(self._api.drain(timeout_s))

    def progress(self, collective: int) -> tuple[int, Sequence[int]]:
        return self._api.progress(collective) or (0, ())

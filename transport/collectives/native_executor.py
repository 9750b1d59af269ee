"""The executor of the native engine: it carries out the whole schedule, and tells its end, or that a step failed."""

from __future__ import annotations

from collections.abc import Collection

from hive_qos.errors import CancelledError, HiveError
from transport.collectives.calls import Heard
from transport.collectives.codecs import ENCODED_DTYPE
from transport.collectives.executor import Executor
from transport.collectives.partial_input import PartialInput
from transport.engine.base import Collective, CollectiveEnded, Member, StepFailed
from transport.work import unforeseen


class NativeExecutor(Executor):
    """See the module; arguments as `Executor`."""

    _running: int | None = None

    def start(self) -> None:
        if self.error is not None:  # a message that came before was of another call
            return
        try:
            collective = self._collective()
            self._running = self._links.collectives.start(
                collective, on_failed=self._failed, on_ended=self._carried_out
            )
        except Exception as error:  # noqa: BLE001 - a closed engine, no memory, a mistake of ours: this operation ends
            self.error = error if isinstance(error, HiveError) else unforeseen(self.work.what, error)
            self._finish()
            return
        self.work.watch(self._bytes_done)

    def _collective(self) -> Collective:
        context, signature, links = self.call.context, self.signature, self._links
        return Collective(
            schedule=self._schedule.encoded,
            buffers=self.call.buffers,
            dtype=self.call.dtype,
            item_bytes=self.call.problem.item_bytes,
            reduce_op=self.call.reduce_op.value,
            job=links.job,
            group=context.group,
            step=self.number,
            operation=self.call.operation,
            members=[
                Member(rank, links.collectives.name_of(rank), signature.to(index), signature.of(index))
                for index, rank in enumerate(self.ranks)
            ],
            rank=context.rank,
            priority=self._priority,
            order=self._order,
            missing=self.call.partial.missing if self.call.partial else (0, 0),
        )

    def _begin_held_back(self, partial: PartialInput) -> None:
        if self._running is not None:
            self._links.collectives.read_on(self._running, missing_from=partial.missing[0])

    def _stop(self) -> None:
        if self._running is None:
            self._finish()
        else:
            self._links.collectives.stop(self._running)

    def _waiting_for(self) -> Collection[int]:
        return () if self._running is None else self._links.collectives.progress(self._running)[1]

    def _lends(self) -> bool:
        return self._running is not None

    def _bytes_done(self) -> int:
        running = self._running
        return 0 if running is None else self._links.collectives.progress(running)[0]

    def _failed(self, event: StepFailed) -> None:
        error = event.error
        if event.header is not None and self.error is None:
            self.check(self.ranks[event.peer], Heard(event.header.call))
            error = self._mismatch(event.peer, event.header, event.length, self.call.dtype)
            # One that would do, had the step not been to receive encoded bytes.
            error = error or self._mismatch(event.peer, event.header, event.length, ENCODED_DTYPE)
        if error is not None:
            self._step_failed(error)

    def _carried_out(self, event: CollectiveEnded) -> None:
        self._running = None
        self.work.watch(None)
        self.work.progress(event.bytes_done)
        if not event.complete and self.error is None:
            self.error = CancelledError(f"{self.work.what}: the engine has ended")
        self._finish()

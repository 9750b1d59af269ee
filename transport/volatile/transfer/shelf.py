"""What a member can give to those who learn: a state and the results after it, as long as it has all of them.

So whoever takes the state can follow.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from transport.volatile.protocol.messages import Ask
from transport.volatile.transfer.manifest import STATE, Manifest, piece_digests
from transport.wire import cbor

RESULTS_MAX = 64
RESULT_BYTES_MAX = 2**29
"""Of all results on a shelf, but for the last one: half a gibibyte, beside a model and its optimiser."""


class Shelf:
    """What this member can give to those who learn. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: tuple[Manifest, memoryview] | None = None
        self._results: OrderedDict[int, tuple[Manifest, memoryview]] = OrderedDict()
        self._head = 0
        self.wanted = False
        """Somebody has asked for a state, and there was none."""

    def has_state(self) -> bool:
        """Whether the state and all results after it are here."""
        return self._state is not None

    def put_state(self, step: int, digest: bytes, data: bytes) -> None:
        """Hold the state after `step`."""
        whole = memoryview(data)
        manifest = Manifest(step, digest, (), (whole.nbytes,), piece_digests([whole]))
        with self._lock:
            self._state, self._head, self.wanted = (manifest, whole), max(step, self._head), False

    def put_result(self, manifest: Manifest, tensors: Sequence[memoryview]) -> None:
        """Hold a copy of the result of a step. The oldest give way, and with them the state before them."""
        whole = memoryview(b"".join(tensors))
        with self._lock:
            self._results[manifest.step] = (manifest, whole)
            self._head = manifest.step
            while len(self._results) > 1 and (
                len(self._results) > RESULTS_MAX
                or sum(one.nbytes for _, one in self._results.values()) > RESULT_BYTES_MAX
            ):
                oldest, _ = self._results.popitem(last=False)
                if self._state is not None and self._state[0].step < oldest:
                    self._state = None

    def begin(self, head: int) -> None:
        """Somebody learns from now on: results up to `head` were perhaps not kept, and a state is needed."""
        with self._lock:
            self._head, self.wanted = max(self._head, head), True

    def drop_state(self, head: int) -> None:
        """Who learns could not follow from it, and takes another one. Results stay, for workers that are late."""
        with self._lock:
            self._state, self._head = None, head

    def clear(self, head: int) -> None:
        """Nobody learns what was before."""
        with self._lock:
            self._state, self._head = None, head
            self._results.clear()

    def digest_after(self, step: int) -> bytes | None:
        """Of all results up to `step`, where that is known here."""
        with self._lock:
            if step in self._results:
                return self._results[step][0].digest
            return self._state[0].digest if self._state is not None and self._state[0].step == step else None

    def answer(self, ask: Ask) -> bytes | memoryview:
        """What to send to who asks; nothing for a piece that is not there."""
        with self._lock:
            held = self._state if ask.step == STATE else self._results.get(ask.step)
            if held is None and ask.step == STATE:
                self.wanted = True
            head = self._head
        if ask.index is None:
            if held is None:
                gone = ask.step != STATE and ask.step <= head
                return cbor.encode_map({0: head, 1: gone})
            manifest = held[0]
            return Manifest(
                manifest.step, manifest.digest, manifest.members, manifest.lengths, manifest.pieces, head
            ).encode()
        if held is None or not 0 <= ask.index < len(held[0].pieces):
            return b""
        begin, end = held[0].cuts()[ask.index]
        return held[1][begin:end]

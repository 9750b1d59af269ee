"""Fetching a state or a result, in pieces, from all who hold it.

Each is asked for one more piece when it has given one, so the faster ones give more. What was fetched is kept when a
holder, or all of them, are lost: others go on.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from hive_qos.errors import HiveError, PeerError
from hive_qos.units import format_size
from transport.volatile.protocol.view import DIGEST_BYTES, Member
from transport.volatile.transfer.manifest import STATE, Absent, Manifest, read_answer
from transport.work import Work

UNANSWERED_S = 10.0
"""A holder that has not given a piece by then is asked for no more of this: 1 MiB in that time is 0.8 Mbit/s."""
AHEAD = 2
"""Pieces asked of each holder at a time: one travels while the next is read."""
PATIENCE_S = 0.5
"""What a holder is thought to take for a piece before it has given one, and to say what it holds."""
SAY_S = 15.0
"""Who joins says so often what it waits for, or how far its fetch has come."""
LOOK_S = 0.1
"""How often a fetch looks for holders that are late."""
_log = logging.getLogger("transport.volatile")

T = TypeVar("T")


class Holder:
    """One who may hold what is fetched: how to ask it.

    Args:
        question: sends `Ask(step, index, ...)`, and gives the answer to come; raises where it cannot be reached.
    """

    def __init__(self, member: Member, question: Callable[[int, int | None], Work]) -> None:
        self.member = member
        self.question = question


def ask_all(holders: Sequence[Holder], step: int) -> dict[Member, Manifest | Absent]:
    """What each holder has of the result of `step`, or of a state; those who do not answer are left out.

    Once one has the result, no other is waited for beyond `PATIENCE_S`: it may have died. Four times that where it may
    have it in a moment, or has a state: what most say of that counts, for no digest tells whether it is the right one.
    """
    answers: queue.SimpleQueue[tuple[Member, Work]] = queue.SimpleQueue()
    asked = 0
    for one in holders:
        try:
            work = one.question(step, None)
        except (HiveError, ValueError) as error:
            _log.debug("%s was not asked: %s", one.member, error)
            continue
        asked += 1
        work.add_done_callback(functools.partial(_answered, answers, one.member))
    found: dict[Member, Manifest | Absent] = {}
    until_s = time.monotonic() + UNANSWERED_S
    for _ in range(asked):
        try:
            member, work = answers.get(timeout=max(until_s - time.monotonic(), 0.0))
        except queue.Empty:
            break
        try:
            answer = work.wait()
            if isinstance(answer, np.ndarray):
                found[member] = held = read_answer(answer.tobytes(), sender=str(member))
                if isinstance(held, Manifest) or not held.gone:
                    patience_s = PATIENCE_S if isinstance(held, Manifest) and step != STATE else 4 * PATIENCE_S
                    until_s = min(until_s, time.monotonic() + patience_s)
        except HiveError as error:
            _log.info("%s did not say what it holds: %s", member, error)
    return found


def _answered(answers: queue.SimpleQueue[tuple[T, Work]], by: T, work: Work) -> None:
    """In the transport's thread."""
    answers.put((by, work))


def agreed(found: dict[Member, Manifest | Absent]) -> tuple[Manifest, list[Member]] | None:
    """What most of the holders have, the newest of several, and who they are. Who differs from them is named."""
    manifests = {one: held for one, held in found.items() if isinstance(held, Manifest)}
    kinds = Counter((held.step, held.digest, held.lengths, held.pieces) for held in manifests.values())
    if not kinds:
        return None
    usual = max(kinds, key=lambda kind: (kinds[kind], kind[0]))
    same = [one for one, held in manifests.items() if (held.step, held.digest, held.lengths, held.pieces) == usual]
    odd = [str(one) for one, held in manifests.items() if held.step == usual[0] and one not in same]
    if odd:
        _log.warning("after step %d %s hold another state than %s", usual[0], ", ".join(odd), ", ".join(map(str, same)))
    head = max(held.head for held in manifests.values())
    first = manifests[same[0]]
    return Manifest(first.step, first.digest, first.members, first.lengths, first.pieces, head), same


@dataclass(eq=False)
class _Source:
    """A holder that pieces are asked of.

    Args:
        asked: which it has not given yet, and since when.
        took_s: for the last one that it gave.
    """

    holder: Holder
    asked: dict[int, float] = field(default_factory=dict)
    took_s: float = PATIENCE_S


@dataclass
class Fetch:
    """One state or result under way. It outlives holders, views and connections: `run` goes on where it was.

    Args:
        what: its manifest.
        state: it is a state, not a result.
    """

    what: Manifest
    state: bool
    data: bytearray = field(init=False)
    given: Counter[Member] = field(default_factory=Counter)
    """Pieces that each holder gave."""

    def __post_init__(self) -> None:
        try:
            self.data = bytearray(sum(self.what.lengths))
        except MemoryError as error:
            size = sum(self.what.lengths)
            raise PeerError("the group", f"its state has {size} bytes, for which this process has no memory") from error
        self._cuts = self.what.cuts()
        self._missing = set(range(len(self._cuts)))
        self._unasked: deque[int] = deque()
        self._answers: queue.SimpleQueue[tuple[tuple[_Source, int], Work]] = queue.SimpleQueue()

    def tensors(self) -> list[memoryview]:
        """The bytes of each tensor."""
        ends = [sum(self.what.lengths[: place + 1]) for place in range(len(self.what.lengths))]
        whole = memoryview(self.data)
        return [whole[end - length : end] for end, length in zip(ends, self.what.lengths, strict=True)]

    def progress(self) -> str:
        """How much of it is here, in words. From any thread."""
        missing = sum(end - begin for begin, end in map(self._cuts.__getitem__, list(self._missing)))
        what = "the state after" if self.state else "the result of"
        done, size = format_size(len(self.data) - missing), format_size(len(self.data))
        return f"{done} of {size} of {what} step {self.what.step}"

    def run(self, holders: Sequence[Holder], *, stop: Callable[[], bool]) -> bool:
        """Fetch what is missing from those holders; whether all is here. False too once `stop()` says so.

        A piece is asked of one holder. Where that one takes twice as long as another takes for a piece, the other one
        is asked for it, too: so a slow or silent holder makes nobody wait for long.
        """
        self._answers = queue.SimpleQueue()
        self._unasked = deque(sorted(self._missing))
        sources, say_s = [_Source(one) for one in holders], time.monotonic() + SAY_S
        while self._missing and sources and not stop():
            if time.monotonic() >= say_s:
                say_s += SAY_S
                _log.warning("%s is here", self.progress())
            for count in range(1, AHEAD + 1):  # one after the other: what is small comes from several, too
                sources = [one for one in sources if len(one.asked) >= count or self._ask(one, sources)]
            try:
                (source, index), work = self._answers.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            now_s = time.monotonic()
            source.took_s = now_s - source.asked.pop(index, now_s)
            if not self._take(source.holder.member, index, work):
                sources = [one for one in sources if one is not source]
        return not self._missing

    def _ask(self, source: _Source, sources: Sequence[_Source]) -> bool:
        """Ask one of the sources for a piece more, if there is one to ask for; whether it can be asked."""
        now_s = time.monotonic()
        index = self._unasked.popleft() if self._unasked else self._late(source, sources, now_s)
        if index is None:
            return True
        try:
            work = source.holder.question(STATE if self.state else self.what.step, index)
        except (HiveError, ValueError) as error:
            _log.info("%s is not asked any more: %s", source.holder.member, error)
            self._unasked.append(index)
            return False
        source.asked[index] = now_s
        work.add_done_callback(functools.partial(_answered, self._answers, (source, index)))
        return True

    def _late(self, source: _Source, sources: Sequence[_Source], now_s: float) -> int | None:
        """The piece that has waited the longest for others, where this one would have given it by now."""
        since_s = {index: begun_s for one in sources for index, begun_s in one.asked.items()}
        waits_s = {index: now_s - since_s.get(index, 0.0) for index in self._missing - source.asked.keys()}
        index = max(waits_s, key=lambda one: waits_s[one], default=None)
        return index if index is not None and waits_s[index] > 2 * source.took_s else None

    def _take(self, member: Member, index: int, work: Work) -> bool:
        """Whether this holder gave what it was asked for."""
        error, answer = work.exception(), work.result() if work.exception() is None else None
        if error is not None or not isinstance(answer, np.ndarray) or not answer.size:
            _log.info("%s did not give piece %d of step %d: %s", member, index, self.what.step, error or "it has none")
            return False
        if index not in self._missing:
            return True
        begin, end = self._cuts[index]
        piece = answer.tobytes()
        if hashlib.blake2b(piece, digest_size=DIGEST_BYTES).digest() != self.what.pieces[index]:
            _log.warning("%s gave a piece of step %d that is not what it should be", member, self.what.step)
            return False
        self.data[begin:end] = piece
        self._missing.discard(index)
        self.given[member] += 1
        return True

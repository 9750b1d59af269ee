"""Handing over a state and the results after it, in pieces: who learns fetches them, whoever holds them gives.

A holder's shelf has the state after one step, as long as it has every result after that step. So whoever takes the
state can follow. A piece has a digest, and comes from any holder; each is asked for one more when it has given one, so
the faster ones give more. What was fetched is kept when a holder, or all of them, are lost: others go on.

The digest of a result, which the members compare before they commit it, is that of its pieces' digests: so a result
that was fetched is known to be the one that was committed.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import queue
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hive_qos.errors import HiveError, PeerError
from transport.volatile.messages import Ask
from transport.volatile.view import DIGEST_BYTES, Member
from transport.wire import cbor
from transport.wire.error_codes import WireError
from transport.work import Work

PIECE_BYTES = 2**20
"""84 ms at 100 Mbit/s: small enough to share out, and 16 bytes of digest are nothing beside it."""
HOLDERS_MAX = 4
"""So many of the first workers hold the state for those who learn: a copy each, and one link rarely takes more."""
RESULTS_MAX = 64
RESULT_BYTES_MAX = 2**29
"""Of all results on a shelf, but for the last one: half a gibibyte, beside a model and its optimiser."""
UNANSWERED_S = 10.0
"""A holder that has not given a piece by then is asked for no more of this: 1 MiB in that time is 0.8 Mbit/s."""
AHEAD = 2
"""Pieces asked of each holder at a time: one travels while the next is read."""
PATIENCE_S = 0.5
"""What a holder is thought to take for a piece before it has given one."""
LOOK_S = 0.1
"""How often a fetch looks for holders that are late."""
STATE = -1
_log = logging.getLogger("transport.volatile")


@dataclass(frozen=True)
class Manifest:
    """What is on a shelf, but not its bytes.

    Args:
        step: after which the state is, or whose result it is.
        digest: of all results up to that step.
        members: whose parts the result has; none for a state.
        lengths: of its tensors, in bytes; of a state one.
        pieces: a digest each, tensor by tensor.
        head: the last step that its holder has.
    """

    step: int
    digest: bytes
    members: tuple[Member, ...]
    lengths: tuple[int, ...]
    pieces: tuple[bytes, ...]
    head: int = 0

    @property
    def result(self) -> bytes:
        """The digest of the whole."""
        return digest_of(self.pieces)

    def cuts(self) -> list[tuple[int, int]]:
        """Where each piece begins and ends in all of the tensors' bytes."""
        return list(_cuts(self.lengths))

    def encode(self) -> bytes:
        """As bytes."""
        pairs = [[one.name, one.incarnation] for one in self.members]
        joined = b"".join(self.pieces)
        return cbor.encode_map({0: self.step, 1: self.digest, 2: pairs, 3: list(self.lengths), 4: joined, 5: self.head})

    @classmethod
    def decode(cls, data: bytes, *, sender: str) -> Manifest:
        """Read one.

        Raises:
            PeerError: those bytes are none.
        """
        try:
            held = cbor.decode_map(data)
            members = tuple(Member(str(name), int(incarnation)) for name, incarnation in held[2])
            lengths = tuple(int(one) for one in held[3])
            joined = bytes(held[4])
            pieces = tuple(joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES))
            if any(one < 0 for one in lengths) or len(pieces) != _count(lengths):
                raise ValueError("its pieces are not those of its lengths")
            return cls(int(held[0]), bytes(held[1]), members, lengths, pieces, int(held[5]))
        except (KeyError, TypeError, ValueError, WireError) as error:
            raise PeerError(sender, f"what it says of its state cannot be read: {error}") from error


@dataclass(frozen=True)
class Absent:
    """A holder does not have it. `gone`: it had it, or will never have; else perhaps in a moment."""

    head: int
    gone: bool


def piece_digests(tensors: Sequence[memoryview]) -> tuple[bytes, ...]:
    """A digest for each piece of each tensor."""
    found: list[bytes] = []
    for one in tensors:
        for begin, end in _cuts([one.nbytes]):
            found.append(hashlib.blake2b(one[begin:end], digest_size=DIGEST_BYTES).digest())
    return tuple(found)


def digest_of(pieces: Sequence[bytes]) -> bytes:
    """The digest of what has these pieces."""
    return hashlib.blake2b(b"".join(pieces), digest_size=DIGEST_BYTES).digest()


def _cuts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    for length in lengths:
        for at in range(0, length, PIECE_BYTES):
            yield begin + at, begin + min(at + PIECE_BYTES, length)
        begin += length


def _count(lengths: Sequence[int]) -> int:
    return sum(-(-one // PIECE_BYTES) for one in lengths)


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


def read_answer(data: bytes, *, sender: str) -> Manifest | Absent:
    """What `Shelf.answer` gave for a manifest.

    Raises:
        PeerError: those bytes are none.
    """
    try:
        held = cbor.decode_map(data)
        if len(held) == 2:
            return Absent(int(held[0]), held[1] is True)
    except (KeyError, TypeError, ValueError, WireError) as error:
        raise PeerError(sender, f"its answer cannot be read: {error}") from error
    return Manifest.decode(data, sender=sender)


class Holder:
    """One who may hold what is fetched: how to ask it.

    Args:
        question: sends `Ask(step, index, ...)`, and gives the answer to come; raises where it cannot be reached.
    """

    def __init__(self, member: Member, question: Callable[[int, int | None], Work]) -> None:
        self.member = member
        self.question = question


def ask_all(holders: Sequence[Holder], step: int) -> dict[Member, Manifest | Absent]:
    """What each holder has of the result of `step`, or of a state; those who do not answer are left out."""
    asked: list[tuple[Member, Work]] = []
    for one in holders:
        try:
            asked.append((one.member, one.question(step, None)))
        except (HiveError, ValueError) as error:
            _log.debug("%s was not asked: %s", one.member, error)
    found: dict[Member, Manifest | Absent] = {}
    for member, work in asked:
        try:
            answer = work.wait()
            if isinstance(answer, np.ndarray):
                found[member] = read_answer(answer.tobytes(), sender=str(member))
        except HiveError as error:
            _log.info("%s did not say what it holds: %s", member, error)
    return found


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

    @property
    def done(self) -> bool:
        """Whether all of it is here."""
        return not self._missing

    @property
    def pieces_left(self) -> int:
        """How many are missing."""
        return len(self._missing)

    def tensors(self) -> list[memoryview]:
        """The bytes of each tensor."""
        ends = [sum(self.what.lengths[: place + 1]) for place in range(len(self.what.lengths))]
        whole = memoryview(self.data)
        return [whole[end - length : end] for end, length in zip(ends, self.what.lengths, strict=True)]

    def run(self, holders: Sequence[Holder], *, stop: Callable[[], bool]) -> bool:
        """Fetch what is missing from those holders; whether all is here. False too once `stop()` says so.

        A piece is asked of one holder. Where that one takes twice as long as another takes for a piece, the other one
        is asked for it, too: so a slow or silent holder makes nobody wait for long.
        """
        answers: queue.SimpleQueue[tuple[Holder, int, Work]] = queue.SimpleQueue()
        self._unasked = deque(sorted(self._missing))
        asked: dict[Holder, dict[int, float]] = {one: {} for one in holders}
        took_s: dict[Holder, float] = {}
        while self._missing and asked and not stop():
            for count in range(1, AHEAD + 1):  # one after the other: what is small comes from several, too
                for one in list(asked):
                    if not self._ask(one, count, asked, took_s.get(one, PATIENCE_S), answers):
                        del asked[one]
            try:
                holder, index, work = answers.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            since_s = asked.get(holder, {}).pop(index, None)
            if not self._take(holder.member, index, work):
                asked.pop(holder, None)
            elif since_s is not None:
                took_s[holder] = time.monotonic() - since_s
        return not self._missing

    def _ask(
        self,
        holder: Holder,
        count: int,
        asked: dict[Holder, dict[int, float]],
        patience_s: float,
        answers: queue.SimpleQueue[tuple[Holder, int, Work]],
    ) -> bool:
        """Ask a holder for one more piece, unless it has `count` to give, or there is none; whether it can be asked."""
        own, now_s = asked[holder], time.monotonic()
        if len(own) >= count:
            return True
        if self._unasked:
            index = self._unasked.popleft()
        else:
            since_s = {index: begun_s for one in asked.values() for index, begun_s in one.items()}
            late = [one for one in self._missing - own.keys() if now_s - since_s.get(one, 0.0) > 2 * patience_s]
            if not late:
                return True
            index = min(late, key=lambda one: since_s.get(one, 0.0))
        try:
            work = holder.question(STATE if self.state else self.what.step, index)
        except (HiveError, ValueError) as error:
            _log.info("%s is not asked any more: %s", holder.member, error)
            self._unasked.append(index)
            return False
        own[index] = now_s
        work.add_done_callback(functools.partial(self._answered, answers, holder, index))
        return True

    @staticmethod
    def _answered(answers: queue.SimpleQueue[tuple[Holder, int, Work]], holder: Holder, index: int, work: Work) -> None:
        """In the transport's thread."""
        answers.put((holder, index, work))

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


class Pace:
    """Whether who follows comes nearer: judged after each so many results, by how far ahead the others are."""

    RESULTS = 8
    """A shorter look would take one slow step of the others for slowness of ours."""

    def __init__(self) -> None:
        self._count = 0
        self._lag: int | None = None

    def followed(self, lag: int) -> str:
        """One more result was applied, and `lag` are left; why it cannot catch up, or "" as long as it may."""
        self._count += 1
        if self._lag is None:
            self._lag = lag
        if self._count < self.RESULTS:
            return ""
        before, self._lag, self._count = self._lag, lag, 0
        return f"{lag} steps behind, {before} before the last {self.RESULTS} results" if lag >= max(before, 2) else ""

"""The tape of one member of a volatile group: a line of JSON for each view that it enters and each step it commits.

    {"kind": "tape", "version": 1, "job": "llm", "run": 4711, "member": ["desk-1", 4711]}
    {"kind": "view", "epoch": 1, "members": [["desk-1", 4711]], "joining": [], "at_s": 1790000000.1, "monotonic_s": 7.2}
    {"kind": "commit", "step": 1, "epoch": 1, "attempt": 1, "digest": "5d...", "contributors": [["desk-1", 4711]], ...}

Each member has a file of its own. `record.replay` reads those of all members.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import Annotated, Literal
from urllib.parse import quote

from msgspec import Meta, Struct, json

from hive_qos.errors import ConfigurationError
from transport.volatile.protocol.commit import Phase, State
from transport.volatile.protocol.view import Member, View

SIZE_BYTES_MAX = 64 * 2**20
"""Some 200,000 commits of three members: a night of seven a second. As much again is kept in FILE.1."""
Who = tuple[str, int]
"""A member's name and incarnation."""
Seconds = Annotated[float, Meta(ge=0, lt=1e11)]
_log = logging.getLogger("transport.volatile")


class Head(Struct, frozen=True, tag="tape", tag_field="kind"):
    """Whose tape it is; `run` as in `View`."""

    version: Literal[1]
    job: str
    run: int
    member: Who


class Entered(Struct, frozen=True, tag="view", tag_field="kind"):
    """The member has entered a view. `at_s` is since 1970, `monotonic_s` by its host's monotonic clock."""

    epoch: int
    members: tuple[Who, ...]
    joining: tuple[Who, ...]
    at_s: Seconds
    monotonic_s: Seconds


class Committed(Struct, frozen=True, tag="commit", tag_field="kind"):
    """The member has committed a step in a view, with the digest of all results up to it.

    Where it has fetched the result, `attempt` is 0 and `contributors` None.
    """

    step: int
    epoch: int
    attempt: int
    digest: str
    contributors: tuple[Who, ...] | None
    at_s: Seconds
    monotonic_s: Seconds


def require_folder(folder: str) -> None:
    """Raises: ConfigurationError: no tape can be written there."""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError("HIVE_TAPE", folder, "no folder that can be written; make it, or name another")


class Tape:
    """Writes one member's tape. Where that fails, as on a full disk, it ends, the log says so, and training goes on."""

    def __init__(self, folder: str, *, job: str, state: State) -> None:
        name, incarnation = state.me.name, state.me.incarnation
        self.path = os.path.join(folder, f"{quote(name, safe='')}.{incarnation:016x}.jsonl")
        self._head = Head(1, job, state.view.run, (name, incarnation))
        self._file: FileIO | None = None
        with self._or_end():
            self._begin(state.view)

    def saw(self, before: State, state: State, *, attempt: int) -> None:
        """Write what is new. The caller holds the member's lock."""
        with self._or_end():
            if state.committed > before.committed >= 0:
                by = _contributors(before, state.committed)
                how = (attempt if by else 0, state.digest.hex(), _who(by) if by else None)
                self._write(Committed(state.committed, before.view.epoch, *how, *_now()))
            if state.view.epoch > before.view.epoch:
                self._write(_entered(state.view))
            if self._file is not None and self._file.tell() > SIZE_BYTES_MAX:
                self.close()
                os.replace(self.path, f"{self.path}.1")
                self._begin(state.view)

    def close(self) -> None:
        """Write nothing more. Idempotent, from any thread."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # the latter where another thread has just closed it
            _log.warning("the tape %s ends here, and training goes on: %s", self.path, error)
            self.close()

    def _begin(self, view: View) -> None:
        self._file = FileIO(self.path, "x")
        self._write(self._head)
        self._write(_entered(view))

    def _write(self, line: Struct) -> None:
        data = json.encode(line) + b"\n"
        if self._file is not None and self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _contributors(before: State, step: int) -> tuple[Member, ...] | None:
    """Of a step that was just committed. Who has not prepared it has fetched it, or works alone."""
    for who, one in before.prepared:
        if who == before.me and one.step == step:
            return one.contributors
    alone = before.phase is Phase.REDUCING and before.view.workers == (before.me,)
    return (before.me,) if alone else None


def _entered(view: View) -> Entered:
    return Entered(view.epoch, _who(view.members), _who(view.joining), *_now())


def _who(members: Iterable[Member]) -> tuple[Who, ...]:
    return tuple((one.name, one.incarnation) for one in members)


def _now() -> tuple[float, float]:
    return round(time.time(), 3), round(time.monotonic(), 3)

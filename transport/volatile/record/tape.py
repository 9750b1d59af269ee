"""The tape of one member: a line of JSON for each view that it entered and each step that it committed.

    {"tape": 1, "job": "llm", "run": 4711, "member": "desk-1", "incarnation": 4711, "step": 0, "digest": "00..."}
    {"at_s": 1790000000.1, "view": 1, "members": [["desk-1", 4711]], "joining": [], "base_step": 0, "digest": "00..."}
    {"at_s": 1790000004.2, "commit": 1, "epoch": 1, "digest": "5d..."}
    {"at_s": 1790000009.3, "out": 1}

The first line of a file says where its member stood, so that a file is complete without the ones before it. A member
that has nothing yet stands at step -1. Who learns says `"holds"` in place of `"commit"` when it has received the state.
`record.tape_check` holds the tapes of several members against each other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

from transport.volatile.protocol.commit import Phase, State

VERSION = 1
SIZE_BYTES_MAX = 16 * 2**20
"""Some 130,000 commits of 120 bytes; the file before it is kept as FILE.1."""
NAME_CHARACTERS_MAX = 96
"""Of a member's name in that of its file, which has at most 255 bytes; the incarnation tells files apart."""
_log = logging.getLogger("transport.volatile")


class Tape:
    """Writes one member's tape. Where that cannot be (a full disk), it ends with a line in the log; training goes on.

    Args:
        folder: of the tapes, which is there.
        state: of the member at its start.
    """

    def __init__(self, folder: str, *, job: str, state: State, size_bytes_max: int = SIZE_BYTES_MAX) -> None:
        me = state.me
        self.path = Path(folder) / f"{quote(me.name, safe='')[:NAME_CHARACTERS_MAX]}.{me.incarnation:016x}.jsonl"
        self._job = job
        self._size_bytes_max = size_bytes_max
        self._state: State | None = None
        self._file: TextIO | None = None
        self._size_bytes = 0
        self._ended = False
        self.saw(state)

    def saw(self, state: State) -> None:
        """Write what is new in the member's state. From any thread that holds its lock."""
        if self._ended:
            return
        try:
            before, self._state = self._state, state
            if self._file is None:
                self._file = _opened(self.path)
                self._begin(before or state)
            if before is not None and state.committed > before.committed:
                what = "holds" if _was_given(before, state) else "commit"
                self._line({what: state.committed, "epoch": before.view.epoch, "digest": state.digest.hex()})
            if before is None or state.view.epoch > before.view.epoch:
                view = state.view
                members, joining = (
                    [[one.name, one.incarnation] for one in some] for some in (view.members, view.joining)
                )
                stood = {"base_step": view.base_step, "digest": view.digest.hex()}
                self._line({"view": view.epoch, "members": members, "joining": joining, **stood})
            if before is not None and state.phase is Phase.OUT and before.phase is not Phase.OUT:
                self._line({"out": state.view.epoch})
            self._file.flush()
            if self._size_bytes > self._size_bytes_max:
                self._file.close()
                os.replace(self.path, f"{self.path}.1")
                self._file, self._size_bytes = None, 0  # opened with the next news
        except OSError as error:
            _log.warning("the tape %s ends here: %s", self.path, error.strerror)
            self.close()

    def close(self) -> None:
        """Write nothing more. Idempotent."""
        self._ended = True
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _begin(self, state: State) -> None:
        me, where = state.me, {"step": state.committed, "digest": state.digest.hex()}
        who = {"run": state.view.run, "member": me.name, "incarnation": me.incarnation}
        self._write({"tape": VERSION, "job": self._job, **who, **where})

    def _line(self, what: dict[str, object]) -> None:
        self._write({"at_s": round(time.time(), 3), **what})

    def _write(self, what: dict[str, object]) -> None:
        if self._file is not None:
            self._size_bytes += self._file.write(json.dumps(what) + "\n")


def _was_given(before: State, state: State) -> bool:
    """Whether a member that learns has received the state after a later step, rather than committed the next one."""
    if before.committed < 0:
        return True
    return state.committed > before.committed + 1 and state.me in before.view.joining


def _opened(path: Path) -> TextIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8")

"""Sets a program's own limit, and puts back the one that was found, whatever happens in between.

what is set       1.1 times what the class may use: queues stay in the program. Never below the guarantee, and
                  never above the operator's own limit.
when              on a change of over 10 %, and not within 2 s of the last: Syncthing writes each to its disk.
what was found    is in a file before anything is set. Every end, and the next start after a crash, puts it back.
who changed it    a limit that we did not set, in a program that has not restarted, is the operator's. It wins: from
                  then on nothing is set until the adapter restarts. What still is as we set it is put back then.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from broker.adapters.program import ProgramError, Settings, StorageAdapter
from broker.policy.types import StorageProgram
from hive_qos.files import write_whole

ABOVE = 1.1
"""A tenth above: the kernel's limit is reached, and little more than it waits in the kernel."""
CHANGE = 0.1
WRITE_S = 2.0
CHECK_S = 10.0
"""How often the settings are compared with ours, so that a change by hand is seen."""
RECORD_BYTES_MAX = 64 * 1024
"""A record is half a kilobyte; a longer file is none."""


class Record(Struct, frozen=True):
    """What is kept of one program while its limit is ours.

    Fields: `found` what would be there without us, which is put back; `written` ours, and while a write is on its way
    that before it; `run` the program's own run in which we wrote; `by_hand` whether the operator has changed a limit.
    """

    program: StorageProgram
    found: dict[str, Any]
    written: tuple[dict[str, Any], ...] = ()
    run: str = ""
    by_hand: bool = False


def read_record(path: Path) -> Record | None:
    """What is kept there; None where nothing is, or what is there is no record."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(RECORD_BYTES_MAX), type=Record)
    except (OSError, ValueError):
        return None


class Limiter:
    """The limit of one program. For one thread.

    Args:
        directory: where its record is kept.
    """

    def __init__(self, program: StorageProgram, adapter: StorageAdapter, directory: Path) -> None:
        self._program, self._adapter = program, adapter
        place = zlib.crc32(f"{program.kind} {program.url}".encode())
        self._path = directory / f"{program.name}-{place:08x}.json"
        self._record = read_record(self._path)
        if self._record is not None:
            self._record = msgspec.structs.replace(self._record, program=program)  # its key may be elsewhere now
        self._checked_s = self._written_s = float("-inf")
        self.note = ""
        """Why the limit is not ours, for people."""
        self.rate_bits_per_s: int | None = None
        """The limit that the program has, as last seen."""

    def follow(self, *, ceiling_bits_per_s: int, guarantee_bits_per_s: int, now_s: float) -> None:
        """Bring the program's limit to what its class may use now.

        Raises:
            ProgramError: the program does not answer.
            OSError: what was found cannot be kept, and so nothing is set.
        """
        rate = max(int(ABOVE * ceiling_bits_per_s), guarantee_bits_per_s)
        wanted = None if self._record is None else self._adapter.limited(self._record.found, rate)
        moved = wanted is not None and self._moved(wanted)
        if (not moved and now_s - self._checked_s < CHECK_S) or now_s - self._written_s < WRITE_S:
            return
        record, current, run = self._check(now_s)
        wanted = self._adapter.limited(record.found, rate)
        self.rate_bits_per_s = self._adapter.rate_bits_per_s(current)
        if record.by_hand:
            self.note = "its limit was changed by hand, and stays; restart hive-qos-adapter to have it follow again"
            return
        if wanted is None:
            self.note = "its own limit, which spares the local network, stays"
            if record.written:  # it has that since we set ours
                self._adapter.write(record.found)
                self._keep(msgspec.structs.replace(record, written=()))
            return
        self.note = ""
        if current != wanted and (moved or not record.written or current != record.written[-1]):
            before = record.written[-1] if record.written else record.found
            record = msgspec.structs.replace(record, written=(before, dict(wanted)), run=run)
            self._keep(record)
            self._written_s = now_s
            self._adapter.write(wanted)
            self._keep(msgspec.structs.replace(record, written=(dict(wanted),)))
            self.rate_bits_per_s = self._adapter.rate_bits_per_s(wanted)

    def restore(self) -> str | None:
        """Put back what was found; what was done, or None where nothing was ours.

        Raises:
            ProgramError: the program does not answer; the record stays for the next try.
        """
        record = self._record
        if record is None:
            return None
        _, current = self._adapter.settings()
        own = _without_ours(record, current)
        done = "its own limit is in force"
        if own != current:
            self._adapter.write(own)
            done = "its own limit is back"
        elif record.by_hand or self._limits_of(current) != self._limits_of(record.found):
            done = "its limit was changed by hand meanwhile, and stays"
        self._path.unlink(missing_ok=True)
        self._record, self.rate_bits_per_s, self.note = None, None, ""
        self._checked_s = self._written_s = float("-inf")
        return done

    def _check(self, now_s: float) -> tuple[Record, Settings, str]:
        """Read the settings, who made them, and in which run of the program."""
        run, current = self._adapter.settings()
        self._checked_s, record, limits = now_s, self._record, self._limits_of
        if record is None or (not record.written and not record.by_hand):
            record = Record(self._program, found=dict(current), run=run)
        else:
            written = [limits(one) for one in record.written]  # the last but one where our last write was cut off
            alike = self._adapter.runs_alike and limits(current) == limits(record.found)
            ours, restarted = limits(current) in written, run != record.run or alike
            own = _without_ours(record, current)
            known = limits(own) == limits(record.found)
            by_hand = (known and record.by_hand) or not (ours or restarted)
            others = {key: value for key, value in current.items() if key not in self._adapter.limit_keys}
            record = msgspec.structs.replace(
                record,
                found=own,
                written=tuple(one | others for one in record.written),
                run=run if ours or by_hand else record.run,  # until we write
                by_hand=by_hand,
            )
        if record != self._record:
            self._keep(record)
        return record, current, run

    def _limits_of(self, settings: Settings) -> list[int | bool]:
        return [settings.get(key, 0) for key in self._adapter.limit_keys]

    def _moved(self, wanted: Settings) -> bool:
        """Whether the rate is another than the last that we set, by more than `CHANGE`."""
        record = self._record
        if record is None or not record.written:
            return True
        before = self._adapter.rate_bits_per_s(record.written[-1])
        rate = self._adapter.rate_bits_per_s(wanted)
        return before is None or rate is None or abs(rate - before) > CHANGE * before

    def _keep(self, record: Record) -> None:
        write_whole(self._path, msgspec.json.encode(record).decode())
        self._record = record


def _without_ours(record: Record, current: Settings) -> dict[str, Any]:
    """The settings with what was found in place of each value that is ours."""
    return {
        key: record.found.get(key, value) if any(one.get(key) == value for one in record.written) else value
        for key, value in current.items()
    }


def records(directory: Path) -> list[Record]:
    """Everything that is kept there."""
    found = (read_record(path) for path in sorted(directory.glob("*.json")))
    return [record for record in found if record is not None]


def unkept(problem: OSError) -> ProgramError:
    """The words for a record that cannot be written."""
    text = f"what was found cannot be kept ({problem.filename}: {problem.strerror}), so its limit is not set"
    return ProgramError("unexpected", text)

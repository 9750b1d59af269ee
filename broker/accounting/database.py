"""The file in which usage is kept across restarts: SQLite, one row an hour, interface, class, job and user.

Rows older than `KEPT_S` go. A file that is broken is moved aside, and a new one begun: old figures are not worth a
daemon that does not start.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.model.usage import Usage, UsageKey, UsageRow, keys_of
from hive_qos.errors import BrokerRejectedError, ConfigurationError

NAME = "usage.sqlite"
KEPT_S = 400 * 24 * 3600
"""Thirteen months: a month and the same one a year before."""
ROWS_MAX = 10_000
"""Of a report: a month by the hour and class. Beyond it nobody reads, and the answer would fill the memory."""
READ_S_MAX = 3.0
"""A report takes milliseconds; years of made-up jobs must not keep the file from its writer."""
BUSY_S = 4.0
"""How long one waits for another that has the file: longer than a reader may have it."""
_STEPS, _PAUSE_S = 20_000, 0.004
"""A reader lets go of the processor after about a millisecond: the loop has the same quota."""
_VERSION = 1
_DAY_S = 86_400
_TABLE = """
CREATE TABLE IF NOT EXISTS usage (
  hour_s INTEGER NOT NULL, interface TEXT NOT NULL, class TEXT NOT NULL, job TEXT NOT NULL, uid INTEGER NOT NULL,
  carried INTEGER NOT NULL, lent INTEGER NOT NULL, borrowed INTEGER NOT NULL, repaid INTEGER NOT NULL,
  PRIMARY KEY (hour_s, interface, class, job, uid)
) WITHOUT ROWID"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET carried = carried + excluded.carried, lent = lent + excluded.lent,
  borrowed = borrowed + excluded.borrowed, repaid = repaid + excluded.repaid"""
_FORGET = "DELETE FROM usage WHERE hour_s < ? AND hour_s = (SELECT MIN(hour_s) FROM usage)"
"""One hour at a time, at each write: a clock that is wrong for a minute must not cost all that is kept."""
_NOBODY = -1
"""A uid in the file that stands for none: NULL would not be the same key twice."""
_COLUMNS: Final[Mapping[str, str]] = {"day_s": f"hour_s / {_DAY_S} * {_DAY_S} AS day_s"}
"""What of a row's keys is no column of the table by itself."""


def add(path: Path, counted: Mapping[UsageKey, Usage], *, now_s: float) -> str | None:
    """Add what was counted to the file, and forget what is too old.

    Args:
        now_s: seconds since 1970.

    Returns:
        Where a broken file was moved to; None where there was none.

    Raises:
        OSError, sqlite3.Error: it cannot be written; nothing of it was.
    """
    try:
        _add(path, counted, now_s=now_s)
    except sqlite3.DatabaseError as problem:
        if isinstance(problem, sqlite3.OperationalError):  # full, locked, not to be opened: the file itself is good
            raise
        aside = path.with_name(path.name + ".broken")
        os.replace(path, aside)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}-journal")
        _add(path, counted, now_s=now_s)
        return str(aside)
    return None


def _add(path: Path, counted: Mapping[UsageKey, Usage], *, now_s: float) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as file:
        os.chmod(path, 0o600)
        file.execute("BEGIN IMMEDIATE")
        if (version := file.execute("PRAGMA user_version").fetchone()[0]) not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version} is not known here")
        file.execute(_TABLE)
        file.execute(f"PRAGMA user_version = {_VERSION}")
        file.executemany(_ADD, (_values(key, one) for key, one in counted.items()))
        file.execute(_FORGET, (int(now_s - KEPT_S),))
        file.execute("COMMIT")


def _values(key: UsageKey, one: Usage) -> tuple[object, ...]:
    uid = _NOBODY if key.uid is None else key.uid
    return (
        key.hour_s, key.interface, key.traffic_class, key.job, uid,
        one.carried_bytes, one.lent_bytes, one.borrowed_bytes, one.repaid_bytes,
    )  # fmt: skip


def read(path: Path, *, since_s: float, until_s: float, by: Sequence[str]) -> list[UsageRow]:
    """Sum what is kept of some time. Safe while a daemon writes.

    Args:
        since_s, until_s: seconds since 1970; hours that begin in [since, until) count.
        by: of `GROUPS`; none gives one row.

    Raises:
        ConfigurationError: the file is broken, or of another version.
        BrokerRejectedError: more than `ROWS_MAX` rows.
        OSError: it cannot be read.
    """
    if not path.exists():
        return []
    keys = keys_of(by)
    columns = ", ".join(_COLUMNS.get(key, key) for key in keys)
    groups = ", ".join(str(number + 1) for number in range(len(keys)))
    figures = "COALESCE(SUM(carried), 0), COALESCE(SUM(lent), 0), COALESCE(SUM(borrowed), 0), COALESCE(SUM(repaid), 0)"
    question = f"SELECT {columns + ', ' if columns else ''}{figures} FROM usage WHERE hour_s >= ? AND hour_s < ?"
    if groups:
        question += f" GROUP BY {groups} ORDER BY {groups}"
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        ) as file:
            file.set_progress_handler(_patience(), _STEPS)
            rows = file.execute(f"{question} LIMIT {ROWS_MAX + 1}", (since_s, until_s)).fetchall()
    except sqlite3.OperationalError as problem:
        if not os.access(path, os.R_OK):
            raise PermissionError(f"{path}: may not be read") from problem
        raise OSError(f"{path}: {problem}") from problem
    except sqlite3.DatabaseError as problem:
        raise ConfigurationError("usage", str(path), f"cannot be read ({problem}); move it away") from problem
    if len(rows) > ROWS_MAX:
        raise BrokerRejectedError(f"more than {ROWS_MAX} rows; ask for a shorter time, or divide by less")
    return [_row(keys, row) for row in rows]


def _patience() -> Callable[[], bool]:
    """For SQLite to call now and then: pauses, and says when a question takes too long."""
    until_s = time.monotonic() + READ_S_MAX

    def over() -> bool:
        time.sleep(_PAUSE_S)
        return time.monotonic() > until_s

    return over


def _row(keys: tuple[str, ...], row: Sequence[Any]) -> UsageRow:
    known = dict(zip((*keys, *Usage.__struct_fields__), row, strict=True))
    if known.get("uid") == _NOBODY:
        known["uid"] = None
    return msgspec.convert(known, UsageRow)

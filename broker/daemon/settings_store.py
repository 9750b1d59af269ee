"""Settings over the file, as the daemon keeps them: until their time is over, and over a restart.

They lie in `settings.json` in the state directory. The operator's file is never written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from broker.api.documents.snapshot import SettingInfo
from broker.events.log import Log
from broker.model.values import Alarm
from broker.policy.settings import KEYS, Setting
from hive_qos.files import is_trusted, write_whole

NAME = "settings.json"
_BYTES_MAX = 2**16
"""Of the file: 64 settings of 300 bytes are 19 KiB."""


class _Kept(Struct, frozen=True):
    settings: tuple[Setting, ...]
    version: int = 1


class SettingsStore:
    """For the loop's thread.

    Args:
        utc_s: seconds since 1970: a setting for two hours ends after two hours, whatever restarts meanwhile.
    """

    def __init__(self, state_dir: str, *, log: Log, utc_s: Callable[[], float] = time.time) -> None:
        self._path, self._log, self._utc_s = Path(state_dir) / NAME, log, utc_s
        self.current: tuple[Setting, ...] = ()
        self._left_out = ""

    def load(self) -> None:
        """Take what an earlier daemon kept. What is damaged, or could be somebody else's, is left out."""
        try:
            if not is_trusted(os.lstat(self._path)):
                raise ValueError("others may write it")
            with open(self._path, "rb") as file:
                kept = msgspec.json.decode(file.read(_BYTES_MAX), type=_Kept)
            if kept.version != 1 or not all(one.kind in KEYS for one in kept.settings):
                raise ValueError("another version wrote it")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as problem:  # msgspec's errors are ValueErrors
            self._log.error("settings-unusable", error=str(problem))
            return
        self.current = self._lasting(kept.settings)

    def replace(self, settings: Sequence[Setting], *, left_out: str = "") -> str:
        """These are in force now; returns what of that is worth saying.

        Args:
            left_out: what is no longer, without anybody having unset it, and why; an alarm until the next change.
        """
        self.current, self._left_out = tuple(settings), left_out
        try:
            if self.current:
                write_whole(self._path, msgspec.json.encode(_Kept(self.current)).decode())
            else:
                self._path.unlink(missing_ok=True)
        except OSError as problem:
            self._log.error("settings-not-kept", error=str(problem))
            return f"a restart ends it: {self._path} cannot be written ({problem.strerror})"
        return ""

    def until_s(self, for_s: float) -> float:
        """When a setting ends that begins now, in seconds since 1970."""
        return self._utc_s() + for_s

    @property
    def due(self) -> bool:
        """Whether the time of one is over."""
        return any(one.until_s is not None and one.until_s <= self._utc_s() for one in self.current)

    def lasting(self) -> tuple[Setting, ...]:
        """Those whose time is not over."""
        return self._lasting(self.current)

    def alarms(self) -> tuple[Alarm, ...]:
        """What was left out."""
        return (Alarm("settings-left-out", "settings", self._left_out),) if self._left_out else ()

    def info(self) -> tuple[SettingInfo, ...]:
        """For the status."""
        now_s = self._utc_s()
        return tuple(
            SettingInfo(one.kind, one.name, one.key, one.value, None if one.until_s is None else one.until_s - now_s)
            for one in self.current
        )

    def _lasting(self, settings: Sequence[Setting]) -> tuple[Setting, ...]:
        now_s = self._utc_s()
        return tuple(one for one in settings if one.until_s is None or one.until_s > now_s)

"""Remember on disk what stood at an interface's root before us, so that a crash does not lose it.

One small JSON file an interface, written beside its place, synced and renamed into it: after a power cut there is the
old file, the new one or none, never half of one.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from hive_qos.errors import ShapingError
from shaping.model import PriorQdisc

_VERSION = 1
_NAME = re.compile(r"[^/\s:]{1,15}")
"""What the kernel takes as an interface's name (dev_valid_name): no slash, colon or space, at most 15 bytes."""


class Journal:
    """The entries under one state directory, made with mode 0700 when first written. One writer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, interface: str, prior: PriorQdisc) -> None:
        """Write and fsync; an older entry for the interface is replaced.

        Raises:
            OSError: the state directory cannot be written: do not touch the interface then.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(interface)
        scratch = path.with_suffix(".new")
        entry = {
            "version": _VERSION,
            "interface": interface,
            "kind": prior.kind,
            "handle_major": prior.handle_major,
            "options": dict(prior.options),
            "nested": prior.nested,
        }
        scratch.unlink(
            missing_ok=True
        )  # of a start that was killed; or put there by somebody else: never write into it
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(scratch, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(entry, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        self._sync_directory()

    def read(self, interface: str) -> PriorQdisc | None:
        """The entry, or None.

        Raises:
            ShapingError: there is a file, but not one of ours; somebody has to look at it.
        """
        path = self._path(interface)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            entry = json.loads(text)
            if entry["version"] != _VERSION:
                raise ValueError(f"version {entry['version']}, not {_VERSION}")
            options = entry["options"]
            if not isinstance(options, dict):
                raise TypeError("options is no table")
            return PriorQdisc(
                kind=str(entry["kind"]),
                handle_major=int(entry["handle_major"]),
                options={str(key): value for key, value in options.items()},
                nested=int(entry["nested"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ShapingError(
                f"{path} is not a journal entry ({error}); restore the qdisc by hand and remove the file"
            ) from error

    def forget(self, interface: str) -> None:
        """Remove the entry. Harmless when there is none."""
        self._path(interface).unlink(missing_ok=True)
        if self.directory.exists():
            self._sync_directory()

    def interfaces(self) -> tuple[str, ...]:
        """Interfaces that have an entry, sorted."""
        return tuple(sorted(path.name[len("qdisc-") : -len(".json")] for path in self.directory.glob("qdisc-*.json")))

    def _path(self, interface: str) -> Path:
        if not _NAME.fullmatch(interface) or interface in (".", ".."):
            raise ValueError(f"{interface!r} is not the name of an interface")
        return self.directory / f"qdisc-{interface}.json"

    def _sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

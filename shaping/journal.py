"""Remember on disk how an interface was before us, so that a crash does not lose it.

One small JSON file a thing that we change, whole or not there at all (`hive_qos.files`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hive_qos.errors import ShapingError
from hive_qos.files import sync_directory, write_whole
from shaping.model.names import is_ours
from shaping.model.observations import PriorQdisc

T = TypeVar("T")

_VERSION = 1
_KINDS = _QDISC, _SEGMENTS, _LINE, _INGRESS = "qdisc", "gso", "line", "ingress"
_NAME = re.compile(r"[^/:\t-\r ]{1,15}")
"""What the kernel takes as an interface's name (dev_valid_name): no slash, colon or ASCII space, at most 15 bytes."""


class Journal:
    """The entries under one state directory, made with mode 0700 when first written. One writer.

    An interface has one entry for its root qdisc, one for the segments that its device took in one piece, from before
    we first change that until it is put back, one for the IFB behind its ingress, and one for its line's rate.
    `changes` counts what was written here.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changes = 0

    def write(self, interface: str, prior: PriorQdisc) -> None:
        """Write and fsync; an older entry for the interface is replaced.

        Raises:
            OSError: the state directory cannot be written: do not touch the interface then.
        """
        entry = {
            "kind": prior.kind,
            "handle_major": prior.handle_major,
            "options": dict(prior.options),
            "nested": prior.nested,
            "boot": _boot(),
        }
        self._write(_QDISC, interface, entry)

    def read(self, interface: str) -> PriorQdisc | None:
        """The entry, or None.

        Raises:
            ShapingError: there is a file, but not one of ours; somebody has to look at it.
        """
        return self._read(_QDISC, interface, _prior_of, "restore the qdisc")

    def read_of_this_boot(self, interface: str) -> PriorQdisc | None:
        """The entry, where the machine has not been started again since. Errors as of `read`."""
        boot = _boot()

        def parse(entry: dict[str, Any]) -> PriorQdisc | None:
            return _prior_of(entry) if boot and entry.get("boot") == boot else None

        return self._read(_QDISC, interface, parse, "restore the qdisc")

    def forget(self, interface: str) -> None:
        """Remove the entry, and that of the line. Harmless when there is none."""
        self._forget(_LINE, interface)
        self._forget(_QDISC, interface)

    def write_line(self, interface: str, line_bits_per_s: int) -> None:
        """Write and fsync what ceilings are opened to when nobody decides any more, as `write` does."""
        self._write(_LINE, interface, {"line_bits_per_s": line_bits_per_s})

    def read_line(self, interface: str) -> int | None:
        """The line's rate, None where nobody knew it. Errors as of `read`."""
        return self._read(_LINE, interface, lambda entry: int(entry["line_bits_per_s"]), "open the ceilings")

    def forget_line(self, interface: str) -> None:
        """Remove that entry. Harmless when there is none."""
        self._forget(_LINE, interface)

    def write_segments(self, interface: str, limit: int) -> None:
        """Write and fsync the device's own `gso_max_segs`, as `write` does."""
        self._write(_SEGMENTS, interface, {"gso_max_segs": limit})

    def lend_segments(self, interface: str, left: int | None) -> None:
        """Its interface has gone with this limit, perhaps to another namespace: the entry stays until it is back."""
        entry = self._read(_SEGMENTS, interface, dict, "set gso_max_segs")
        if entry is not None:
            self._write(_SEGMENTS, interface, {**entry, "left": left})

    def read_segments(self, interface: str) -> int | None:
        """The device's own `gso_max_segs`, None where we have not changed it. Errors as of `read`."""
        return self._read(_SEGMENTS, interface, lambda entry: int(entry["gso_max_segs"]), "set gso_max_segs")

    def read_lent_segments(self, interface: str) -> int | None:
        """The limit with which the interface has gone, None where it has not. Errors as of `read`."""
        return self._read(
            _SEGMENTS, interface, lambda entry: entry.get("left") and int(entry["left"]), "set gso_max_segs"
        )

    def forget_segments(self, interface: str) -> None:
        """Remove that entry. Harmless when there is none."""
        self._forget(_SEGMENTS, interface)

    def write_ingress(self, interface: str, device: str) -> None:
        """Write and fsync by which IFB we shape what arrives at an interface, as `write` does."""
        self._write(_INGRESS, interface, {"device": device})

    def read_ingress(self, interface: str) -> str | None:
        """The IFB, None where we have made none. Errors as of `read`."""
        return self._read(_INGRESS, interface, _device_of, "delete the ingress qdisc and the IFB")

    def forget_ingress(self, interface: str) -> None:
        """Remove that entry. Harmless when there is none."""
        self._forget(_INGRESS, interface)

    def rename(self, new_names: Mapping[str, str]) -> None:
        """Interfaces have other names now, perhaps each other's: their entries go with them.

        Raises:
            OSError: it cannot be written; some entries may stand under both names.
        """
        moved = {}
        for old, new in new_names.items():
            for kind in _KINDS:
                try:
                    entry = json.loads(self._path(kind, old).read_text(encoding="utf-8"))
                except (FileNotFoundError, ValueError):  # none, or a damaged one, which stays where people look for it
                    continue
                moved[kind, new] = (old, entry)
        for (kind, new), (_, entry) in moved.items():
            self._write(kind, new, {**entry, "interface": new})
        for (kind, _), (old, _) in moved.items():
            if (kind, old) not in moved:
                self._forget(kind, old)

    def interfaces(self) -> tuple[str, ...]:
        """Interfaces of which something has to be put back, sorted."""
        names = {
            path.name[len(kind) + 1 : -len(".json")]
            for kind in (_QDISC, _SEGMENTS, _INGRESS)
            for path in self.directory.glob(f"{kind}-*.json")
        }
        return tuple(sorted(name for name in names if _NAME.fullmatch(name)))

    def _write(self, kind: str, interface: str, entry: Mapping[str, object]) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(kind, interface)
        text = json.dumps({"version": _VERSION, "interface": interface, **entry}, indent=1, sort_keys=True)
        write_whole(path, text)
        self.changes += 1

    def _read(self, kind: str, interface: str, make: Callable[[dict[str, Any]], T], by_hand: str) -> T | None:
        path = self._path(kind, interface)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            entry = json.loads(text)
            if entry["version"] != _VERSION:
                raise ValueError(f"version {entry['version']}, not {_VERSION}")
            return make(entry)
        except (ValueError, KeyError, TypeError) as error:
            raise ShapingError(
                f"{path} is not a journal entry ({error}); {by_hand} by hand and remove the file"
            ) from error

    def _forget(self, kind: str, interface: str) -> None:
        self._path(kind, interface).unlink(missing_ok=True)
        if self.directory.exists():
            sync_directory(self.directory)
        self.changes += 1

    def _path(self, kind: str, interface: str) -> Path:
        if not _NAME.fullmatch(interface) or interface in (".", ".."):
            raise ValueError(f"{interface!r} is not the name of an interface")
        return self.directory / f"{kind}-{interface}.json"


def _boot() -> str:
    """Which start of the machine this is; "" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _device_of(entry: dict[str, Any]) -> str:
    device = str(entry["device"])
    if not is_ours(device):
        raise ValueError(f"{device!r} is no IFB of ours")
    return device


def _prior_of(entry: dict[str, Any]) -> PriorQdisc:
    options = entry["options"]
    if not isinstance(options, dict):
        raise TypeError("options is no table")
    return PriorQdisc(
        kind=str(entry["kind"]),
        handle_major=int(entry["handle_major"]),
        options={str(key): value for key, value in options.items()},
        nested=int(entry["nested"]),
    )

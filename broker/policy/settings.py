"""Settings that an operator puts over the file for a while: `class storage guarantee=30%`. Pure.

They are merged into what the file says before it is read, so they follow the same rules: units, did-you-mean, sums.
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from broker.policy.types import CLASS_NAMES
from hive_qos.errors import ConfigurationError

KEYS: Mapping[str, tuple[str, ...]] = {
    "class": ("guarantee", "floor", "ceiling", "weight", "priority"),
    "job": ("guarantee", "ceiling", "weight"),
    "interface": ("egress", "ingress"),
}
"""What can be set, by kind; everything else is for the file."""
SETTINGS_MAX = 64
"""At once; who needs more edits the file."""
VALUE_LENGTH_MAX = 64
NAME_LENGTH_MAX = 128
"""As long as a session may call its job; a value is a rate, a share or a number."""
_NUMBERS: Mapping[str, type[int] | type[float]] = {"weight": float, "priority": int}


SETTING_S_MAX, PAUSE_S_MAX = 30 * 86_400.0, 86_400.0
"""Of a setting a month: what holds longer is kept, or stands in the file. Of a pause a day."""


class Setting(Struct, frozen=True):
    """One value over the file's.

    Fields: `kind` a key of `KEYS`; `name` of the class, job or interface; `key` one of the kind's; `value` as the file
    would have it, a number without quotes; `until_s` seconds since 1970, None: until it is unset.
    """

    kind: str
    name: str
    key: str
    value: str
    until_s: float | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """What it is about: a later setting replaces an earlier one of the same place."""
        return self.kind, self.name, self.key


def read_settings(kind: str, name: str, texts: Sequence[str], *, until_s: float | None) -> tuple[Setting, ...]:
    """Settings as they are typed: `guarantee=30%`.

    Raises:
        ConfigurationError: there is no such kind, class or key, or no value. Values are read with the file.
    """
    check_target(kind, name)
    if not 1 <= len(texts) <= SETTINGS_MAX:
        raise ConfigurationError("set", len(texts), f"name 1 to {SETTINGS_MAX} settings, such as {KEYS[kind][0]}=...")
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        _known(key.strip(), KEYS[kind], f"{kind}.{name}")
        value = value.strip()
        if not equals or not value or not value.isprintable() or len(value) > VALUE_LENGTH_MAX:
            raise ConfigurationError(
                f"{kind}.{name}.{key.strip()}", value, f"write KEY=VALUE, such as {_EXAMPLES[kind]}"
            )
        found.append(Setting(kind, name, key.strip(), value, until_s))
    return tuple(found)


_EXAMPLES = {"class": "guarantee=30%", "job": "weight=2", "interface": "egress=80Mbit/s"}


def check_target(kind: str, name: str) -> None:
    """Be sure that there can be such a thing.

    Raises:
        ConfigurationError: there is no such kind, or no such class.
    """
    _known(kind, tuple(KEYS), "set")
    if kind == "class":
        _known(name, CLASS_NAMES, "class")
    if not name or not name.isprintable() or len(name) > NAME_LENGTH_MAX:
        raise ConfigurationError(kind, name, f"write a name of at most {NAME_LENGTH_MAX} printable characters")


def over(settings: Iterable[Setting], former: Iterable[Setting]) -> tuple[Setting, ...]:
    """Former settings with new ones over them, sorted by place.

    Raises:
        ConfigurationError: these are too many.
    """
    by_place = {one.place: one for one in (*former, *settings)}
    if len(by_place) > SETTINGS_MAX:
        raise ConfigurationError("set", len(by_place), f"at most {SETTINGS_MAX} settings; write the rest into the file")
    return tuple(by_place[place] for place in sorted(by_place))


def merged(raw: Mapping[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """What the file would say with these settings in it.

    Args:
        raw: the file as TOML; sections that are no tables stay, for the reader to complain of.

    Raises:
        ConfigurationError: the file names no such interface.
    """
    result = copy.deepcopy(dict(raw))
    for one in settings:
        section = _section(result, one)
        if section is not None:
            section[one.key] = _value(one)
    return result


def _section(raw: dict[str, Any], one: Setting) -> dict[str, Any] | None:
    if one.kind == "interface":
        entries = [entry for entry in raw.get("interface", []) if isinstance(entry, dict)]
        for entry in entries:
            if entry.get("name") == one.name:
                return entry
        known = ", ".join(str(entry.get("name")) for entry in entries)
        raise ConfigurationError("interface", one.name, f"the configuration shapes no such interface; it has {known}")
    table = raw.setdefault(one.kind, {})
    if not isinstance(table, dict):
        return None
    if one.kind == "job" and one.name not in table:  # a section of its own would hide the pattern that it falls under
        pattern = next((name for name in table if fnmatch.fnmatchcase(one.name, name)), None)
        table[one.name] = copy.deepcopy(table[pattern]) if pattern is not None else {}
    section = table.setdefault(one.name, {})
    return section if isinstance(section, dict) else None


def _value(one: Setting) -> Any:
    number = _NUMBERS.get(one.key)
    if number is None:
        return one.value
    try:
        return number(one.value)
    except ValueError:
        return one.value  # the reader says what it wants


def _known(given: str, known: Sequence[str], key: str) -> None:
    if given not in known:
        near = difflib.get_close_matches(given, known, n=1)
        advice = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        raise ConfigurationError(key, given, advice)

"""What every section of `broker.toml` is read with: single values, and the list of mistakes. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from hive_qos.errors import ConfigurationError

T = TypeVar("T")

WEIGHT_MAX = 1000.0
"""A share of a thousandth is none that anybody feels."""


class Reader:
    """Collects problems while it reads; a value that is wrong counts as its default from there on."""

    def __init__(self) -> None:
        self.problems: list[ConfigurationError] = []

    def problem(self, key: str, value: object, reason: str) -> None:
        """Note a mistake."""
        self.problems.append(ConfigurationError(key, value, reason))

    def known(self, raw: Mapping[str, Any], *, keys: Iterable[str], prefix: str) -> bool:
        """Note keys that nobody knows; False where there are some."""
        unknown = [key for key in raw if key not in tuple(keys)]
        for key in unknown:
            near = difflib.get_close_matches(key, list(keys), n=1)
            advice = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(keys)}"
            self.problem(prefix + key, raw[key], f"unknown key; {advice}")
        return not unknown

    def table(self, raw: Mapping[str, Any], key: str, *, prefix: str) -> Mapping[str, Any]:
        """Take out a section; an empty one where there is none."""
        value = raw.get(key, {})
        if isinstance(value, dict):
            return value
        self.problem(prefix + key, value, f"write a section, e.g. [{prefix}{key}]")
        return {}

    def parsed(
        self, raw: Mapping[str, Any], key: str, parse: Callable[[str], T], *, prefix: str, default: T, hint: str = ""
    ) -> T:
        """Take out and parse a text."""
        if key not in raw:
            return default
        value = raw[key]
        try:
            if not isinstance(value, str):
                raise ValueError(f"write {hint or 'a number with its unit'}, in quotes")
            return parse(value)
        except ValueError as error:
            self.problem(prefix + key, value, str(error) + (f" ({hint})" if hint and isinstance(value, str) else ""))
            return default

    def weight(self, raw: Mapping[str, Any], *, prefix: str, default: float) -> float:
        """Take out a weight."""
        value = raw.get("weight", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= WEIGHT_MAX:
            self.problem(prefix + "weight", value, f"write a number above 0 and at most {WEIGHT_MAX:g}")
            return default
        return float(value)

    def integer(
        self, raw: Mapping[str, Any], key: str, *, prefix: str, high: int, low: int = 0, default: int = 0
    ) -> int:
        """Take out a whole number."""
        value = raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.problem(prefix + key, value, f"write a whole number from {low} to {high}")
            return default
        return value

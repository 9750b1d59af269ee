"""On which line of a TOML text each key stands, so that a mistake can be found in an editor.

`tomllib` gives values without places. This reads the same text again for the places alone: it is only asked about texts
that `tomllib` has accepted, so it looks at brackets, quotes and line ends, and judges nothing (TOML 1.0, toml.io).
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""+' r"|'''.*?'''+" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'", re.DOTALL
)  # fmt: skip
_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")


def lines_of(text: str) -> Mapping[str, int]:
    """The line of each section, key and entry of a text that is TOML, the first being 1.

    Returns:
        By the key as a `ConfigurationError` has it: `class.storage.match[2].port`.
    """
    scan = _Scan(text)
    scan.document()
    return scan.found


def line_of(key: str, lines: Mapping[str, int]) -> int | None:
    """The line of a key, or of the nearest section around it; None where the text has neither.

    Args:
        key: as a `ConfigurationError` has it; `class.*.guarantee` is the first of several classes'.
    """
    if "*" in key and key not in lines:
        pattern = re.compile(re.escape(key).replace(r"\*", r"[^.]+"))
        found = [line for name, line in lines.items() if pattern.fullmatch(name)]
        if found:
            return min(found)
    while key:
        if key in lines:
            return lines[key]
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return None


def line_in(error_text: str) -> int | None:
    """The line that `tomllib` names in the text of an error, None where it names none."""
    found = _AT_LINE.search(error_text)
    return int(found[1]) if found is not None else None


def written(path: Path) -> str:
    """A path as errors write it: `interface[0].egress`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Scan:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._counts: dict[Path, int] = {}
        self.found: dict[str, int] = {}

    def document(self) -> None:
        section: Path = ()
        while self._next():
            if self._text[self._at] == "[":
                section = self._section()
            else:
                self._pair(section)

    def _section(self) -> Path:
        begin = self._at
        many = self._text.startswith("[[", begin)
        self._at += 2 if many else 1
        *above, last = self._keys()
        path = self._resolved((), above)
        if many:
            self._counts[(*path, last)] = self._counts.get((*path, last), -1) + 1
        path = self._resolved(path, [last])
        self._note(path, begin)
        self._next()
        self._at += 2 if many else 1
        return path

    def _resolved(self, path: Path, keys: list[str]) -> Path:
        """A section below an array of sections belongs to its last entry."""
        for key in keys:
            path = (*path, key)
            if path in self._counts:
                path = (*path, self._counts[path])
        return path

    def _pair(self, section: Path) -> None:
        begin = self._at
        path = (*section, *self._keys())
        self._note(path, begin)
        self._next()
        self._at += 1  # the equals sign
        self._next()
        self._value(path)

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening in "[{":
            self._at += 1
            number = 0
            while self._next() and self._text[self._at] not in "]}":
                if opening == "{":
                    self._pair(path)
                else:
                    self._note((*path, number), self._at)
                    self._value((*path, number))
                number += 1
                if self._next() and self._text[self._at] == ",":
                    self._at += 1
            self._at += 1
        else:
            self._at = (_STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at) or _nothing()).end()

    def _keys(self) -> list[str]:
        keys = []
        while self._next():
            found = _STRING.match(self._text, self._at) or _BARE.match(self._text, self._at) or _nothing()
            key = found[0]
            keys.append(str(tomllib.loads(f"key = {key}")["key"]) if key[0] in "\"'" else key)
            self._at = found.end()
            self._next()
            if self._at >= len(self._text) or self._text[self._at] != ".":
                break
            self._at += 1
        return keys

    def _next(self) -> bool:
        """Go on to what is no blank and no comment; False at the end."""
        self._at = (_BLANK.match(self._text, self._at) or _nothing()).end()
        return self._at < len(self._text)

    def _note(self, path: Path, at: int) -> None:
        self.found.setdefault(written(path), bisect_right(self._ends, at - 1) + 1 if at else 1)


def _nothing() -> re.Match[str]:
    raise ValueError("not a text that tomllib accepts")

"""`[page]` of `broker.toml`: the status page and metrics over TCP. Without the section nothing listens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from broker.policy.listen import read_listen
from broker.policy.reader import Reader
from broker.policy.types import PagePolicy

KEYS = ("listen", "names")
DEFAULT_LISTEN = "127.0.0.1:8710"
NAMES_MAX = 16
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
"""A host name of RFC 1123, and underscores, which some have."""


def read_page(reader: Reader, raw: Mapping[str, Any]) -> PagePolicy:
    """Read the section; each mistake is told and counts as left out."""
    value = raw.get("listen", DEFAULT_LISTEN)
    listen = read_listen(value)
    if listen is None:
        reader.problem("page.listen", value, 'write an address and a TCP port, e.g. "127.0.0.1:8710" or "[::1]:8710"')
    names = raw.get("names", [])
    if not isinstance(names, list) or len(names) > NAMES_MAX:
        reader.problem("page.names", names, f'list at most {NAMES_MAX} host names, e.g. ["trainer-1.example.com"]')
        names = []
    found: list[str] = []
    for number, name in enumerate(names):
        plain = name.lower().removesuffix(".") if isinstance(name, str) else ""
        if _NAME.fullmatch(plain) is None:
            reason = "write a host name as it stands in the browser's address line, without a port"
            reader.problem(f"page.names[{number}]", name, reason)
        else:
            found.append(plain)
    return PagePolicy(listen=listen or DEFAULT_LISTEN, names=tuple(found))

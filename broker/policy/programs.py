"""`[[storage_program]]` of `broker.toml`: programs that `hive-qos adapter` asks for their backlog, and limits."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from broker.policy.people import read_time, read_timezone
from broker.policy.reader import Reader
from broker.policy.types import StorageProgram

KEYS = ("name", "kind", "url", "key_file", "ca_file", "deadline", "timezone", "limit")
KINDS = ("syncthing", "rclone", "minio", "ceph", "seaweedfs")
DEFAULT_URLS = {
    "syncthing": "http://127.0.0.1:8384",
    "rclone": "http://127.0.0.1:5572",
    "minio": "http://127.0.0.1:9000",
    "ceph": "http://127.0.0.1:9283",
    "seaweedfs": "http://127.0.0.1:9333",
}
"""Where each listens unless told otherwise."""
PROGRAMS_MAX = 16
"""Each has a thread and a session of its own."""
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}"
"""It stands in the status, and begins a file's name."""
UNIX_URL = "unix:"


def read_programs(reader: Reader, raw: Mapping[str, Any]) -> tuple[StorageProgram, ...]:
    """Read all `[[storage_program]]`, in the order of the file; each mistake is told and counts as left out."""
    entries = raw.get("storage_program", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        reason = "write each program as a section of its own: [[storage_program]]"
        reader.problem("storage_program", entries, reason)
        return ()
    if len(entries) > PROGRAMS_MAX:
        reader.problem("storage_program", len(entries), f"at most {PROGRAMS_MAX} programs")
        return ()
    found = tuple(_program(reader, entry, f"storage_program[{i}].") for i, entry in enumerate(entries))
    names = [entry.name for entry in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            reason = "two programs have this name; give one another `name`"
            reader.problem(f"storage_program[{i}].name", name, reason)
    return found


def _program(reader: Reader, raw: Mapping[str, Any], prefix: str) -> StorageProgram:
    reader.known(raw, keys=KEYS, prefix=prefix)
    kind = raw.get("kind")
    if kind not in KINDS:
        reader.problem(prefix + "kind", kind, f"one of {', '.join(KINDS)}")
        kind = KINDS[0]
    name = raw.get("name", kind)
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        reason = "write 1 to 32 letters, digits, '-', '_' or '.'; the status shows it"
        reader.problem(prefix + "name", name, reason)
        name = kind
    limit = raw.get("limit", True)
    if not isinstance(limit, bool):
        reader.problem(prefix + "limit", limit, "true, or false to leave the program's own limit alone")
    deadline = None if "deadline" not in raw else read_time(reader, raw, "deadline", prefix)
    timezone = None if "timezone" not in raw else read_timezone(reader, raw, prefix)
    if timezone is not None and "deadline" not in raw:
        reader.problem(prefix + "timezone", timezone, "it is for a `deadline`, and there is none")
    return StorageProgram(
        name=name,
        kind=kind,
        url=_url(reader, raw.get("url", DEFAULT_URLS[kind]), prefix),
        key_file=_path(reader, raw, "key_file", prefix),
        ca_file=_path(reader, raw, "ca_file", prefix),
        deadline_s=None if deadline is None else 60 * deadline,
        timezone=timezone,
        limit=limit is True,
    )


def _url(reader: Reader, value: object, prefix: str) -> str:
    """A program's address: of this host, or encrypted."""
    reason = 'write "http://127.0.0.1:PORT", "unix:/PATH", or "https://HOST:PORT" for another host'
    if isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value:
        if value.startswith(f"{UNIX_URL}/"):
            return value
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username or parts.password)
        if plain and parts.hostname and port != 0:
            if parts.scheme == "https" or (parts.scheme == "http" and _of_this_host(parts.hostname)):
                return value
            if parts.scheme == "http":
                reason = "the key would pass the network unencrypted; use https, or the program's address on this host"
    reader.problem(prefix + "url", value, reason)
    return DEFAULT_URLS["syncthing"]


def _of_this_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(reader: Reader, raw: Mapping[str, Any], key: str, prefix: str) -> str | None:
    value = raw.get(key)
    if value is None or (isinstance(value, str) and value.isprintable() and value.startswith("/")):
        return value
    reader.problem(prefix + key, value, "write the absolute path of a file")
    return None

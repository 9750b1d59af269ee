"""`[peers]` of `broker.toml`: how this host's broker talks to others. Without the section it talks to nobody."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from broker.policy.types import PeersPolicy

KEYS = ("listen", "ca", "certificate", "key", "engine")
ENGINES = ("auto", "native", "aioquic")
DEFAULT_LISTEN, DEFAULT_PORT = "[::]:4710", 4710
"""The port of `hive-broker/1` (docs/reference/broker-protocol.md)."""

Problem = Callable[[str, object, str], None]


def read_peers(raw: Mapping[str, Any], problem: Problem) -> PeersPolicy:
    """Read the section; each mistake is told to `problem` (key, value, reason) and counts as its default."""
    paths = {key: _path(raw, key, problem) for key in ("ca", "certificate", "key")}
    engine = raw.get("engine", "auto")
    if engine not in ENGINES:
        problem("peers.engine", engine, f"one of {', '.join(ENGINES)}")
        engine = "auto"
    return PeersPolicy(listen=_listen(raw.get("listen", DEFAULT_LISTEN), problem), engine=engine, **paths)


def _path(raw: Mapping[str, Any], key: str, problem: Problem) -> str:
    value = raw.get(key)
    if isinstance(value, str) and value.isprintable() and value.startswith("/"):
        return value
    reason = "write the absolute path of a file that `hive-qos ca issue NODE --role broker --address ADDRESS` made"
    if key == "ca":
        reason = "write the absolute path of the cluster's ca.crt, which `hive-qos ca init` made"
    problem(f"peers.{key}", value, reason)
    return "/"


def _listen(value: object, problem: Problem) -> str:
    """An address with or without a port; the port is written out."""
    host, port = (value, "") if isinstance(value, str) else ("", "")
    if isinstance(value, str) and (value.endswith("]") or value.count(":") > 1) and not value.startswith("["):
        host = value  # IPv6 without brackets has no port
    elif isinstance(value, str) and not value.endswith("]") and ":" in value:
        host, _, port = value.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        found = ipaddress.ip_address(host)
        number = int(port) if port.isascii() and port.isdigit() else DEFAULT_PORT if not port else 0
    except ValueError:
        number = 0
    if not 0 < number < 65536:
        problem("peers.listen", value, 'write a literal address and a UDP port, e.g. "[::]:4710" or "0.0.0.0:4710"')
        return DEFAULT_LISTEN
    return f"[{found}]:{number}" if found.version == 6 else f"{found}:{number}"

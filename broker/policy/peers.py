"""`[peers]` of `broker.toml`: how this host's broker talks to others. Without the section it talks to nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.policy.listen import read_listen
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
    found = read_listen(value, default_port=DEFAULT_PORT)
    if found is None:
        problem("peers.listen", value, 'write a literal address and a UDP port, e.g. "[::]:4710" or "0.0.0.0:4710"')
    return found or DEFAULT_LISTEN

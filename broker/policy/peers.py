"""`[peers]` of `broker.toml`: how this host's broker talks to others. Without the section it talks to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.policy.listen import read_listen
from broker.policy.reader import Reader
from broker.policy.types import PeersPolicy

KEYS = ("listen", "ca", "certificate", "key", "engine")
ENGINES = ("auto", "native", "aioquic")
DEFAULT_LISTEN, DEFAULT_PORT = "[::]:4710", 4710
"""The port of `hive-broker/1` (docs/reference/broker-protocol.md)."""


def read_peers(reader: Reader, raw: Mapping[str, Any]) -> PeersPolicy:
    """Read the section; each mistake is told and counts as its default."""
    paths = {key: _path(reader, raw, key) for key in ("ca", "certificate", "key")}
    engine = raw.get("engine", "auto")
    if engine not in ENGINES:
        reader.problem("peers.engine", engine, f"one of {', '.join(ENGINES)}")
        engine = "auto"
    return PeersPolicy(listen=_listen(reader, raw.get("listen", DEFAULT_LISTEN)), engine=engine, **paths)


def _path(reader: Reader, raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if isinstance(value, str) and value.isprintable() and value.startswith("/"):
        return value
    reason = "write the absolute path of a file that `hive-qos ca issue NODE --role broker --address ADDRESS` made"
    if key == "ca":
        reason = "write the absolute path of the cluster's ca.crt, which `hive-qos ca init` made"
    reader.problem(f"peers.{key}", value, reason)
    return "/"


def _listen(reader: Reader, value: object) -> str:
    """An address with or without a port; the port is written out."""
    found = read_listen(value, default_port=DEFAULT_PORT)
    if found is None:
        reader.problem(
            "peers.listen", value, 'write a literal address and a UDP port, e.g. "[::]:4710" or "0.0.0.0:4710"'
        )
    return found or DEFAULT_LISTEN

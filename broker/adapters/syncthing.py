"""Syncthing, through its REST interface ("REST API", docs.syncthing.net).

`maxSendKbps` is KiB/s in spite of its name, and 0 means no limit. Without `limitBandwidthInLan` nothing in the local
network is limited. A change is in force at once, and is written to Syncthing's configuration file: hence few writes.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from urllib.parse import quote

from broker.adapters.http import ProgramHttp
from broker.adapters.program import Backlog, ProgramError, Settings, StorageAdapter, number
from broker.policy.types import StorageProgram

KIB_BITS = 1024 * 8
DEVICES_MAX = 64
"""Each is a question of its own; a host that has more counts the first that are connected."""
READ_S_MAX = 10.0
"""For all of them at once, where its database is slow: the limit has to follow, and the adapter to end, meanwhile."""


class Syncthing(StorageAdapter):
    """One Syncthing, with its API key."""

    limits = True
    limit_keys = ("maxSendKbps", "limitBandwidthInLan")

    def __init__(self, program: StorageProgram, key: str) -> None:
        self._http = ProgramHttp(program, {"X-API-Key": key})
        self._lacks: dict[str, int] = {}

    def read(self) -> Backlog:
        """What connected devices lack is ours to send, and what this one lacks is theirs."""
        connections = self._http.json("GET", "/rest/system/connections")
        found = connections.get("connections") if isinstance(connections, Mapping) else None
        if not isinstance(found, Mapping):
            raise ProgramError("unexpected", "its answer has no connections; is this a Syncthing?")
        upload = waiting = 0
        peers: dict[str, int] = {}
        named = sorted(found.items(), key=lambda one: not _connected(one[1]))[:DEVICES_MAX]
        self._ask([str(device) for device, _ in named])
        for device, connection in named:
            size_bytes = self._lacks.get(str(device), 0)
            if not _connected(connection):
                waiting += size_bytes
            elif size_bytes > 0:
                upload += size_bytes
                address = _address(connection.get("address"))
                if address is not None:
                    peers[address] = peers.get(address, 0) + size_bytes
        download = number(self._http.json("GET", "/rest/db/completion"), "needBytes")
        complete = sum(peers.values()) == upload  # else one is behind a relay: it counts at every interface
        return Backlog(upload, download, waiting, peers=peers if complete else {})

    def _ask(self, devices: list[str]) -> None:
        """What each device lacks: those first that were asked longest ago, as many as there is time for."""
        self._lacks = {one: size for one, size in self._lacks.items() if one in devices}  # in the order of asking
        until_s = time.monotonic() + READ_S_MAX
        for device in [*(one for one in devices if one not in self._lacks), *self._lacks]:
            self._lacks.pop(device, None)
            lacks = self._http.json("GET", f"/rest/db/completion?device={quote(device)}")
            self._lacks[device] = number(lacks, "needBytes")
            if time.monotonic() >= until_s:
                return

    def settings(self) -> tuple[str, Settings]:
        """Its options, and when it was started."""
        options = self._http.json("GET", "/rest/config/options")
        status = self._http.json("GET", "/rest/system/status")
        run = str(status.get("startTime", "")) if isinstance(status, Mapping) else ""
        in_lan = isinstance(options, Mapping) and options.get("limitBandwidthInLan") is True
        receives = number(options, "maxRecvKbps")
        return run, {
            "maxSendKbps": number(options, "maxSendKbps"), "maxRecvKbps": receives, "limitBandwidthInLan": in_lan,
        }  # fmt: skip

    def limited(self, found: Settings, rate_bits_per_s: int) -> Settings | None:
        """With limits of the operator's that spare the local network, nothing can be set that keeps them."""
        own = found["maxSendKbps"]
        if not found["limitBandwidthInLan"] and (own or found["maxRecvKbps"]):
            return None
        wanted = max(1, rate_bits_per_s // KIB_BITS)
        return {**found, "maxSendKbps": min(wanted, own) if own else wanted, "limitBandwidthInLan": True}

    def write(self, settings: Settings) -> None:
        """In force at once."""
        changed = {key: settings[key] for key in self.limit_keys}
        self._http.text("PATCH", "/rest/config/options", changed)

    def rate_bits_per_s(self, settings: Settings) -> int | None:
        """None where it spares the local network."""
        return settings["maxSendKbps"] * KIB_BITS or None if settings["limitBandwidthInLan"] else None


def _connected(connection: object) -> bool:
    return isinstance(connection, Mapping) and connection.get("connected") is True


def _address(text: object) -> str | None:
    """The literal address of "[fd00::1]:22000"; None of a relay's, and of one that only its link tells from others."""
    host = str(text).rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return None if address.is_link_local else str(address)

"""What a lab is made of, as plain values: nodes, links, and the description that holds them.

Nothing here touches the kernel. Rates are integer bits per second, durations float seconds, sizes bytes.
A link's two directions have the same properties; `rate_bits_per_s=None` means no limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from hive_qos.errors import ConfigurationError
from hive_qos.units import RATE_BITS_PER_S_MAX

NODES_MAX = 64
"""A lab lives on one machine; more namespaces than this is a typing error."""

LINKS_MAX = 200
"""Fits the third byte of the address plan (10.<group>.<link>.0/24) with room to spare."""

DELAY_S_MAX = 10.0
"""Ten seconds one way: beyond every path on Earth; a larger figure is a unit mistaken."""

GSO_SEGMENTS_MAX = 65_535
"""The kernel's own bound and default (GSO_MAX_SEGS): TCP then builds frames of up to 64 KiB."""

BUFFER_S_DEFAULT = 0.1
"""100 ms at the rate: an ordinary uplink's queue."""

Kind = Literal["host", "router"]
Carrier = Literal["auto", "veth", "netem", "relay"]
"""How frames cross a link: `veth` plain (no delay, no loss), `netem` in the kernel, `relay` in our own process."""

LUMP_BYTES_MAX = 2**16 + 64
"""What hosts hand over in one piece: a device's `gso_max_size` of 64 KiB, with Ethernet's header of 14
bytes and a relay's of 10, rounded up. A shorter queue would drop each such piece whole."""
NO_SINGLE_FRAMES = "a link with offload carries lumps, and this happens to single frames; leave out offload"
"""Why loss and spoiling are refused there."""

_NAME = re.compile(r"[a-z][a-z0-9]{0,9}(?:-[a-z0-9]{1,4})?")


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One namespace.

    Args:
        name: lower-case letters and digits, at most 15 characters; also the name in every hosts file.
        kind: a router forwards, a host does not.
        site: a label for people and for `status`; has no effect on the network.
        congestion: the TCP congestion control of all its flows, e.g. `cubic`; empty for the machine's default. Set on
            the routes: a namespace may not choose an algorithm that the machine restricts, a route may.
        sysctls: written in the namespace before it is used, e.g. `{"net.ipv4.tcp_sack": "0"}`.
        gso_max_segs: segments that TCP hands to a device in one piece. 1 makes hosts alike, shaped or not;
            `GSO_SEGMENTS_MAX` is what a device starts with.
    """

    name: str
    kind: Kind = "host"
    site: str = ""
    congestion: str = ""
    sysctls: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    gso_max_segs: int = 1

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            reason = "use lower-case letters and digits, at most 10, and perhaps a short suffix such as -1"
            raise ConfigurationError(f"{self.kind}.name", self.name, reason)
        if re.fullmatch(r"[a-z0-9_]{0,15}", self.congestion) is None:
            raise ConfigurationError(f"{self.kind}.{self.name}.congestion", self.congestion, 'a name such as "cubic"')
        if type(self.gso_max_segs) is not int or not 1 <= self.gso_max_segs <= GSO_SEGMENTS_MAX:
            reason = f"write a whole number from 1 to {GSO_SEGMENTS_MAX}"
            raise ConfigurationError(f"{self.kind}.{self.name}.gso_max_segs", self.gso_max_segs, reason)
        for key in self.sysctls:
            if not key.startswith("net."):
                raise ConfigurationError(f"{self.kind}.{self.name}.sysctls", key, "only net.* belongs to a namespace")


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """One link between two nodes, the same in both directions.

    Args:
        name: how `set` and `status` call it; by default `first-second`.
        first: one end.
        second: the other end.
        rate_bits_per_s: enforced outside both ends by a token bucket; None for no limit.
        delay_s: propagation, each way.
        loss: share of frames dropped at random, each way, 0 to 1 (1: a cut that keeps the carrier).
        buffer_s: the queue's length in time at the first rate. Kept in bytes when the rate changes: half the rate,
            twice the delay.
        buffer_bytes: the queue's length in bytes; overrides `buffer_s`.
        carrier: see `Carrier`; `auto` takes veth without delay and loss, else netem where there is one, else the relay.
        seed: of the random loss, so that a run can be repeated.
        offload: packets of up to 64 KiB cross in one piece, a lump, as between a host and a network card that cuts and
            joins them; the ends' devices then take whole lumps, whatever `gso_max_segs` says. Excludes loss and
            spoiling, which happen to single frames.
    """

    name: str
    first: str
    second: str
    rate_bits_per_s: int | None = None
    delay_s: float = 0.0
    loss: float = 0.0
    buffer_s: float = BUFFER_S_DEFAULT
    buffer_bytes: int | None = None
    carrier: Carrier = "auto"
    seed: int = 1
    offload: bool = False

    def __post_init__(self) -> None:
        key = f"link.{self.name}"
        if self.first == self.second:
            raise ConfigurationError(f"{key}.between", self.first, "a link needs two different ends")
        if re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,40}", self.name) is None:
            raise ConfigurationError(f"{key}.name", self.name, "use lower-case letters, digits, dots and dashes")
        check_rate(f"{key}.rate", self.rate_bits_per_s)
        check_delay(f"{key}.delay", self.delay_s)
        check_loss(f"{key}.loss", self.loss)
        if not 0 < self.buffer_s <= DELAY_S_MAX:
            raise ConfigurationError(f"{key}.buffer", self.buffer_s, "write a time above 0 and up to 10 s")
        piece, least = ("lump", LUMP_BYTES_MAX) if self.offload is True else ("frame", 2000)
        if self.buffer_bytes is not None and self.buffer_bytes < least:
            words = f"has to hold one {piece}: at least {least} bytes"
            raise ConfigurationError(f"{key}.buffer", self.buffer_bytes, words)
        if self.carrier not in ("auto", "veth", "netem", "relay"):
            raise ConfigurationError(f"{key}.carrier", self.carrier, "write auto, veth, netem or relay")
        if not isinstance(self.seed, int):
            raise ConfigurationError(f"{key}.seed", self.seed, "write a whole number")
        if self.carrier == "veth" and (self.delay_s > 0 or self.loss > 0):
            raise ConfigurationError(f"{key}.carrier", self.carrier, "veth has no delay and no loss; take auto")
        if type(self.offload) is not bool:
            raise ConfigurationError(f"{key}.offload", self.offload, "write true or false")
        if self.offload and self.loss > 0:
            raise ConfigurationError(f"{key}.loss", self.loss, NO_SINGLE_FRAMES)


@dataclass(frozen=True, kw_only=True)
class Description:
    """A whole lab: nodes in order, links in order. Order decides addresses."""

    name: str = "lab"
    nodes: tuple[NodeSpec, ...] = ()
    links: tuple[LinkSpec, ...] = ()

    def __post_init__(self) -> None:
        if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", self.name) is None:
            raise ConfigurationError("name", self.name, "use lower-case letters, digits and dashes, at most 31")
        if len(self.nodes) > NODES_MAX:
            raise ConfigurationError("nodes", len(self.nodes), f"at most {NODES_MAX}")
        if len(self.links) > LINKS_MAX:
            raise ConfigurationError("links", len(self.links), f"at most {LINKS_MAX}")
        names = [node.name for node in self.nodes]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError("nodes", name, "the name is there twice")
        link_names = [link.name for link in self.links]
        for link in self.links:
            if link_names.count(link.name) > 1:
                raise ConfigurationError("links", link.name, "the name is there twice; give one a name of its own")
            for end in (link.first, link.second):
                if end not in names:
                    raise ConfigurationError(f"link.{link.name}.between", end, "no such host or router")


def check_rate(key: str, rate_bits_per_s: int | None) -> None:
    """Refuse a rate that the kernel's token bucket cannot keep (below 8 kbit/s a frame takes seconds)."""
    if rate_bits_per_s is not None and not 8_000 <= rate_bits_per_s <= RATE_BITS_PER_S_MAX:
        raise ConfigurationError(key, rate_bits_per_s, 'write 8 kbit/s to 10 Tbit/s, or "none"')


def check_delay(key: str, delay_s: float) -> None:
    """Refuse a delay below zero, beyond `DELAY_S_MAX`, or not a number."""
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise ConfigurationError(key, delay_s, "write a time of 0 to 10 s, each way")


def check_loss(key: str, loss: float) -> None:
    """Refuse a share outside 0 to 1."""
    if not 0 <= loss <= 1:
        raise ConfigurationError(key, loss, "a share of 0 to 1 (0 % to 100 %)")

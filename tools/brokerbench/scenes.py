"""Hosts, links, and who floods whom: one scene a scenario of training.

    sender     a ==100== r ==100== b     storage a -> s      everything leaves over a's own link
                         +===100== s
    receiver   a ==100== r ==100== b     storage s -> b      both meet at b's link; s has ten times its rate
                         +==1000== s
    fresh      as receiver
    remote     a ==100== r --40-- q ==100== b    a -> s      a slow link behind, which nobody was told of
                                  +===100== s
    way in     a ==100== r ==100== b     storage s, t -> b   the link of b changes its rate, and nobody is told
                         +==1000== s, t

Training is between a and b. What each host's administrator, and its broker's configuration, takes its uplink for is
`believed_bits_per_s`; in the remote scene it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.brokerbench.settings import Settings
from tools.lab import Lab

TRAINERS = ("a", "b")
RECEIVED, SENT = 0, 2
"""Columns of the sampler's interface counters."""


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A counter of the sampler in a node."""

    node: str
    interface: str
    column: int


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A declared lab and what the rest needs to know of it.

    Args:
        bottleneck: name of the link where training and storage meet.
        flooders, target: where storage comes from and goes to. target_address: at its end.
        believed_bits_per_s: of each host that is shaped.
        inbound_bits_per_s: of each host whose broker looks after the way in, too.
        compute: what of training has crossed the bottleneck (before it, where a host's own link is the last one).
        storage: likewise; None where both leave over the same device: then the sink counts.
        sampled: nodes whose counters are kept.
    """

    name: str
    lab: Lab
    bottleneck: str
    rate_bits_per_s: int
    flooders: tuple[str, ...]
    target: str
    target_address: str
    believed_bits_per_s: Mapping[str, int]
    inbound_bits_per_s: Mapping[str, int] = field(default_factory=dict)
    compute: Counter
    storage: Counter | None
    sampled: tuple[str, ...]


def sender(settings: Settings, *, name: str = "sender", more: str = "") -> Scene:
    """The bottleneck is the sender's own link. `more`: hosts that train, too."""
    lab = _hosts(name, f"abs{more}", routers="r")
    rate = settings.rate_bits_per_s
    for host in f"abs{more}":
        lab.link(host, "r", rate_bits_per_s=rate, buffer_s=settings.buffer_s)
    return Scene(
        name=name,
        lab=lab,
        bottleneck="a-r",
        rate_bits_per_s=rate,
        flooders=("a",),
        target="s",
        target_address=lab["s"].address,
        believed_bits_per_s=dict.fromkeys(f"ab{more}", rate),
        compute=Counter(node="r", interface=lab["r"].interface_on("b"), column=SENT),
        storage=Counter(node="r", interface=lab["r"].interface_on("s"), column=SENT),
        sampled=("r", "a"),
    )


def receiver(settings: Settings, *, name: str = "receiver", times: int = 10, delay_s: float = 0.0) -> Scene:
    """The bottleneck is the receiver's link, and the one who floods it has a link of ten times its rate.

    Args:
        times: or of as many times. delay_s: of the flooder's link, each way.
    """
    lab = _hosts(name, "abs", routers="r")
    rate = settings.rate_bits_per_s
    for host in "ab":
        lab.link(host, "r", rate_bits_per_s=rate, buffer_s=settings.buffer_s)
    lab.link("s", "r", rate_bits_per_s=times * rate, delay_s=delay_s, buffer_s=settings.buffer_s)
    return Scene(
        name=name,
        lab=lab,
        bottleneck="b-r",
        rate_bits_per_s=rate,
        flooders=("s",),
        target="b",
        target_address=lab["b"].address,
        believed_bits_per_s={"a": rate, "b": rate, "s": times * rate},
        inbound_bits_per_s={"b": rate},
        compute=Counter(node="r", interface=lab["r"].interface_on("a"), column=RECEIVED),
        storage=None,
        sampled=("r", "b"),
    )


def inbound(settings: Settings, *, name: str) -> Scene:
    """The bottleneck is the way in of a host to which two others store, over links of ten times its rate."""
    lab = _hosts(name, "abst", routers="r")
    rate = settings.rate_bits_per_s
    others = 10 * rate
    for host in "ab":
        lab.link(host, "r", rate_bits_per_s=rate, buffer_s=settings.buffer_s)
    for host in "st":
        lab.link(host, "r", rate_bits_per_s=others, buffer_s=settings.buffer_s)
    return Scene(
        name=name,
        lab=lab,
        bottleneck="b-r",
        rate_bits_per_s=rate,
        flooders=("s", "t"),
        target="b",
        target_address=lab["b"].address,
        believed_bits_per_s={"a": rate, "b": rate, "s": others, "t": others},
        inbound_bits_per_s={"b": rate},
        compute=Counter(node="r", interface=lab["r"].interface_on("a"), column=RECEIVED),
        storage=None,
        sampled=("r", "b"),
    )


def remote(settings: Settings) -> Scene:
    """A slow link with a deep buffer lies behind the hosts' own, and nobody was told."""
    lab = _hosts("remote", "abs", routers="rq")
    rate, slow = settings.rate_bits_per_s, settings.remote_bits_per_s
    lab.link("a", "r", rate_bits_per_s=rate, buffer_s=settings.buffer_s)
    lab.link(
        "r", "q", rate_bits_per_s=slow, delay_s=settings.remote_delay_s, buffer_s=settings.remote_buffer_s, name="far"
    )
    for host in "bs":
        lab.link(host, "q", rate_bits_per_s=rate, buffer_s=settings.buffer_s)
    return Scene(
        name="remote",
        lab=lab,
        bottleneck="far",
        rate_bits_per_s=slow,
        flooders=("a",),
        target="s",
        target_address=lab["s"].address,
        believed_bits_per_s={"a": rate, "b": rate},
        compute=Counter(node="q", interface=lab["q"].interface_on("b"), column=SENT),
        storage=Counter(node="q", interface=lab["q"].interface_on("s"), column=SENT),
        sampled=("q", "a"),
    )


def _hosts(name: str, hosts: str, *, routers: str) -> Lab:
    lab = Lab(f"brokerbench-{name}")
    for host in hosts:
        lab.host(host, congestion="cubic")  # what most hosts use, whatever this machine's default is
    for router in routers:
        lab.router(router)
    return lab

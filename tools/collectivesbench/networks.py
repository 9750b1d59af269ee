"""The networks that collectives are measured on, as values; and each as hosts and links of the lab."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hive_qos.units import format_rate
from tools.lab import Lab

ROUTER = "r"
LOCAL_BITS_PER_S = 1_000_000_000
"""Of a host's link inside its site: ten times what leads to the other one, so that it is never what counts."""
_WORDS = {2: "two", 4: "four"}


@dataclass(frozen=True, kw_only=True)
class Network:
    """One rank a host, all links meeting in a router; or sites with a router each; or all ranks on this machine.

    Args:
        name: in records and tables.
        links_bits_per_s: of each rank's host, in rank order. 0: no limit.
        site_ranks: how many ranks each of two sites has, in rank order; () where all are in one place.
        between_bits_per_s, one_way_s, loss: the link between both sites, each way. They are 0 without sites.
        buffer_s: the queue of every link, in time at its rate.
        offload: the links of ranks carry lumps, as between a host and a network card that cuts and joins them. Without,
            they carry single frames, whose work the lab does in the sender's name.
        one_host: all ranks use this machine's loopback, and there is no lab.
    """

    name: str
    links_bits_per_s: tuple[int, ...]
    site_ranks: tuple[int, ...] = ()
    between_bits_per_s: int = 0
    one_way_s: float = 0.0
    loss: float = 0.0
    buffer_s: float = 0.1
    offload: bool = False
    one_host: bool = False

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.links_bits_per_s)

    def site_of(self, rank: int) -> int:
        """Which site a rank is in."""
        end = 0
        for site, ranks in enumerate(self.site_ranks):
            end += ranks
            if rank < end:
                return site
        return 0


def equal(ranks: int, *, bits_per_s: int = 1_000_000_000, offload: bool = False) -> Network:
    """The same rate to each rank. 10 ms of queue are 1.25 MB a port at 1 Gbit/s, as a switch has."""
    name = f"{format_rate(bits_per_s)}, {'offload, ' if offload else ''}{ranks} ranks"
    return Network(name=name, links_bits_per_s=(bits_per_s,) * ranks, buffer_s=0.01, offload=offload)


def uneven(ranks: int = 4) -> Network:
    """One rank behind a quarter of the others' rate."""
    name = f"{'100/' * (ranks - 1)}25 Mbit/s"
    return Network(name=name, links_bits_per_s=(100_000_000,) * (ranks - 1) + (25_000_000,))


def two_sites(each: int = 2) -> Network:
    """Two sites of so many: 100 Mbit/s, 40 ms there and back, 0.5 % loss each way."""
    return Network(
        name=f"two sites of {_WORDS.get(each, each)}",
        links_bits_per_s=(LOCAL_BITS_PER_S,) * 2 * each,
        site_ranks=(each, each),
        between_bits_per_s=100_000_000,
        one_way_s=0.02,
        loss=0.005,
    )


def one_host(ranks: int) -> Network:
    """All ranks on this machine."""
    return Network(name=f"one host, {ranks} ranks", links_bits_per_s=(0,) * ranks, one_host=True)


def falling() -> Network:
    """Four ranks at 100 Mbit/s; the last one's link is to lose rate while they train."""
    return Network(name="100 Mbit/s, one falls to 25", links_bits_per_s=(100_000_000,) * 4)


def fallen(network: Network) -> Network:
    """The network when the last rank's link has fallen to a quarter."""
    *others, last = network.links_bits_per_s
    return replace(network, links_bits_per_s=(*others, last // 4))


SWEPT: Mapping[str, Callable[[Sequence[int], Sequence[int]], Sequence[Network]]] = {
    "lan": lambda worlds, offload_worlds: [
        equal(world, offload=offload)
        for world in worlds
        for offload in (False, True)
        if not offload or world in offload_worlds
    ],
    "uneven": lambda _worlds, _offload_worlds: [uneven()],
    "sites": lambda _worlds, _offload_worlds: [two_sites()],
    "host": lambda worlds, _offload_worlds: [one_host(world) for world in worlds],
}
"""Of each scenario that is a sweep, by numbers of ranks."""
FALLING_TASK = "transformer"
"""What is trained while a link falls."""
TRAINED = {"lan": equal(4), "uneven": uneven(), "sites": two_sites()}
"""What models are trained on, by the scenario whose network it is."""


def lab_of(network: Network, *, congestion: str) -> Lab:
    """Declare the network with TCP's congestion control on all hosts; rank 3's host is `h3`."""
    lab = Lab("bench-collectives")
    for site in range(len(network.site_ranks) or 1):
        lab.router(f"{ROUTER}{site}")
    for rank, rate_bits_per_s in enumerate(network.links_bits_per_s):
        lab.host(f"h{rank}", congestion=congestion)
        router = f"{ROUTER}{network.site_of(rank)}"
        buffer_s, offload = network.buffer_s, network.offload
        lab.link(f"h{rank}", router, rate_bits_per_s=rate_bits_per_s, buffer_s=buffer_s, offload=offload)
    if network.site_ranks:
        lab.link(
            f"{ROUTER}0",
            f"{ROUTER}1",
            rate_bits_per_s=network.between_bits_per_s,
            delay_s=network.one_way_s,
            loss=network.loss,
            buffer_s=network.buffer_s,
        )
    return lab

"""The shortest times that links and processors allow a collective: pure arithmetic, whatever the algorithm.

M is the operation's payload, n the number of ranks, b_r the rate of rank r's link, the same both ways. `PAYLOADS` says
what M means. Each rank's link has to carry what that rank alone knows or needs:

- all_reduce: M out and M in, and together at least 2 (n - 1) M, over the sum of rates (Patarasuk and Yuan,
  "Bandwidth optimal all-reduce algorithms", 2009). Equal links give the well-known 2 (n - 1) / n M.
- all_gather, reduce_scatter, all_to_all: (n - 1) / n M. broadcast: M.

Between two sites the link has to carry, each way, what one site knows and the other needs: M for all_reduce (a sum) and
broadcast, the other site's share of M for all_gather and reduce_scatter, and all that its ranks have for the other's
ranks for all_to_all. Data that crosses needs one way's delay at least.

On the wire a frame of 1514 bytes carries 1448 (TCP with time stamps over Ethernet, as the lab's links count). A full
QUIC packet differs by less than a hundredth.
"""

from __future__ import annotations

from collections.abc import Mapping

from tools.collectivesbench.networks import Network

WIRE = 1514 / 1448
PAYLOADS: Mapping[str, str] = {
    "all_reduce": "the tensor that every rank has",
    "all_gather": "the output, of which every rank brings its part",
    "reduce_scatter": "the input that every rank has",
    "broadcast": "the tensor",
    "all_to_all": "the input that every rank has, a part for each rank",
}


def links_s(network: Network, operation: str, payload_bytes: int) -> float:
    """Seconds that the links need at least; 0 where ranks share a host.

    Raises:
        KeyError: no such operation.
    """
    if operation not in PAYLOADS:
        raise KeyError(operation)
    if network.one_host:
        return 0.0
    bits, ranks = 8 * payload_bytes * WIRE, network.ranks
    slowest = min(network.links_bits_per_s)
    if operation == "all_reduce":
        seconds = max(bits / slowest, 2 * (ranks - 1) * bits / sum(network.links_bits_per_s))
    elif operation == "broadcast":
        seconds = bits / slowest
    else:
        seconds = (ranks - 1) / ranks * bits / slowest
    if network.site_ranks:
        seconds = max(seconds, bits * _crossing(network, operation) / network.between_bits_per_s)
    return seconds + network.one_way_s


def _crossing(network: Network, operation: str) -> float:
    """What has to pass between both sites in the busier direction, as a share of M."""
    first, second = network.site_ranks
    match operation:
        case "all_reduce" | "broadcast":
            return 1.0
        case "all_to_all":
            return first * second / network.ranks
        case _:
            return max(first, second) / network.ranks


def processors_s(*, cpu_s: float, cores: int) -> float:
    """Seconds that a collective of so much work needs at least, if all cores shared it without a gap.

    Args:
        cpu_s: user and system time of all ranks, and of the lab's relay.
    """
    return cpu_s / cores

"""What is wanted: rates, rules and destinations of an interface, as policy asks for them.

Rates are bits per second here. `netlink.fast_path` alone turns them into the kernel's bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shaping.model.names import HELD_NAME

Direction: TypeAlias = Literal["egress", "ingress"]


@dataclass(frozen=True)
class ClassShape:
    """What one class shall get. Policy made it; here it is only numbers.

    Args:
        name: one of `CLASS_NAMES`, or `BULK_NAME` for the part of compute that its bulk leaf gets.
        rate_bits_per_s: what it may always send, at least 1 000 for each of its leaves, spare ones included. The four
            rates together are at most the capacity (`InterfaceShape.open_bits_per_s` is the exception); that of
            `BULK_NAME` is part of compute's.
        ceil_bits_per_s: never more than this, borrowed or not; at least the rate.
        priority: who is offered the excess first, 0 to 7, the smaller goes first.
    """

    name: str
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int


@dataclass(frozen=True)
class Arrival:
    """Packets that arrive at one socket.

    Args:
        protocol: `tcp` or `udp`.
        address: where they arrive, a literal IPv4 or IPv6 address.
        port: likewise.
        remote: the address and port from which alone they come; None takes them from everywhere.
    """

    protocol: Literal["tcp", "udp"]
    address: str
    port: int
    remote: tuple[str, int] | None = None


@dataclass(frozen=True)
class Rule:
    """Traffic that belongs to a class without its socket having been passed: exactly one of the matches is set.

    Args:
        target: a key of `LEAF_MINOR`.
        port: TCP and UDP, source or destination, IPv4 and IPv6.
        dscp: codepoint 0..63, IPv4 and IPv6.
        address: a network, source or destination, as `ipaddress.ip_network` writes it.
        uid: sockets that this user makes from now on, in this network namespace.
        cgroup: sockets made from now on inside this cgroup v2 or below it; the path below the v2 mount, or absolute.
        arrives: inbound, what arrives at one socket.
        may_be_absent: nothing is said where its cgroup is not there.
    """

    target: str
    port: int | None = None
    dscp: int | None = None
    uid: int | None = None
    cgroup: str | None = None
    address: str | None = None
    arrives: Arrival | None = None
    may_be_absent: bool = False


@dataclass(frozen=True)
class DestinationShape:
    """What a class may send to one address: a leaf of its own beside the class' default leaf.

    Args:
        address: a literal IPv4 or IPv6 address.
        target: `HELD_NAME`; no other class has such leaves.
        rate_bits_per_s: part of the class' rate, at least 1 000.
        ceil_bits_per_s: never more; at least the rate.
    """

    address: str
    target: str = HELD_NAME
    rate_bits_per_s: int = 1_000
    ceil_bits_per_s: int = 1_000


@dataclass(frozen=True)
class JobShape:
    """What one job of compute gets: the leaf of its slot.

    Args:
        slot: index into `JOB_MINOR`.
        rate_bits_per_s: part of compute's rate, at least 1 000.
        ceil_bits_per_s: never more; at least the rate.
        priority: who is offered the excess first, 0 to 7, the smaller goes first.
        weight: how what is borrowed is divided among jobs of the same priority, and compute's default leaf, which has
            1. HTB divides by quantum and not by rate. More than 0.
    """

    slot: int
    rate_bits_per_s: int
    ceil_bits_per_s: int
    priority: int
    weight: float = 1.0


@dataclass(frozen=True)
class InterfaceShape:
    """Everything wanted of one interface's egress.

    Args:
        interface: its name in the current network namespace.
        capacity_bits_per_s: rate and ceiling of the root class: what all classes together may send.
        open_bits_per_s: where class `UNHELD_NAME` is not held to the capacity, what all classes together may send, it
            included; at least the capacity. None holds all to the capacity.
        classes: the four of `CLASS_NAMES`, each once, in any order, and at most one `BULK_NAME`.
        rules: classification besides passed sockets; the first that matches wins among ports, DSCP and addresses.
        gso_max_segs: segments that TCP may hand over in one piece, at least 1; never more than the device had before
            us. None leaves, or puts back, the device's own.
        destinations: addresses that get a leaf of their own, at most as many as `DESTINATION_MINOR`. A flow that
            changes its leaf may have packets overtaken that still wait in the former: list an address early and keep it
            for as long as something waits, and change its rates.
        jobs: slots of compute that are in use; sockets are marked with their minors.
        direction: `ingress` for the tree of an IFB: only the default leaves, and queues for a receiver.
        line_bits_per_s: the link's nominal outbound rate, measurements left out; journalled, and what
            ceilings are opened to when nobody decides any more (`ceilings`). None where nobody knows.
    """

    interface: str
    capacity_bits_per_s: int
    classes: tuple[ClassShape, ...]
    rules: tuple[Rule, ...] = ()
    gso_max_segs: int | None = None
    line_bits_per_s: int | None = None
    destinations: tuple[DestinationShape, ...] = ()
    jobs: tuple[JobShape, ...] = ()
    direction: Direction = "egress"
    open_bits_per_s: int | None = None


@dataclass(frozen=True)
class IngressShape:
    """Everything wanted of what arrives at one interface, shaped on an IFB behind it.

    Args:
        interface: its name in the current network namespace.
        capacity_bits_per_s: what may arrive altogether: a little less than the line carries, or the queue is elsewhere.
        classes: as of `InterfaceShape`.
        rules: how packets are told, in this order: ports (either end), codepoints and addresses. Marks of sockets,
            cgroups and users cannot be seen there: such rules do nothing. What no rule matches is `other`.
    """

    interface: str
    capacity_bits_per_s: int
    classes: tuple[ClassShape, ...]
    rules: tuple[Rule, ...] = ()

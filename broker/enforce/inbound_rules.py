"""Classify what arrives at passed sockets by rules of our IFB, because sockets' marks do not apply to inbound packets.

A rule names the address and port that the kernel gave to a socket, and its peer where it is connected: so it matches
what that socket gets and nothing else. What counts is what the kernel lists now (sock_diag):
- the socket is still open, in our network namespace, and of the user who passed it, whose subordinate users' are his
  (root may pass anybody's);
- it is bound to an address of the interface, or to all of the host's and then to those of the interface. So nobody
  classifies what comes over loopback, what the host forwards, or an address that is not its own (IP_FREEBIND);
- it is not bound to another interface.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil
from msgspec.structs import replace

from broker.events.log import Log
from broker.measure.flow_table import PassedSocket
from broker.measure.tcp_diag import BoundSocket, bound_sockets
from broker.model.fair_share import in_turns
from broker.process import rights
from shaping.model.shapes import Arrival, Rule

SOCKETS_MAX = 32
"""Sockets with rules of their own, of every user as many: a host has a few ranks. What arrives at others is `other`,
unless a rule of the policy is more specific."""
ADDRESSES_MAX = 8
"""Of an interface, for sockets that are bound to all: so many filters each."""
LOOK_S = 1.0
"""From one look at the kernel's list to the next."""


def arrivals_at(bound: BoundSocket, own: Sequence[str]) -> list[Arrival]:
    """What arrives at a socket through an interface with these addresses."""
    address, port = bound.local
    if bound.versions:
        here = [one for one in own if ipaddress.ip_address(one).version in bound.versions]
    else:
        here = [address] if address in own else []
    return [Arrival(bound.protocol, one, port, bound.remote) for one in here[:ADDRESSES_MAX] if port]


def addresses_of(interface: str) -> list[str]:
    """The addresses of an interface; none where it is gone, or they cannot be read."""
    try:
        found = psutil.net_if_addrs().get(interface, [])
    except (OSError, ValueError):  # ValueError: some interface has a name that is no text
        return []
    families = (socket.AF_INET, socket.AF_INET6)
    return [one.address.partition("%")[0] for one in found if one.family in families]


class InboundRules:
    """The rules of passed sockets. For one thread, in the network namespace of the daemon."""

    def __init__(
        self,
        *,
        log: Log,
        clock: Callable[[], float],
        sockets: Callable[[Mapping[int, str]], Mapping[int, BoundSocket]] = bound_sockets,
        addresses: Callable[[str], Sequence[str]] = addresses_of,
    ) -> None:
        self._log, self._clock, self._sockets, self._addresses = log, clock, sockets, addresses
        self._looked_s = float("-inf")
        self._bound: Mapping[int, BoundSocket] = {}
        self._own: dict[str, Sequence[str]] = {}
        self._last_problem = ""

    def rules(self, interface: str, passed: Iterable[PassedSocket]) -> tuple[Rule, ...]:
        """Those of one interface; of a socket that was passed twice the class of the second time."""
        flows = {flow.inode: flow for flow in passed}
        if not flows:
            return ()
        self._look({inode: flow.protocol for inode, flow in flows.items()})
        if interface not in self._own:
            self._own[interface] = self._addresses(interface)
        number = _number_of(interface)
        found = []
        for inode, flow in flows.items():
            bound = self._bound.get(inode)
            if bound is not None and flow.uid in (0, bound.uid) and bound.device in (0, number):
                arrivals = arrivals_at(bound, self._own[interface])
                if arrivals:
                    found.append((flow, arrivals))
        chosen = in_turns(found, of=lambda entry: entry[0].uid)[:SOCKETS_MAX]
        rules = [Rule(target=flow.traffic_class, arrives=one) for flow, arrivals in chosen for one in arrivals]
        return tuple(sorted(rules, key=repr))  # in the same order each time: another one would be written anew

    def _look(self, protocols: Mapping[int, str]) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s, self._own = now_s, {}
        try:
            found = self._sockets(protocols)
            self._bound = {inode: replace(one, uid=rights.owner_of(one.uid)) for inode, one in found.items()}
        except OSError as problem:
            self._bound = {}
            if str(problem) != self._last_problem:
                self._last_problem = str(problem)
                self._log.warning("inbound-sockets-unknown", error=str(problem))


def _number_of(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:  # it has just gone
        return -1

"""What each connection gets, and why. Pure.

its own part of its job's share    where the decision has worked one out (the busiest of jobs)
what holds where it goes           towards an address at which another broker has storage held back
what holds for its class           all others: the kernel gives them turns in it
"""

from __future__ import annotations

from typing import Any

import msgspec

from broker.model.values import Allocation, Measurements


class FlowReasons:
    """The reasons of one tick."""

    def __init__(self, allocation: Allocation, measurements: Measurements) -> None:
        ways_out = allocation.interfaces
        self._components = {part.flow: part for entry in ways_out for part in entry.flows}
        self._interfaces = {flow.key: entry.name for entry in measurements.interfaces for flow in entry.flows}
        self._only = ways_out[0].name if len(ways_out) == 1 else None
        self._held = {
            (entry.name, one.traffic_class, one.address): msgspec.to_builtins(one.reason)
            for entry in ways_out
            for one in entry.destinations
        }
        self._classes = {
            (entry.name, one.name): msgspec.to_builtins(one.reason) for entry in ways_out for one in entry.classes
        }

    def of(self, flow: str, *, traffic_class: str, peer: str) -> dict[str, Any]:
        """As it is shown; nothing is known of one that may go through any of several interfaces."""
        part = self._components.get(flow)
        if part is not None:
            return {"share_bits_per_s": part.share_bits_per_s, "reason": msgspec.to_builtins(part.reason)}
        interface, reason = self._interfaces.get(flow, self._only), None
        if interface is not None:
            reason = self._held.get((interface, traffic_class, peer)) or self._classes.get((interface, traffic_class))
        return {"share_bits_per_s": None, "reason": reason}

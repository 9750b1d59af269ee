"""A2CiD2: members average in pairs, with a momentum that spreads averages faster (arXiv 2306.08289). No collective.

A member has parameters x and a shadow y, equal at first. Between exchanges x and y approach each other. An optimiser's
step moves both alike. An exchange moves x by half of the difference to the partner's, and y by more. So only their
difference z = y - x has to be kept, and training knows nothing of it:

    before an exchange:  x += (1 - k) / 2 * z;    z *= k
    with the partner's:  x += d / 2;              z += (b - 1/2) * d,    where d is the partner's x minus the own

Exchanges run beside training. Both partners take the same difference, so the sum of their x is the same afterwards.
Pairs follow a ring along the shortest links (`gossip`), anew when members come or go, and after some exchanges, as
links change. An exchange whose partner is lost does not take place. Who joins takes the parameters of its first
partner. If all who had some are lost before, the first of those who joined keeps its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from hive_qos.errors import MisuseError
from integrations.volatile import gossip
from integrations.volatile.algorithm import Algorithm
from integrations.volatile.fragments import Fragment
from transport.arguments import check_count
from transport.collectives.reduce_op import ReduceOp
from transport.group import Group
from transport.tensors import TensorView
from transport.volatile import interrupts
from transport.volatile.group import VolatileGroup
from transport.volatile.protocol.view import View
from transport.volatile.steps import require_finite

RING_EVENTS = 100
"""For each ring all wait for the slowest once: a small part of so many exchanges, of which each pair has some 30."""
Costs: TypeAlias = npt.NDArray[np.int64]
"""Of an exchange between each two ranks, in microseconds; symmetric."""


class A2CiD2(Algorithm):
    """See the module.

    Args:
        parameters: of the model.
        every: inner steps between two exchanges, at least; they take what the network needs. The paper's is 1.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, every: int = 1) -> None:
        super().__init__(parameters)
        check_count("every", every)
        self.every = every
        self._all = Fragment(self.parameters)
        self._ahead = torch.zeros_like(self._all.read())
        self._pace = gossip.Pace(kept=1.0, pull=0.5)
        self._is_new = False
        self._thread: ThreadPoolExecutor | None = None
        self._due = 0
        self._flight: tuple[torch.Tensor, Future[torch.Tensor | None]] | None = None
        self.exchanges = 0

    def _begin(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hive-pairs")
        self._pairs = _Pairs(self._group, self._all.elems)
        self._due = self.every
        self._ahead.zero_()  # of those that this member was with before

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._flight = None

    def _after(self, tokens: int) -> None:
        if self._flight is not None and self._flight[1].done():
            self._receive()
        if self._flight is None and self._inner >= self._due:
            self._send()
            self._due = self._inner + self.every

    def _send(self) -> None:
        approach(self._all, self._ahead, self._pace)
        own = self._finite()
        assert self._thread is not None
        self._flight = (own, self._thread.submit(self._pairs.exchange, own, is_new=self._is_new))

    def _finite(self) -> torch.Tensor:
        """This member's parameters. Raises: as `require_finite`."""
        own = self._all.read()
        require_finite([TensorView.of(own, writable=False)])
        return own

    def _receive(self) -> None:
        assert self._flight is not None
        own, ended = self._flight
        with interrupts.may_raise():  # it stays under way then
            ended.exception()
        self._flight = None
        theirs = ended.result()
        self._pace = self._pairs.pace
        self._is_new = self._is_new and not self._pairs.begins
        if theirs is None:
            return
        self.exchanges += 1
        if self._is_new:
            self._all.add(theirs - own)
            self._ahead.zero_()
            self._is_new = False
        else:
            exchanged(self._all, self._ahead, theirs - own, self._pace)

    def _finish(self) -> None:
        """Average the parameters of all members that hold the job's."""
        _ = self._group  # raises where this member has not joined
        if self._flight is not None:
            self._receive()
        assert self._thread is not None
        with interrupts.may_raise():
            mean = self._thread.submit(self._pairs.average, self._finite(), is_new=self._is_new).result()
        self._all.write(mean)
        self._ahead.zero_()
        self._is_new = False

    def state_dict(self) -> dict[str, Any]:
        """See `Algorithm`. The shadow is left out: it is a member's own, and over all of them it cancels out."""
        return {"parameters": self._all.read()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._require_apart()
        if "parameters" not in state or state["parameters"].shape != (self._all.elems,):
            raise MisuseError(f"this state is of another model: it does not have {self._all.elems} values")
        self._all.write(state["parameters"])
        self._ahead.zero_()

    def _shared_state(self) -> dict[str, Any]:
        """Members have no state in common: the first partner hands over its own."""
        return {"elems": self._all.elems}

    def _take_shared_state(self, state: Mapping[str, Any]) -> None:
        if state.get("elems") != self._all.elems:
            raise MisuseError(f"it has {state.get('elems')} values, this one {self._all.elems}")
        self._is_new = True
        if self._joined is not None:  # it was left out, and the job's are the others' now
            self._pairs.begins = False


def approach(parameters: Fragment, ahead: torch.Tensor, pace: gossip.Pace) -> None:
    """Let a member and its shadow approach each other for a unit of time; `ahead` is the shadow minus the member."""
    parameters.add(ahead * ((1.0 - pace.kept) / 2.0))
    ahead.mul_(pace.kept)


def exchanged(parameters: Fragment, ahead: torch.Tensor, difference: torch.Tensor, pace: gossip.Pace) -> None:
    """Move a member and its shadow towards its partner; `difference` is the partner's values minus the member's."""
    parameters.add(difference * 0.5)
    ahead.add_(difference, alpha=pace.pull - 0.5)


class _Says(IntEnum):
    """What a member says of the values that it sends."""

    TRAINS = 0
    IS_NEW = 1  # and has values of its own yet
    ENDS = 2  # and will not exchange with who says the same


class _Pairs:
    """The exchanges of one member, event after event. Its methods run in a thread of their own.

    All members agree on a ring, go through `RING_EVENTS` of its events, and agree again, by how long the exchanges of
    this ring took. An exchange between two that have not met yet costs what the group has measured of their links.
    """

    def __init__(self, group: VolatileGroup, elems: int) -> None:
        self._group, self._elems = group, elems
        self._epoch = 0
        self._event = 0
        self._ring = gossip.Ring((0,))
        self._costs_us: Costs = np.zeros((1, 1), np.int64)
        self._took_us: dict[int, int] = {}
        """With a partner, since the last ring: the least, of an exchange for which neither waited for the other."""
        self._ended: set[int] = set()
        self.pace = gossip.Pace(kept=1.0, pull=0.5)
        self.begins = False  # nobody has the job's parameters any more: this member's are the ones to take

    def exchange(self, own: torch.Tensor, *, is_new: bool) -> torch.Tensor | None:
        """The partner's values; None where there is no partner, it was lost, or has no values of the job's to give."""

        def swap(group: Group, view: View) -> torch.Tensor | None:
            if view.epoch != self._epoch or (group.size > 1 and self._partner(group.rank) is None):
                self._agree(group, view, is_new=is_new, ends=False)
            partner = self._partner(group.rank)
            if partner is None:
                return None
            return self._swap(group, partner, own, _Says.IS_NEW if self._has_none(is_new) else _Says.TRAINS)

        return self._group.aside(swap)

    def average(self, own: torch.Tensor, *, is_new: bool) -> torch.Tensor:
        """The mean of all members' values. A member that is lost meanwhile may leave others with unequal ones."""
        result = own[:0]

        def reduce(group: Group, view: View) -> None:
            nonlocal result
            all_end = view.epoch != self._epoch and self._agree(group, view, is_new=is_new, ends=True)
            while not all_end:
                while (partner := self._partner(group.rank)) is not None:  # who still trains waits for us at an event
                    self._swap(group, partner, own, _Says.ENDS)
                all_end = self._agree(group, view, is_new=is_new, ends=True)
            counts = float(not self._has_none(is_new))
            sums = torch.cat([own * counts, own.new_tensor([counts])])
            group.allreduce(sums).wait()
            result = sums
            group.barrier().wait()  # who leaves before all have it ends what the others wait for

        while not result.numel():
            self._group.aside(reduce)
        self._epoch = 0  # who trains on begins anew: nobody has ended
        return result[:-1] / result[-1]

    def _has_none(self, is_new: bool) -> bool:
        """Whether this member still has no parameters of the job's."""
        return is_new and not self.begins

    def _agree(self, group: Group, view: View, *, is_new: bool, ends: bool) -> bool:
        """Agree on a ring with all members of a view; whether all of them end."""
        counts = np.array([not self._has_none(is_new), ends], np.int64)
        group.allreduce(counts).wait()
        holders, ending = counts.tolist()
        if group.rank == 0 and not holders:
            self.begins = True
        self._costs_us = self._measured(group) if view.epoch == self._epoch else _costs_by_links(group, self._elems)
        self._ring = gossip.ring(self._costs_us.tolist())
        self.pace = gossip.pace(self._ring.edges, size=group.size)
        self._epoch, self._event, self._ended, self._took_us = view.epoch, 0, set(), {}
        return bool(ending == group.size)

    def _measured(self, group: Group) -> Costs:
        """The costs of exchanges by what both partners measured of the last ones: the same on every rank."""
        took_us = np.zeros((group.size, group.size), np.int64)
        for partner, one in self._took_us.items():
            took_us[group.rank, partner] = one
        group.allreduce(took_us, ReduceOp.MAX).wait()
        less, more = np.minimum(took_us, took_us.T), np.maximum(took_us, took_us.T)
        measured = np.where(less > 0, less, more)
        return np.where(measured > 0, measured, self._costs_us)

    def _partner(self, rank: int) -> int | None:
        """The partner of the next event that this rank is needed at; None after the ring's last one."""
        while self._event < RING_EVENTS:
            partner = self._ring.partner(rank, self._event)
            if partner is not None and partner not in self._ended:
                return partner
            self._event += 1
        return None

    def _swap(self, group: Group, partner: int, own: torch.Tensor, says: _Says) -> torch.Tensor | None:
        """Exchange with the partner of this event; the next one is to come."""
        sent = torch.cat([own, own.new_tensor([float(says)])])
        received = torch.empty_like(sent)
        began_s = time.monotonic()
        works = [group.send(sent, partner, self._event), group.recv(received, partner, self._event)]
        for work in works:
            work.wait()
        took_us = max(int(1e6 * (time.monotonic() - began_s)), 1)
        self._took_us[partner] = min(took_us, self._took_us.get(partner, took_us))
        self._event += 1
        they_say = _Says(int(received[-1]))
        if says is they_say is _Says.ENDS:
            self._ended.add(partner)
        return received[:-1] if they_say is _Says.TRAINS else None


def _costs_by_links(group: Group, elems: int) -> Costs:
    """Microseconds of an exchange between each two ranks, by what the group has measured: the same on every rank."""
    group.barrier().wait()  # with the first collective of a group its ranks agree on their links
    costs = np.zeros((group.size, group.size), np.int64)
    if group.rank == 0:
        network = cast("dict[str, Any]", group.explain()["network"])
        rates = np.minimum(network["up_bits_per_s"], network["down_bits_per_s"])
        sending_us = 8e6 * 4 * elems / np.minimum.outer(rates, rates)
        costs[:] = np.asarray(network["latency_us"]) + sending_us.astype(np.int64)
    group.broadcast(costs, 0).wait()
    return costs

"""Connections, shared: the first hive group connects its ranks, and every group of ranks among those rides on it.

`new_group` then needs no rendezvous and cannot hang on a rank that has died meanwhile: its first operation meets the
connection that is known to be lost, and says so. Connections close when the last group on them is destroyed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from typing import Any

import transport
from integrations.torch_backend.store_rendezvous import StoreRendezvous, settings_for

NAME_BYTES_MAX = 64
"""The transport's limit of a group's name."""
CLOSE_S = 5.0


class World:
    """One connected `transport.Group`, or what is left of it, and how many process groups use it.

    Args:
        ranks: torch's global ranks of the group's, in its order.
        parent: where `group` is of those ranks that were left when torch's default group was shrunk.
    """

    def __init__(self, group: transport.Group, *, ranks: tuple[int, ...], parent: World | None = None) -> None:
        self.group = group
        self.ranks = ranks
        self.users = 0
        self.process = os.getpid()
        self._parent = parent
        self._lent: dict[str, int] = {}

    def global_ranks(self, group: transport.Group, ranks: Sequence[int]) -> list[int]:
        """Torch's global ranks of some ranks of a lent group."""
        return [self.ranks[self.group.ranks.index(group.ranks[rank])] for rank in ranks]

    def shrunk(self, group: transport.Group, ranks: Sequence[int], *, timeout_s: float) -> World:
        """The connections between those ranks of a lent group that are left, whom torch numbers anew from 0.

        Groups that are made from now on are made of it: torch has destroyed all others.
        """
        members = [self.group.ranks.index(group.ranks[rank]) for rank in ranks]
        with _lock:
            name = group_name_of(f"{self.group.name}:shrunk:{','.join(map(str, members))}")
            left = self.group.subgroup(members, name=name, timeout_s=timeout_s)
            self.users += 1
            world = World(left, ranks=tuple(range(len(members))), parent=self)
            _worlds[:] = [world if one is self else one for one in _worlds]
        return world

    def lend(self, name: str, ranks: Sequence[int], *, timeout_s: float) -> transport.Group:
        """The transport's group of some global ranks; `give_back` it."""
        with _lock:
            self.users += 1
            if tuple(ranks) == self.ranks and name == self.group.name:
                return self.group
            members = [self.ranks.index(rank) for rank in ranks]
            count = self._lent[name] = self._lent.get(name, 0) + 1
            if count > 1:  # torch 2.13 names a group after its ranks and how many groups there are
                name = group_name_of(f"{name}#{count}")
            if self._parent is not None:  # torch counts groups from 0 again, and late messages carry the former names
                name = group_name_of(f"{self.group.name}/{name}")
            try:
                return self.group.subgroup(members, name=name, timeout_s=timeout_s)
            except BaseException:
                self.users -= 1
                raise

    def give_back(self, group: transport.Group, *, timeout_s: float = CLOSE_S) -> None:
        """End the use of a lent group; the last one closes the connections."""
        if os.getpid() != self.process:
            return  # a forked child (a data loader's worker): sockets and threads are the parent's
        with _lock:
            self.users -= 1
            last = self.users == 0
            # What its own members all do. Subgroups on it, which not all know of, go on.
            if (last or group is self.group) and self in _worlds:
                _worlds.remove(self)
        if group is not self.group:
            group.close(timeout_s=timeout_s)
        elif not last:
            group.abort("the group was closed")
        if last and self._parent is not None:
            self._parent.give_back(self.group, timeout_s=timeout_s)
        elif last:
            self.group.close(timeout_s=timeout_s)


_worlds: list[World] = []
_lock = threading.RLock()  # a signal's handler may make or destroy a group in the middle of another


def world_for(options: Any, *, ranks: tuple[int, ...], name: str, timeout_s: float) -> World:
    """The connections for a new process group: those that exist, where they reach all its ranks, or new ones.

    Every member decides the same: those that exist are for new groups until the group that connected them is destroyed,
    which all of their ranks do.

    Args:
        options: torch's `_DistributedBackendOptions`.
        ranks: the members' global ranks, in the group's rank order.
        name: as `group_name_of` gives it.
        timeout_s: by then every rank must have connected.
    """
    with _lock:
        for world in _worlds:
            if world.process == os.getpid() and set(ranks) <= set(world.ranks):
                return world
    world = connected(options.store, rank=options.group_rank, ranks=ranks, name=name, timeout_s=timeout_s)
    with _lock:
        _worlds.append(world)
    return world


def connected(store: Any, *, rank: int, ranks: tuple[int, ...], name: str, timeout_s: float) -> World:
    """New connections, of which torch's next groups are not made; arguments as `world_for`."""
    group = transport.Group.connect(
        StoreRendezvous(store, rank=rank, world_size=len(ranks)),
        rank=rank,
        world_size=len(ranks),
        name=name,
        timeout_s=timeout_s,
        connect_timeout_s=timeout_s,
        settings=settings_for(store, world_size=len(ranks)),
    )
    return World(group, ranks=ranks)


def adopt(group: transport.Group) -> World:
    """The connections of a default group whose ranks have changed, which torch numbers anew from 0.

    Groups that are made from now on are made of it.
    """
    world = World(group, ranks=tuple(range(group.size)))
    with _lock:
        _worlds.insert(0, world)
    return world


def retire(world: World) -> None:
    """Make no more groups of these connections. Those that are made of them go on."""
    with _lock:
        _worlds[:] = [one for one in _worlds if one is not world]


def group_name_of(group_id: str) -> str:
    """torch's name of a group, cut to what the transport takes; equal on every rank, different for different groups."""
    if len(group_id.encode()) <= NAME_BYTES_MAX:
        return group_id
    return hashlib.sha256(group_id.encode()).hexdigest()

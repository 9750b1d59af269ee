"""hive as the process group of torchft's managers: their lighthouse says who is in, and hive moves the tensors.

    manager = torchft.Manager(pg=ProcessGroupHive(timeout=timedelta(seconds=30)), min_replica_size=1, ...)

Each quorum has connections of its own, made by `configure`. A lost rank is known within seconds: then all operations
fail, `errored` says why, and the manager asks for the next quorum.
"""

from __future__ import annotations

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper

import transport
from hive_qos.errors import ConnectionLostError
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.options import GroupOptions
from integrations.torch_backend.process_group import (
    HiveProcessGroup,
    HiveProcessGroupAlone,
    HiveProcessGroupWithBackend,
    backend_can_be_subclassed,
)
from integrations.torch_backend.store_rendezvous import StoreRendezvous, settings_for
from integrations.torch_backend.world import World


class ProcessGroupHive(ProcessGroupWrapper):  # type: ignore[misc]  # torchft has no types
    """`torchft.process_group.ProcessGroup` over hive, for tensors on the CPU or in pinned memory.

    Args:
        timeout: of connecting, and of each operation.
        options: as `pg_options` of `init_process_group`, such as `{"compression": "int8"}`.
    """

    def __init__(self, *args: object, options: object = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._options = GroupOptions.parse(options)
        self._connected: transport.Group | None = None

    def getBackendName(self) -> str:
        return "torchft-hive"

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        timeout_s = self._timeout.total_seconds()
        group = self._connected = transport.Group.connect(
            StoreRendezvous(store, rank=rank, world_size=world_size),
            rank=rank,
            world_size=world_size,
            name=f"torchft/{self._quorum_id}",
            timeout_s=timeout_s,
            connect_timeout_s=timeout_s,
            settings=settings_for(store, world_size=world_size),
        )
        ranks = tuple(range(world_size))
        world = World(group, ranks=ranks)
        lent = world.lend(group.name, ranks, timeout_s=timeout_s)
        collectives = Collectives(world, lent, timeout_s=timeout_s, options=self._options)
        kind = HiveProcessGroupWithBackend if backend_can_be_subclassed() else HiveProcessGroupAlone
        return kind(collectives, store)

    def abort(self, errored: bool = True) -> None:
        """End what is under way, and close the quorum's connections."""
        held = self._pg
        super().abort(errored=errored)
        self._close(held)

    def shutdown(self) -> None:
        held = self._pg
        super().shutdown()
        self._close(held)

    def errored(self) -> Exception | None:
        """Why the quorum has to change: a rank of it is lost."""
        group = self._connected
        lost = {} if group is None else group.lost_ranks()
        return next((ConnectionLostError("a replica", why, rank=rank) for rank, why in lost.items()), None)

    def _close(self, held: object) -> None:
        self._connected = None
        if isinstance(held, HiveProcessGroup):
            held.shutdown()

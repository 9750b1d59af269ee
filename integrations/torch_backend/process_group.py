"""What torch gets to hold: a process group, with a c10d Backend inside where torch lets Python make one (2.15).

Why a process group of Python on both versions
- torch's own ProcessGroup wraps a Python backend's Work and forwards `wait` and `get_future` alone: `is_completed()`
  would be False for ever, and `recv` from any rank could not say from which. A Python subclass of ProcessGroup hands
  its Work to Python callers as it is.
- C++ callers (DDP's reducer, functional collectives) reach the same methods by torch's trampolines.

On 2.15 the group has a `HiveBackend` registered, so that names, devices and splitting are torch's to answer. On 2.13 a
Backend cannot be made in Python (its constructor is not exposed), and those answers are here.

In a mixed group (`cpu:hive,cuda:nccl`) torch 2.15 must keep its own ProcessGroup, and gets the `HiveBackend` alone;
2.13 has no such thing, and hands every device's calls to us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hive_qos.errors import MisuseError
from integrations.torch_backend import dispatch
from integrations.torch_backend.backend import DEVICES, NAME, HiveBackend, keep, serve
from integrations.torch_backend.c10d_methods import Methods, raising_torch_errors
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.options import GroupOptions, HiveOptions
from integrations.torch_backend.reconfiguration import Reconfiguration
from integrations.torch_backend.world import group_name_of, world_for

# The stubs describe torch's own overloads and properties; a Python subclass answers C++ by other rules.
_ProcessGroup: Any = dist.ProcessGroup
_Options: Any = c10d.Backend.Options
MERGE_TIMEOUT = timedelta(minutes=30)
"""torch's."""


class HiveProcessGroup(Methods, _ProcessGroup):  # type: ignore[misc]  # Any on purpose, see above
    """The process group that `init_process_group("hive")` makes.

    Args:
        collectives: its own.
        store: what torch gave it to meet in.
        device: what `init_process_group` got as `device_id`.
    """

    def __init__(self, collectives: Collectives, store: Any, *, device: torch.device | None = None) -> None:
        _ProcessGroup.__init__(self, collectives.group.rank, collectives.group.size)
        if device is not None:
            self.bound_device_id = device
        self.collectives = collectives
        self.store = store
        self._splits = 0

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def get_group_store(self) -> Any:
        return self.store

    @property
    def supports_abort_hooks(self) -> bool:
        return True

    @raising_torch_errors
    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> HiveProcessGroup | None:
        """A group of some of these ranks, over the same connections. None on ranks that are not among them.

        Every rank of this group calls it. `opts` is what `pg_options` may be, or a backend's options as torch hands on
        (those say nothing that hive would not take from this group). All devices are hive's, whatever `device_types`.
        """
        parent = self.collectives
        self._splits += 1
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self.group_name}:split:{self._splits}"
        child = parent.split(
            name,
            ranks,
            timeout_s=parent.timeout_s if timeout is None else timeout.total_seconds(),
            options=None if _is_of_another_backend(opts) else GroupOptions.parse(opts),
        )
        group = self._of_some(child, c10d.PrefixStore(f"{name}/", self.store))
        keep(group)
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split:{self._splits}")
        return group

    @raising_torch_errors
    def merge_remote_group(
        self,
        store: Any,
        size: int,
        timeout: timedelta = MERGE_TIMEOUT,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> HiveProcessGroup:
        """One group of the ranks of several that were started apart, over connections of its own.

        All of their ranks call it, with a store that all reach, and the same name. Who comes first is rank 0, as over
        Gloo.
        """
        name = group_name or "merged"
        met = c10d.PrefixStore(f"{name}/", store)
        rank = (met.add("ranks", 1) - 1) % size
        merged = self.collectives.merged(met, rank=rank, size=size, group_name=name, timeout_s=timeout.total_seconds())
        group = self._of_some(merged, met)
        keep(group)
        group._set_group_name(name)
        group._set_group_desc(group_desc or name)
        return group

    def _of_some(self, collectives: Collectives, store: Any) -> HiveProcessGroup:
        """What a group of other ranks than this one's is."""
        return type(self)(collectives, store)


class HiveProcessGroupWithBackend(HiveProcessGroup):
    """The process group on torch 2.15."""

    def __init__(self, collectives: Collectives, store: Any, *, device: torch.device | None = None) -> None:
        super().__init__(collectives, store, device=device)
        self._backend = backend = HiveBackend(collectives)
        serve(self, backend)
        keep(backend)

    @property
    def supports_reconfigure(self) -> bool:
        return self.reconfiguration is not None

    def run(self, method: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Carry out a call by way of torch's dispatcher, where hooks see it."""
        if dispatch.takes(method.__name__, arguments):
            return dispatch.call(self, method.__name__, arguments)
        return super().run(method, arguments)


class ReconfigurableProcessGroup(HiveProcessGroupWithBackend):
    """The one whose ranks change. C++ asks it who and how many it has.

    No other group answers that: C++ may ask with a lock held, and then a signal's handler waits for that lock for ever.
    """

    def __init__(self, reconfiguration: Reconfiguration, store: Any, *, device: torch.device | None) -> None:
        super().__init__(reconfiguration.collectives, store, device=device)
        self.reconfiguration = self._backend.reconfiguration = reconfiguration
        reconfiguration.on_change = self._use

    def getRank(self) -> int:
        """`rank` for C++."""
        return self.rank()

    def getSize(self) -> int:
        """`size` for C++, such as DDP's mean."""
        return self.size()

    def _of_some(self, collectives: Collectives, store: Any) -> HiveProcessGroup:
        return HiveProcessGroupWithBackend(collectives, store)

    def _use(self, collectives: Collectives) -> None:
        """Go on with other ranks."""
        for adapter in (self, self._backend):
            adapter.collectives = collectives
            keep(adapter)


class HiveProcessGroupAlone(HiveProcessGroup):
    """The process group on torch 2.13: nothing is registered in it, and what torch would ask a backend it asks us."""

    def __init__(self, collectives: Collectives, store: Any, *, device: torch.device | None = None) -> None:
        super().__init__(collectives, store, device=device)
        self._name = ""
        self._description = "undefined"

    # Functional collectives look a group up by its name ("ProcessGroup name not set" without these).

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    def getGroupDesc(self) -> str:
        return self._description

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return list(DEVICES)

    def _get_backend(self, device: torch.device) -> HiveProcessGroupAlone:
        return self

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def options(self) -> GroupOptions:
        """What torch copies for a group that is split off."""
        return self.collectives.options

    def eager_connect_single_device(self, device: torch.device) -> None:
        """All ranks are connected already."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """What a rank outside of a new group calls where `init_process_group` got a `device_id`; hive needs nothing."""


def _is_of_another_backend(opts: object) -> bool:
    return opts is None or (isinstance(opts, _Options) and not isinstance(opts, HiveOptions))


def backend_can_be_subclassed() -> bool:
    """Whether this torch lets Python make a Backend (2.15), tried rather than told from its version."""
    try:
        c10d.Backend(0, 1)
    except (TypeError, RuntimeError):
        return False
    return True


def is_mixed() -> bool:
    """Whether the group that torch is making gets other backends as well ("cpu:hive,cuda:nccl")."""
    config = _being_made().get("backend_config")
    return config is not None and len(set(config.get_device_backend_map().values())) > 1


def _being_made() -> Mapping[str, Any]:
    """What torch knows of the group that it is making and does not tell a backend's creator: its helper's locals."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_new_process_group_helper":
            return frame.f_locals
    return {}


@raising_torch_errors
def create(options: Any, group_options: object = None) -> Any:
    """What torch calls for `init_process_group("hive")` and `new_group(backend="hive")`.

    Blocks until all ranks have connected when the group is the first with its ranks; at once for a group of ranks that
    are connected already.
    """
    options_of_group = GroupOptions.parse(group_options)
    timeout_s = options.timeout.total_seconds()
    if getattr(options, "enable_reconfigure", False):
        return _create_unconnected(options, options_of_group, timeout_s=timeout_s)
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    name = group_name_of(options.group_id)
    world = world_for(options, ranks=ranks, name=name, timeout_s=timeout_s)
    group = world.lend(name, ranks, timeout_s=timeout_s)
    collectives = Collectives(world, group, timeout_s=timeout_s, options=options_of_group)
    device = _being_made().get("device_id")
    adapter: Any
    if not backend_can_be_subclassed():
        adapter = HiveProcessGroupAlone(collectives, options.store, device=device)
    elif is_mixed():
        adapter = HiveBackend(collectives, beside_others=True)
    else:
        adapter = HiveProcessGroupWithBackend(collectives, options.store, device=device)
    keep(adapter)
    return adapter


def _create_unconnected(options: Any, options_of_group: GroupOptions, *, timeout_s: float) -> Any:
    """The group of `enable_reconfigure=True`, whose ranks come with the first `reconfigure`."""
    if is_mixed():
        raise MisuseError("torch reconfigures groups of one backend alone: leave out enable_reconfigure=True")
    reconfiguration = Reconfiguration(
        options.store, rank=options.group_rank, size=options.group_size, timeout_s=timeout_s, options=options_of_group
    )
    group = ReconfigurableProcessGroup(reconfiguration, options.store, device=_being_made().get("device_id"))
    keep(group)
    return group

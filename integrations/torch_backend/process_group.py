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
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hive_qos.errors import MisuseError
from integrations.torch_backend.c10d_methods import Methods, raising_torch_errors
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.world import group_name_of, world_for

NAME = "hive"
DEVICES = (torch.device("cpu"), torch.device("cuda"))

# The stubs describe torch's own overloads and properties; a Python subclass answers C++ by other rules (see `_Answer`).
_Backend: Any = c10d.Backend
_ProcessGroup: Any = dist.ProcessGroup


class _Answer:
    """A constant that is an attribute to Python and a method to C++.

    torch 2.15 looks these up by name from C++ and calls them; its own defaults are properties that call C++ again,
    without end. Python code reads the same names as attributes.
    """

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value

    def __call__(self) -> bool:
        return self._value


class HiveBackend(Methods, _Backend):  # type: ignore[misc]  # Any on purpose, see above
    """A c10d Backend, which sits in a ProcessGroup. torch 2.15."""

    supports_coalescing = _Answer(False)
    supports_splitting = _Answer(True)
    supports_shrinking = _Answer(False)
    supports_reconfigure = _Answer(False)
    supports_window = _Answer(False)
    supports_abort_hooks = _Answer(False)
    supports_completion_hooks = _Answer(False)
    _supports_time_estimate = _Answer(False)

    def __init__(self, collectives: Collectives) -> None:
        _Backend.__init__(self, collectives.group.rank, collectives.group.size)
        self.collectives = collectives
        self._options = _Backend.Options(NAME)

    def getBackendName(self) -> str:
        return NAME

    @property
    def options(self) -> Any:
        return self._options

    def get_backend_options(self) -> Any:
        return self._options

    @raising_torch_errors
    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> HiveBackend:
        """A backend of some of this one's ranks, over the same connections."""
        parent = self.collectives
        if parent.group.rank not in ranks:  # torch crashes on a None of Python's
            raise MisuseError(
                f"rank {parent.group.rank} is in none of the groups that split_group was asked for: in a group of"
                " several backends give every rank one, or use new_group"
            )
        world = parent.world
        world_ranks = [world.ranks[parent.group.ranks[rank]] for rank in ranks]
        group = world.lend(group_name_of(opts.group_name), world_ranks, timeout_s=parent.timeout_s)
        child = HiveBackend(Collectives(world, group, timeout_s=parent.timeout_s))
        _keep(child)
        return child

    def perform_nocolor_split(self, device: torch.device) -> None:
        """What a rank outside of a new group calls where `init_process_group` got a `device_id`; hive needs nothing."""


class HiveProcessGroup(Methods, _ProcessGroup):  # type: ignore[misc]  # Any on purpose, see above
    """The process group that `init_process_group("hive")` makes."""

    def __init__(self, collectives: Collectives) -> None:
        _ProcessGroup.__init__(self, collectives.group.rank, collectives.group.size)
        self.collectives = collectives

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def size(self) -> int:
        return int(self.collectives.group.size)

    def rank(self) -> int:
        return int(self.collectives.group.rank)


class HiveProcessGroupWithBackend(HiveProcessGroup):
    """The process group on torch 2.15. `device` is what `init_process_group` got as `device_id`."""

    def __init__(self, collectives: Collectives, *, device: torch.device | None) -> None:
        super().__init__(collectives)
        if device is not None:
            self.bound_device_id = device
        backend = HiveBackend(collectives)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in DEVICES:
            self._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, backend)
        _keep(backend)

    def split_group(self, ranks: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        """torch's own, but for ranks that are in no new group: they get None, as from Gloo."""
        return super().split_group(ranks, *args, **kwargs) if self.rank() in ranks else None


class HiveProcessGroupAlone(HiveProcessGroup):
    """The process group on torch 2.13: nothing is registered in it, and what torch would ask a backend it asks us."""

    def __init__(self, collectives: Collectives) -> None:
        super().__init__(collectives)
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
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False


_alive: set[Any] = set()
_ended: list[Any] = []
"""Adapters that torch holds from C++ alone: their Python halves must not be collected while their group lives, nor in
the moment after it in which torch asks ended ones for their names. That is over when the next group is made."""


def _keep(adapter: Any) -> None:
    def let_go() -> None:
        _alive.discard(adapter)
        _ended.append(adapter)

    _ended.clear()
    _alive.add(adapter)
    adapter.collectives.on_close.append(let_go)


def backend_can_be_subclassed() -> bool:
    """Whether this torch lets Python make a Backend (2.15), tried rather than told from its version."""
    try:
        _Backend(0, 1)
    except (TypeError, RuntimeError):
        return False
    return True


def is_mixed() -> bool:
    """Whether the group that torch is making gets other backends as well ("cpu:hive,cuda:nccl").

    torch tells a backend's creator nothing of the others, so that this reads the configuration from torch's own frame.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_new_process_group_helper":
            return len(set(frame.f_locals["backend_config"].get_device_backend_map().values())) > 1
    return False


@raising_torch_errors
def create(options: Any, _group_options: object = None) -> Any:
    """What torch calls for `init_process_group("hive")` and `new_group(backend="hive")`.

    Blocks until all ranks have connected when the group is the first with its ranks; at once for a group of ranks that
    are connected already.
    """
    if getattr(options, "enable_reconfigure", False):
        raise MisuseError(
            "hive groups cannot be reconfigured: leave out enable_reconfigure=True; when a rank is lost, destroy the"
            " group and start again with those who are left"
        )
    timeout_s = options.timeout.total_seconds()
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    name = group_name_of(options.group_id)
    world = world_for(options, ranks=ranks, name=name, timeout_s=timeout_s)
    collectives = Collectives(world, world.lend(name, ranks, timeout_s=timeout_s), timeout_s=timeout_s)
    adapter: Any
    if not backend_can_be_subclassed():
        adapter = HiveProcessGroupAlone(collectives)
    elif is_mixed():
        adapter = HiveBackend(collectives)
    else:
        outer = getattr(options, "process_group", None)
        adapter = HiveProcessGroupWithBackend(collectives, device=outer and outer.bound_device_id)
    _keep(adapter)
    return adapter

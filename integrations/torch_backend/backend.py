"""A c10d Backend in Python, which sits in a ProcessGroup. torch 2.15 lets Python make one, and 2.13 does not."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hive_qos.errors import MisuseError
from integrations.torch_backend import dispatch
from integrations.torch_backend.c10d_methods import Methods, raising_torch_errors
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.work import HiveWork

NAME = "hive"
DEVICES = (torch.device("cpu"), torch.device("cuda"))

# The stubs describe torch's own overloads and properties; a Python subclass answers C++ by other rules (see `Answer`).
_c10d: Any = c10d
distributed_c10d: Any = dist.distributed_c10d
_Backend: Any = c10d.Backend


class Answer:
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

    supports_coalescing = Answer(False)  # where it is true, torch batches messages into one Work; Gloo's are several
    supports_splitting = Answer(True)
    supports_shrinking = Answer(True)
    supports_window = Answer(False)
    supports_abort_hooks = Answer(True)
    supports_completion_hooks = Answer(False)
    _supports_time_estimate = Answer(False)

    def __init__(self, collectives: Collectives, *, beside_others: bool = False) -> None:
        _Backend.__init__(self, collectives.group.rank, collectives.group.size)
        self._beside_others = beside_others
        self.collectives = collectives

    @property
    def supports_reconfigure(self) -> Answer:
        return Answer(self.reconfiguration is not None)

    def getBackendName(self) -> str:
        return NAME

    @property
    def options(self) -> Any:
        return _Backend.Options(NAME, timedelta(seconds=self.collectives.timeout_s))

    def get_backend_options(self) -> Any:
        return self.options

    def run(self, method: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Carry out a call. If it came through a process group of ours, that one gets the Work as it is."""
        if self._beside_others and method.__name__ == "recv_anysource":
            raise MisuseError("recv without a source: in a group of several backends torch does not say whose it was")
        work = super().run(method, arguments)
        if isinstance(work, HiveWork):
            dispatch.hand_over(work)
        return work

    @raising_torch_errors
    def get_error(self) -> Any:
        """What kind of error has ended an operation of this group last; SUCCESS where none has."""
        return getattr(_c10d.ErrorType, self.collectives.error_kind())

    # What C++ calls where the process group is torch's own.

    def registerAbortHook(self, hook_id: int, hook: Callable[[], None]) -> None:
        self.register_abort_hook(hook_id, hook)

    def unregisterAbortHook(self, hook_id: int) -> None:
        self.unregister_abort_hook(hook_id)

    def start_coalescing(self) -> None:
        self.collectives.start_coalescing()

    def end_coalescing(self) -> HiveWork:
        return self.collectives.end_coalescing()

    @raising_torch_errors
    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> HiveBackend:
        """A backend of some of this one's ranks, over the same connections. torch's own ProcessGroup calls it."""
        parent = self.collectives
        if parent.group.rank not in ranks:  # torch crashes on a None of Python's
            raise MisuseError(
                f"rank {parent.group.rank} is in none of the groups that split_group was asked for: in a group of"
                " several backends give every rank one, or use new_group"
            )
        group = parent.split(opts.group_name, ranks, timeout_s=opts._timeout.total_seconds())
        child = HiveBackend(group, beside_others=True)
        keep(child)
        return child

    @raising_torch_errors
    def merge(self, store: Any, opts: Any, rank: int, size: int) -> HiveBackend:
        """A backend of the ranks of several groups. torch's own ProcessGroup calls it."""
        timeout_s = opts._timeout.total_seconds()
        merged = self.collectives.merged(store, rank=rank, size=size, group_name=opts.group_name, timeout_s=timeout_s)
        child = HiveBackend(merged, beside_others=True)
        keep(child)
        return child

    @raising_torch_errors
    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> HiveBackend:
        """A backend of the ranks that are left, over the connections that are there: nothing is sent.

        `dist.shrink_group` calls it on those ranks alone, and destroys this group afterwards. With SHRINK_ABORT what is
        under way in it ends at once.
        """
        _label_what_shrinks()
        own = self.collectives
        left = [rank for rank in range(own.group.size) if rank not in ranks_to_exclude]
        if own.group.rank not in left:
            raise MisuseError(f"rank {own.group.rank} is to be excluded, and may not take part in shrinking")
        child = HiveBackend(own.shrink(left, anew=self._is_default()))
        keep(child)
        if shrink_flags:
            own.abort("the process group shrinks")
        return child

    def _is_default(self) -> bool:
        """Whether torch's default group is of this backend, as far as the CPU's tensors go."""
        default = dist.group.WORLD
        return default is not None and default._get_backend(torch.device("cpu")) is self

    def perform_nocolor_split(self, device: torch.device) -> None:
        """What a rank outside of a new group calls where `init_process_group` got a `device_id`; hive needs nothing."""


def serve(group: Any, backend: HiveBackend) -> None:
    """Have a process group call a backend for the tensors of all devices, as one that is none of torch's own."""
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    for device in DEVICES:
        group._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, backend)


@functools.cache
def _label_what_shrinks() -> None:
    """From now on torch's groups that shrink serve our backends.

    torch 2.15 registers any backend of the CPU's as Gloo's there, and DDP's C++ then reads ours as one: a segfault.
    """
    create = distributed_c10d._create_shrunk_process_group

    @functools.wraps(create)
    def created(new_backend: Any, *arguments: Any, **named: Any) -> Any:
        group = create(new_backend, *arguments, **named)
        if isinstance(new_backend, HiveBackend):
            serve(group, new_backend)
        return group

    distributed_c10d._create_shrunk_process_group = created


_alive: set[Any] = set()
_ended: list[tuple[int, Any]] = []
"""With the number of their process, adapters that torch holds from C++ alone: their Python halves must not be collected
while their group lives, nor in the moment after it in which torch asks ended ones for their names. That is over when
the next group is made."""


def keep(adapter: Any) -> None:
    """Keep a backend or process group until its group has ended; its store, whose port another may want, no longer.

    In a forked child nothing that came from the parent is let go of: the thread of a store's server is not there, and
    torch would end the process.
    """
    process = os.getpid()

    def let_go() -> None:
        if os.getpid() == process:
            _alive.discard(adapter)
            _ended.append((process, adapter))
            if adapter.reconfiguration is None:  # else it may go on with other ranks
                adapter.store = None

    _ended[:] = [one for one in _ended if one[0] != process]
    _alive.add(adapter)
    adapter.collectives.on_close.append(let_go)

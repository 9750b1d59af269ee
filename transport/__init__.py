"""Tensors between machines over QUIC: groups, collectives and point-to-point messages, with bounded priorities.

    import transport

    with transport.Group.connect(transport.FileRendezvous("/tmp/run-1"), rank=0, world_size=2) as group:
        group.allreduce(gradients).wait()

Light on purpose: no torch, the engine is loaded at the first connection, and the names below at their first use, for
the broker needs the engines and the identity alone (12 MB less). See docs/reference/transport.md.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport.bootstrap.rendezvous import FileRendezvous, MemoryRendezvous, Rendezvous, TcpRendezvous
    from transport.collectives.reduce_op import ReduceOp
    from transport.engine.base import Priority
    from transport.group import Group
    from transport.listener import Listener
    from transport.settings import Settings
    from transport.tensors import TensorView
    from transport.work import Work

__all__ = [
    "FileRendezvous",
    "Group",
    "Listener",
    "MemoryRendezvous",
    "Priority",
    "ReduceOp",
    "Rendezvous",
    "Settings",
    "TcpRendezvous",
    "TensorView",
    "Work",
]


_HOMES = {
    "FileRendezvous": "bootstrap.rendezvous",
    "Group": "group",
    "Listener": "listener",
    "MemoryRendezvous": "bootstrap.rendezvous",
    "Priority": "engine.base",
    "ReduceOp": "collectives.reduce_op",
    "Rendezvous": "bootstrap.rendezvous",
    "Settings": "settings",
    "TcpRendezvous": "bootstrap.rendezvous",
    "TensorView": "tensors",
    "Work": "work",
}


def __getattr__(name: str) -> Any:
    """Load a public name where it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register_with_torch() -> None:
    """Where torch is loaded already, run the installed entry point `hive` that its import would have run."""
    if "torch" not in sys.modules:
        return
    from importlib.metadata import entry_points  # torch has loaded it; others need not

    try:
        for entry_point in entry_points(group="torch.backends", name="hive"):
            entry_point.load()()
    except Exception:  # transport works without torch, whatever is wrong with the integration
        logging.getLogger("transport").exception("the torch backend could not be registered")


_register_with_torch()

"""Tensors between machines over QUIC: groups, collectives and point-to-point messages, with bounded priorities.

    import transport

    with transport.Group.connect(transport.FileRendezvous("/tmp/run-1"), rank=0, world_size=2) as group:
        group.allreduce(gradients).wait()

Light on purpose: no torch, and the engine is loaded at the first connection. See docs/transport.md.
"""

import logging
import sys

from transport.collectives.operations import ReduceOp
from transport.engine.base import Priority
from transport.group import Group
from transport.rendezvous import FileRendezvous, MemoryRendezvous, Rendezvous, TcpRendezvous
from transport.settings import Settings
from transport.tensors import TensorView
from transport.work import Work

__all__ = [
    "FileRendezvous",
    "Group",
    "MemoryRendezvous",
    "Priority",
    "ReduceOp",
    "Rendezvous",
    "Settings",
    "TcpRendezvous",
    "TensorView",
    "Work",
]


def _register_with_torch() -> None:
    """Where torch is loaded already, make the backend `hive` known to it; torch's own entry point does it otherwise."""
    if "torch" not in sys.modules:
        return
    try:
        from integrations import register_torch_backend

        register_torch_backend()
    except Exception:  # transport works without torch, whatever is wrong with the integration
        logging.getLogger("transport").exception("the torch backend could not be registered")


_register_with_torch()

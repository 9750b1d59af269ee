"""Who competes: DDP over Gloo and over hive, and the algorithms of `integrations.volatile`; one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One way to train together.

    Args:
        name: in records and tables.
        backend: of `torch.distributed`, for DDP; "" for the others.
        kind: its class in `integrations.volatile`; "" for DDP.
        options: its keyword arguments.
        waits: members that train wait for each other, so all are at the same step, and none goes on alone.
    """

    name: str
    backend: str = ""
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    waits: bool = True

    def as_order(self) -> dict[str, Any]:
        """What a member is told."""
        return {"backend": self.backend, "kind": self.kind, "options": dict(self.options)}


REFERENCE = Algorithm(name="DDP gloo", backend="gloo")
DILOCO = "DiLoCo"


def competing(every: int) -> Sequence[Algorithm]:
    """All of a run; `every` inner steps lie between two meetings of those that have such."""
    meeting = {"every": every}
    return (
        REFERENCE,
        Algorithm(name=DILOCO, kind=DILOCO, options=meeting),
        Algorithm(name="LocalSGD", kind="LocalSGD", options=meeting),
        Algorithm(name="PartialMean", kind="PartialMean"),
        Algorithm(name="DDP hive", backend="hive"),
        Algorithm(name="StreamingDiLoCo", kind="StreamingDiLoCo", options=meeting),
        Algorithm(name="AsyncDiLoCo", kind="AsyncDiLoCo", options=meeting, waits=False),
        Algorithm(name="A2CiD2", kind="A2CiD2", options={"every": 1}, waits=False),
    )

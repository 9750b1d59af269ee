"""What may be said of one group: `dist.new_group(pg_options={"priority": "bulk"})`.

A device mesh takes options of torch's own class alone, which `HiveOptions` is:

    overrides = {"tp": HiveOptions(priority="activation gradient")}
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"), backend_override=overrides)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta

from torch._C._distributed_c10d import Backend
from torch.distributed.constants import default_pg_timeout

from hive_qos.errors import MisuseError
from transport import Priority
from transport.collectives.codecs import Codec


@dataclass(frozen=True)
class GroupOptions:
    """The options of one group.

    Args:
        priority: of all its collectives and messages beside other groups' over the same connections. None: gradients
            for collectives, activations for messages.
        compression: of its reductions of float32, as `transport.Group.allreduce` has it; "" for none. What is left out
            of an all-reduced tensor is added the next time that its memory is reduced.
        gather_compression: of its all-gathers of float32, such as FSDP2's of parameters; "" for none.
    """

    priority: Priority | None = None
    compression: str = ""
    gather_compression: str = ""

    @classmethod
    def parse(cls, raw: object) -> GroupOptions:
        """Read what `init_process_group`, `new_group` or `split_group` got as `pg_options`; None is all defaults.

        Raises:
            MisuseError: not a mapping, an unknown option, or a value that it cannot have.
        """
        if raw is None:
            return cls()
        if isinstance(raw, cls):
            return raw
        if isinstance(raw, HiveOptions):
            return raw.of_group
        if not isinstance(raw, Mapping):
            raise MisuseError(f'pg_options: hive takes a dict such as {{"priority": "bulk"}}, not {raw!r}')
        names = [one.name for one in fields(cls)]
        if unknown := sorted(set(map(str, raw)) - set(names)):
            raise MisuseError(f"pg_options: hive has no option {', '.join(unknown)}; it has {', '.join(names)}")
        name = raw.get("priority")
        compressions = {one: raw.get(one) or "" for one in ("compression", "gather_compression")}
        for one in compressions.values():
            Codec.named(one)
        return cls(priority=None if name is None else _priority_of(name), **compressions)


class HiveOptions(Backend.Options):
    """The same as an object of torch's class; arguments as the keys of `pg_options`, errors as of `GroupOptions.parse`.

    Args:
        timeout: of an operation of the group, where torch takes it from here, as for a device mesh.
    """

    def __init__(
        self,
        *,
        priority: str | Priority | None = None,
        compression: str = "",
        gather_compression: str = "",
        timeout: timedelta = default_pg_timeout,
    ) -> None:
        super().__init__("hive", timeout)
        self.of_group = GroupOptions.parse(
            {"priority": priority, "compression": compression, "gather_compression": gather_compression}
        )


def _priority_of(name: object) -> Priority:
    by_name = {priority.name.lower().replace("_", " "): priority for priority in Priority}
    if isinstance(name, Priority):
        return name
    if isinstance(name, str) and name in by_name:
        return by_name[name]
    raise MisuseError(f"pg_options: priority is one of {', '.join(by_name)}, not {name!r}")

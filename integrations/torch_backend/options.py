"""What `pg_options` may say of one group: `dist.new_group(pg_options={"priority": "bulk"})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hive_qos.errors import MisuseError
from transport import Priority
from transport.collectives.codecs import Codec


@dataclass(frozen=True)
class GroupOptions:
    """The options of one group.

    Args:
        priority: of all its collectives and messages beside other groups' over the same connections. None: gradients
            for collectives, activations for messages.
        compression: of its all-reduces of float32, as `transport.Group.allreduce` has it; "" for none. What is left out
            of a tensor is added the next time that its memory is reduced.
    """

    priority: Priority | None = None
    compression: str = ""

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
        if not isinstance(raw, Mapping):
            raise MisuseError(f'pg_options: hive takes a dict such as {{"priority": "bulk"}}, not {raw!r}')
        if unknown := sorted(set(map(str, raw)) - {"priority", "compression"}):
            raise MisuseError(f"pg_options: hive has no option {', '.join(unknown)}; it has priority and compression")
        name = raw.get("priority")
        compression = raw.get("compression") or ""
        Codec.named(compression)
        return cls(priority=None if name is None else _priority_of(name), compression=compression)


def _priority_of(name: object) -> Priority:
    by_name = {priority.name.lower().replace("_", " "): priority for priority in Priority}
    if isinstance(name, Priority):
        return name
    if isinstance(name, str) and name in by_name:
        return by_name[name]
    raise MisuseError(f"pg_options: priority is one of {', '.join(by_name)}, not {name!r}")

"""What c10d's methods can be called with, read from the signatures that pybind11 writes into their docstrings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch._C import _distributed_c10d as c10d

UNTESTED = {
    "_end_coalescing": "Gloo does not coalesce; see group_checks",
    "reconfigure": "for groups that are made for it; see programs/reconfigured.py",
    "allreduce_sparse": "for sparse GPU tensors; `allreduce` takes those of the CPU",
    "gather_single": "Gloo has none; see collective_checks",
    "gather_into_tensor": "Gloo has none; see collective_checks",
}
"""Methods that start an operation and are left out, with the reason. Whatever is not here has to work."""
WORK = "c10d::Work"
_KINDS = (
    (r"collections\.abc\.Sequence\[collections\.abc\.Sequence\[torch\.Tensor\]\]", "[[T]]"),
    (r"collections\.abc\.Sequence\[torch\.Tensor\]", "[T]"),
    (r"torch\.Tensor", "T"),
    (r"collections\.abc\.Sequence\[(?:int|typing\.SupportsInt.*)\]", "[int]"),
    (r"(?:int|typing\.SupportsInt.*)", "int"),
    (r"bool", "bool"),
    (r"datetime\.timedelta(?: \| None)?", "timedelta"),
    (r"(?:torch\._C\._distributed_c10d\.|c10d::)(\w+)", r"\1"),
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a form. `named`: it may be given by its name."""

    name: str
    kind: str
    optional: bool

    @property
    def named(self) -> bool:
        return not re.fullmatch(r"arg\d+", self.name)


@dataclass(frozen=True)
class Signature:
    """One form of one method of a class of c10d's; `number` counts a method's forms from 1."""

    owner: str
    method: str
    number: int
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        return f"{self.owner}.{self.method}.{self.number}"


def signatures() -> list[Signature]:
    """Every form of every method of a process group, and of a backend, that starts an operation."""
    found = []
    for owner in ("ProcessGroup", "Backend"):
        members: dict[str, Any] = vars(getattr(c10d, owner))
        for method, function in sorted(members.items()):
            if method in UNTESTED or (owner == "Backend" and not _can_be_subclassed()):
                continue
            words = getattr(function, "__doc__", None) or ""
            lines = re.findall(rf"^\s*(?:\d+\. )?{method}\(self: (.*)\) -> (\S+)$", words, re.MULTILINE)
            starts = [arguments for arguments, result in lines if result == WORK or method == "monitored_barrier"]
            assert len(starts) >= words.count(f"-> {WORK}"), f"a form of {method} is written in a new way: {words}"
            for number, arguments in enumerate(starts, 1):
                found.append(Signature(owner, method, number, _parameters(arguments)))
    return found


def _can_be_subclassed() -> bool:
    """Whether this torch lets Python make a backend (2.15); before, there is only the process group."""
    try:
        c10d.Backend(0, 1)
    except (TypeError, RuntimeError):
        return False
    return True


def _parameters(arguments: str) -> tuple[Parameter, ...]:
    found = []
    for part in re.split(r", (?=\w+: )", arguments)[1:]:  # the first is self's class
        name, _, rest = part.partition(": ")
        written, _, default = rest.partition(" = ")
        found.append(Parameter(name, _kind(written), bool(default)))
    return tuple(found)


def _kind(written: str) -> str:
    for pattern, kind in _KINDS:
        if match := re.fullmatch(pattern, written):
            return match.expand(kind)
    raise AssertionError(f"c10d has a parameter of a kind that is not known here: {written}")

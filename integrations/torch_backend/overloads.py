"""c10d's overloads of a method, brought to one form: the one that takes an options object.

A method of `torch.distributed.ProcessGroup` has a form with an options object, which torch itself calls, and often
plain ones: `allreduce(tensor, op, timeout)` beside `allreduce([tensor], opts)`. A form is written here as torch writes
its signatures, with T for a tensor: "tensors: [T], opts: AllreduceOptions". As in torch

- the first form that fits is taken, and if none fits that is a TypeError;
- a plain form's tensor stands for a list of one, and its list of tensors for a list with that one list;
- `op`, `root` and `timeout` become the options' `reduceOp`, `rootRank` and `timeout`;
- whatever has a default in torch may be left out (`_DEFAULTS`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d

from hive_qos.errors import MisuseError

_c10d: Any = _distributed_c10d  # the stubs lack options of newer versions, and the two classes of a reduction
_OPTIONS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Where an options object keeps what a plain form has as an argument."""
_DEFAULTS = {"opts": None, "op": None, "timeout": None, "wait_all_ranks": False}


def _is_int(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]  # whether it has an index is the question
    except TypeError:
        return False
    return True


def _list_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(fits, value))


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


_KINDS: dict[str, Callable[[object], bool]] = {
    "T": _is_tensor,
    "[T]": _list_of(_is_tensor),
    "[[T]]": _list_of(_list_of(_is_tensor)),
    "int": _is_int,
    "[int]": _list_of(_is_int),
    "bool": lambda value: isinstance(value, bool),
    "ReduceOp": lambda value: isinstance(value, _c10d.ReduceOp | _c10d.ReduceOp.RedOpType),
    "timedelta": lambda value: value is None or isinstance(value, timedelta | float),
}
"""Whether a value is of a kind. Every other kind is the name of an options class."""


def _is_of(value: object, kind: str) -> bool:
    return _KINDS[kind](value) if kind in _KINDS else isinstance(value, getattr(_c10d, kind))


class Form:
    """One way to call a method.

    Args:
        text: its parameters in order, "name: kind, ..."; kinds are those of `_KINDS`, and c10d's options classes.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds = dict(parameter.split(": ") for parameter in text.split(", "))

    def is_given(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether the arguments are all of its parameters, in order, as torch's own callers have them."""
        return not kwargs and len(args) == len(self.kinds) and all(map(_is_of, args, self.kinds.values()))

    def match(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any] | None:
        """All its parameters with their values, in order; None if the arguments do not fit."""
        given = {**dict(zip(self.kinds, args, strict=False)), **kwargs}
        if len(given) < len(args) + len(kwargs) or not given.keys() <= self.kinds.keys():
            return None  # too many, one given twice, or an unknown name
        for name, value in given.items():
            if not _is_of(value, self.kinds[name]):
                return None
        filled = {**_DEFAULTS, **given}
        return {name: filled[name] for name in self.kinds} if self.kinds.keys() <= filled.keys() else None


class Overloads:
    """All forms of one method.

    Args:
        name: the method's.
        texts: its forms. The first is the one to which the others are brought.
    """

    def __init__(self, name: str, texts: Sequence[str]) -> None:
        self.name = name
        self._forms = [Form(text) for text in texts]

    def arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any]:
        """The arguments of the first form; its options object is always there.

        Raises:
            MisuseError: no form fits the arguments.
        """
        target = self._forms[0].kinds
        if self._forms[0].is_given(args, kwargs):
            return list(args)
        for form in self._forms:
            values = form.match(args, kwargs)
            if values is None:
                continue
            if "opts" not in target:
                return list(values.values())
            options = values.pop("opts", None) or getattr(_c10d, target["opts"])()
            for name, attribute in _OPTIONS.items():
                if (value := values.pop(name, None)) is not None:
                    setattr(options, attribute, value)
            found = zip(values.items(), target.values(), strict=False)
            return [*(_nested(value, form.kinds[name], wanted) for (name, value), wanted in found), options]
        given = ", ".join([*(type(arg).__name__ for arg in args), *kwargs])
        forms = " or ".join(f"{self.name}({form.text})" for form in self._forms)
        raise MisuseError(f"{self.name}(): incompatible arguments ({given}); call {forms}, where T is a tensor")


def _nested(value: object, kind: str, wanted: str) -> object:
    while kind != wanted:
        value, kind = [value], f"[{kind}]"
    return value

"""A faster `dataclasses.replace` gives what that gives, for every value that the broker decides with."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from broker.law import inbound_state, skip, state
from broker.law.capacity import inbound_state as capacity_inbound_state
from broker.law.sharing import plan
from broker.law.structs import replace
from broker.model import leases
from broker.model import values as model
from broker.policy import types

VALUES = [
    value
    for module in (leases, inbound_state, model, plan, types, skip, state, capacity_inbound_state)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
]


def of(kind: type[Any]) -> Any:
    """One whose fields all differ; what they are does not matter here."""
    return kind(**{entry.name: f"{entry.name} before" for entry in dataclasses.fields(kind) if entry.init})


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_it_gives_what_the_standard_librarys_gives(kind: type[Any]) -> None:
    before, last = of(kind), dataclasses.fields(kind)[-1].name
    after = replace(before, **{last: "after"})
    assert after == dataclasses.replace(before, **{last: "after"})
    assert hash(after) == hash(dataclasses.replace(before, **{last: "after"}))
    assert vars(after) == {**vars(before), last: "after"}
    assert before == of(kind), "the one that it is made of stays as it was"


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_no_value_has_what_it_would_leave_out(kind: type[Any]) -> None:
    assert not hasattr(kind, "__post_init__")
    assert not hasattr(kind, "__slots__")
    assert all(entry.init for entry in dataclasses.fields(kind))

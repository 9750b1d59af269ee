"""What `pg_options` may say of a group, and what is refused."""

from __future__ import annotations

import pytest

from hive_qos.errors import MisuseError
from integrations.torch_backend.options import GroupOptions
from transport import Priority


def test_every_priority_has_a_name_and_none_is_the_default() -> None:
    assert GroupOptions.parse(None) == GroupOptions.parse({}) == GroupOptions(priority=None)
    for name, priority in (("activation gradient", Priority.ACTIVATION_GRADIENT), ("bulk", Priority.BULK)):
        assert GroupOptions.parse({"priority": name}) == GroupOptions(priority=priority)
    assert GroupOptions.parse({"priority": Priority.CONTROL}).priority is Priority.CONTROL


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("bulk", "takes a dict"),
        ({"priority": "urgent"}, "control, activation gradient, activation, gradient, bulk"),
        ({"priority": 2}, "not 2"),
        ({"colour": "red"}, "no option colour"),
    ],
)
def test_what_cannot_work_is_named(raw: object, text: str) -> None:
    with pytest.raises(MisuseError, match=text):
        GroupOptions.parse(raw)

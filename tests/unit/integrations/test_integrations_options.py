"""What `pg_options` may say of a group, and what is refused."""

from __future__ import annotations

import pytest
from torch._C._distributed_c10d import Backend

from hive_qos.errors import MisuseError
from integrations.torch_backend.options import GroupOptions, HiveOptions
from transport import Priority


def test_every_priority_has_a_name_and_none_is_the_default() -> None:
    assert GroupOptions.parse(None) == GroupOptions.parse({}) == GroupOptions(priority=None)
    for name, priority in (("activation gradient", Priority.ACTIVATION_GRADIENT), ("bulk", Priority.BULK)):
        assert GroupOptions.parse({"priority": name}) == GroupOptions(priority=priority)
    assert GroupOptions.parse({"priority": Priority.CONTROL}).priority is Priority.CONTROL


def test_the_options_that_a_device_mesh_takes_say_the_same() -> None:
    options = HiveOptions(priority="activation gradient", compression="int8", gather_compression="bfloat16")
    assert isinstance(options, Backend.Options)
    assert GroupOptions.parse(options) == GroupOptions(Priority.ACTIVATION_GRADIENT, "int8", "bfloat16")
    with pytest.raises(MisuseError, match="not 'urgent'"):
        HiveOptions(priority="urgent")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("bulk", "takes a dict"),
        ({"priority": "urgent"}, "control, activation gradient, activation, gradient, bulk"),
        ({"priority": 2}, "not 2"),
        ({"colour": "red"}, "no option colour; it has priority, compression, gather_compression"),
        ({"gather_compression": "int7"}, "bfloat16, int8, int4, not 'int7'"),
    ],
)
def test_what_cannot_work_is_named(raw: object, text: str) -> None:
    with pytest.raises(MisuseError, match=text):
        GroupOptions.parse(raw)

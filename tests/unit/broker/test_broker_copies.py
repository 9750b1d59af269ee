"""The quick copy is the slow one's equal, to a recording as well."""

from __future__ import annotations

import dataclasses

import pytest

from broker.codec import dumps
from broker.copies import replace
from broker.model import ClassSample, FlowSample


def test_it_is_what_dataclasses_make_of_it() -> None:
    sample = FlowSample("tcp/1", "10.0.0.2", "storage", "tcp-info", 0.5, rtt_s=0.1)
    for changes in ({}, {"age_s": 0.25}, {"job": "j", "key": "tcp/2", "rtt_s": None}):
        quick, slow = replace(sample, **changes), dataclasses.replace(sample, **changes)
        assert quick == slow
        assert dumps(quick) == dumps(slow)
        assert quick is not sample
    assert sample.age_s == 0.5


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match="ClassSample has no field sent"):
        replace(ClassSample("storage", 1), sent=3)


def test_the_copy_is_as_frozen() -> None:
    copy = replace(ClassSample("storage", 1), sent_bytes=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.sent_bytes = 3  # type: ignore[misc]

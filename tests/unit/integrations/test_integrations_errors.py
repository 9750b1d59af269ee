"""Errors leave through torch as RuntimeErrors that are still ours, with a code that survives wrapping."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from hive_qos.errors import (
    CancelledError,
    ConfigurationError,
    ConnectionLostError,
    HiveError,
    MisuseError,
    PeerError,
    TimedOutError,
    TransportError,
)
from integrations.torch_backend.errors import as_torch_error

ERRORS = [
    ConnectionLostError("h2", "silent", rank=2),
    TimedOutError("all-reduce 3", timeout_s=1.5, bytes_done=4, bytes_total=8),
    PeerError("h2", "sent chunk 7 of 5", wire_code=0x12),
    CancelledError("aborted"),
    MisuseError("wrong"),
    ConfigurationError("HIVE_ENGINE", "x", "one of a, b"),
    TransportError("other"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_each_error_keeps_class_text_and_attributes_and_becomes_a_runtime_error(error: HiveError) -> None:
    converted = as_torch_error(error)
    assert isinstance(converted, type(error))
    assert isinstance(converted, RuntimeError)
    assert isinstance(converted, dist.DistError)
    assert str(converted) == str(error)
    assert vars(converted) == vars(error)
    assert converted.__cause__ is error
    assert as_torch_error(converted) is converted


def test_errors_of_others_pass_unchanged() -> None:
    error = ValueError("x")
    assert as_torch_error(error) is error

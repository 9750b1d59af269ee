"""The error hierarchy: codes are unique, stable and stand in the text."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from hive_qos import errors


def classes(root: type[errors.HiveError] = errors.HiveError) -> Iterator[type[errors.HiveError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [entry.code for entry in classes()]
    assert len(codes) == len(set(codes))
    assert {"configuration", "connection-lost", "timed-out", "peer", "broker-unavailable", "read-back"} <= set(codes)


def test_the_code_survives_where_only_the_text_does() -> None:
    lost = errors.ConnectionLostError("node-3", "no acknowledgement for 5 s", rank=3)
    assert str(RuntimeError(str(lost))).startswith("[connection-lost] lost rank 3 (node-3)")


def test_a_configuration_error_names_key_value_and_reason() -> None:
    error = errors.ConfigurationError("class.storage.guarantee", "120 %", "cannot be above 100 %")
    assert str(error) == "[configuration] class.storage.guarantee = '120 %': cannot be above 100 %"


@pytest.mark.parametrize(
    "hostile", ["x\x1b[2J\x1b]0;owned\x07\r\n", "y" * 10_240, "\u202egnp.exe\u2066", "\ud800", "z" * 2**20]
)
def test_what_stands_in_a_file_cannot_paint_and_is_no_book(hostile: str) -> None:
    text = str(errors.ConfigurationError(f"class.{hostile}", {hostile: [hostile]}, "unknown key"))
    assert text.isprintable()
    assert len(text) < 500
    assert text.endswith("unknown key")
    quoted = str(errors.ConfigurationError("broker.toml", 1, hostile))
    assert quoted.replace("\n", "").isprintable()
    assert len(quoted) < 1_100


def test_a_timeout_says_how_far_it_came() -> None:
    text = str(errors.TimedOutError("barrier", timeout_s=2))
    assert text == "[timed-out] barrier: not done within the timeout of 2 s"
    text = str(errors.TimedOutError("allreduce of step 7", timeout_s=1.5, bytes_done=10, bytes_total=30))
    assert text == "[timed-out] allreduce of step 7: not done within the timeout of 1.5 s (10 of 30 bytes done)"


def test_errors_cross_a_process_boundary_whole() -> None:
    # A data loader or a launcher pickles what its workers raise.
    for error in (
        errors.MisuseError("closed"),
        errors.ConfigurationError("version", 2, "is not known"),
        errors.ConnectionLostError("node-3", "reset", rank=3),
        errors.TimedOutError("barrier", timeout_s=1.0, bytes_done=1, bytes_total=2),
        errors.KernelRejectedError("add class", errno_value=22, detail="no"),
        errors.ReadBackError("class", wanted=1, found=2),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))

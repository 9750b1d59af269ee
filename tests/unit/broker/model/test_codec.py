"""The broker's values in JSON: both directions, stable bytes, refusal of what is no value."""

from __future__ import annotations

import msgspec
import pytest

from broker.law.capacity.state import DestinationState
from broker.model.values import Burst, ClassSample, FlowSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import Policy

MEASURED = Measurements(
    (
        InterfaceSample(
            "eth0", 10**9, 0.02, (ClassSample("compute", 12, 3, 1),),
            (FlowSample("k", "10.0.0.2", "compute", "report", 0.1, rtt_s=0.01, delivered_bytes=5),),
            (Burst("J", 7, 4_000_000, 0.1, 0.4),),
        ),
    )
)  # fmt: skip


def test_values_survive_the_way_to_json_and_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MEASURED), type=Measurements) == MEASURED
    policy = load('version = 1\n[[interface]]\nname = "eth0"\n[class.storage]\nmatch = [{ port = 873 }]')
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy


def test_equal_values_give_equal_bytes_with_keys_in_order_of_declaration() -> None:
    assert msgspec.json.encode(MEASURED) == msgspec.json.encode(
        msgspec.json.decode(msgspec.json.encode(MEASURED), type=Measurements)
    )
    assert msgspec.json.encode(ClassSample("a", 1)).startswith(b'{"name":"a","sent_bytes":1,"backlog_bytes":0')


def test_unknown_keys_are_ignored_and_missing_ones_take_their_defaults() -> None:
    assert msgspec.convert({"name": "a", "sent_bytes": 1, "new": []}, ClassSample) == ClassSample("a", 1)


@pytest.mark.parametrize(
    "data", [{"name": "a"}, {"name": 1, "sent_bytes": 1}, {"name": "a", "sent_bytes": True}, [], "x"]
)
def test_what_is_no_value_is_refused(data: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, ClassSample)


def test_a_sample_of_before_carriers_were_recorded_says_nothing_of_one() -> None:
    sample = msgspec.convert({"name": "eth0", "link_bits_per_s": 100_000_000}, InterfaceSample)
    assert (sample.carrier, sample.carrier_changes) == (None, None)
    assert (
        msgspec.convert(
            msgspec.to_builtins(InterfaceSample("eth0", carrier=False, carrier_changes=3)), InterfaceSample
        ).carrier
        is False
    )


def test_a_destination_of_before_its_voice_was_recorded_is_one_that_our_kernel_measured() -> None:
    assert msgspec.convert({"peer": "10.0.0.2", "two_way": False}, DestinationState).source == "tcp-info"

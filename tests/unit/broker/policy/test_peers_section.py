"""`[peers]` of `broker.toml`: off unless written, and every mistake named."""

from __future__ import annotations

import msgspec
import pytest

from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import PeersPolicy, Policy

HEAD = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'
FILES = 'ca = "/etc/hive-qos/ca.crt"\ncertificate = "/etc/hive-qos/a.crt"\nkey = "/etc/hive-qos/a.key"\n'


def peers_of(lines: str) -> PeersPolicy:
    peers = load(f"{HEAD}[peers]\n{FILES}{lines}").peers
    assert peers is not None
    return peers


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigurationErrors) as caught:
        load(text)
    return {problem.key: problem.reason for problem in caught.value.problems}


def test_without_the_section_a_broker_talks_to_nobody() -> None:
    assert load(HEAD).peers is None


def test_three_files_are_enough() -> None:
    assert peers_of("") == PeersPolicy(
        "[::]:4710", "/etc/hive-qos/ca.crt", "/etc/hive-qos/a.crt", "/etc/hive-qos/a.key", "auto"
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.0.0.0:4710", "0.0.0.0:4710"),
        ("10.0.0.1", "10.0.0.1:4710"),
        ("[fd00::1]:5000", "[fd00::1]:5000"),
        ("[fd00::1]", "[fd00::1]:4710"),
        ("fd00::1", "[fd00::1]:4710"),
        ("::", "[::]:4710"),
    ],
)
def test_an_address_may_leave_out_its_port(written: str, read: str) -> None:
    assert peers_of(f'listen = "{written}"').listen == read


@pytest.mark.parametrize(
    "written",
    ['""', '"eth0"', '"host:4710"', '"10.0.0.1:0"', '"10.0.0.1:70000"', '"10.0.0.1:-1"', '"[::1:4710"', "4710", "[]",
     '"10.0.0.1:４７１０"'],
)  # fmt: skip
def test_what_is_no_address_and_port_is_named(written: str) -> None:
    assert "literal address" in problems_of(f"{HEAD}[peers]\n{FILES}listen = {written}")["peers.listen"]


def test_missing_files_are_named_with_the_command_that_makes_them() -> None:
    problems = problems_of(f"{HEAD}[peers]\n")
    assert set(problems) == {"peers.ca", "peers.certificate", "peers.key"}
    assert "hive-qos ca init" in problems["peers.ca"]
    assert "hive-qos ca issue NODE --role broker" in problems["peers.key"]


@pytest.mark.parametrize("value", ['"a.key"', "1", '"/etc/\\u001b[31m"', "[]"])
def test_a_path_is_absolute_and_printable(value: str) -> None:
    lines = FILES.replace('"/etc/hive-qos/a.key"', value)
    assert "absolute path" in problems_of(f"{HEAD}[peers]\n{lines}")["peers.key"]


def test_unknown_keys_and_engines_are_named() -> None:
    problems = problems_of(f'{HEAD}[peers]\n{FILES}engine = "quiche"\nlisen = "::"')
    assert problems["peers.engine"] == "one of auto, native, aioquic"
    assert "did you mean `listen`?" in problems["peers.lisen"]
    assert "write a section" in problems_of(f"peers = 5\n{HEAD}")["peers"]


def test_a_recorded_policy_has_it_and_an_older_recording_reads_without() -> None:
    policy = load(f"{HEAD}[peers]\n{FILES}")
    assert msgspec.convert(msgspec.to_builtins(policy), Policy) == policy
    older = msgspec.to_builtins(load(HEAD))
    del older["peers"]
    assert msgspec.json.encode(msgspec.convert(older, Policy)) == msgspec.json.encode(load(HEAD))

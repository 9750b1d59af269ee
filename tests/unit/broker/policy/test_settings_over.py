"""Settings over the file: read as the file is, merged before it is judged; and what differs between two policies."""

from __future__ import annotations

import pytest

from broker.policy.differences import Difference, differences, settings
from broker.policy.settings import SETTINGS_MAX, Setting, over, read_settings
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import Share
from hive_qos.errors import ConfigurationError

TEXT = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'


def put(kind: str, name: str, *texts: str) -> tuple[Setting, ...]:
    return read_settings(kind, name, texts, until_s=None)


def test_a_setting_counts_as_if_the_file_said_so() -> None:
    by_setting = load(TEXT, settings=put("class", "storage", "guarantee=10%", "weight=3", "priority=1"))
    by_file = load(TEXT + '[class.storage]\nguarantee = "10%"\nweight = 3\npriority = 1\n')
    assert by_setting == by_file
    assert by_setting.class_policy("storage").guarantee == Share(0.1)


def test_a_job_and_an_interface_can_be_set() -> None:
    policy = load(TEXT, settings=(*put("job", "llm", "ceiling=50%"), *put("interface", "eth0", "egress=80Mbit/s")))
    assert policy.jobs[0].ceiling == Share(0.5)
    assert policy.interfaces[0].egress_bits_per_s == 80_000_000


def test_a_setting_of_a_job_that_a_pattern_limits_leaves_all_else_of_the_pattern() -> None:
    limited = TEXT + '[job."nightly-*"]\nceiling = "10 %"\nuid = 1000\n'
    policy = load(limited, settings=put("job", "nightly-1", "weight=2"))
    found = {entry.name: (entry.ceiling, entry.uid, entry.weight) for entry in policy.jobs}
    assert found == {"nightly-*": (Share(0.1), 1000, 1.0), "nightly-1": (Share(0.1), 1000, 2.0)}


@pytest.mark.parametrize(
    ("kind", "name", "text", "words"),
    [
        ("clas", "storage", "weight=2", "did you mean `class`"),
        ("class", "storge", "weight=2", "did you mean `storage`"),
        ("class", "storage", "wieght=2", "did you mean `weight`"),
        ("class", "storage", "weight", "KEY=VALUE"),
        ("class", "storage", "weight=", "KEY=VALUE"),
        ("class", "storage", "weight=\x1b", "KEY=VALUE"),
        ("class", "storage", "match=x", "known here"),
        ("job", "", "weight=2", "printable"),
        ("job", "\x1b[31m", "weight=2", "printable"),
    ],
)
def test_a_typing_error_is_named_before_anybody_is_asked(kind: str, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        put(kind, name, text)


@pytest.mark.parametrize("text", ["guarantee=40%", "weight=x", "priority=9", "guarantee=20", "weight=1e999"])
def test_a_value_is_judged_as_the_files(text: str) -> None:
    with pytest.raises(ConfigurationErrors):
        load(TEXT, settings=put("class", "storage", text))


def test_an_interface_that_the_file_does_not_name_cannot_be_set() -> None:
    with pytest.raises(ConfigurationErrors, match="no such interface; it has eth0"):
        load(TEXT, settings=put("interface", "eth1", "egress=80Mbit/s"))


def test_a_later_setting_of_the_same_place_replaces_the_earlier() -> None:
    first, second = put("class", "storage", "weight=2", "ceiling=50%"), put("class", "storage", "weight=3")
    assert {one.key: one.value for one in over(second, first)} == {"weight": "3", "ceiling": "50%"}


def test_settings_are_bounded() -> None:
    many = tuple(Setting("job", f"j{number}", "weight", "2") for number in range(SETTINGS_MAX + 1))
    with pytest.raises(ConfigurationError, match="at most"):
        over(many, ())


def test_equal_policies_do_not_differ_and_defaults_count_as_written() -> None:
    assert differences(load(TEXT), load(TEXT + '[class.storage]\nguarantee = "20 %"\n')) == ()


def test_a_difference_has_both_values_as_an_operator_writes_them() -> None:
    other = TEXT.replace("40", "20") + "[class.storage]\nmatch = [{ port = 873 }]\n[job.x]\nweight = 2\n"
    found = differences(load(TEXT), load(other))
    assert found[:2] == (
        Difference("interface.eth0.egress", "40 Mbit/s", "20 Mbit/s"),
        Difference("class.storage.match", "none", "{ port = 873 }"),
    )
    assert Difference("job.x.weight", "", "2") in found


def test_every_section_of_a_policy_is_compared() -> None:
    text = (
        '[[schedule]]\nname = "n"\nfrom = "20:00"\nto = "08:00"\ntimezone = "UTC"\n[schedule.class.other]\nweight = 2\n'
        '[probe]\ntargets = ["192.0.2.1"]\n[peers]\nca = "/a"\ncertificate = "/b"\nkey = "/c"\n'
    )
    sections = {key.split(".")[0] for key in settings(load(TEXT + text))}
    assert sections == {"interface", "class", "schedule", "daemon", "peers", "probe"}

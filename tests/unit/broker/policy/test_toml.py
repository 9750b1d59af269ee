"""Reading `broker.toml`: defaults, units, and every mistake named with key, value and what to write instead."""

from __future__ import annotations

import pytest

from broker.law.sharing.promises import promises
from broker.policy.toml import MATCH_RULES_MAX, ConfigurationErrors, load
from broker.policy.types import CLASS_NAMES, MatchRule, Share
from hive_qos.errors import HiveError

HEAD = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigurationErrors) as caught:
        load(text)
    return {problem.key: problem.reason for problem in caught.value.problems}


def test_a_file_with_one_interface_has_a_sensible_default_for_everything_else() -> None:
    policy = load('version = 1\n[[interface]]\nname = "eth0"\n')
    assert policy.interfaces[0].egress_bits_per_s is None
    assert tuple(entry.name for entry in policy.classes) == CLASS_NAMES
    assert sum(entry.guarantee.fraction or 0 for entry in policy.classes) == pytest.approx(0.92)
    assert policy.class_policy("compute").priority < policy.class_policy("storage").priority
    assert policy.daemon.tick_s == 0.1


def test_units_that_people_write_are_understood() -> None:
    policy = load(
        HEAD
        + """
        [class.storage]
        guarantee = "8 Mbit/s"
        guarantee_window = "5 min"
        floor = "500 kbit/s"
        ceiling = "90 %"
        weight = 3
        match = [{ cgroup = "/hive-storage.slice/" }, { port = 873 }, { uid = 1001 }, { dscp = 1 }]
        [daemon]
        tick = "50 ms"
        record_file = "/var/lib/hive-qos/ticks.jsonl"
        """
    )
    storage = policy.class_policy("storage")
    assert policy.interfaces[0].egress_bits_per_s == 40_000_000
    assert (storage.guarantee, storage.ceiling) == (Share(rate_bits_per_s=8_000_000), Share(fraction=0.9))
    assert (storage.guarantee_window_s, storage.weight) == (300.0, 3.0)
    assert storage.match == (
        MatchRule(cgroup="hive-storage.slice"), MatchRule(port=873), MatchRule(uid=1001), MatchRule(dscp=1),
    )  # fmt: skip
    assert (policy.daemon.tick_s, policy.daemon.record_file) == (0.05, "/var/lib/hive-qos/ticks.jsonl")


@pytest.mark.parametrize(
    ("written", "ceiling"),
    [
        ("", Share(0.05)),
        ('guarantee = "4 %"', Share(0.05)),
        ('guarantee = "8 %"', Share(0.08)),
        ('guarantee = "1 Mbit/s"', Share(rate_bits_per_s=1_000_000)),
        ('ceiling = "50 %"', Share(0.5)),
    ],
)
def test_control_has_little_unless_the_operator_says_otherwise(written: str, ceiling: Share) -> None:
    policy = load(f"{HEAD}[class.control]\n{written}")
    assert policy.class_policy("control").ceiling == ceiling
    assert {policy.class_policy(name).ceiling for name in CLASS_NAMES if name != "control"} == {Share(1.0)}


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", "version", "version = 1"),
        ('version = 1\n[[interface]]\nname = "eth0"\nspeed = "1 Gbit/s"', "interface[0].speed", "known here"),
        (HEAD + '[class.stroage]\nfloor = "1 %"', "class.stroage", "did you mean `storage`"),
        (HEAD + '[class.storage]\nguarante = "1 %"', "class.storage.guarante", "did you mean `guarantee`"),
        (HEAD + "[daemon]\ntik = 1", "daemon.tik", "did you mean `tick`"),
        (HEAD + '[class.storage]\nguarantee = "60 %"', "class.*.guarantee", "add up to more than 100 %"),
        (HEAD + '[class.storage]\nguarantee = "25 Mbit/s"', "class.*.guarantee", "of 40 Mbit/s"),
        (HEAD + '[class.compute]\nfloor = "99 %"', "class.*.floor", "floors add up"),
        (HEAD + '[class.storage]\nfloor = "15 %"\nguarantee = "10 %"', "class.storage.floor", "above the guarantee"),
        (HEAD + '[class.storage]\nguarantee = "20 %"\nceiling = "10 %"', "class.storage.guarantee", "the ceiling"),
        (HEAD + '[class.storage]\nceiling = "0 %"', "class.storage.ceiling", "never send"),
        (HEAD + '[class.storage]\nguarantee = "20"', "class.storage.guarantee", "20 %"),
        (HEAD + "[class.storage]\nguarantee = 20", "class.storage.guarantee", "in quotes"),
        (HEAD + '[class.storage]\nguarantee_window = "10 ms"', "class.storage.guarantee_window", "1 s"),
        (HEAD + "[class.storage]\nweight = 0", "class.storage.weight", "above 0"),
        (HEAD + "[class.storage]\npriority = 8", "class.storage.priority", "0 to 7"),
        (HEAD + "[class.storage]\nmatch = [{ port = 0 }]", "class.storage.match[0].port", "1 to 65535"),
        (HEAD + "[class.storage]\nmatch = [{ dscp = 64 }]", "class.storage.match[0].dscp", "0 to 63"),
        (HEAD + "[class.storage]\nmatch = [{ uid = true }]", "class.storage.match[0].uid", "whole number"),
        (HEAD + '[class.storage]\nmatch = [{ cgroup = "../x" }]', "class.storage.match[0].cgroup", "below the cgroup"),
        (HEAD + "[class.storage]\nmatch = [{ port = 1, uid = 2 }]", "class.storage.match[0]", "exactly one"),
        (HEAD + "[class.storage]\nmatch = [873]", "class.storage.match[0]", "exactly one"),
        (HEAD + '[class.storage]\nmatch = [{ cgroup = "a\\u0000b" }]', "class.storage.match[0].cgroup", "control char"),
        (HEAD + '[class.storage]\nmatch = [{ cgroup = "a\\nb" }]', "class.storage.match[0].cgroup", "control char"),
        (HEAD + '[class.storage]\nmatch = [{ cgroup = "a/../b" }]', "class.storage.match[0].cgroup", "without"),
        (HEAD + '[class.storage]\nmatch = [{ cgroup = "a//b" }]', "class.storage.match[0].cgroup", "without"),
        (HEAD + f'[class.storage]\nmatch = [{{ cgroup = "{"a" * 256}" }}]', "class.storage.match[0].cgroup", "longer"),
        (HEAD + '[class.storage]\nmatch=[{ address = "10.8.0.1/16" }]', "class.storage.match[0].address", "host bits"),
        (HEAD + '[class.storage]\nmatch = [{ address = "eth0" }]', "class.storage.match[0].address", "10.88.0.0/16"),
        (HEAD + "[class.storage]\nmatch = [{ address = 10 }]", "class.storage.match[0].address", "10.88.0.0/16"),
        (HEAD + '[class.storage]\nmatch = [{ address = "fe80::1%eth0" }]', "class.storage.match[0].address", "network"),
        (HEAD + '[class.storage]\nmatch = [{ address = "::/0" }]', "class.storage.match[0].address", "everybody"),
        (HEAD + '[class.storage]\nmatch = [{ address = "::ffff:1.2.3.4" }]', "class.storage.match[0].address", "IPv4"),
        (HEAD + '[class.compute]\nmatch = [{ address = "10.0.0.1" }]', "class.compute.match", "only demote"),
        (HEAD + '[class.storage]\nmatch=[{address="f::1"}, {address="f:0::1"}]', "class.storage.match", "stands twice"),
        (HEAD + "[class.storage]\nmatch = 873", "class.storage.match", "write a list"),
        (HEAD + "[class.compute]\nmatch = [{ port = 4242 }]", "class.compute.match", "only demote"),
        (HEAD + "[class.control]\nmatch = [{ dscp = 46 }]", "class.control.match", "only demote"),
        (HEAD + "[class.storage]\nmatch = [{ port = 1 }, { port = 1 }]", "class.storage.match", "stands twice"),
        (HEAD + "[class.storage]\nmatch=[{port=1}]\n[class.other]\nmatch=[{port=1}]", "class.other.match", "too"),
        (HEAD + '[[interface]]\nname = "eth0"', "interface[1].name", "named twice"),
        ('version = 1\n[[interface]]\nname = "eth0"\negress = "0 Mbit/s"', "interface[0].egress", "above zero"),
        ('version = 1\n[[interface]]\nname = "eth0"\negress = "30 kbit/s"', "interface[0].egress", "at least 100"),
        ('version = 1\n[[interface]]\nname = "e\\u0000"', "interface[0].name", "ip link"),
        ('version = 1\n[[interface]]\nname = "e:0"', "interface[0].name", "ip link"),
        ('version = 1\n[[interface]]\nname = ".."', "interface[0].name", "ip link"),
        (HEAD + '[daemon]\nstate_dir = "/a\\u0000"', "daemon.state_dir", "control characters"),
        (HEAD + 'ingress = "some"', "interface[0].ingress", '"off", "auto" or a rate'),
        (HEAD + 'ingress = "9 kbit/s"', "interface[0].ingress", "too slow"),
        (HEAD + "ingress = true", "interface[0].ingress", "in quotes"),
        ('version = 1\n[[interface]]\nname = "an interface"', "interface[0].name", "ip link"),
        ("version = 1", "interface", "[[interface]]"),
        ('version = 1\ninterface = "eth0"', "interface", "[[interface]]"),
        ('version = 2\n[[interface]]\nname = "eth0"', "version", "no other"),
        (HEAD + '[daemon]\ntick = "1 ms"', "daemon.tick", "20 ms"),
        (HEAD + '[daemon]\nstate_dir = "here"', "daemon.state_dir", "absolute"),
        (HEAD + 'class = "x"', "interface[0].class", "known here"),
        ("version = [", "broker.toml", "not TOML"),
        (f"x = {'[' * 3000}{']' * 3000}", "broker.toml", "not TOML"),
        (f"version = {'9' * 5000}", "broker.toml", "not TOML"),
        (HEAD + f"[class.storage]\npriority = 0x{'f' * 5000}", "class.storage.priority", "0 to 7"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_key_and_says_what_to_write(text: str, key: str, words: str) -> None:
    found = problems_of(text)
    assert key in found, found
    assert words in found[key]


def test_a_unit_that_systemd_escapes_is_written_as_it_stands_in_the_path() -> None:
    policy = load(HEAD + r"[class.storage]" + "\nmatch = [{ cgroup = 'system.slice/a\\x2db.service' }]")
    assert policy.class_policy("storage").match == (MatchRule(cgroup=r"system.slice/a\x2db.service"),)


def test_rules_are_counted_over_all_classes() -> None:
    def text(*, storage: int, other: int) -> str:
        def ports(first: int, count: int) -> str:
            return ", ".join(f"{{ port = {port} }}" for port in range(first, first + count))

        return HEAD + f"[class.storage]\nmatch = [{ports(1, storage)}]\n[class.other]\nmatch = [{ports(1000, other)}]\n"

    assert sum(len(entry.match) for entry in load(text(storage=40, other=24)).classes) == MATCH_RULES_MAX
    found = problems_of(text(storage=40, other=25))
    assert "storage 40, other 25" in found["class.*.match"]
    assert "all classes" in problems_of(text(storage=65, other=0))["class.storage.match"]


def test_all_mistakes_are_reported_at_once_with_their_values() -> None:
    text = (
        'version = 3\n[[interface]]\nname = ""\negress = "fast"\n'
        '[class.compute]\nfloor = "200 %"\nmatch = [{port = 70000}]'
    )
    with pytest.raises(HiveError) as caught:
        load(text)
    said = str(caught.value)
    for part in ("version = 3", "interface[0].name = ''", "'fast'", "'200 %'", "= 70000"):
        assert part in said
    assert len(said.splitlines()) == 5


def test_the_default_floor_gives_way_to_a_smaller_guarantee() -> None:
    policy = load(HEAD + '[class.storage]\nguarantee = "1 %"')
    assert policy.class_policy("storage").floor == Share(fraction=0.01)


def test_a_file_of_nothing_but_mistakes_is_answered_in_a_page() -> None:
    keys = "".join(f'"\\u001b[2J{number}" = 1\n' for number in range(3_000))
    with pytest.raises(ConfigurationErrors) as caught:
        load(f'version = 1\n{keys}[[interface]]\nname = "eth0"\n')
    text = str(caught.value)
    assert "more mistakes" in text
    assert text.count("\n") <= 100
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(caught.value.problems) == 3_000


@pytest.mark.parametrize(
    "text",
    [
        '[class.other]\nguarantee = "1 kbit/s"\n',
        '[class.control]\nguarantee = "100 kbit/s"\n',
        '[[schedule]]\nname = "day"\nfrom = "08:00"\nto = "18:00"\ntimezone = "UTC"\n'
        '[schedule.class.storage]\nceiling = "100 kbit/s"\n',
    ],
)
def test_what_was_left_out_gives_way_to_a_rate_as_it_does_to_a_share(text: str) -> None:
    policy = load(HEAD + text)
    for entry in policy.classes:
        found = promises(entry, 40_000_000)
        assert found.floor <= found.guarantee <= found.ceiling


@pytest.mark.parametrize("digits", [31, 2000])
def test_a_figure_of_many_digits_is_none(digits: int) -> None:
    with pytest.raises(ConfigurationErrors, match="write"):
        load(f'version = 1\n[[interface]]\nname = "eth0"\negress = "{"9" * digits} bit/s"\n')

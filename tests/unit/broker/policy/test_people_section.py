"""`[job.NAME]` and `[[schedule]]`: what is understood, and that each mistake names its key and its way
out."""

from __future__ import annotations

import zoneinfo

import msgspec
import pytest

from broker.policy.people import JOBS_MAX, SCHEDULES_MAX
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import ClassOverride, JobPolicy, Policy, SchedulePolicy, Share

TEXT = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'
OFFICE = """
[[schedule]]
name = "office hours"
days = ["mon", "fri", "mon"]
from = "8:00"
to = "18:30"
timezone = "Europe/Berlin"
class.storage = { ceiling = "20 %" }
"""


def test_without_a_word_there_are_no_jobs_and_no_schedules() -> None:
    policy = load(TEXT)
    assert (policy.jobs, policy.schedules) == ((), ())


def test_jobs_by_name_and_pattern_in_the_order_of_the_file() -> None:
    policy = load(
        TEXT + '[job."nightly-*"]\nweight = 2\n[job.big]\nguarantee = "20 %"\nceiling = "10 Mbit/s"\nuid = 1000\n'
    )
    assert policy.jobs == (
        JobPolicy("nightly-*", weight=2.0),
        JobPolicy("big", guarantee=Share(0.2), ceiling=Share(rate_bits_per_s=10_000_000), uid=1000),
    )


def test_a_schedule_is_days_hours_a_zone_and_what_is_otherwise() -> None:
    (entry,) = load(TEXT + OFFICE).schedules
    override = ClassOverride("storage", ceiling=Share(0.2))
    assert entry == SchedulePolicy("office hours", (0, 4), 8 * 3600, 18 * 3600 + 1800, "Europe/Berlin", (override,))
    night = OFFICE.replace('"8:00"', "22:00:00").replace('"18:30"', '"06:00"').replace("office", "night")
    entries = load(TEXT + OFFICE + night.replace('days = ["mon", "fri", "mon"]', "")).schedules
    assert [entry.name for entry in entries] == ["office hours", "night hours"]
    assert (entries[1].from_s, entries[1].to_s, entries[1].days) == (22 * 3600, 6 * 3600, tuple(range(7)))


def test_every_key_of_a_class_that_a_schedule_may_change() -> None:
    changed = 'class.other = { guarantee = "11 %", floor = "3 %", ceiling = "90 %", weight = 2, priority = 1 }\n'
    (entry,) = load(TEXT + OFFICE + changed).schedules
    assert entry.classes[1] == ClassOverride("other", Share(0.11), Share(0.03), Share(0.9), 2.0, 1)


def test_a_policy_with_all_of_it_goes_through_a_recording_unchanged() -> None:
    policy = load(TEXT + OFFICE + '[job."*"]\nweight = 2\n')
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[job.a]\nweight = 0\n', "job.a.weight", "above 0"),
        ('[job.a]\nwieght = 1\n', "job.a.wieght", "did you mean `weight`?"),
        ('[job.a]\nguarantee = "101 %"\n', "job.a.guarantee", "100 %"),
        ('[job.a]\nceiling = "0 %"\n', "job.a.ceiling", "never send"),
        ('[job.a]\nuid = "root"\n', "job.a.uid", "whole number from 0 to 4294967294"),
        ('[job.a]\nuid = true\n', "job.a.uid", "whole number from 0 to 4294967294"),
        ('[job.a]\nguarantee = "30 %"\nceiling = "20 %"\n', "job.a.guarantee", "above job.a.ceiling"),
        ('[job.a]\nguarantee = "60 %"\n[job.b]\nguarantee = "50 %"\n', "job.*.guarantee", "100 %"),
        ('[job."a\\u001b"]\nweight = 1\n', "job", "printable"),
        ('[job."' + "x" * 129 + '"]\nweight = 1\n', "job", "128 bytes"),
        ('job = 5\n', "job", "write a section"),
        (f"[job]\n{''.join(f'j{n} = {{}}{chr(10)}' for n in range(JOBS_MAX + 1))}", "job", "pattern"),
        (OFFICE.replace("Europe/Berlin", "Europe/Berlim"), "schedule[0].timezone", "did you mean `Europe/Berlin`?"),
        (OFFICE.replace("Europe/Berlin", "../../etc/passwd"), "schedule[0].timezone", "database"),
        (OFFICE.replace('timezone = "Europe/Berlin"', ""), "schedule[0].timezone", "Europe/Berlin"),
        (OFFICE.replace('"mon"', '"Mon"'), "schedule[0].days", "known: mon, tue"),
        (OFFICE.replace('["mon", "fri", "mon"]', "[]"), "schedule[0].days", "list of days"),
        (OFFICE.replace('"8:00"', '"24:00"'), "schedule[0].from", '"23:59"'),
        (OFFICE.replace('"8:00"', '"8:60"'), "schedule[0].from", "hours and minutes"),
        (OFFICE.replace('"8:00"', "8"), "schedule[0].from", "hours and minutes"),
        (OFFICE.replace('"8:00"', "08:00:01"), "schedule[0].from", "hours and minutes"),
        (OFFICE.replace('"18:30"', '"8:00"'), "schedule[0].to", '"00:00" to "24:00"'),
        (OFFICE.replace('"18:30"', '"24:01"'), "schedule[0].to", '"24:00"'),
        (OFFICE.replace('"office hours"', '"a\\u001b"'), "schedule[0].name", "printable"),
        (OFFICE + OFFICE, "schedule[1].name", "named twice"),
        (OFFICE.replace('class.storage = { ceiling = "20 %" }', ""), "schedule[0].class", "changes nothing"),
        (OFFICE.replace("storage", "stroage"), "schedule[0].class.stroage", "did you mean `storage`?"),
        (OFFICE.replace("ceiling", "match"), "schedule[0].class.storage.match", "known here"),
        (OFFICE.replace('"20 %"', '"0 %"'), "schedule[0].class.storage.ceiling", "never send"),
        (OFFICE.replace("ceiling", "guarantee").replace("20 %", "40 %"), "schedule[0].class.*.guarantee", "112 %"),
        ("[[schedule]]\n" * (SCHEDULES_MAX + 1), "schedule", f"at most {SCHEDULES_MAX}"),
        ("[schedule]\n", "schedule", "[[schedule]]"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_key_and_says_what_to_write(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigurationErrors) as raised:
        load(text + TEXT if text.startswith("job =") else TEXT + text)
    found = {problem.key: f"{problem.value!r} {problem.reason}" for problem in raised.value.problems}
    assert key in found, found
    assert words in found[key]


def test_a_host_without_the_time_zone_database_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(ConfigurationErrors, match="install the package tzdata"):
        load(TEXT + OFFICE)
    assert load(TEXT + OFFICE.replace("Europe/Berlin", "UTC")).schedules[0].timezone == "UTC"

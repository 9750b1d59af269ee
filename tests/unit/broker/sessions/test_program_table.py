"""What adapters say of storage programs: shown while it is fresh, and an alarm when one fails or nobody follows it."""

from __future__ import annotations

from typing import Literal

import pytest

from broker.sessions.messages import ErrorReply, Program, read
from broker.sessions.program_table import FAILING_S, SILENT_S, ProgramTable


def told(
    state: Literal["working", "unreachable", "refused", "unexpected"] = "working", *, name: str = "photos"
) -> Program:  # fmt: skip
    return Program(number=1, name=name, kind="syncthing", state=state, text="start it")


def codes(table: ProgramTable, *, now_s: float, configured: tuple[str, ...] = ("photos",)) -> list[str]:
    return [alarm.code for alarm in table.alarms(configured, now_s=now_s)]


def test_a_program_that_restarts_is_no_alarm_and_one_that_stays_away_is_until_it_answers() -> None:
    table = ProgramTable(now_s=0.0)
    for second in range(100):
        table.tell("s-1", told("unreachable"), now_s=float(second))
        expected = ["storage-program-failed"] if second >= FAILING_S else []
        assert codes(table, now_s=float(second)) == expected
    table.tell("s-1", told(), now_s=100.0)
    assert codes(table, now_s=100.0) == []


def test_a_program_of_another_name_has_failed_only_since_it_was_named() -> None:
    table = ProgramTable(now_s=0.0)
    for second in range(100):
        table.tell("s-1", told("unreachable", name=f"made-up-{second // 10}"), now_s=float(second))
        assert codes(table, now_s=float(second), configured=()) == []


def test_a_configured_program_that_nobody_follows_is_an_alarm_after_a_minute() -> None:
    table = ProgramTable(now_s=0.0)
    assert codes(table, now_s=SILENT_S) == []
    assert codes(table, now_s=SILENT_S + 1) == ["storage-adapter-missing"]
    assert codes(table, now_s=SILENT_S + 1, configured=()) == []
    table.tell("s-1", told(), now_s=100.0)
    assert codes(table, now_s=100.0) == []
    table.forget("s-1")
    assert codes(table, now_s=101.0) == []
    assert codes(table, now_s=101.0 + SILENT_S) == ["storage-adapter-missing"]


def test_what_was_not_said_again_is_forgotten() -> None:
    table = ProgramTable(now_s=0.0)
    table.tell("s-1", told(), now_s=0.0)
    assert [info.name for info in table.infos(now_s=SILENT_S)] == ["photos"]
    assert table.infos(now_s=SILENT_S + 1) == ()


def test_names_and_texts_are_made_printable_and_states_are_known() -> None:
    packet = b'{"op":"program","id":1,"name":"\\u001b[31m","kind":"k","state":"working","text":"a\\nb"}'
    message = read(packet)
    assert isinstance(message, Program)
    assert "\x1b" not in message.name
    assert "\n" not in message.text
    assert isinstance(read(packet.replace(b"working", b"great")), ErrorReply)


@pytest.mark.parametrize("key", ["limit_bits_per_s", "upload_bytes", "waiting_bytes", "download_bytes"])
def test_a_count_that_is_none_is_refused(key: str) -> None:
    packet = f'{{"op":"program","id":1,"name":"n","kind":"k","state":"working","{key}":-1}}'
    assert isinstance(read(packet.encode()), ErrorReply)

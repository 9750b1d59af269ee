"""The daemon's lines: one for each event, with the journal's priority, and nothing from outside can forge one."""

from __future__ import annotations

import io

import pytest

from broker.process.log import KINDS_MAX, LINES_AT_ONCE, LINES_PER_S, TEXT_MAX, Lines, Log


def log(*, journal: bool = True, verbose: bool = False) -> tuple[Log, io.StringIO]:
    out = io.StringIO()
    return Lines(out, journal=journal, verbose=verbose), out


@pytest.mark.parametrize(("level", "priority"), [("error", 3), ("warning", 4), ("info", 6)])
def test_the_journal_gets_the_priority_and_no_time(level: str, priority: int) -> None:
    lines, out = log()
    getattr(lines, level)("interface", name="eth0", note="is called eth1 now", error=None, silence_s=0.123456789)
    assert out.getvalue() == f"<{priority}>interface name=eth0 note='is called eth1 now' silence_s=0.123457\n"


def test_others_get_time_and_level() -> None:
    lines, out = log(journal=False)
    lines.info("ready")
    time, _, rest = out.getvalue().partition(" ")
    assert rest == "info: ready\n"
    assert time.endswith("Z")


def test_debug_is_for_who_wants_it() -> None:
    for verbose, lines_said in ((False, 0), (True, 1)):
        lines, out = log(verbose=verbose)
        lines.debug("looked")
        assert out.getvalue().count("\n") == lines_said


def test_names_from_outside_forge_no_line_and_paint_no_terminal() -> None:
    lines, out = log()
    lines.warning("session", job="a\n<3>forged \x1b[31mred", client="x" * 10 * TEXT_MAX)
    said = out.getvalue()
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert len(said) < 2 * TEXT_MAX


def test_an_exception_that_is_handled_follows_its_line() -> None:
    lines, out = log()
    try:
        raise ValueError("of this session")
    except ValueError:
        lines.error("session failed", session="s-1", exc_info=True)
    said = out.getvalue().splitlines()
    assert said[0] == "<3>session failed session=s-1"
    assert said[1].startswith("Traceback")
    assert said[-1] == "ValueError: of this session"


def test_what_one_user_brings_about_again_and_again_is_told_so_often_and_counted() -> None:
    out, now_s = io.StringIO(), [0.0]
    lines = Lines(out, journal=True, verbose=False, clock=lambda: now_s[0])
    for _ in range(1000):
        lines.warning("session refused", uid=7, code="not-allowed")
    assert out.getvalue().count("\n") == LINES_AT_ONCE
    lines.warning("session refused", uid=8, code="not-allowed")
    lines.info("session", uid=7)
    for _ in range(100):
        lines.info("ready")
    assert out.getvalue().count("\n") == LINES_AT_ONCE + 102, "others, other events, and what nobody brings about"
    now_s[0] = 1 / LINES_PER_S
    lines.warning("session refused", uid=7, code="not-allowed")
    lines.warning("session refused", uid=7, code="not-allowed")
    assert out.getvalue().splitlines()[-1] == "<4>session refused uid=7 code=not-allowed left_out=970"


def test_of_many_users_the_latest_are_remembered() -> None:
    lines, _ = log()
    for uid in range(2 * KINDS_MAX):
        lines.warning("session refused", uid=uid)
    assert isinstance(lines, Lines)
    assert len(lines._kinds) == KINDS_MAX

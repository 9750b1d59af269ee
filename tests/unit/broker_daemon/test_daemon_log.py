"""The daemon's lines: one for each event, with the journal's priority, and nothing from outside can forge one."""

from __future__ import annotations

import io

import pytest

from broker.daemon.log import TEXT_MAX, Lines, Log


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

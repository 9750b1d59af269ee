"""The daemon's log: one line an event, with the journal's priority, and nothing from outside can forge one."""

from __future__ import annotations

import io
import os

import pytest

from broker.events.log import KINDS_MAX, LINES_AT_ONCE, LINES_PER_S, TEXT_MAX, LineLimit, Log, make_log
from broker.events.recent import RecentEvents


class Terminal(io.StringIO):
    """Standard error where somebody watches."""

    def isatty(self) -> bool:
        return True


def log(*, journal: bool = True, verbose: bool = False) -> tuple[Log, io.StringIO]:
    out = io.StringIO()
    return make_log(out, journal=journal, verbose=verbose), out


@pytest.mark.parametrize(("level", "priority"), [("error", 3), ("warning", 4), ("info", 6)])
def test_the_journal_gets_the_priority_and_no_time(level: str, priority: int) -> None:
    lines, out = log()
    getattr(lines, level)(
        "tree-changed", interface="eth0", note="a = b", error=None, silence_s=0.123456789, adopted=True
    )
    assert out.getvalue() == f'<{priority}>tree-changed interface=eth0 note="a = b" silence_s=0.123457 adopted=true\n'


def test_a_file_gets_time_and_level() -> None:
    lines, out = log(journal=False)
    lines.info("daemon-ready")
    time, _, rest = out.getvalue().partition(" ")
    assert rest == "info: daemon-ready\n"
    assert time.endswith("Z")


def test_a_terminal_gets_colours() -> None:
    out = Terminal()
    make_log(out, journal=False).warning("carrier-lost", interface="eth0\x1b]0;forged\x07")
    assert "\x1b[" in out.getvalue()
    assert "\x1b]" not in out.getvalue()
    assert "carrier-lost" in out.getvalue()


def test_debug_is_for_who_wants_it() -> None:
    for verbose, lines_said in ((False, 0), (True, 1)):
        lines, out = log(verbose=verbose)
        lines.debug("peer-message-unknown")
        assert out.getvalue().count("\n") == lines_said


def test_debug_is_kept_for_readers_where_the_journal_does_not_get_it() -> None:
    out, recent = io.StringIO(), RecentEvents()
    lines = make_log(out, journal=True, recent=recent)
    lines.debug("limit-changed", interface="eth0", job="a\x1b[31m", uid=None)
    lines.info("daemon-ready")
    assert out.getvalue() == "<6>daemon-ready\n"
    limit, ready = recent.after()
    assert (limit.level, limit.event, limit.keys) == (
        "debug",
        "limit-changed",
        {"interface": "eth0", "job": "a\\x1b[31m"},
    )
    assert (ready.level, ready.event, ready.keys) == ("info", "daemon-ready", {})


@pytest.mark.parametrize("journal", [True, False])
def test_names_from_outside_forge_no_line_and_paint_no_terminal(journal: bool) -> None:
    lines, out = log(journal=journal)
    lines.warning("session-opened", job='a\n<3>forged" \x1b[31mred', client="x" * 10 * TEXT_MAX)
    said = out.getvalue()
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert len(said) < 2 * TEXT_MAX


def test_a_traceback_follows_its_line_and_forges_none() -> None:
    lines, out = log()
    try:
        raise ValueError("of this session\n<0>forged \x1b[31m")
    except ValueError:
        lines.error("session-failed", session="s-1", exc_info=True)
    said = out.getvalue().splitlines()
    assert said[0] == "<3>session-failed session=s-1"
    assert said[1].startswith("<3>  Traceback")
    assert all(line.startswith("<3>") for line in said)
    assert "ValueError: of this session" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("where", ["full disk", "closed pipe"])
def test_a_line_that_cannot_be_written_is_kept_for_readers_and_ends_nobody(where: str) -> None:
    if where == "full disk":
        out = open("/dev/full", "w")  # noqa: SIM115 - closed below, where it fails once more
    else:
        reader, writer = os.pipe()
        os.close(reader)
        out = open(writer, "w")  # noqa: SIM115 - as above
    recent = RecentEvents()
    lines = make_log(out, journal=True, recent=recent)
    for number in range(100):
        lines.error("daemon-stopped", ticks=number, note="x" * 1000)
    assert recent.after()[-1].keys["ticks"] == 99
    with pytest.raises(OSError, match=r"No space|Broken pipe"):
        out.close()


def test_lines_of_one_event_and_user_are_limited_and_counted() -> None:
    out, now_s = io.StringIO(), [0.0]
    lines = make_log(out, journal=True, clock=lambda: now_s[0])
    for _ in range(1000):
        lines.warning("session-refused", uid=7, code="not-allowed")
    assert out.getvalue().count("\n") == LINES_AT_ONCE
    lines.warning("session-refused", uid=8, code="not-allowed")
    lines.info("session-opened", uid=7)
    for _ in range(100):
        lines.info("daemon-ready")
    assert out.getvalue().count("\n") == LINES_AT_ONCE + 102, "other users, other events, and what no user causes"
    now_s[0] = 1 / LINES_PER_S
    lines.warning("session-refused", uid=7, code="not-allowed")
    lines.warning("session-refused", uid=7, code="not-allowed")
    assert out.getvalue().splitlines()[-1] == "<4>session-refused uid=7 code=not-allowed left_out=970"


def test_alarms_of_one_code_are_limited_whatever_names_their_subjects_have() -> None:
    out = io.StringIO()
    lines = make_log(out, journal=True, clock=lambda: 0.0)
    for number in range(1000):
        lines.warning("alarm-raised", code="storage-program-failed", subject=f"made-up-{number}", text="")
    lines.warning("alarm-raised", code="link-down", subject="eth0", text="")
    assert out.getvalue().count("\n") == LINES_AT_ONCE + 1


def test_of_many_users_the_latest_are_remembered() -> None:
    limit = LineLimit(clock=lambda: 0.0)
    for uid in range(2 * KINDS_MAX):
        limit(None, "warning", {"event": "session-refused", "uid": uid})
    assert len(limit) == KINDS_MAX

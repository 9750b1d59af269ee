"""What an operator types, beside a real daemon: pipes, terminals, Ctrl-C, and a broker that starts again."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from broker_support import Running, ask, connected
from patience import LIMIT_S, wait_until

COMMAND = [sys.executable, "-c", "from broker.cli import main; main()"]
PLAIN = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}


def run(running: Running, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments, "--socket", running.api],
        capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **PLAIN, **environment},
    )  # fmt: skip


@dataclass
class Terminal:
    """A command on a terminal of its own."""

    pid: int
    descriptor: int
    text: str = ""
    code: int | None = field(default=None)

    def read(self) -> str:
        """Everything that it has written so far."""
        while select.select([self.descriptor], [], [], 0.05)[0]:
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:  # it has ended
                break
            if not data:
                break
            self.text += data.decode(errors="replace")
        return self.text

    def last(self) -> str:
        """The screen that it painted last: each begins at the upper left corner."""
        return self.read().rpartition("\x1b[H")[2]

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def ended(self) -> int:
        """Wait for its exit code."""

        def over() -> bool:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            return bool(pid)

        wait_until(over, what=lambda: self.text)
        assert self.code is not None
        return self.code


@contextlib.contextmanager
def terminal(running: Running, *arguments: str) -> Iterator[Terminal]:
    command = [*COMMAND, *arguments, "--socket", running.api]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **PLAIN}
    )
    os.close(theirs)
    try:
        yield Terminal(process.pid, ours)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def test_each_command_answers_beside_a_daemon_in_a_pipe_without_colours(running: Running) -> None:
    with connected(running.sessions) as sock:
        assert ask(sock, {"op": "need", "backlog_bytes": 5})["op"] != "welcome"
        for arguments, words in (
            (["status"], "sends at most"),
            (["why", "storage"], "storage sends nothing through lo"),
            (["top"], "sends and receives, no alarms"),  # whatever else this host does
            (["log"], "The broker shapes and serves"),
        ):
            done = run(running, *arguments)
            assert (done.returncode, done.stderr) == (0, ""), arguments
            assert words in " ".join(done.stdout.split())
            assert "\x1b" not in done.stdout
        for arguments in (["status"], ["log"]):
            for line in run(running, *arguments, "--json").stdout.splitlines():
                json.loads(line)


def test_a_reader_that_has_enough_ends_a_command_in_silence(running: Running) -> None:
    for arguments in (["status"], ["log", "--follow", "-n", "2000"]):
        with subprocess.Popen(
            [*COMMAND, *arguments, "--socket", running.api], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            if "--follow" in arguments:
                wait_until(lambda: _stirred(running, process), what=process.poll)
            assert process.wait(LIMIT_S) == 0
            assert process.stderr.read() == ""


def _stirred(running: Running, process: subprocess.Popen[str]) -> bool:
    """Have something to tell, so that who follows writes into the pipe that nobody reads."""
    with connected(running.sessions):
        return process.poll() is not None


def test_watching_outlives_a_restart_of_the_broker_and_gives_the_terminal_back(running: Running) -> None:
    with terminal(running, "status", "--watch") as screen:
        wait_until(lambda: "sends at most" in screen.last(), what=lambda: screen.text)
        running.stop()
        wait_until(lambda: "no broker since" in screen.last(), what=lambda: screen.text)
        assert "sends at most" in screen.last(), "the last state stays"
        running.start()
        wait_until(lambda: "no broker since" not in screen.last(), what=lambda: screen.text)
        screen.press("q")
        assert screen.ended() == 0
        assert screen.text.count("\x1b[?1049h") == screen.text.count("\x1b[?1049l") == 1


@pytest.mark.parametrize(("how", "code"), [("\x03", 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_however_it_ends_the_terminal_comes_back(running: Running, how: str | signal.Signals, code: int) -> None:
    with terminal(running, "top") as screen:
        wait_until(lambda: "nobody sends" in screen.last(), what=lambda: screen.text)
        screen.press("c")
        wait_until(lambda: "round trip" in screen.last(), what=lambda: screen.text)
        if isinstance(how, str):
            screen.press(how)
        else:
            os.kill(screen.pid, how)
        assert screen.ended() == code
        assert "Traceback" not in screen.text
        assert screen.text.rstrip().endswith("\x1b[?1049l")
        assert screen.text.count("\x1b[?25h") == 1, "the cursor"


def test_no_color_leaves_the_words(running: Running) -> None:
    done = run(running, "status", NO_COLOR="1", FORCE_COLOR="1")
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", done.stdout) is None
    assert "no alarms" in done.stdout or "alarm" in done.stdout


def test_following_the_log_shows_what_happens_and_goes_on_after_a_restart(running: Running) -> None:
    with subprocess.Popen(
        [*COMMAND, "log", "--follow", "--json", "--event", "session-opened", "--socket", running.api],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        assert following.stdout is not None
        with connected(running.sessions):
            assert json.loads(following.stdout.readline())["keys"]["client"] == "test"
        running.stop()
        running.start()
        with connected(running.sessions):
            assert json.loads(following.stdout.readline())["keys"]["client"] == "test"
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=LIMIT_S)
    assert following.returncode == 130
    assert errors.count("trying again") <= 1


def test_without_a_broker_each_command_says_how_to_start_it() -> None:
    for arguments in (["status", "--watch"], ["why", "x"], ["top"], ["log", "--follow"]):
        done = subprocess.run(
            [*COMMAND, *arguments, "--socket", "/nonexistent/broker.sock"],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 4, arguments
        assert "systemctl start hive-qos" in done.stderr
        assert done.stdout == ""

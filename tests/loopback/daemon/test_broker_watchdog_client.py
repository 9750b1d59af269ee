"""The watchdog at its socket: what it opens when; and what the daemon makes of one that dies, hangs or never starts.

The daemon's end is real, and so are the sockets and processes; what would be opened in the kernel is a counter here.
`tests/lab/daemon/test_broker_watchdog.py` has the whole.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until

from broker.events.log import open_log
from broker.process import watchdog as process
from broker.process.watchdog import Watchdog
from broker.process.watchdog_client import WatchdogClient
from hive_qos.errors import KernelRejectedError, ShapingError
from shaping.journal import Journal

WATCHDOG = """
import socket, sys
from pathlib import Path
from broker.process import watchdog
watchdog.START_S = 60.0
def open_all():
    with open(sys.argv[2] + "/opened", "a") as file:
        file.write("x")
    return 1
sock = socket.socket(fileno=int(sys.argv[1]))
watchdog.Watchdog(sock, opening=open_all, relearn=Path(sys.argv[2], "relearnt").touch, say=print).run()
"""


@dataclass
class Watched:
    """A watchdog in a thread, and the daemon's end of its socket."""

    sock: socket.socket
    watchdog: Watchdog
    refusals: int = 0
    opened: int = 0
    relearnt: int = 0
    said: list[str] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def opening(self) -> int:
        if self.refusals:
            self.refusals -= 1
            raise KernelRejectedError("change class", errno_value=12, detail="out of memory")
        self.opened += 1
        return 10

    def relearn(self) -> None:
        self.relearnt += 1

    def ask(self, message: str) -> list[bytes]:
        self.sock.send(message.encode())
        return self.sock.recv(100).split()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(process, "AGAIN_S", 0.01)
    monkeypatch.setattr(process, "START_S", 60.0)  # what is not to be opened is not, however slow the machine
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(LIMIT_S)
    made = Watched(ours, None)  # type: ignore[arg-type]  # its methods are the watchdog's
    made.watchdog = Watchdog(its, opening=made.opening, relearn=made.relearn, say=made.said.append)
    thread = threading.Thread(target=lambda: made.ended.append(made.watchdog.run()))
    thread.start()
    assert ours.recv(100) == b"0 0 0.000"
    yield made
    ours.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    its.close()


def test_the_end_of_the_socket_is_the_daemons_death_and_opens(watched: Watched) -> None:
    watched.sock.close()
    wait_until(lambda: watched.ended == [True])
    assert watched.opened == 1


def test_a_refusal_after_a_death_is_tried_again_and_given_up_in_the_end(watched: Watched) -> None:
    watched.refusals = 3
    watched.sock.close()
    wait_until(lambda: watched.ended == [True])
    assert watched.opened == 1


def test_what_the_kernel_never_takes_is_said_and_the_watchdog_ends(watched: Watched) -> None:
    watched.refusals = 1000
    watched.sock.close()
    wait_until(lambda: watched.ended == [False])
    assert "out of memory" in watched.said[-1]


def test_a_goodbye_ends_it_and_opens_nothing(watched: Watched) -> None:
    watched.sock.send(b"q")
    watched.sock.close()
    wait_until(lambda: watched.ended == [True])
    assert watched.opened == 0


def test_silence_opens_once_and_the_next_beat_is_told(watched: Watched) -> None:
    watched.ask("b 1")
    wait_until(lambda: watched.opened == 1)
    time.sleep(3 * process.SILENCE_S)
    assert watched.opened == 1
    sequence, opened, silence_s = watched.ask("b 2")
    assert (sequence, opened) == (b"2", b"1")
    assert float(silence_s) >= process.SILENCE_S
    wait_until(lambda: watched.opened == 2)  # silent again: once more


def test_silence_that_meets_a_refusal_goes_on_trying(watched: Watched) -> None:
    watched.ask("b 1")
    watched.refusals = 2
    wait_until(lambda: watched.opened == 1)
    assert watched.said[-1].startswith("no tick for ")


@pytest.mark.parametrize("message", [None, "s 1"], ids=["before-the-first-beat", "busy"])
def test_a_start_and_a_reload_are_given_time(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, message: str | None
) -> None:
    if message is not None:
        watched.ask(message)
    time.sleep(2 * process.SILENCE_S + process.GRACE_S)
    assert watched.opened == 0
    watched.ask("b 2")
    wait_until(lambda: watched.opened == 1)


def test_a_beat_that_says_so_makes_it_read_the_journal_again(watched: Watched) -> None:
    watched.ask("b 1")
    assert watched.relearnt == 0
    watched.ask("j 2")
    assert watched.relearnt == 1


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


@pytest.fixture
def watchdog(tmp_path: Path, journal: Journal) -> Iterator[WatchdogClient]:
    program = tmp_path / "watchdog.py"
    program.write_text(WATCHDOG)
    made = WatchdogClient(log=open_log(), command=(sys.executable, "-P", str(program)))
    with open(tmp_path / "namespace", "w") as lock:
        made.start(tmp_path, changes=lambda: journal.changes, lock=lock.fileno())
        yield made
        made.end(restored=True)


def beats_until(watchdog: WatchdogClient, condition: Callable[[], object]) -> bool:
    """Give beats as the loop does until it is so; true where one of them found that the ceilings may be open."""
    found = []

    def once() -> object:
        found.append(watchdog.beat())
        return condition()

    wait_until(once)
    return any(found)


def opened(folder: Path) -> int:
    try:
        return len((folder / "opened").read_text())
    except FileNotFoundError:
        return 0


def pid_of(watchdog: WatchdogClient) -> int:
    pid = watchdog.info().pid
    assert pid is not None
    return pid


def test_a_daemon_that_paused_is_told_that_the_ceilings_were_opened(watchdog: WatchdogClient, tmp_path: Path) -> None:
    assert watchdog.info().alive
    watchdog.beat()
    wait_until(lambda: opened(tmp_path) == 1)
    assert beats_until(watchdog, lambda: watchdog.info().openings >= 1)


def test_a_journal_that_changed_is_read_again(watchdog: WatchdogClient, journal: Journal, tmp_path: Path) -> None:
    watchdog.beat()
    assert not (tmp_path / "relearnt").exists()
    journal.write_line("eth0", 1_000_000)
    beats_until(watchdog, lambda: (tmp_path / "relearnt").exists())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_watchdog_that_dies_or_hangs_is_replaced_and_what_stands_is_looked_at(
    watchdog: WatchdogClient, number: signal.Signals
) -> None:
    watchdog.beat()
    first = pid_of(watchdog)
    os.kill(first, number)
    assert beats_until(watchdog, watchdog.alarms)
    assert [alarm.code for alarm in watchdog.alarms()] == ["watchdog-missing"]
    beats_until(watchdog, lambda: watchdog.info().alive)
    assert pid_of(watchdog) != first
    assert watchdog.alarms() == ()
    assert not Path(f"/proc/{first}").exists()


def test_patience_ends_with_what_it_was_asked_for(watchdog: WatchdogClient, tmp_path: Path) -> None:
    watchdog.beat()
    watchdog.beat(busy=True)
    watchdog.beat()  # at once, though the last one was just now: from here on silence is silence again
    wait_until(lambda: opened(tmp_path) >= 1)


def test_an_end_with_all_put_back_opens_nothing_though_an_answer_stays_unread(
    watchdog: WatchdogClient, tmp_path: Path
) -> None:
    watchdog.beat(busy=True)
    watchdog.beat(busy=True)
    pid = pid_of(watchdog)
    watchdog.end(restored=True)
    assert opened(tmp_path) == 0
    assert not Path(f"/proc/{pid}").exists()


def test_an_end_without_all_put_back_leaves_the_rest_open(watchdog: WatchdogClient, tmp_path: Path) -> None:
    watchdog.end(restored=False)
    assert opened(tmp_path) >= 1
    assert watchdog.info().pid is None


@pytest.mark.parametrize("command", [("/no/such/program",), (sys.executable, "-c", "")], ids=["absent", "ends"])
def test_a_watchdog_that_cannot_be_started_is_an_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    made = WatchdogClient(log=open_log(), command=command)
    with open(tmp_path / "namespace", "w") as lock, pytest.raises(ShapingError, match="nothing is shaped"):
        made.start(tmp_path, changes=lambda: 0, lock=lock.fileno())

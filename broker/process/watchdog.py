"""The watchdog: a small process beside the daemon that opens all ceilings to the line's rate when the daemon stops.

It also removes redirections to IFBs (`shaping.failsafe`): where an IFB fails, all inbound traffic is lost, and
no daemon is there to notice.

    daemon --"b SEQUENCE"---------------> watchdog    a beat. "j": the journal has changed. "s": the next takes longer
    daemon <--"SEQUENCE OPENED SILENCE"-- watchdog    an answer: how often it has opened, and the last silence in s
    daemon --"q"------------------------> watchdog    everything was put back: end

    state       waits for a beat    after a beat    after that time
    PATIENT     START_S             WATCHING (*)    open: OPENED, or REFUSED where the kernel refuses
    WATCHING    SILENCE_S           WATCHING (*)    the same, after GRACE_S more where we woke late ourselves
    OPENED      for ever            WATCHING (*)
    REFUSED     AGAIN_S             WATCHING (*)    open again
    any         the socket ends without "q": the daemon died. Open at once, TRIES times at most, and end

    (*) PATIENT after an "s".

It holds the daemon's claim on the network namespace, so that the next daemon there begins when this one is done. It
knows interfaces by number, imports little, and needs nothing but netlink once it has started.
`python -m broker.process.watchdog --once STATE_DIRECTORY` opens what is there and ends, without a daemon. `--always`
does it each second until SIGTERM: where daemon and watchdog are killed together, as a container without memory is.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from broker.process import priority
from broker.process.namespace_claim import claims
from hive_qos.errors import HiveError
from hive_qos.netlink import NetlinkSocket
from shaping.failsafe import journalled_lines, open_ceilings, stop_redirecting
from shaping.journal import Journal

MODULE = "broker.process.watchdog"
BEATS_WITHIN_S = 0.25
"""The daemon's loop sends a beat at least this often, whatever its tick."""
SILENCE_S = 0.6
"""Two lost beats and some margin. With the opening, which takes 1 to 2 ms, it is less than the second that is promised.
A daemon that is only late loses no more than the rest of a hold."""
GRACE_S = 0.2
"""If the watchdog itself wakes late, the machine was paused: the daemon gets this much more, once."""
LATE_S = 0.05
START_S = 10.0
"""Before its first beat the daemon takes interfaces over and reads back what it built. Nothing is opened meanwhile."""
AGAIN_S = 0.2
ALWAYS_S = 1.0
"""Between two looks at what a dead daemon and its watchdog have left."""
TRIES = 25
"""After a death: five seconds. What the kernel refuses that long is left to the next start, or to `hive-qos clear`."""
MESSAGE_BYTES_MAX = 64
"""A beat is a letter and a number."""


class State(enum.Enum):
    """What the watchdog waits for; the table above has the transitions."""

    PATIENT = enum.auto()
    WATCHING = enum.auto()
    OPENED = enum.auto()
    REFUSED = enum.auto()


class Watchdog:
    """One run of the watchdog, from the first message to the last.

    Args:
        sock: the connected SOCK_SEQPACKET to the daemon.
        opening: opens all ceilings, and returns how many classes it changed; raises HiveError or OSError.
        relearn: reads the journal again.
        say: one line for the log.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        opening: Callable[[], int],
        relearn: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._sock, self._opening, self._relearn, self._say = sock, opening, relearn, say
        self._sock.setblocking(False)
        self._opened = 0
        self._silence_s = self._deadline_s = 0.0

    def run(self) -> bool:
        """Watch until the daemon says goodbye or is gone; False when it is gone and something could not be opened."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        self._answer("0")
        heard_s = time.monotonic()
        self._enter(State.PATIENT)
        grace = True
        while True:
            wait_s = self._deadline_s - time.monotonic()
            if poll.poll(None if wait_s == math.inf else max(0.0, wait_s) * 1000):
                messages = self._received()
                if b"q" in messages:
                    return True
                if b"" in messages:
                    return self._open_after_death()
                self._take(messages)
                heard_s, grace = time.monotonic(), True
                self._enter(State.PATIENT if messages[-1].startswith(b"s") else State.WATCHING)
            elif grace and time.monotonic() - self._deadline_s > LATE_S:
                grace, self._deadline_s = False, time.monotonic() + GRACE_S
            else:
                opened = self._open_after_silence(time.monotonic() - heard_s)
                self._enter(State.OPENED if opened else State.REFUSED)

    def _enter(self, state: State) -> None:
        waits_s = {
            State.PATIENT: START_S,
            State.WATCHING: SILENCE_S,
            State.OPENED: math.inf,
            State.REFUSED: AGAIN_S,
        }
        self._deadline_s = time.monotonic() + waits_s[state]

    def _received(self) -> list[bytes]:
        """All messages that are there; the last is empty when the daemon is gone."""
        messages: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while not messages or messages[-1]:
                with contextlib.suppress(ConnectionError):  # an answer of ours stays unread; what it said comes next
                    messages.append(self._sock.recv(MESSAGE_BYTES_MAX))
        return messages

    def _take(self, messages: list[bytes]) -> None:
        if any(message.startswith(b"j") for message in messages):
            self._relearn()
        self._answer(messages[-1][2:].decode("ascii", "replace"))

    def _answer(self, sequence: str) -> None:
        with contextlib.suppress(OSError):  # a daemon that does not read is told the same next time; a dead one never
            self._sock.send(f"{sequence} {self._opened} {self._silence_s:.3f}".encode())

    def _open_after_silence(self, silence_s: float) -> bool:
        self._opened += 1
        self._silence_s = silence_s
        try:
            changed = self._opening()
        except (HiveError, OSError) as problem:
            self._say(f"no tick for {silence_s:.2f} s, and ceilings cannot be opened: {problem}")
            return False
        self._say(f"no tick for {silence_s:.2f} s: ceilings opened to the line's rate ({changed} classes changed)")
        return True

    def _open_after_death(self) -> bool:
        began_s = time.monotonic()
        for left in reversed(range(TRIES)):
            try:
                changed = self._opening()
            except (HiveError, OSError) as problem:
                if not left:
                    self._say(f"the daemon is gone, and ceilings cannot be opened: {problem}")
                    return False
                time.sleep(AGAIN_S)
            else:
                took_ms = (time.monotonic() - began_s) * 1000
                if changed:  # nothing held anybody back: a start that was refused says itself what is wrong
                    self._say(f"the daemon is gone: {changed} classes opened to the line's rate in {took_ms:.1f} ms")
                break
        return True


class _Opening:
    """What to open: first what the journal said last, then what it says now, as a disk may delay the reading."""

    def __init__(self, state_directory: Path) -> None:
        self._journal = Journal(state_directory)
        self._tc = NetlinkSocket()  # made now: a host in need has no descriptor to spare
        self._lines: dict[int, int | None] = {}
        self.relearn()

    def relearn(self) -> None:
        numbers = {number for number, _ in socket.if_nameindex()}
        known = {number: line for number, line in self._lines.items() if number in numbers}  # renamed ones, too
        self._lines = known | journalled_lines(self._journal)

    def open(self) -> int:
        try:  # first: nobody looks any more whether an IFB still carries what arrives
            stopped = stop_redirecting(self._tc)
            if stopped:
                say(f"what arrives at {stopped} interfaces is not shaped any more")
        finally:
            known, changed = self._lines, open_ceilings(self._tc, self._lines)
            self.relearn()
        return changed if self._lines == known else changed + open_ceilings(self._tc, self._lines)


def say(text: str) -> None:
    """Write a line to stderr, where that does not block: nobody may be reading the log of a daemon that hangs."""
    prefix = "<4>" if "JOURNAL_STREAM" in os.environ else ""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in poll.poll(0)):
        with contextlib.suppress(OSError):
            os.write(2, f"{prefix}hive-qos watchdog: {text}\n".encode())


def open_abandoned(opening: Callable[[], int]) -> None:
    """Open what no daemon of this network namespace and no watchdog of one looks after.

    Raises:
        HiveError, OSError: something cannot be opened.
    """
    if not claims():
        changed = opening()
        if changed:
            say(f"{changed} classes opened to the line's rate")


def open_abandoned_always(opening: Callable[[], int]) -> None:
    """Open it each second, and once more at the SIGTERM or SIGINT that ends this."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    said, ended = "", False
    while not ended:
        ended = signal.sigtimedwait(ends, ALWAYS_S) is not None
        try:
            open_abandoned(opening)
            said = ""
        except (HiveError, OSError) as problem:
            if str(problem) != said:
                said = str(problem)
                say(said)


def main(arguments: list[str]) -> int:
    """`--once` or `--always` and STATE_DIRECTORY, or `SOCKET_DESCRIPTOR STATE_DIRECTORY` as the daemon calls it. 0 when
    all went well."""
    try:
        opening = _Opening(Path(arguments[1]))
        if arguments[0] == "--once":
            open_abandoned(opening.open)
            return 0
        if arguments[0] == "--always":
            open_abandoned_always(opening.open)
            return 0
    except (HiveError, OSError) as problem:
        say(str(problem))
        return 1
    priority.take()  # where that is not allowed, the daemon has said so
    with socket.socket(fileno=int(arguments[0])) as sock:
        return 0 if Watchdog(sock, opening=opening.open, relearn=opening.relearn, say=say).run() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

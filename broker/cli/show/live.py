"""A screen that is painted again and again, on a terminal of its own: no flicker, and nothing left behind.

    q, Ctrl-C      end it, and the terminal shows what it showed before
    no answer      the last screen stays, below a line that says since when; it is asked again at each round

In a pipe or a file one table follows another.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from broker.cli.show.screen import span
from hive_qos.errors import BrokerUnavailableError, HiveError

REFRESH_S = 1.0
"""As often as somebody can read it."""
Document = dict[str, Any]


class Latest:
    """What was answered last, and since when nobody has answered.

    Args:
        ask: asks.
        show: makes a screen of the answer.
        who: answers.
        silent: is raised by `ask` where nobody does.
    """

    def __init__(
        self,
        ask: Callable[[], Document],
        show: Callable[[Document], RenderableType],
        *,
        who: str = "broker",
        silent: type[HiveError] = BrokerUnavailableError,
    ) -> None:
        self._ask, self._show, self._who, self._silent = ask, show, who, silent
        self._document: Document | None = None
        self._lost_s: float | None = None

    def screen(self) -> RenderableType:
        """Ask, and show the answer; while nobody answers, since when, and the last answer.

        Raises:
            HiveError: nobody has ever answered.
        """
        try:
            self._document = self._ask()
        except self._silent:
            if self._document is None:
                raise
            self._lost_s = self._lost_s or time.time()
            since = time.strftime("%H:%M:%S", time.localtime(self._lost_s))
            for_s = span(time.time() - self._lost_s)
            text = f"no {self._who} since {since} ({for_s}), trying again; this was its last state:"
            return Group(Text(text, style="bold red"), Text(""), self._show(self._document))
        self._lost_s = None
        return self._show(self._document)


def watch(latest: Latest, console: Console, *, press: Callable[[str], None] = lambda key: None) -> None:
    """Paint until q or Ctrl-C.

    Args:
        press: is told each other key that is pressed.

    Raises:
        HiveError: as `Latest.screen`.
        KeyboardInterrupt: Ctrl-C.
    """
    if not console.is_terminal:
        while True:
            console.print(latest.screen())
            sys.stdout.flush()
            time.sleep(REFRESH_S)
    first = latest.screen()  # an error is told on the terminal that stays
    with _ended_by_signals(), _keys() as keys, Live(first, console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while True:
            due_s = time.monotonic() + REFRESH_S
            for key in keys(due_s):
                if key in "qQ":
                    return
                press(key)
            live.update(latest.screen(), refresh=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does, so that the terminal comes back."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], Iterator[str]]]:
    """Give what waits for keys until a time: it ends early with those that were pressed."""

    def silent(until_s: float) -> Iterator[str]:
        time.sleep(max(0.0, until_s - time.monotonic()))
        yield from ()

    def pressed(until_s: float) -> Iterator[str]:
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, until_s - time.monotonic()))
        if ready:
            read = os.read(sys.stdin.fileno(), 64)
            if not read:  # the terminal has gone
                raise SystemExit(0)
            yield from read.decode(errors="replace")

    if sys.stdin is None or not sys.stdin.isatty():
        yield silent
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

"""Ctrl-C that waits for the end of what may not be cut in two: a step of a group, and the use of its result.

    with put_off(end_soon):
        met = group.all_reduce(change)      # a Ctrl-C has it end soon, however late the others are
        parameters += change
                                            # and raises KeyboardInterrupt here

Only the main thread hears of signals, so that others have nothing to put off. A handler that the program has set is
left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_log = logging.getLogger("transport.volatile")

SAY_S = 1.0
"""Who has pressed Ctrl-C and sees nothing for so long wonders whether it was heard."""


class _Pressed:
    """What the main thread has heard: `once`, in the present block; `raises`, it waits, and the next one may do so."""

    once = False
    raises = False


@contextlib.contextmanager
def put_off(end_soon: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt where this block ends, or in `may_raise`; a second one raises at once.

    Within another such block it changes nothing.

    Args:
        end_soon: has what the block waits for end soon. It is called in a thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    ended, process = threading.Event(), os.getpid()

    def end() -> None:
        end_soon()
        if not ended.wait(SAY_S):
            _log.warning("Ctrl-C: this member ends its step with the others first; a second one stops it at once")

    def pressed(_number: int, _frame: FrameType | None) -> None:
        if _Pressed.raises or ended.is_set() or os.getpid() != process:  # put back by somebody later; a forked child
            raise KeyboardInterrupt
        if _Pressed.once:
            raise KeyboardInterrupt("a step was cut in two: what it has learned since the last one may count twice")
        _Pressed.once = True
        threading.Thread(target=end, name="hive-volatile-interrupt", daemon=True).start()

    _Pressed.once = False
    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    except Exception as error:
        if _Pressed.once:
            raise KeyboardInterrupt from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is pressed:  # else it is the caller's
            signal.signal(signal.SIGINT, signal.default_int_handler)
        ended.set()
        once, _Pressed.once = _Pressed.once, False
    if once:
        raise KeyboardInterrupt


@contextlib.contextmanager
def may_raise() -> Iterator[None]:
    """Have Ctrl-C raise at once in this block of a `put_off`, which only waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Pressed.raises = True
    try:
        raise_if_put_off()
        yield
    finally:
        _Pressed.raises = False


def raise_if_put_off() -> None:
    """Raises: KeyboardInterrupt: there was a Ctrl-C in the main thread's present block, and this is that thread."""
    if _Pressed.once and threading.current_thread() is threading.main_thread():
        _Pressed.once = False
        raise KeyboardInterrupt

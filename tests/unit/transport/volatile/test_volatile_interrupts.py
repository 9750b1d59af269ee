"""Ctrl-C in a block that may not be cut in two: it waits for the end, and a second one does not."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from transport.volatile import interrupts


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "a block leaves it as it was"
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_one_has_the_block_end_soon_and_raises_there_and_the_next_block_is_as_before() -> None:
    told, done = threading.Event(), []

    def block() -> None:
        press()
        assert told.wait(60.0)
        done.append(1)

    with pytest.raises(KeyboardInterrupt), interrupts.put_off(told.set):
        block()
    assert done
    with interrupts.put_off(told.set), interrupts.may_raise():
        interrupts.raise_if_put_off()


def test_the_second_one_raises_at_once_and_says_what_that_may_mean() -> None:
    def block() -> None:
        press()
        press()
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt, match="may count twice"), interrupts.put_off(lambda: None):
        block()


@pytest.mark.parametrize("before", [False, True])
def test_one_while_the_block_only_waits_raises_at_once_and_so_does_one_from_before(before: bool) -> None:
    def block() -> None:
        if before:
            press()
        with interrupts.may_raise():
            press()
            pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt), interrupts.put_off(lambda: None):
        block()


def test_one_is_raised_where_the_block_ends_by_an_error_too() -> None:
    def block() -> None:
        press()
        raise ValueError

    with pytest.raises(KeyboardInterrupt) as raised, interrupts.put_off(lambda: None):
        block()
    assert isinstance(raised.value.__cause__, ValueError)


def test_one_that_ended_a_block_is_not_raised_again_after_it() -> None:
    def by_an_error() -> None:
        press()
        raise ValueError

    def by_a_second_one() -> None:
        press()
        press()

    for block in (by_an_error, by_a_second_one):
        with pytest.raises(KeyboardInterrupt), interrupts.put_off(lambda: None):
            block()
        interrupts.raise_if_put_off()


def test_a_child_forked_in_a_block_and_who_puts_the_handler_back_after_it_hear_ctrl_c_at_once() -> None:
    with interrupts.put_off(lambda: None):
        child = os.fork()
        if not child:
            try:
                press()
            except KeyboardInterrupt:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        within = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, within)
    with pytest.raises(KeyboardInterrupt):
        press()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_block_within_a_block_and_one_in_another_thread_change_nothing() -> None:
    reached = []

    def elsewhere() -> None:
        with interrupts.put_off(lambda: None), interrupts.may_raise():
            reached.append("thread")

    def block() -> None:
        with interrupts.put_off(lambda: None):
            press()
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        reached.append("outer")

    with pytest.raises(KeyboardInterrupt), interrupts.put_off(lambda: None):
        block()
    assert reached == ["thread", "outer"]


def test_a_handler_of_the_program_s_own_is_left_alone() -> None:
    heard = []

    def own(number: int, _frame: FrameType | None) -> None:
        heard.append(number)

    signal.signal(signal.SIGINT, own)
    with interrupts.put_off(lambda: None):
        press()
        assert heard == [signal.SIGINT]
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is own


def test_who_sees_nothing_for_long_is_told_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()

    def block() -> None:
        press()
        assert said.wait(60.0)

    monkeypatch.setattr(interrupts, "SAY_S", 0.0)
    monkeypatch.setattr(interrupts._log, "warning", lambda _text: said.set())
    with pytest.raises(KeyboardInterrupt), interrupts.put_off(lambda: None):
        block()

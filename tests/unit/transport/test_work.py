"""An end is waited for by many, told to each once, and has no lock that a signal's handler could wait for."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from transport.work import THREAD_NAME, End, Work, wait_until


def test_who_waits_goes_on_when_it_has_come_and_not_before() -> None:
    end = End()
    assert not end.wait(0.01)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(end.wait, 30.0) for _ in range(8)]
        end.set()
        assert all(one.result() for one in waiting)
    assert end.is_set()
    assert wait_until(end, 0.0)


def test_each_callback_is_called_once_whoever_comes_first() -> None:
    for _ in range(200):
        end, called = End(), [0] * 20
        start = threading.Barrier(2)

        def tell(end: End = end, called: list[int] = called, start: threading.Barrier = start) -> None:
            start.wait()
            for number in range(20):
                end.tell(lambda number=number: called.__setitem__(number, called[number] + 1))

        teller = threading.Thread(target=tell)
        teller.start()
        start.wait()
        end.set()
        teller.join()
        assert called == [1] * 20


@pytest.mark.parametrize("mistake", [RuntimeError, KeyboardInterrupt])
def test_a_callback_that_raises_stops_no_thread_of_ours_and_keeps_no_interrupt_from_who_asked_for_it(mistake) -> None:
    def fail(_: Work) -> None:
        raise mistake

    called: list[Work] = []
    work = Work("an operation")
    for callback in (fail, called.append):
        work.add_done_callback(callback)
    thread = threading.Thread(target=work.finish, name=THREAD_NAME)
    thread.start()
    thread.join()
    assert called == [work]
    with contextlib.nullcontext() if mistake is RuntimeError else pytest.raises(mistake):
        work.add_done_callback(fail)


def test_an_interrupt_between_taking_and_giving_on_keeps_nobody_waiting() -> None:
    end = End()
    end.set()
    end._gate.acquire()  # as an interrupt leaves it
    assert end.wait(30.0)

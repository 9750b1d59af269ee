"""An end is waited for by many, told to each once, and has no lock that a signal's handler could wait for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from transport.work import End, wait_until


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


def test_an_interrupt_between_taking_and_giving_on_keeps_nobody_waiting() -> None:
    end = End()
    end.set()
    end._gate.acquire()  # as an interrupt leaves it
    assert end.wait(30.0)

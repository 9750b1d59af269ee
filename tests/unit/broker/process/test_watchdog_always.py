"""What a daemon and its watchdog left that were killed together is opened, and nothing of those that live."""

from __future__ import annotations

import signal

import pytest

from broker.process import watchdog
from hive_qos.errors import ShapingError


def test_what_is_abandoned_is_opened_each_second_and_at_the_end_and_a_refusal_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = iter((None, None, None, None, signal.SIGTERM))
    claimed = iter(((), (), ("a daemon",), (), ()))
    outcomes = iter((ShapingError("refused"), ShapingError("refused"), 4, 0))
    said: list[str] = []

    def opening() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, ShapingError):
            raise outcome
        return outcome

    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: next(waits))
    monkeypatch.setattr(watchdog, "claims", lambda: next(claimed))
    monkeypatch.setattr(watchdog, "say", said.append)
    watchdog.open_abandoned_always(opening)
    assert said == ["[shaping] refused", "4 classes opened to the line's rate"]
    assert [*waits, *claimed, *outcomes] == []

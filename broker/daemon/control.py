"""What is wanted of the loop from outside: by HTTP's threads, which get an answer, and by signals, which get none."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field

ANSWER_S_MAX = 4.0
"""A request lives 5 s in all; a reload takes milliseconds."""
REQUESTS_MAX = 16
"""`http_api` serves as many at once."""


@dataclass
class Wishes:
    """What signal handlers want, as bare flags: a handler may come in the middle of anything."""

    stop: bool = False
    reload: bool = False


@dataclass(frozen=True)
class Answer:
    """What came of it. `code` is HTTP's: 200 done, 409 refused for the reason in `text`, 503 nobody does it now."""

    code: int
    text: str


@dataclass(frozen=True)
class Request:
    """One wish: "reload" or "confirm". `answers` takes exactly one answer."""

    what: str
    trial_s: float | None = None
    answers: queue.SimpleQueue[Answer] = field(default_factory=queue.SimpleQueue)


class Control:
    """The way from any thread to the loop and back.

    Args:
        wake: wakes the loop; safe in any thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: queue.Queue[Request] = queue.Queue(REQUESTS_MAX)

    def ask(self, request: Request) -> Answer:
        """Have it done, and wait for that. In a thread that is not the loop's."""
        try:
            self._waiting.put_nowait(request)
            self._wake()
            return request.answers.get(timeout=ANSWER_S_MAX)
        except (queue.Full, queue.Empty):
            return Answer(503, "the broker does not come to it now; hive-qos status says what holds")

    def take(self) -> Request | None:
        """The next wish, for the loop; None when there is none."""
        return None if self._waiting.empty() else self._waiting.get_nowait()  # nobody else takes

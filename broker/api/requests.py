"""Commands to the loop from outside: from HTTP's threads, which get an answer, and from signals, which get none."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

ANSWER_S_MAX = 4.0
"""How long a request waits until the loop takes it; a tick takes milliseconds."""


@dataclass
class PendingCommands:
    """Commands of signal handlers, as bare flags: a handler may run in the middle of anything."""

    stop: bool = False
    reload: bool = False


class PolicyAnswer(Struct, frozen=True):
    """The result. `code` is HTTP's: 200 done, 409 refused for the reason in `text`, 503 not done in time.

    `note` is what could not be had of what was done.
    """

    code: int
    text: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class PolicyRequest:
    """One request of a path of `broker.api.questions.ACTIONS`. `answers` takes exactly one answer."""

    what: str
    asked: Struct
    answers: queue.SimpleQueue[PolicyAnswer] = field(default_factory=queue.SimpleQueue)


class PolicyRequests:
    """Requests from any thread to the loop, and their answers.

    Args:
        wake: wakes the loop; safe in any thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[PolicyRequest] = (
            deque()
        )  # append, remove and popleft are atomic: either side gets a request

    def ask(self, request: PolicyRequest) -> PolicyAnswer:
        """Have it done, and wait for that. In a thread that is not the loop's.

        A request that the loop has not taken in time is withdrawn: it is not done. One that it has taken is answered.
        """
        self._waiting.append(request)
        self._wake()
        try:
            return request.answers.get(timeout=ANSWER_S_MAX)
        except queue.Empty:
            pass
        try:
            self._waiting.remove(request)
        except ValueError:
            return request.answers.get()
        return PolicyAnswer(
            503, "the broker does not come to it now, and will not do it; hive-qos status says what holds"
        )

    def take(self) -> PolicyRequest | None:
        """Give the loop the next request, which it answers; None when there is none."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

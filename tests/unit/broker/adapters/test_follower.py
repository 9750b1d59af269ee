"""A program's limit follows the broker, and goes without one, also where the program does not say what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_limiter import MBIT, PROGRAM, Program

from broker.adapters.follower import AWAY_S, READ_PART, READ_S, Follower
from broker.adapters.limiter import Limiter
from broker.adapters.program import Backlog, ProgramError
from broker.client.mailbox import Allowance


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Busy(Program):
    """It takes long to fail to say its backlog, as with a database that is large."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(own=90 * MBIT)
        self.clock, self.reads = clock, 0

    def read(self) -> Backlog:
        self.reads += 1
        self.clock.now_s += 5.0
        raise ProgramError("unreachable", "no answer within 5 s")


class Declared:
    """A session with a broker: what it allows."""

    def __init__(self) -> None:
        self.allowance: Allowance | None = None
        self.need = self.program = lambda **_: None


class Log:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowed(ceiling: int) -> Allowance:
    return Allowance(ceiling_bits_per_s=ceiling, guarantee_bits_per_s=0)


def test_where_a_program_does_not_tell_its_backlog_its_limit_follows_and_goes_all_the_same(
    tmp_path: Path, clock: Clock
) -> None:
    program, session = Busy(clock), Declared()
    follower = Follower(PROGRAM, program, Limiter(PROGRAM, program, tmp_path), session, log=Log(), clock=clock)

    def rounds(seconds: float) -> int:
        until_s = clock.now_s + seconds
        while clock.now_s < until_s:
            clock.now_s += 2.0
            follower.round()
        return program.rate

    session.allowance = allowed(10 * MBIT)
    assert rounds(20.0) == 11 * MBIT
    session.allowance = allowed(40 * MBIT)
    assert rounds(20.0) == 44 * MBIT
    session.allowance = None
    assert rounds(AWAY_S + 20.0) == 90 * MBIT
    before = program.reads
    rounds(1000.0)
    assert program.reads - before <= 1000.0 / max(READ_S, 5.0 / READ_PART) + 1

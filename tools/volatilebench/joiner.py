"""A member fetches the state while storage floods: what the steps of the others lose, and what storage gets.

    a ==100== r ==100== b, j, s      a and b train, storage floods a -> s, and j fetches what a holds

All of it leaves over the link of a. The register is in r.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tools.bench import machine
from tools.bench.place import of_host, python
from tools.bench.side import BenchError, Side
from tools.brokerbench import scenes
from tools.brokerbench.scenarios import shares
from tools.brokerbench.settings import IDLE
from tools.brokerbench.settings import Settings as BrokerSettings
from tools.brokerbench.stage import Stage
from tools.collectivesbench.budget import Budget
from tools.measure.crew import MeasureError
from tools.measure.tail import Tail
from tools.volatilebench.algorithms import Algorithm
from tools.volatilebench.crew import MEMBER, SECRET, START_S
from tools.volatilebench.run import Run

JOINER = "joiner"
HIVE = Algorithm(name="hive")
MEMBERS, WHO_JOINS = ("a", "b"), "j"
BROKERED = "brokered"
CASES = ((IDLE, False), (IDLE, True), (BROKERED, False), (BROKERED, True))
"""Whether storage floods, under brokers; whether somebody joins."""
BETWEEN_STEPS = 5
"""From one that joins to the next."""
SETTLING_STEPS = 4
"""After a change of conditions."""
STEP_S_MAX = 60.0
"""A step that takes longer is a hang."""


def under_flood(run: Run, budget: Budget) -> None:
    """All cases, one after the other, of members that go on all the time."""
    settings = BrokerSettings(flood_s=3.0)
    scene = scenes.sender(settings, name=JOINER, more=WHO_JOINS)
    with run.guarded(JOINER, HIVE), _measured(), Stage(scene, settings) as stage, ExitStack() as stack:
        members = _Members(run, stage, stack, shares.payload_bytes(settings, settings.rate_bits_per_s))
        for condition, joining in CASES:
            stage.enter(condition)
            if condition == BROKERED:
                stage.brokers.wait_for_sessions(MEMBERS)
            found = _block(run, stage, members, joining=joining)
            stage.leave(condition)
            fixed = {"storage": condition == BROKERED, "joining": joining, "rate_bits_per_s": settings.rate_bits_per_s}
            fixed["payload_bytes"] = members.payload_bytes
            counter = [scenes.SENT, stage.lab["r"].interface_on("s")]
            run.write(JOINER, HIVE, kind=JOINER, counter=counter, **fixed, **found)
            flood, joins = "storage" if condition == BROKERED else "no storage", "joins" if joining else "no joins"
            run.say(f"{JOINER}: {flood}, {joins}: {len(found['steps'])} steps; {max(budget.left_s(), 0):.0f} s left")
        members.end()


class _Members:
    """The register, both members, and who joins: processes that live as long as `stack`."""

    def __init__(self, run: Run, stage: Stage, stack: ExitStack, payload_bytes: int) -> None:
        self._stage, self._logs = stage, run.logs
        self.payload_bytes = payload_bytes
        self.folder = run.job(JOINER)
        self.folder.mkdir()
        self._until = self.folder / "until"
        sides = {name: self._side(name) for name in ("r", *MEMBERS, WHO_JOINS)}
        for side in sides.values():
            stack.callback(side.close)
        port = sides["r"].ask({"do": "serve_register"}, wait_s=START_S)["port"]
        self._store = (stage.lab["r"].address, port)
        self._joiner = sides[WHO_JOINS]
        self._stepping = [sides[name] for name in MEMBERS]
        self._tail = Tail(self.folder / f"{MEMBERS[0]}.jsonl")
        compute_s = stage.settings.compute_s
        for name, side in zip(MEMBERS, self._stepping, strict=True):
            files = {"record": str(self.folder / f"{name}.jsonl"), "until": str(self._until)}
            order = self._order("steps", name) | {"members_min": len(MEMBERS), "compute_s": compute_s}
            side.tell(order | files)
        for side in self._stepping:
            side.begun(wait_s=START_S)

    def steps(self, count: int) -> list[dict[str, Any]]:
        """The steps since the last call, at least so many.

        Raises:
            BenchError: they hang.
        """
        found = self._tail.lines()
        due_s = time.monotonic() + STEP_S_MAX
        while len(found) < count:
            self._stage.wait(0.1)
            if new := self._tail.lines():
                found += new
                due_s = time.monotonic() + STEP_S_MAX
            if time.monotonic() > due_s:
                raise BenchError(f"no step within {STEP_S_MAX:g} s")
        return found

    def forget(self) -> None:
        """Drop the steps so far."""
        self._tail.lines()

    def join(self, number: int) -> dict[str, Any]:
        """Have somebody join, fetch the state, and leave."""
        return self._joiner.ask(self._order("fetch", f"{WHO_JOINS}{number}"), wait_s=START_S)

    def end(self) -> None:
        """Let both members end."""
        self._until.touch()
        for side in self._stepping:
            side.end(wait_s=STEP_S_MAX)

    def _order(self, do: str, name: str) -> dict[str, Any]:
        fixed = {"job": JOINER, "store": self._store, "payload_bytes": self.payload_bytes}
        return {"do": do, "name": name, **fixed}

    def _side(self, name: str) -> Side:
        place = of_host(self._stage.lab[name])
        env = {"HIVE_INTERFACE": place.interface, "HIVE_JOB": JOINER, "HIVE_JOB_SECRET": SECRET}
        if name in self._stage.brokers.seats:
            env["HIVE_BROKER"] = self._stage.brokers.seats[name].session_socket
        return Side(place, python(MEMBER), log=self._logs / f"{JOINER}-{name}.log", env=env)


def _block(run: Run, stage: Stage, members: _Members, *, joining: bool) -> dict[str, Any]:
    """One case: steps, and where somebody joins some more after each time."""
    members.forget()
    members.steps(SETTLING_STEPS)
    stage.forget()
    begin, begin_cpu_s = machine.read(stage.lab), stage.cpu_seconds()
    steps, joins = members.steps(run.settings.joiner_steps), []
    if joining:
        for number in range(run.settings.joins):
            joins.append(members.join(number))
            steps += members.steps(BETWEEN_STEPS)
    end, end_cpu_s = machine.read(stage.lab), stage.cpu_seconds()
    stage.wait(0.3)  # the last samples
    return {
        "begin_s": begin.at_s,
        "end_s": end.at_s,
        "machine": machine.between(begin, end),
        "cpu_s": {name: end_cpu_s[name] - begin_cpu_s.get(name, 0.0) for name in end_cpu_s},
        "steps": steps,
        "joins": joins,
        "samples": stage.seen()["samples"]["r"],
    }


@contextmanager
def _measured() -> Iterator[None]:
    """Have the broker's stage fail as the other parts do."""
    try:
        yield
    except MeasureError as error:
        raise BenchError(str(error)) from error

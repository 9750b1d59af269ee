"""Random courses of a larger group than can be searched, beside a twin that knows one list of results and no more."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import commit_search as search
import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from transport.volatile.protocol.commit import Phase
from transport.volatile.protocol.view import View
from transport.volatile.record.replay import replay
from transport.volatile.record.tape import Tape

STEPS = 3
MOVES_MAX = 2000
"""A world of this size comes to rest within some hundred."""


class Twin:
    """One list: the result of each step is what its first member committed, and nobody may ever hold another."""

    def __init__(self, first: View) -> None:
        self.results = {0: first.digest}
        self.views = [first]

    def look(self, world: search.World) -> None:
        """Take in what has happened, and refuse what must not."""
        if world.register != self.views[-1]:
            assert world.register.epoch == self.views[-1].epoch + 1, "a view was left out"
            self.views.append(world.register)
            self._hold(world.register.base_step, world.register.digest)
        for state in world.states:
            if state.committed >= 0 and state.phase is not Phase.OUT:
                self._hold(state.committed, state.digest)

    def _hold(self, step: int, digest: bytes) -> None:
        assert self.results.setdefault(step, digest) == digest, f"two results of step {step}"
        assert step == 0 or step - 1 in self.results, f"step {step} before the one before it"


class Courses(RuleBasedStateMachine):
    """Whatever may happen happens, in any order; at the end, whatever has to."""

    @initialize(workers=st.integers(2, 4), late=st.booleans(), learners=st.integers(0, 1), cut=st.booleans())
    def begin(self, workers: int, late: bool, learners: int, cut: bool) -> None:
        crashes, suspicions = (0, 1) if cut else (1, 0)
        quorum = workers // 2 + 1 if late else 0
        self.world = search.first_world(
            workers + learners, steps=STEPS, crashes=crashes, suspicions=suspicions, quorum=quorum, learners=learners
        )
        self.twin = Twin(self.world.register)
        self.before: list[tuple[int, int]] = []
        self.folder = tempfile.TemporaryDirectory()
        self.tapes = [Tape(self.folder.name, job="llm", state=one) for one in self.world.states]

    @rule(choices=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 30)), min_size=5, max_size=15))
    def go_on(self, choices: list[tuple[int, int]]) -> None:
        for kind, which in choices:
            committed = [place for place, before in self.before if self.world.states[place].committed > before]
            faulty = kind == 0 or bool(committed and kind < 4)
            moves = (world for surely, world in search.following(self.world) if surely != faulty)
            some = list(itertools.islice(moves, which + 1 if not faulty else None))
            if faulty and committed:  # whoever has just committed, before others have
                some = [world for world in some if committed[0] in world.crashed] or some
            if some:
                self._move(some[which % len(some)])

    @invariant()
    def agrees_with_its_twin(self) -> None:
        if hasattr(self, "world"):
            self.twin.look(self.world)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        with self.folder:
            self._come_to_rest()
            for one in self.tapes:
                one.close()
            document = replay(sorted(Path(self.folder.name).iterdir()))
        assert document["violations"] == []
        steps = [one["steps"] for one in document["runs"][0]["events"] if one["kind"] == "commits"]
        assert (steps[0][0], steps[-1][1]) == (1, STEPS)

    def _come_to_rest(self) -> None:
        for _ in range(MOVES_MAX):
            following = next((world for surely, world in search.following(self.world) if surely), None)
            if following is None:
                break
            self._move(following)
        else:
            raise AssertionError("it does not come to rest")
        living = [one for place, one in enumerate(self.world.states) if place not in self.world.crashed]
        inside = [one for one in living if one.phase is not Phase.OUT]
        assert inside
        assert self.world.suspected or inside == living
        workers = [one for one in inside if one.me in one.view.workers]
        assert {one.committed for one in workers} == {STEPS}

    def _move(self, world: search.World) -> None:
        self.before = [(place, one.committed) for place, one in enumerate(self.world.states)]
        for tape, before, after in zip(self.tapes, self.world.states, world.states, strict=True):
            tape.saw(before, after, attempt=1)
        self.world = world
        self.twin.look(world)


def test_random_courses_agree_with_a_list_of_results() -> None:
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate]  # to shrink takes minutes
    chosen = hypothesis.settings(max_examples=100, stateful_step_count=8, deadline=None, phases=phases)
    run_state_machine_as_test(Courses, settings=chosen)

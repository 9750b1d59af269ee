"""The loop at ticks that only read: what it does there all the same, and what lets no tick be one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.daemon.loop import Loop
from broker.daemon.tick_scheduler import Moment, Occasions, Rhythm


class Bench:
    """A loop whose parts write down what it asks of them; readings always suffice."""

    def __init__(self) -> None:
        self.done: list[str] = []
        policy = SimpleNamespace(daemon=SimpleNamespace(tick_s=0.1), probe=None)

        def does(name: str, gives: object = None) -> Any:
            def do(*_: object, **__: object) -> object:
                self.done.append(name)
                return gives

            return do

        parts = SimpleNamespace(
            deciding=SimpleNamespace(keep_up=does("keep up")),
            publishing=SimpleNamespace(look=does("origins")),
            readings=SimpleNamespace(suffices=does("read", True)),
        )
        none = cast(Any, None)
        self.loop = Loop(
            cast(Any, SimpleNamespace(clock=lambda: 0.2)), cast(Any, parts), cast(Any, SimpleNamespace(policy=policy)),
            wishes=none, wake=none, control=none, showing=none, reloads=none, notifier=none,
            beat=lambda: None, shaping=lambda: "",
        )  # fmt: skip
        self.reported = SimpleNamespace(machine=SimpleNamespace(hello=SimpleNamespace(rates=False)))
        self.hub = SimpleNamespace(changed=False)
        loop = cast(Any, self.loop)
        loop._sessions = SimpleNamespace(housekeeping=does("housekeeping"), sessions={"s-1": self.reported})
        loop._hub, loop._rhythm = self.hub, Rhythm(tick_s=0.1, now_s=0.1)


def test_a_tick_that_reads_keeps_up_what_goes_in_slices_and_decides_nothing() -> None:
    bench = Bench()
    bench.loop._decide_at(Moment.READ, 0.2, Occasions())
    assert bench.done == ["housekeeping", "keep up", "origins"]


def test_where_nothing_asks_for_a_decision_the_counters_are_asked() -> None:
    bench = Bench()
    assert bench.loop._may_rest(Occasions())
    assert bench.done == ["read"]


@pytest.mark.parametrize("occasions", [Occasions(announced=True), Occasions(asked=True), Occasions(again_s=9.0)])
def test_whoever_asks_for_a_decision_gets_one_without_a_reading(occasions: Occasions) -> None:
    bench = Bench()
    assert not bench.loop._may_rest(occasions)
    assert bench.done == []


def test_so_does_what_changed_in_the_hub_and_who_is_told_rates() -> None:
    bench = Bench()
    bench.hub.changed = True
    assert not bench.loop._may_rest(Occasions())
    bench.hub.changed, bench.reported.machine.hello.rates = False, True
    assert not bench.loop._may_rest(Occasions())
    assert bench.done == []

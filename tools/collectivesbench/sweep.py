"""Collectives of many sizes on one network, all contenders in turns; each turn is a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from hive_qos.units import format_size
from tools.bench import machine
from tools.bench.turns import Attempts
from tools.collectivesbench import contenders, groups, networks
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.contenders import Contender
from tools.collectivesbench.groups import Group
from tools.collectivesbench.networks import Network
from tools.collectivesbench.settings import Settings
from tools.measure.records import Writer

FEWEST_TURNS = 2
"""Of a cell: one that warms up, and one that counts."""
ROW_S = 4.0
"""Of a turn of all contenders: where each operation takes long, fewer are done in a row."""
OVERRUN = 1.2
"""Of the time of a run: what was begun within it ends, but nothing begins after so much of it."""
NOBODY = Contender(name="all", backend="")
"""Stands where a contender's name would, in what is written down of all."""


class Run(Attempts):
    """What all scenarios of one run share.

    Args:
        logs: where the ranks' own words go.
        variants: contenders beside those that are always there, as arguments of `contenders.competing`.
    """

    def __init__(
        self,
        settings: Settings,
        logs: Path,
        writer: Writer,
        say: Callable[[str], None],
        *,
        variants: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(writer, say, run_seconds_max=OVERRUN * settings.seconds)
        self.settings, self.logs, self._variants = settings, logs, variants

    def leave_out(self, scenario: str, what: str, expected_s: float, budget: Budget) -> None:
        """Write down that there is no time for something, as far as it is known how long it would take."""
        left_s = budget.left_s()
        why = f"would take {expected_s:.0f} s, and {left_s:.0f} s are left" if left_s > 0 else "no time is left"
        self.write(scenario, NOBODY, kind="failure", error=f"left out: {what}: {why}")
        self.say(f"{scenario}: left out: {what}: {why}")

    def competing(self, *, bbr: bool = True) -> Sequence[Contender]:
        """All contenders; without `bbr` where TCP's congestion control makes no difference."""
        algorithms, compressions = (self._variants.get(name, ()) for name in ("algorithms", "compressions"))
        return contenders.competing(algorithms=algorithms, compressions=compressions, bbr=bbr)


def sweep(run: Run, budget: Budget, *, scenario: str) -> None:
    """Measure what the settings say of a scenario, on each of its networks: small payloads first, as far as time goes.

    What would take longer than its network has left is left out, and recorded as that.
    """
    of_all = [
        (size, each) for one in run.settings.sweeps[scenario] for size in one.payload_bytes for each in one.operations
    ]
    cells = sorted(of_all, key=lambda cell: cell[0])  # stable: operations keep their order
    swept = networks.SWEPT[scenario](run.settings.worlds, run.settings.offload_worlds)
    for network, part in budget.parts(swept, lambda network: network.ranks):
        if part.left_s() <= 0:
            run.leave_out(scenario, network.name, 0.0, part)
            continue
        competing = run.competing(bbr=not network.one_host)
        with ExitStack() as stack:
            members = joined(run, stack, scenario, network, competing)
            took: dict[str, tuple[int, float]] = {}
            for number, ((payload_bytes, operation), of_cell) in enumerate(part.parts(cells), 1):
                before_bytes, before_s = took.get(operation, (payload_bytes, 0.0))
                one_s = before_s * payload_bytes / before_bytes  # at most
                count = run.settings.row(payload_bytes)
                count = max(1, min(count, int(ROW_S / one_s))) if one_s else count
                expected_s = FEWEST_TURNS * count * one_s
                what = f"{network.name}: {operation} of {format_size(payload_bytes)} ({number} of {len(cells)})"
                if part.left_s() < expected_s:
                    run.leave_out(scenario, what, expected_s, part)
                    continue
                order = {"operation": operation, "bytes": payload_bytes, "count": count}
                turns, turn_s = _take_turns(run, scenario, network, members, order, of_cell)
                took[operation] = payload_bytes, turn_s / count
                run.say(f"{scenario}: {what}, {turns} turns; {max(part.left_s(), 0):.0f} s left for this network")


def joined(
    run: Run, stack: ExitStack, scenario: str, network: Network, competing: Sequence[Contender]
) -> dict[Contender, Group]:
    """Start all contenders side by side, then have each make its process group; they end with `stack`."""
    may = [contender for contender in competing if run.may(scenario, contender)]
    labs = stack.enter_context(groups.labs_up(network, may))
    started: dict[Contender, Group] = {}
    for contender in may:
        with run.guarded(scenario, contender):
            started[contender] = groups.start(
                stack, network, contender, labs[contender.congestion], logs=run.logs, device=run.settings.device
            )
    members: dict[Contender, Group] = {}
    for contender, group in started.items():
        with run.guarded(scenario, contender):
            groups.join(group)
            members[contender] = group
    return members


def _take_turns(
    run: Run,
    scenario: str,
    network: Network,
    members: dict[Contender, Group],
    order: Mapping[str, object],
    budget: Budget,
) -> tuple[int, float]:
    """All contenders once a repetition, as often as there is time for, and FEWEST_TURNS in any case.

    A group that failed in the middle of an operation is of no more use, and leaves `members`. The first repetition
    has the number -1, and no figure.

    Returns:
        How many turns have figures, and the seconds of one.
    """
    turn_s = 0.0
    for repetition in range(-1, run.settings.repetitions):
        if repetition + 1 >= FEWEST_TURNS and budget.left_s() < turn_s:
            return repetition, turn_s
        began_s = time.monotonic()
        for contender in in_turn(members, repetition):
            if not run.may(scenario, contender):
                continue
            group, measured = members[contender], False
            with run.guarded(scenario, contender):
                begin = machine.read(group.lab)
                ranks = group.order({"do": "collective", **order}, wait_s=run.settings.one_s_max)
                used = machine.between(begin, machine.read(group.lab))
                measured = True
                fields = {"network": asdict(network), "machine": used, "ranks": ranks, "repetition": repetition}
                run.write(scenario, contender, kind="collective", case=network.name, **order, **fields)
            if not measured:
                members.pop(contender).close()
        turn_s = time.monotonic() - began_s
    return run.settings.repetitions, turn_s


def in_turn(members: Mapping[Contender, Group], repetition: int) -> Sequence[Contender]:
    """The contenders in the order of a repetition: it rotates, so that nobody always comes after the same one."""
    names = list(members)
    first = repetition % len(names) if names else 0
    return [*names[first:], *names[:first]]

"""Collectives of many sizes on one network, all contenders in turns; each turn is a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from hive_qos.units import format_size
from tools.bench import machine
from tools.bench.records import Writer
from tools.bench.turns import Attempts
from tools.collectivesbench import contenders, groups, networks
from tools.collectivesbench.contenders import Contender
from tools.collectivesbench.groups import Group
from tools.collectivesbench.networks import Network
from tools.collectivesbench.settings import Settings


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
        super().__init__(writer, say, run_seconds_max=settings.run_seconds_max)
        self.settings, self.logs, self._variants = settings, logs, variants

    def competing(self, *, bbr: bool = True) -> Sequence[Contender]:
        """All contenders; without `bbr` where TCP's congestion control makes no difference."""
        algorithms, compressions = (self._variants.get(name, ()) for name in ("algorithms", "compressions"))
        return contenders.competing(algorithms=algorithms, compressions=compressions, bbr=bbr)


NETWORKS: Mapping[str, Callable[[Settings], Sequence[Network]]] = {
    "lan": lambda settings: [networks.equal(world) for world in settings.worlds],
    "uneven": lambda _settings: [networks.uneven()],
    "sites": lambda _settings: [networks.two_sites()],
    "host": lambda settings: [networks.one_host(world) for world in settings.worlds],
}
"""Of each scenario that is a sweep."""


def sweep(run: Run, scenario: str) -> None:
    """Measure what the settings say of a scenario, on each of its networks."""
    for network in NETWORKS[scenario](run.settings):
        competing = run.competing(bbr=not network.one_host)
        with ExitStack() as stack:
            members = joined(run, stack, scenario, network, competing)
            for each in run.settings.sweeps[scenario]:
                for operation in each.operations:
                    for payload_bytes in each.payload_bytes:
                        _take_turns(run, scenario, network, members, operation, payload_bytes)


def joined(
    run: Run, stack: ExitStack, scenario: str, network: Network, competing: Sequence[Contender]
) -> dict[Contender, Group]:
    """Start all contenders side by side, then have each make its process group; they end with `stack`."""
    may = [contender for contender in competing if run.may(scenario, contender)]
    labs = stack.enter_context(groups.labs_up(network, may))
    started: dict[Contender, Group] = {}
    for contender in may:
        with run.guarded(scenario, contender):
            started[contender] = groups.start(stack, network, contender, labs[contender.congestion], logs=run.logs)
    members: dict[Contender, Group] = {}
    for contender, group in started.items():
        with run.guarded(scenario, contender):
            groups.join(group)
            members[contender] = group
    return members


def _take_turns(
    run: Run, scenario: str, network: Network, members: dict[Contender, Group], operation: str, payload_bytes: int
) -> None:
    """All contenders once a repetition; the order rotates, so that nobody always comes after the same one.

    A group that failed in the middle of an operation is of no more use, and leaves `members`. The first repetition
    has the number -1, and no figure.
    """
    count = run.settings.row(payload_bytes)
    order = {"do": "collective", "operation": operation, "bytes": payload_bytes, "count": count}
    names = list(members)
    for repetition in range(-1, run.settings.repetitions):
        for place in range(len(names)):
            contender = names[(place + repetition) % len(names)]
            if contender not in members or not run.may(scenario, contender):
                continue
            group, measured = members[contender], False
            with run.guarded(scenario, contender):
                begin = machine.read(group.lab)
                ranks = group.order(order, wait_s=run.settings.one_s_max)
                used = machine.between(begin, machine.read(group.lab))
                measured = True
                fields = {"operation": operation, "bytes": payload_bytes, "count": count, "repetition": repetition}
                fields |= {"network": asdict(network), "machine": used, "ranks": ranks}
                run.write(scenario, contender, kind="collective", case=network.name, **fields)
            if not measured:
                members.pop(contender).close()
    run.say(f"{scenario}: {network.name}: {operation} of {format_size(payload_bytes)}")

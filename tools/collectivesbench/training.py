"""Training: to a fixed loss on each network, and over a link that loses three quarters of its rate meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tools.bench.side import BenchError
from tools.collectivesbench import networks
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.contenders import Contender
from tools.collectivesbench.groups import Group
from tools.collectivesbench.networks import Network
from tools.collectivesbench.sweep import Run, in_turn, joined

TRAINING, FALLING = "training", "falling"


def to_a_loss(run: Run, budget: Budget) -> None:
    """Every contender trains every task with every seed, as far as time goes; the seed is the repetition."""
    settings = run.settings
    for network, part in budget.parts([networks.TRAINED[name] for name in settings.training_networks]):
        with ExitStack() as stack:
            members = joined(run, stack, TRAINING, network, run.competing())
            took_s: dict[str, float] = {}
            for seed in range(settings.seeds):
                for task, loss in settings.losses.items():
                    order = {"task": task, "seed": seed, "loss": loss, "steps_max": settings.steps_max}
                    order["seconds_max"] = settings.training_s_max
                    what = f"{network.name}: {task}, seed {seed}"
                    took_s[task] = _in_turn(run, TRAINING, network, members, order, what, part, took_s.get(task, 0.0))


def over_a_falling_link(run: Run, budget: Budget) -> None:
    """The last rank's link falls in the middle of training, and comes back for the next turn."""
    settings, network = run.settings, networks.falling()
    with ExitStack() as stack:
        members = joined(run, stack, FALLING, network, run.competing(bbr=False))
        for seed in range(settings.falls):
            order = {"task": networks.FALLING_TASK, "seed": seed, "loss": 0.0, "steps_max": 10**6}
            lasts_s = settings.before_fall_s + settings.after_fall_s
            order["seconds_max"] = lasts_s
            expected_s = len(members) * lasts_s if seed else 0.0
            fall_s = settings.before_fall_s
            _in_turn(run, FALLING, network, members, order, f"seed {seed}", budget, expected_s, fall_after_s=fall_s)


def _in_turn(
    run: Run,
    scenario: str,
    network: Network,
    members: dict[Contender, Group],
    order: Mapping[str, Any],
    what: str,
    budget: Budget,
    expected_s: float,
    *,
    fall_after_s: float | None = None,
) -> float:
    """One training of all contenders, where there is time for it; the seconds that it took, or would have."""
    if budget.left_s() < expected_s:
        run.leave_out(scenario, what, expected_s, budget)
        return expected_s
    began_s = time.monotonic()
    for contender in in_turn(members, order["seed"]):
        train(run, scenario, network, members, contender, order, fall_after_s=fall_after_s)
    run.say(f"{scenario}: {what}; {max(budget.left_s(), 0):.0f} s left")
    return time.monotonic() - began_s


def train(
    run: Run,
    scenario: str,
    network: Network,
    members: dict[Contender, Group],
    contender: Contender,
    order: Mapping[str, Any],
    *,
    fall_after_s: float | None = None,
) -> None:
    """One turn of one contender, and its record. A group that failed is of no more use, and leaves `members`."""
    if not run.may(scenario, contender):
        return
    group, trained = members[contender], False
    with run.guarded(scenario, contender):
        wait_s = order["seconds_max"] + run.settings.one_s_max
        group.begin({"do": "train", **order}, wait_s=wait_s)
        fell_s = None if fall_after_s is None else _fall(group, network, fall_after_s)
        try:
            ranks = group.end(wait_s=wait_s)
        finally:
            if fall_after_s is not None:
                _set_last_link(group, network)
        trained = True
        fields = {"task": order["task"], "repetition": order["seed"], "loss": order["loss"], "fell_s": fell_s}
        fields |= {"network": asdict(network), "ranks": ranks}
        run.write(scenario, contender, kind=scenario, case=network.name, **fields)
    if not trained:
        members.pop(contender).close()


def _fall(group: Group, network: Network, after_s: float) -> float:
    """Let the link fall after so long; gives when it did, on the machine's monotonic clock."""
    time.sleep(after_s)
    _set_last_link(group, networks.fallen(network))
    return time.monotonic()


def _set_last_link(group: Group, network: Network) -> None:
    if group.lab is None:
        raise BenchError("one host has no link that could fall")
    last = f"h{network.ranks - 1}"
    (link,) = (link for link in group.lab.links.values() if last in link.ends)
    link.set_rate(network.links_bits_per_s[-1])

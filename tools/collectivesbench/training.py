"""Training: to a fixed loss on each network, and over a link that loses three quarters of its rate meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tools.bench.side import BenchError
from tools.collectivesbench import networks
from tools.collectivesbench.contenders import Contender
from tools.collectivesbench.groups import Group
from tools.collectivesbench.networks import Network
from tools.collectivesbench.sweep import Run, joined

TRAINING, FALLING = "training", "falling"


def to_a_loss(run: Run) -> None:
    """Every contender trains every task with every seed; the seed is the repetition."""
    settings = run.settings
    known = {"lan": networks.equal(4), "uneven": networks.uneven(), "sites": networks.two_sites()}
    for network in (known[name] for name in settings.training_networks):
        with ExitStack() as stack:
            members = joined(run, stack, TRAINING, network, run.competing())
            for task, loss in settings.losses.items():
                for seed in range(settings.seeds):
                    order = {"task": task, "seed": seed, "loss": loss, "steps_max": settings.steps_max}
                    order["seconds_max"] = settings.training_s_max
                    for contender in _order(members, seed):
                        train(run, TRAINING, network, members, contender, order)
                    run.say(f"{TRAINING}: {network.name}: {task}, seed {seed}")


def over_a_falling_link(run: Run) -> None:
    """The last rank's link falls in the middle of training, and comes back for the next turn."""
    settings, network = run.settings, networks.falling()
    with ExitStack() as stack:
        members = joined(run, stack, FALLING, network, run.competing(bbr=False))
        for seed in range(settings.falls):
            order = {"task": "transformer", "seed": seed, "loss": 0.0, "steps_max": 10**6}
            order["seconds_max"] = settings.before_fall_s + settings.after_fall_s
            for contender in _order(members, seed):
                train(run, FALLING, network, members, contender, order, fall_after_s=settings.before_fall_s)
            run.say(f"{FALLING}: seed {seed}")


def _order(members: Mapping[Contender, Group], turn: int) -> Sequence[Contender]:
    names = list(members)
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


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

"""Every algorithm trains every task on each network: loss against tokens, seconds and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from tools.bench import machine
from tools.collectivesbench import networks
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.contenders import BBR, CUBIC
from tools.collectivesbench.networks import Network
from tools.volatilebench.algorithms import Algorithm, competing
from tools.volatilebench.crew import START_S, Crew, crew_up, lines_of
from tools.volatilebench.run import Run, turned
from tools.volatilebench.settings import TOKENS

LOSS = "loss"
NETWORKS: Mapping[str, tuple[Callable[[int], Network], str]] = {
    "lan": (networks.equal, CUBIC),
    "uneven": (networks.uneven, CUBIC),
    "sites": (lambda workers: networks.two_sites(workers // 2), BBR),
}
"""Each with the congestion control of TCP that suits Gloo best there, as the collectives' benchmark found."""


def trained(run: Run, budget: Budget) -> None:
    """Each seed is a repetition. What time does not suffice for is left out, and written down."""
    settings = run.settings
    for name, part in budget.parts(settings.networks):
        make, congestion = NETWORKS[name]
        network = make(settings.workers)
        with (
            run.guarded(LOSS, Algorithm(name="all")),
            crew_up(network, congestion=congestion, logs=run.logs) as crew,
        ):
            algorithms = competing(settings.every)
            for seed in range(settings.seeds):
                for task in settings.tasks:
                    _turn(run, crew, algorithms, task, seed, part)


def _turn(run: Run, crew: Crew, algorithms: Sequence[Algorithm], task: str, seed: int, budget: Budget) -> None:
    """All algorithms once. A crew of which one training failed starts anew."""
    for algorithm in turned(algorithms, seed):
        if not run.may(LOSS, algorithm):
            continue
        if budget.left_s() <= 0:
            run.leave_out(LOSS, f"{crew.network.name}: {task}, seed {seed}: {algorithm.name}", 0.0, budget)
            continue
        began_s, done = time.monotonic(), False
        with run.guarded(LOSS, algorithm):
            _train(run, crew, algorithm, task, seed)
            done = True
        if not done:
            crew.restart()
        took_s = time.monotonic() - began_s
        run.say(f"{LOSS}: {crew.network.name}: {task}, seed {seed}: {algorithm.name}, {took_s:.0f} s")


def _train(run: Run, crew: Crew, algorithm: Algorithm, task: str, seed: int) -> None:
    settings, network = run.settings, crew.network
    job = run.job(f"{network.name}-{task}-{seed}-{algorithm.name}")
    begin = machine.read(crew.lab)
    ranks = crew.train(
        job,
        wait_s=settings.training_s_max + START_S,
        **algorithm.as_order(),
        task=task,
        seed=seed,
        every=settings.every,
        steps=settings.steps,
        step_s=0.0,
        seconds_max=settings.training_s_max,
        until="",
        members_min=network.ranks,
        gather=0 if algorithm.waits else network.ranks,
        each_meeting=False,
        snapshot_every=1,
    )
    used = machine.between(begin, machine.read(crew.lab))
    lines = lines_of(job)
    kept = [line["kept"] for each in lines.values() for line in each if "kept" in line]
    losses = dict(zip(kept, crew.evaluated(kept, task=task, seed=seed), strict=True))
    run.write(
        LOSS,
        algorithm,
        kind=LOSS,
        case=network.name,
        task=task,
        tokens=TOKENS[task],
        waits=algorithm.waits,
        repetition=seed,
        network=asdict(network),
        machine=used,
        ranks=ranks,
        lines=lines,
        losses=losses,
    )

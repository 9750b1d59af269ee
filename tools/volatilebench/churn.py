"""Members are killed, cut off, lost for good, and both sites cut from each other; torchrun's elastic restart beside it.

What is compared with whom:
- goodput: tokens of committed steps, of those that the live members could have trained at the undisturbed rate.
- loss: of the last commit, beside the undisturbed run after as many tokens.
- bits: of everything that members wrote down of one commit.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from tools.bench import machine
from tools.bench.place import of_host, python
from tools.bench.side import BenchError
from tools.collectivesbench import networks
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.contenders import BBR
from tools.collectivesbench.networks import ROUTER
from tools.lab import Link
from tools.lab.host import kill_session
from tools.measure.programs import environment
from tools.volatilebench.algorithms import DILOCO, Algorithm
from tools.volatilebench.crew import START_S, Crew, crew_up, lines_of
from tools.volatilebench.run import Run
from tools.volatilebench.schedule import APART, CUT, GONE, KILLED, Outage, plan, plan_of_each
from tools.volatilebench.settings import TOKENS, Settings

CHURN = "churn"
TASK, SEED = "small transformer", 0
MEMBERS = Algorithm(name=DILOCO, kind=DILOCO)
TORCHRUN = Algorithm(name="torchrun, DDP gloo", backend="gloo")
END_S = 20.0
"""After the end: a step, a meeting, and leaving. Who has not come back by then is killed, and the record says so."""
LOOK_S = 0.05
SNAPSHOT_EVERY = 4
"""Meetings: the loss falls little in between, and each snapshot is evaluated."""
UNTIL, AGENTS = "until", "agents.log"
BACK_S = 1.0
"""Before a supervisor starts an agent again that has ended."""
ELASTIC = "tools.volatilebench.programs.elastic"
RENDEZVOUS = "is_host=0,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=120"
"""torchrun's, for quick restarts: by default it waits 30 s for more nodes, and 15 s for one that is silent."""


def under_churn(run: Run, budget: Budget) -> None:
    """Each of both under churn, then undisturbed; torchrun only for as long as its rate takes to measure."""
    settings = run.settings
    network = networks.two_sites(settings.churn_workers // 2)
    outages, churn_s = (plan_of_each if settings.each else plan)(settings, network), settings.churn_s
    case = f"{network.name}, each worker lost" if settings.each else network.name
    turns = (
        (MEMBERS, _members, outages, churn_s),
        (MEMBERS, _members, (), churn_s),
        (TORCHRUN, _torchrun, outages, churn_s),
        (TORCHRUN, _torchrun, (), settings.restart_s),
    )
    for algorithm, train, lost, seconds in turns:
        what = f"{algorithm.name}, {'churn' if lost else 'undisturbed'}"
        if budget.left_s() < seconds:
            run.leave_out(CHURN, what, seconds, budget)
            continue
        with (
            run.guarded(CHURN, algorithm),
            crew_up(network, congestion=BBR, logs=run.logs, members=algorithm is MEMBERS) as crew,
        ):
            job = run.job(f"{CHURN}-{what}")
            job.mkdir()
            begin = machine.read(crew.lab)
            found = train(crew, job, algorithm, lost, seconds, settings)
            used = machine.between(begin, machine.read(crew.lab))
            fixed = {"case": case, "disturbed": bool(lost), "seconds": seconds, "task": TASK}
            fixed |= {
                "tokens": TOKENS[TASK],
                "every": settings.churn_every,
                "network": asdict(network),
                "machine": used,
            }
            outages_of_it = [asdict(one) for one in lost]
            run.write(CHURN, algorithm, kind=CHURN, outages=outages_of_it, lines=lines_of(job), **fixed, **found)
            run.say(f"{CHURN}: {what}; {max(budget.left_s(), 0):.0f} s left")


def _members(
    crew: Crew, job: Path, algorithm: Algorithm, outages: Sequence[Outage], seconds: float, settings: Settings
) -> dict[str, Any]:
    """Train with whoever is there."""
    every, order = settings.churn_every, algorithm.as_order()
    order |= {"options": {"every": every}, "task": TASK, "seed": SEED, "every": every, "steps": 10**9}
    order |= {"step_s": settings.step_s, "seconds_max": math.inf, "snapshot_every": SNAPSHOT_EVERY}
    order |= {"each_meeting": True, "members_min": 1, "gather": 0}
    order["until"] = str(job / UNTIL)
    for rank, side in crew.members.items():
        side.tell(crew.order(rank, job, **order))
    for side in crew.members.values():
        side.begun(wait_s=START_S)
    begin_s = time.monotonic()
    (job / UNTIL).write_text(str(begin_s + seconds), encoding="ascii")

    def lose(outage: Outage) -> None:
        for rank in outage.ranks:
            if outage.how in (KILLED, GONE):
                crew.members[rank].kill()

    def back(outage: Outage) -> None:
        if outage.how == KILLED:
            for rank in outage.ranks:
                crew.start(rank)  # it loads torch now, as torchrun's does
                crew.members[rank].tell(crew.order(rank, job, **order))

    _follow(crew, outages, begin_s, seconds, lose=lose, back=back)
    gone = {rank for one in outages if one.how == GONE for rank in one.ranks}
    cpu_s, missing = 0.0, []
    for rank, side in crew.members.items():
        if rank in gone:
            continue
        try:
            cpu_s += side.end(wait_s=max(0.0, begin_s + seconds + END_S - time.monotonic()))["cpu_s"]
        except BenchError as error:
            missing.append(str(error))
            side.kill()
    kept = [line["kept"] for each in lines_of(job).values() for line in each if "kept" in line]
    losses = dict(zip(kept, crew.evaluated(kept, task=TASK, seed=SEED), strict=True))
    return {"begin_s": begin_s, "cpu_s": cpu_s, "missing": missing, "losses": losses}


def _torchrun(
    crew: Crew, job: Path, algorithm: Algorithm, outages: Sequence[Outage], seconds: float, settings: Settings
) -> dict[str, Any]:
    """Train under an agent in each host, which is started again where it ends. Workers restart with each change."""
    with ExitStack() as stack:
        agents: dict[int, subprocess.Popen[bytes]] = {}
        log = stack.enter_context((crew.logs / AGENTS).open("ab"))

        def start(rank: int) -> None:
            agents[rank] = _agent(crew, job, rank, settings, log)

        stack.callback(_kill_all, agents)
        for rank in range(crew.network.ranks):
            start(rank)
        begin_s = _all_began_s(crew, job)
        away: set[int] = set()
        ended_s: dict[int, float] = {}

        def lose(outage: Outage) -> None:
            away.update(outage.ranks)
            for rank in outage.ranks:
                if outage.how in (KILLED, GONE):
                    _kill(agents[rank])

        def back(outage: Outage) -> None:
            away.difference_update(outage.ranks)

        def look() -> None:
            for rank, agent in agents.items():
                if rank in away or agent.poll() is None:
                    continue
                if time.monotonic() - ended_s.setdefault(rank, time.monotonic()) > BACK_S:
                    del ended_s[rank]
                    start(rank)

        _follow(crew, outages, begin_s, seconds, lose=lose, back=back, look=look)
    return {"begin_s": begin_s, "cpu_s": None, "missing": [], "losses": {}}


def _agent(crew: Crew, job: Path, rank: int, settings: Settings, log: BinaryIO) -> subprocess.Popen[bytes]:
    place = of_host(crew.lab[f"h{rank}"])
    host, port = crew.store
    argv = [*python("torch.distributed.run"), f"--nnodes=1:{crew.network.ranks}", "--nproc-per-node=1"]
    argv += ["--max-restarts=1000", "--monitor-interval=0.5", f"--rdzv-id={job.name}", "--rdzv-backend=c10d"]
    argv += [f"--rdzv-endpoint={host}:{port}", f"--rdzv-conf={RENDEZVOUS}", f"--local-addr={place.address}"]
    argv += ["-m", ELASTIC, "--folder", str(job), "--task", TASK, "--seed", str(SEED)]
    argv += ["--every", str(settings.churn_every), "--step-s", str(settings.step_s), "--name", place.name]
    # Else the workers meet in the agents' own store, where they find the addresses of those who have gone.
    env = environment(GLOO_SOCKET_IFNAME=place.interface, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    return crew.lab[place.name].popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT)


def _kill_all(agents: Mapping[int, subprocess.Popen[bytes]]) -> None:
    for agent in agents.values():
        _kill(agent)


def _kill(agent: subprocess.Popen[bytes]) -> None:
    """End an agent and its worker, which has a session of its own, as a power failure does."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(agent.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    kill_session(agent)


def _all_began_s(crew: Crew, job: Path) -> float:
    """When all had begun together.

    Raises:
        BenchError: they have not in time.
    """
    due_s = time.monotonic() + START_S
    while time.monotonic() < due_s:
        for lines in lines_of(job).values():
            for line in lines:
                if line.get("world") == crew.network.ranks:
                    return float(line["t_s"])
        time.sleep(0.1)
    raise BenchError("torchrun's workers did not begin: " + (crew.logs / AGENTS).read_text(errors="replace")[-600:])


def _follow(
    crew: Crew,
    outages: Sequence[Outage],
    begin_s: float,
    seconds: float,
    *,
    lose: Callable[[Outage], None],
    back: Callable[[Outage], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Carry out all outages at their times, and be here until the end."""
    due = [(one.begin_s, lose, one) for one in outages] + [(one.end_s, back, one) for one in outages if one.how != GONE]
    for at_s, do, outage in [*sorted(due, key=lambda one: one[0]), (seconds, None, None)]:
        while time.monotonic() < begin_s + at_s:
            look()
            time.sleep(LOOK_S)
        if do is None or outage is None:
            return
        for link in _links(crew, outage):
            (link.down if do is lose else link.up)()
        do(outage)


def _links(crew: Crew, outage: Outage) -> list[Link]:
    if outage.how == APART:
        return [crew.lab.links[f"{ROUTER}0-{ROUTER}1"]]
    if outage.how == CUT:
        return [crew.lab.links[f"h{rank}-{ROUTER}{crew.network.site_of(rank)}"] for rank in outage.ranks]
    return []

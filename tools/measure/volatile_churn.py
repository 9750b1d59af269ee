"""Members of a volatile group are killed, stopped, cut off, sent away and started at random: all commits must agree.

    a, b, c -- r0 -- r1 -- d, e        a member a host at most; the register is in r0

    python -m tools.measure.volatile_churn --seconds 30
    python -m tools.measure.volatile_churn --seconds 14400 --seed 7 --keep out/churn

A line for each thing that is done, with whom it meets and the commits so far, and then what came of it. Each member
hashes its weights after every step. The run ends at once, with exit code 1, where two hashes of a step differ, a
member leaves out a step or breaks down, or nobody commits for a minute. A seed repeats what is done to whom, not the
moment within a step.

At its end it ends with 1, too, where a kind of fault has cost more in the median than the 2 s of its detection, two
round trips, a write of the register and a step; and leaving more than a second instead of the detection.

With a quorum a step may be lost with all who made it, and be done again by the others: then two hashes may differ, but
of those that hold one of the two nobody may go on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tools.lab import Lab, privilege
from tools.measure.programs import environment
from tools.measure.surroundings import terminated_like_interrupted, work_directory
from tools.measure.tail import Tail

PROGRAM = Path(__file__).parents[2] / "tests" / "loopback" / "volatile_member.py"
SITES = {"r0": ("a", "b", "c"), "r1": ("d", "e")}
HOSTS = tuple(itertools.chain.from_iterable(SITES.values()))
STEADY_MIN = 2
"""Members at least that commit, and that nothing is done to: with none of them nobody could let a new one in."""
PAUSE_S = (3.0, 9.0)
"""Between events: a loss is over in three seconds, so some fall into what follows from the one before."""
AWAY_S = (0.5, 12.0)
"""How long one is stopped or cut off: shorter and longer than what makes a loss (2 s) and what loses the register."""
REGISTER_PORT, REGISTER_S = 7000, 5.0
"""A register that does not answer for so long is lost to who asks."""
SEEN_S = 5.0
"""Steps that come so long after an event are its doing."""
DETECTION_S = 2.0
"""A member that is silent for so long is lost (`dead_after_s`). Outages that are shorter are none."""
LEAVE_S = 1.0
"""Who leaves has gone by then."""
JUDGED_MIN = 5
"""Of a kind: the median of fewer is shown, and not judged."""
STALLED_S = 60.0
"""Without a commit: far longer than any loss, and than starting on a busy machine."""
GOES_ON_S = 20.0
"""Who commits so long after two hashes of a step differed was not lost then."""
KEPT_STEPS = 2000
START, KILL, STOP, LEAVE, CUT, APART = "start", "kill", "stop", "leave", "cut off", "sites apart"
FAULTS = (KILL, STOP, LEAVE, CUT, APART)
OVER = {STOP: "goes on", CUT: "reached", APART: "sites joined"}


class History:
    """What members say of their commits, checked as it comes: one chain of steps, the same weights after each.

    Args:
        quorum: steps need not wait for all, so that all who made one may be lost.
    """

    def __init__(self, *, quorum: bool = False) -> None:
        self.commits_s: dict[int, float] = {}
        self.errors: dict[str, str] = {}
        self.wrong: list[str] = []
        self.writes_s: list[float] = []
        """What a write of the register took each member."""
        self.done_again_s: dict[int, float] = {}
        """Steps of which there are two results, and since when."""
        self._quorum = quorum
        self._results: dict[int, dict[str, list[str]]] = {}
        self._last: dict[str, int] = {}
        self._last_s: dict[str, float] = {}
        self._worked_s: dict[str, float] = {}

    def add(self, name: str, said: dict[str, Any]) -> None:
        """Take in a line of a member's."""
        if "state" in said:  # it goes on from there, and whatever it held before is gone
            self._last.pop(name, None)
            for results in self._results.values():
                for names in results.values():
                    names[:] = [one for one in names if one != name]
        if "write_s" in said:
            self.writes_s.append(said["write_s"])
        if "error" in said:
            self.errors[name] = str(said["error"])
        if "step" not in said:
            return
        step, digest = int(said["step"]), str(said["digest"])
        self.commits_s[step] = min(said["at_s"], self.commits_s.get(step, said["at_s"]))
        results = self._results.setdefault(step, {})
        results.setdefault(digest, []).append(name)
        if len(results) > 1:
            self.done_again_s.setdefault(step, said["at_s"])
        if step - KEPT_STEPS not in self.done_again_s:
            self._results.pop(step - KEPT_STEPS, None)
        last = self._last.get(name, step - 1)
        if step != last + 1:
            self.wrong.append(f"{name} committed step {step} after step {last}")
        self._last[name], self._last_s[name] = step, said["at_s"]
        if said["members"]:  # or it learns, and others have made the step
            self._worked_s[name] = said["at_s"]
        self._compare()

    def _compare(self) -> None:
        """Of several results of a step one may go on, where those who held the others were lost."""
        for step, since_s in self.done_again_s.items():
            results = self._results[step].items()
            held = {
                digest: [one for one in names if not self._quorum or self.commits_since(one, since_s + GOES_ON_S)]
                for digest, names in results
            }
            going_on = [f"of {', '.join(names)} {digest}" for digest, names in held.items() if names]
            if len(going_on) > 1:
                self.wrong.append(f"step {step}: the weights are {', '.join(going_on)}")

    def commits_since(self, name: str, at_s: float) -> bool:
        """Whether a member has committed later than that."""
        return self._last_s.get(name, -math.inf) > at_s

    def works_since(self, name: str, at_s: float) -> bool:
        """Whether a member has worked later than that, and so holds what the others hold."""
        return self._worked_s.get(name, -math.inf) > at_s

    def left_out(self) -> list[int]:
        """Steps that nobody committed, before one that somebody did."""
        return sorted(set(range(1, max(self.commits_s, default=0))) - self.commits_s.keys())

    def gap_s(self, at_s: float) -> float:
        """The longest time without a commit around an event, as far as that is `SEEN_S`."""
        end_s = min(at_s + SEEN_S, max(self.commits_s.values(), default=at_s))
        times_s = sorted(one for one in self.commits_s.values() if at_s - 1.0 <= one <= end_s)
        return max((after - before for before, after in itertools.pairwise([*times_s, end_s])), default=SEEN_S)

    def step_s(self) -> float:
        """The median time between two commits."""
        times_s = [self.commits_s[step] for step in sorted(self.commits_s)]
        return statistics.median([after - before for before, after in itertools.pairwise(times_s)] or [0.0])

    def limit_s(self, kind: str) -> float:
        """What a fault may cost. Where links have no delay, a write is a round trip and what the store takes."""
        write_s = statistics.median(self.writes_s or [0.0])
        return (LEAVE_S if kind == LEAVE else DETECTION_S) + 3 * write_s + self.step_s()


@dataclass(frozen=True)
class Member:
    """A process with a name of its own for ever, and where it runs."""

    name: str
    host: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Outage:
    """Hosts that cannot be counted on until `end` is called, at `until_s`."""

    kind: str
    whom: str
    hosts: Sequence[str]
    until_s: float
    end: Callable[[], object]


class Churn:
    """The members of one run, and what is done to them."""

    def __init__(self, lab: Lab, folder: Path, seed: int, wishes: dict[str, Any]) -> None:
        self._lab, self._folder, self._wishes = lab, folder, wishes
        self._random = random.Random(seed)
        self._living: list[Member] = []
        self._outages: list[Outage] = []
        self._back_s: dict[str, float] = {}
        self._tails: dict[str, Tail] = {}
        self._begin_s = time.monotonic()
        self.history = History(quorum=bool(wishes["quorum"]))
        self.events: list[tuple[str, float, float]] = []
        """What was done, when, and for how long."""
        self._address = f"{lab['r0'].address}:{REGISTER_PORT}"
        self._program("r0", "r0")

    def begin(self) -> None:
        """Start some when the register serves, and wait until each has committed."""
        register = Tail(self._folder / "r0")
        while not register.lines() and not self.history.wrong:
            self._wait(0.1)
        for host in HOSTS[: STEADY_MIN + 1]:
            self._start(host)
        while len(self._steady()) <= STEADY_MIN and not self.history.wrong:
            self._wait(0.5)

    def go_on(self) -> None:
        """One event, then a pause in which earlier ones may end."""
        away, steady = self._away(), self._steady()
        free = sorted(set(HOSTS) - away - {one.host for one in self._living})
        targets = [one for one in self._living if one.host not in away and len(steady) - (one in steady) >= STEADY_MIN]
        near = sum(one.host in SITES["r0"] for one in steady)
        doable = [START, START] if free else []
        doable += [KILL, STOP, LEAVE, CUT] if targets else []
        if near >= STEADY_MIN and near < len(steady) and not away.intersection(SITES["r1"]):
            doable.append(APART)
        if doable:
            kind = self._random.choice(doable)
            if kind == START:
                self._start(self._random.choice(free))
            elif kind == APART:
                self._cut(APART, "r0-r1", SITES["r1"])
            else:
                self._disturb(kind, self._random.choice(targets))
        self._wait(self._random.uniform(*PAUSE_S))

    def _away(self) -> set[str]:
        return {host for outage in self._outages for host in outage.hosts}

    def _steady(self) -> list[Member]:
        """Whoever has worked since it was last away: until then it may have been left out, and not know it."""
        return [
            one
            for one in self._living
            if one.host not in self._away() and self.history.works_since(one.name, self._back_s.get(one.host, 0.0))
        ]

    def _start(self, host: str) -> None:
        name = f"m{len(self._tails) + 1:04}"
        wishes = {"name": name, "listen": self._lab[host].address, "store_s": REGISTER_S, **self._wishes}
        self._living.append(Member(name, host, self._program(host, name, json.dumps(wishes))))
        self._tails[name] = Tail(self._folder / name)
        self._note(START, f"{name} in {host}")

    def _disturb(self, kind: str, member: Member) -> None:
        whom = f"{member.name} in {member.host}"
        if kind == CUT:
            site = next(site for site, hosts in SITES.items() if member.host in hosts)
            self._cut(CUT, f"{member.host}-{site}", (member.host,), whom)
            return
        if kind == STOP:
            self._later(STOP, whom, (member.host,), partial(member.process.send_signal, signal.SIGCONT))
        else:
            self._note(kind, whom)
        member.process.send_signal({KILL: signal.SIGKILL, LEAVE: signal.SIGTERM, STOP: signal.SIGSTOP}[kind])

    def _cut(self, kind: str, link: str, hosts: Sequence[str], whom: str = "") -> None:
        self._later(kind, whom or link, hosts, self._lab.links[link].up)
        self._lab.links[link].down()

    def _later(self, kind: str, whom: str, hosts: Sequence[str], end: Callable[[], object]) -> None:
        away_s = self._random.uniform(*AWAY_S)
        self._note(kind, whom, away_s)
        self._outages.append(Outage(kind, whom, hosts, time.monotonic() + away_s, end))

    def _wait(self, seconds: float) -> None:
        """End what is due, and hear what members say, until the time is over or something is wrong."""
        until_s = time.monotonic() + seconds
        while not self.history.wrong and (now_s := time.monotonic()) < until_s:
            for outage in [one for one in self._outages if one.until_s <= now_s]:
                outage.end()
                self._outages.remove(outage)
                self._back_s |= dict.fromkeys(outage.hosts, now_s)
                self._note(OVER[outage.kind], outage.whom)
            self._hear()
            time.sleep(0.1)

    def _hear(self) -> None:
        for name, tail in self._tails.items():
            for said in tail.lines():
                self.history.add(name, said)
        ended = [one for one in self._living if one.process.poll() is not None]
        self._living = [one for one in self._living if one not in ended]
        for one in ended:
            for said in self._tails[one.name].lines():
                self.history.add(one.name, said)
            if one.process.returncode > 0 and one.name not in self.history.errors:
                self.history.wrong.append(f"{one.name} broke down: see {one.name}.errors")
        last_s = max(self.history.commits_s.values(), default=self._begin_s)
        if time.monotonic() - last_s > STALLED_S:
            self.history.wrong.append(f"no commit for {STALLED_S:g} s")

    def _note(self, kind: str, whom: str, lasts_s: float = math.inf) -> None:
        now_s = time.monotonic()
        self.events.append((kind, now_s, lasts_s))
        commits = max(self.history.commits_s, default=0)
        print(f"{now_s - self._begin_s:7.1f} s  {kind:12}  {whom:10}  {commits:7} commits", flush=True)

    def _program(self, host: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), self._address, *arguments]
        with (self._folder / name).open("wb") as output, (self._folder / f"{name}.errors").open("wb") as errors:
            return self._lab[host].popen(command, env=environment(), stdout=output, stderr=errors)


def judged(history: History, events: Sequence[tuple[str, float, float]]) -> tuple[list[str], list[str]]:
    """What each kind of event has cost, and which of them more than it may.

    Args:
        events: as of `Churn`.
    """
    shown, wrong = [], []
    for kind in (START, KILL, STOP, LEAVE, CUT, APART, *OVER.values()):
        gaps_s = [history.gap_s(at_s) for what, at_s, lasts_s in events if what == kind and lasts_s > DETECTION_S]
        if not gaps_s:
            continue
        median_s, limit_s = statistics.median(gaps_s), history.limit_s(kind)
        said = f"{kind:12} {len(gaps_s):5} times; then without a commit: {median_s:.2f} s, {max(gaps_s):.2f} at most"
        if kind in FAULTS:
            few = len(gaps_s) < JUDGED_MIN
            verdict = "too few to judge" if few else "more than allowed" if median_s > limit_s else "good"
            said += f"; allowed in the median: {limit_s:.2f}, {verdict}"
            if not few and median_s > limit_s:
                wrong.append(f"{kind}: {median_s:.2f} s without a commit in the median, and {limit_s:.2f} are allowed")
        shown.append(said)
    return shown, wrong


def report(churn: Churn) -> bool:
    """Print what came of a run; whether nothing is wrong with it."""
    history = churn.history
    times_s = [history.commits_s[step] for step in sorted(history.commits_s)]
    longest_s = max((after - before for before, after in itertools.pairwise(times_s)), default=0.0)
    errors = ", ".join(f"{error} ({count})" for error, count in sorted(Counter(history.errors.values()).items()))
    print(f"{len(times_s)} commits, {history.step_s():.3f} s apart in the median, {longest_s:.1f} s at most")
    print(f"members that gave up: {errors or 'none'}")
    shown, slow = judged(history, churn.events)
    print("\n".join(shown))
    wrong = [*history.wrong, *(f"nobody committed step {step}" for step in history.left_out())]
    if not wrong:
        print("the hashes of the weights are the same after every commit")
    if history.done_again_s:
        print(f"but for {len(history.done_again_s)} steps, which were done again: all who had made them were lost")
    for one in (*wrong, *slow):
        print(f"WRONG: {one}")
    return not wrong and not slow


def lab_of_sites() -> Lab:
    """Two sites with a link between them."""
    lab = Lab("volatile-churn")
    for site, hosts in SITES.items():
        lab.site(site, hosts)
    lab.link(*SITES)
    return lab


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="from the first commit on; 600 without")
    parser.add_argument("--seed", type=int, help="of what is done to whom; another one each time without")
    parser.add_argument("--quorum", type=int, default=0, help="how many a step waits for; 0 for all")
    parser.add_argument("--parameters", type=int, default=200_000)
    parser.add_argument("--keep", type=Path, help="a new folder, to leave what the members have written")
    arguments = parser.parse_args()
    privilege.ensure([sys.executable, "-m", "tools.measure.volatile_churn", *sys.argv[1:]])
    seed = random.randrange(2**31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    wishes = {"quorum": arguments.quorum, "parameters": arguments.parameters, "pause_s": 0.05}
    with terminated_like_interrupted(), work_directory("hq-churn-") as work, lab_of_sites() as lab:
        folder = arguments.keep or work
        folder.mkdir(parents=True, exist_ok=True)
        churn = Churn(lab, folder, seed, wishes)
        with contextlib.suppress(KeyboardInterrupt):
            churn.begin()
            end_s = time.monotonic() + arguments.seconds
            while time.monotonic() < end_s and not churn.history.wrong:
                churn.go_on()
        return 0 if report(churn) and churn.history.commits_s else 1


if __name__ == "__main__":
    sys.exit(main())

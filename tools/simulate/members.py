"""`python -m tools.simulate.members`: a volatile group of up to 1,000 members in virtual time, without a network.

What decides is the real core (`transport.volatile.commit`). Around it is a model of what `transport.volatile.control`
does where its direct messages do not arrive, with a register alone, the slowest way:

- A lost member is noticed by each of the others by itself, from its last acknowledgement on: that came up to one keep-
  alive before the loss. Who notices first freezes and rings the others, which is one way later.
- A frozen member writes where it stands, then reads the view and all members' notes, one after the other, again and
  again. The first living one that has all notes of the living decides. Who has written nothing in time is left out.
- After a new view all write where they listen and read the others' addresses, again one after the other, and connect.
  (A view that only loses members keeps its connections; the model connects anew.)

Sessions have a Weibull distribution of shape 0.7: the time between failures of the machines in Schroeder and Gibson, A
large-scale study of failures in high-performance computing systems (DSN 2006), with shapes of 0.7 to 0.8. So a machine
that has just come is more likely to go than one that has been there for long. Shape 1 is exponential. The mean is an
argument: minutes for lent desktops, days for a cluster. Pauses between two sessions are exponential.

What it leaves out: handing the state to who joins takes no time, and the register answers as many requests as it gets.
How many those are is in the report.

Commits between two changes of the view are alike. The core is driven through the last of them; the others are counted.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from transport.engine.base import EngineSettings
from transport.settings import Settings
from transport.volatile import commit
from transport.volatile import view as views
from transport.volatile.commit import Action, Advance, Commit, Frozen, Left, Send, State
from transport.volatile.control import LATE_S, LOOK_S
from transport.volatile.register import POLL_S, TAG_BYTES, MemoryStore, Register
from transport.volatile.view import DIGEST_BYTES, MEMBERS_MAX, Member, View

SCHEMA = 1
NOTICED_S = 2.0 + Settings.reconnect_s
"""From the last acknowledgement to the loss of a member: the silence that the native engine allows, and its return."""
KEEP_ALIVE_S = EngineSettings.keep_alive_s
MESSAGE_BYTES = 100
"""A message's header and its packet's, as `transport.settings` counts them."""
CONNECT_ROUND_TRIPS = 2
"""A handshake of QUIC, and a hello."""
ADDRESS_BYTES = 300
"""What a rank publishes of itself: addresses, and the fingerprint of its certificate."""
RESULT = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class Network:
    """Where members are and how far from each other.

    Args:
        sites: members are dealt out to them one by one; the register is at the first.
        near_s, far_s: one way within a site, and between two.
    """

    sites: int = 1
    near_s: float = 0.0001
    far_s: float = 0.02

    def way_s(self, one: int, other: int) -> float:
        """One way between two members, by number."""
        return self.near_s if one % self.sites == other % self.sites else self.far_s

    def register_s(self, one: int) -> float:
        """There and back between a member and the register."""
        return 2 * self.way_s(0, one)


@dataclass(frozen=True)
class Churn:
    """How members come and go. `session_s` is a mean, of a Weibull distribution of this shape."""

    session_s: float
    pause_s: float
    shape: float = 0.7

    def session(self, chance: random.Random) -> float:
        """How long a member stays."""
        return chance.weibullvariate(self.session_s / math.gamma(1 + 1 / self.shape), self.shape)

    def pause(self, chance: random.Random) -> float:
        """Until it comes again."""
        return chance.expovariate(1 / self.pause_s)


class _Counting(MemoryStore):
    """Counts what is written."""

    written_bytes = 0

    def set(self, key: str, value: bytes) -> None:
        self.written_bytes += len(value)


@dataclass
class Change:
    """A change of the view: seconds until all survivors had the next view, and until they were connected."""

    lost: int
    joined: int
    agreed_s: float = 0.0
    connected_s: float = 0.0
    requests: int = 0
    register_bytes: int = 0
    committed: bool = False


class SimulatedGroup:
    """A group in virtual time. Members are numbers; those of its view hold the same state at each change."""

    def __init__(self, numbers: Sequence[int], *, network: Network, step_s: float, chance: random.Random) -> None:
        self._network, self._step_s, self._chance = network, step_s, chance
        self._member = {number: Member(f"{number:04}", 1) for number in numbers}
        view = View(1, tuple(sorted(self._member.values())), 0, bytes(DIGEST_BYTES))
        first = next(iter(self._member.values()))
        self.state = commit.begin(first, view)
        self.commits = 0
        self.prepared_bytes = 0

    @property
    def numbers(self) -> list[int]:
        """The members of the present view, in rank order."""
        return [int(one.name) for one in self.state.view.members]

    def exchange_s(self) -> float:
        """From a step's result to its commit on the member that hears last: one way."""
        numbers = self.numbers
        sites = {one % self._network.sites for one in numbers}
        return 0.0 if len(numbers) < 2 else self._network.far_s if len(sites) > 1 else self._network.near_s

    def run(self, seconds: float) -> float:
        """Commit steps for so long; how far into the next one that is, in seconds."""
        period_s = self._step_s + self.exchange_s()
        count = int(seconds / period_s)
        if count:
            self._skip(count - 1)
            self._commit_one()
            others = len(self.state.view.members) - 1
            self.prepared_bytes += count * others * (DIGEST_BYTES + MESSAGE_BYTES)
        return seconds - count * period_s

    def _skip(self, count: int) -> None:
        digest = self.state.digest
        for _ in range(count):
            digest = commit.chained(digest, RESULT)
        self.state = replace(self.state, committed=self.state.committed + count, digest=digest)
        self.commits += count

    def _commit_one(self) -> None:
        """Through the core: the first member is prepared, and hears of all others that they are."""
        step = self.state.committed + 1
        state, actions = commit.reduced(self.state, step, RESULT)
        if len(state.view.members) > 1:
            (said,) = (one.message for one in actions if isinstance(one, Send))
            for one in state.view.members:
                if one != state.me:
                    state, more = commit.received(state, one, said)
                    actions = [*actions, *more]
        if [one.step for one in actions if isinstance(one, Commit)] != [step]:
            raise RuntimeError(f"step {step} was not committed by all members")
        self.state, self.commits = state, self.commits + 1

    def change(self, *, lost: Sequence[int], joining: Sequence[int], into_s: float) -> Change:
        """Members are lost at once, or ask to join: through the core, to a new view that all survivors enter.

        Args:
            into_s: how far into the step that was under way; beyond the step's time it lies in the exchange.
        """
        change = Change(len(lost), len(joining))
        view = self.state.view
        living = [one for one in self.numbers if one not in set(lost)]
        if not living:
            raise RuntimeError("nobody is left")
        all_reduced = into_s > self._step_s  # what the lost ones had to give is with the others
        frozen_s, known = self._freeze_s(living, lost)
        stands: dict[Member, Frozen] = {}
        states: dict[int, State] = {}
        said: dict[int, list[Action]] = {}
        asking = frozenset(self._member.setdefault(one, Member(f"{one:04}", 1)) for one in joining)
        for one in living:
            state = replace(self.state, me=self._member[one])
            if all_reduced:
                state, _ = commit.reduced(state, state.committed + 1, RESULT)
            wanted = asking if one == living[0] else frozenset()
            state, said[one] = commit.changed(state, lost=known[one], joining=wanted)
            (stand,) = (
                send.message for send in said[one] if isinstance(send, Send) and isinstance(send.message, Frozen)
            )
            states[one], stands[state.me] = state, stand
        decider = living[0]
        decided_s, state, view_after = self._decide(states[decider], said[decider], stands, frozen_s)
        round_s = {one: POLL_S + (len(view.members) + 1) * self._network.register_s(one) for one in living}
        entered_s = {one: max(frozen_s[one], decided_s) + self._chance.random() * round_s[one] for one in living}
        entered_s[decider] = decided_s
        self._enter(states, state, decider, view_after, change)
        change.agreed_s = max(entered_s.values())
        after = len(view_after.members)
        waits_s = max(self._network.register_s(one) * (after + 1) for one in self.numbers)
        change.connected_s = change.agreed_s + waits_s + CONNECT_ROUND_TRIPS * 2 * self.exchange_s()
        self._count(change, stands, entered_s, frozen_s, round_s, view_after)
        return change

    def _freeze_s(
        self, living: Sequence[int], lost: Sequence[int]
    ) -> tuple[dict[int, float], dict[int, frozenset[Member]]]:
        """When each survivor freezes, and whom it has noticed to be lost by then."""
        noticed: dict[int, dict[int, float]] = {}
        for one in living:
            noticed[one] = {other: NOTICED_S - self._chance.random() * KEEP_ALIVE_S for other in lost}
        own_s = {one: min(times.values(), default=math.inf) for one, times in noticed.items()}
        if not lost:  # the first member looks who asks
            own_s[living[0]] = self._chance.random() * LOOK_S + self._network.register_s(living[0])
        first = min(living, key=lambda one: own_s[one])
        frozen_s = {one: min(own_s[one], own_s[first] + self._network.way_s(first, one)) for one in living}
        frozen_s[first] = own_s[first]
        known = {
            one: frozenset(self._member[other] for other, at_s in noticed[one].items() if at_s <= frozen_s[one])
            for one in living
        }
        return frozen_s, known

    def _decide(
        self,
        state: State,
        actions: list[Action],
        stands: Mapping[Member, Frozen],
        frozen_s: Mapping[int, float],
    ) -> tuple[float, State, View]:
        """The first living member reads the others' notes, round after round, until it may decide."""
        me = int(state.me.name)
        trip_s = self._network.register_s(me)
        now_s = frozen_s[me] + trip_s
        written_s = {
            self._member[one]: at_s + self._network.register_s(one) / 2 for one, at_s in frozen_s.items() if one != me
        }
        heard: set[Member] = set()
        while True:
            for place, one in enumerate(state.view.members, 1):
                if one in written_s and one not in heard and written_s[one] <= now_s + place * trip_s:
                    heard.add(one)
                    state, more = commit.received(state, one, stands[one])
                    actions += more
            now_s += (len(state.view.members) + 1) * trip_s
            if now_s - frozen_s[me] > LATE_S:
                state, more = commit.changed(state, lost=frozenset(state.view.members) - heard - {state.me})
                actions += more
            for action in actions:
                if isinstance(action, Advance):
                    return now_s + trip_s, state, action.view
            now_s += POLL_S

    def _enter(self, states: Mapping[int, State], decided: State, decider: int, after: View, change: Change) -> None:
        """All survivors enter the new view; who joins has the state as soon as it is connected."""
        before = self.state.committed
        settled = replace(after, joining=())
        for one, state in {**states, decider: decided}.items():
            entered, actions = commit.entered(state, after)
            if any(isinstance(action, Left) for action in actions):
                continue  # it was left out, and would have to join anew
            if (entered.committed, entered.digest) != (after.base_step, after.digest):
                raise RuntimeError(f"{one} does not hold what the view says")
            if entered.me == after.members[0]:
                self.state = replace(entered, view=settled)
        if self.state.view != settled:  # the first member has just joined
            self.state = commit.begin(after.members[0], settled)
        change.committed = after.base_step > before
        self.commits += after.base_step - before

    def _count(
        self,
        change: Change,
        stands: Mapping[Member, Frozen],
        entered_s: Mapping[int, float],
        frozen_s: Mapping[int, float],
        round_s: Mapping[int, float],
        after: View,
    ) -> None:
        """What the register has to do: notes written, rounds of reading, addresses written and read."""
        view_bytes = len(views.encode(after)) + TAG_BYTES
        store = _Counting()
        for one, stand in stands.items():
            Register(store, job="simulated").say_frozen(one, stand)
        note_bytes = store.written_bytes / len(stands)
        rounds = sum(math.ceil((entered_s[one] - frozen_s[one]) / round_s[one]) for one in entered_s)
        living, size = len(entered_s), len(after.members)
        change.requests = living + rounds * (living + 1) + size + size * size
        addresses_bytes = size * (size + 1) * ADDRESS_BYTES
        change.register_bytes = round(living * (1 + rounds) * note_bytes + rounds * view_bytes) + addresses_bytes


@dataclass(frozen=True)
class Outcome:
    """What a group did in a while of churn, and how it took a mass loss."""

    seconds: float
    commits: int
    ideal: int
    changes: Sequence[Change]
    members_mean: float
    prepared_bytes: int


def churn(
    count: int, *, network: Network, step_s: float, model: Churn, seconds: float, chance: random.Random
) -> Outcome:
    """Let a group of `count` train while its members go and come again."""
    group = SimulatedGroup(range(count), network=network, step_s=step_s, chance=chance)
    events = [(model.session(chance), one, True) for one in range(count)]
    heapq.heapify(events)
    now_s = members_s = 0.0
    into_s = 0.0
    changes: list[Change] = []
    while now_s < seconds:
        at_s = max(min(events[0][0], seconds), now_s)
        members_s += (at_s - now_s) * len(group.numbers)
        into_s = group.run(at_s - now_s)
        now_s = at_s
        if now_s >= seconds:
            break
        lost, joining = [], []
        while events and events[0][0] <= now_s:  # what came while the view changed waits for the next change
            _, one, leaves = heapq.heappop(events)
            if leaves:
                lost += [one] if one in group.numbers else []
                heapq.heappush(events, (now_s + model.pause(chance), one, False))
            else:
                joining.append(one)
                heapq.heappush(events, (now_s + model.session(chance), one, True))
        joining = [one for one in joining if one not in group.numbers]
        if len(lost) >= len(group.numbers):
            lost = lost[1:]  # the last one stays, or the run would be over
        change = group.change(lost=lost, joining=joining, into_s=into_s)
        changes.append(change)
        members_s += change.connected_s * len(group.numbers)
        now_s += change.connected_s
    ideal = int(now_s / (step_s + group.exchange_s()))
    return Outcome(now_s, group.commits, ideal, changes, members_s / max(now_s, 1e-9), group.prepared_bytes)


def mass_loss(
    count: int, *, share: float, tries: int, network: Network, step_s: float, chance: random.Random
) -> list[Change]:
    """How a whole group takes it that a share of its members goes at the same time."""
    found = []
    for _ in range(tries):
        group = SimulatedGroup(range(count), network=network, step_s=step_s, chance=chance)
        group.run(3 * (step_s + group.exchange_s()))
        lost = sorted(chance.sample(range(count), min(max(round(share * count), 1), count - 1)))
        found.append(group.change(lost=lost, joining=(), into_s=chance.random() * (step_s + group.exchange_s())))
    return found


def figures(count: int, outcome: Outcome, losses: Mapping[float, Sequence[Change]]) -> dict[str, Any]:
    """The report of one size, as plain values."""
    busy_s = sum(one.connected_s for one in outcome.changes)
    members = max(outcome.members_mean, 1.0)
    return {
        "members": count,
        "members_mean": round(outcome.members_mean, 1),
        "seconds": round(outcome.seconds, 1),
        "commits_per_s": round(outcome.commits / outcome.seconds, 4),
        "of_ideal": round(outcome.commits / outcome.ideal, 4) if outcome.ideal else None,
        "changes": len(outcome.changes),
        "changing_part": round(busy_s / outcome.seconds, 4),
        "commit_bytes_per_s_and_member": round(outcome.prepared_bytes / outcome.seconds),
        "register_bytes_per_s_and_member": round(
            sum(one.register_bytes for one in outcome.changes) / outcome.seconds / members
        ),
        "register_requests_of_a_change_median": (
            statistics.median(one.requests for one in outcome.changes) if outcome.changes else 0
        ),
        "mass_loss": [
            {
                "share": share,
                "agreed_s_median": round(statistics.median(one.agreed_s for one in found), 3),
                "agreed_s_max": round(max(one.agreed_s for one in found), 3),
                "connected_s_median": round(statistics.median(one.connected_s for one in found), 3),
                "register_requests_median": statistics.median(one.requests for one in found),
            }
            for share, found in losses.items()
        ],
    }


def print_table(console: Console, report: Mapping[str, Any]) -> None:
    """One row a size."""
    shares = report["shares"]
    title = (
        f"steps of {report['step_s']:g} s, {report['sites']} sites, seed {report['seed']}; sessions of "
        f"{report['session_s']:g} s (Weibull, shape {report['shape']:g}), pauses of {report['pause_s']:g} s"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("members", "there", "commits/s", "of ideal", "changes", "control, B/s", "register, B/s"):
        table.add_column(name, justify="right")
    for share in shares:
        table.add_column(f"{100 * share:g} % lost: agreed (max), connected, requests", justify="right")
    for one in report["sizes"]:
        table.add_row(
            str(one["members"]),
            f"{one['members_mean']:g}",
            f"{one['commits_per_s']:.3g}",
            "-" if one["of_ideal"] is None else f"{one['of_ideal']:.2f}",
            str(one["changes"]),
            f"{one['commit_bytes_per_s_and_member']:,}",
            f"{one['register_bytes_per_s_and_member']:,}",
            *(
                f"{loss['agreed_s_median']:.1f} ({loss['agreed_s_max']:.1f}), {loss['connected_s_median']:.1f} s, "
                f"{loss['register_requests_median']:,.0f}"
                for loss in one["mass_loss"]
            ),
        )
    console.print(table)


app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def simulate_members(
    members: Annotated[list[int] | None, typer.Argument(help="Sizes of groups.", min=2, max=MEMBERS_MAX)] = None,
    seconds: Annotated[float, typer.Option(help="How long each trains.", min=1.0)] = 3600.0,
    step_s: Annotated[float, typer.Option(help="Of a step, or a round of DiLoCo, without the commit.", min=1e-3)] = 1.0,
    session_s: Annotated[float, typer.Option(help="How long a member stays, on average.", min=1.0)] = 4 * 3600.0,
    pause_s: Annotated[float, typer.Option(help="How long it is away, on average.", min=1.0)] = 600.0,
    shape: Annotated[float, typer.Option(help="Of the sessions' Weibull distribution.", min=0.2, max=5.0)] = 0.7,
    sites: Annotated[int, typer.Option(help="The register is at the first.", min=1, max=64)] = 1,
    near_ms: Annotated[float, typer.Option(help="One way within a site.", min=0.0)] = 0.1,
    far_ms: Annotated[float, typer.Option(help="One way between sites.", min=0.0)] = 20.0,
    loss: Annotated[list[float] | None, typer.Option(help="Shares that are lost at once.", min=0.0, max=0.99)] = None,
    tries: Annotated[int, typer.Option(help="Mass losses of each share.", min=1, max=1000)] = 5,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Give the report as JSON.")] = False,
) -> None:
    """Simulate volatile groups of several sizes in virtual time: what churn and mass losses cost them."""
    network = Network(sites, near_ms / 1e3, far_ms / 1e3)
    model = Churn(session_s, pause_s, shape)
    shares = loss or [0.1, 0.5]
    sizes = []
    for count in members or [8, 64, 256]:
        chance = random.Random(f"{seed}/{count}")
        outcome = churn(count, network=network, step_s=step_s, model=model, seconds=seconds, chance=chance)
        losses = {
            share: mass_loss(count, share=share, tries=tries, network=network, step_s=step_s, chance=chance)
            for share in shares
        }
        sizes.append(figures(count, outcome, losses))
    report = {
        "schema": SCHEMA,
        "seed": seed,
        "step_s": step_s,
        "sites": sites,
        "session_s": session_s,
        "pause_s": pause_s,
        "shape": shape,
        "shares": shares,
        "sizes": sizes,
    }
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    console = Console()
    print_table(console if console.is_terminal else Console(width=160), report)


if __name__ == "__main__":
    app()

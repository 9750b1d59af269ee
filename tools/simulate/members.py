"""`python -m tools.simulate.members`: what churn and mass losses cost volatile groups of up to 1,000 members.

`tools.simulate.volatile_group` says what is modelled, and how.
"""

from __future__ import annotations

import heapq
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hive_qos.units import format_size
from tools.simulate.volatile_group import Change, Churn, Network, SimulatedGroup
from transport.volatile.protocol.view import MEMBERS_MAX

SCHEMA = 2


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
        if len(lost) >= len(group.numbers):
            lost = lost[1:]  # the last one stays, or the run would be over
        joining = [one for one in joining if one not in group.numbers]
        new = [group.lose(lost, into_s=into_s)] if lost else []
        new += [group.admit(joining)] if joining else []
        for change in new:
            changes.append(change)
            members_s += change.agreed_s * len(group.numbers)
            now_s += change.agreed_s
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
        found.append(group.lose(lost, into_s=chance.random() * (step_s + group.exchange_s())))
    return found


def figures(count: int, outcome: Outcome, losses: Mapping[float, Sequence[Change]]) -> dict[str, Any]:
    """The report of one size, as plain values."""
    busy_s = sum(one.agreed_s for one in outcome.changes)
    return {
        "members": count,
        "members_mean": round(outcome.members_mean, 1),
        "seconds": round(outcome.seconds, 1),
        "commits_per_s": round(outcome.commits / outcome.seconds, 4),
        "of_ideal": round(outcome.commits / outcome.ideal, 4) if outcome.ideal else None,
        "changes": len(outcome.changes),
        "changing_part": round(busy_s / outcome.seconds, 4),
        "commit_bytes_per_s_and_member": round(outcome.prepared_bytes / outcome.seconds),
        "change_bytes_per_s_and_member": round(sum(one.sent_bytes for one in outcome.changes) / outcome.seconds),
        "register_requests_of_a_change_median": (
            statistics.median(one.requests for one in outcome.changes) if outcome.changes else 0
        ),
        "mass_loss": [
            {
                "share": share,
                "agreed_s_median": round(statistics.median(one.agreed_s for one in found), 3),
                "agreed_s_max": round(max(one.agreed_s for one in found), 3),
                "sent_bytes_of_a_member_median": statistics.median(one.sent_bytes for one in found),
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
    for name in ("members", "there", "commits/s", "of ideal", "changes", "commits, B/s", "changes, B/s"):
        table.add_column(name, justify="right")
    for share in shares:
        table.add_column(f"{100 * share:g} % lost: agreed (max), sent, requests", justify="right")
    for one in report["sizes"]:
        table.add_row(
            str(one["members"]),
            f"{one['members_mean']:g}",
            f"{one['commits_per_s']:.3g}",
            "-" if one["of_ideal"] is None else f"{one['of_ideal']:.2f}",
            str(one["changes"]),
            f"{one['commit_bytes_per_s_and_member']:,}",
            f"{one['change_bytes_per_s_and_member']:,}",
            *(
                f"{loss['agreed_s_median']:.2f} ({loss['agreed_s_max']:.2f}) s, "
                f"{format_size(round(loss['sent_bytes_of_a_member_median']))}, {loss['register_requests_median']:,.0f}"
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

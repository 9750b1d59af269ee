"""Decide by the destinations' votes whether there is a queue elsewhere, and whether packets are lost.

A destination that our own kernel measured, by TCP_INFO or by the echo of a probe, has a vote. Programs may report
invented peers. So all reports of one user's programs are one vote, that of the majority of the reported peers. This
module keeps no state; broker.law.capacity.signals does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct

from broker.law.capacity.delivery_rate import FRESH_S
from broker.law.capacity.flow_delay import FLOWS_MAX, REPORT, class_index, peer_of_user
from broker.law.capacity.state import DestinationState, SignalState
from broker.model.fair_share import in_turns
from broker.model.values import FlowSample

Value = TypeVar("Value")
Sample = TypeVar("Sample", tuple[float, float], tuple[float, float, float])
"""When it was taken, and by how much it was late, exactly or at least and at most."""

HIGH, OF = 3, 4
"""Three of the last four samples: one scheduling hiccup of any length is one sample. Found after 0.3 to 0.4 s."""
VOTE_S, SLOW_S, SLOW_APART_S = 0.8, 2.5, 0.5
"""The age up to which samples vote together: eight ticks. Of samples once a second the last two vote."""
LOSS_PART, LOSS_SENT_SURE = 0.01, 100
"""Any link loses up to 1 %, or seems to. At a loss of 5 % a hundred packets all arrive once in 170 times. No probe
starts while most votes that are sure report more: a lossy Wi-Fi stays below, a full short buffer does not."""

_Vote: TypeAlias = tuple[int, int]
"""1, -1 or 0: sees a queue, surely sees none, is not sure; and the same from one-way measurements alone."""


class DestinationReport(Struct, frozen=True):
    """What one destination reports, for the status.

    Fields: `excess_s` the least delay of its last packet beyond baseline and our own queue; `baseline_s` the least
    round trip to it, None where none is known; `source` as in `FlowSample`; `uid` the user whose programs report it
    where the source is "report"; `two_way` whether the return path is included, so that it can only deny a queue;
    `sees_queue` None where it is not sure.
    """

    address: str
    excess_s: float
    baseline_s: float | None
    source: str
    two_way: bool
    sees_queue: bool | None
    uid: int | None


def agree(
    state: SignalState, *, now_s: float, threshold_s: float, high: int, of: int, stalled: Collection[str] = (),
    shared: bool = False,
) -> int:  # fmt: skip
    """How many destinations see a queue, with one vote each; 0 unless they prevail.

    Most of the outbound votes have to see one surely. With one-way measurements it is enough that more of them see a
    queue than surely see none: an unsure destination, whose delay our own queue may explain, does not vote. A two-way
    vote can only deny a queue. One user's programs have one vote, by the same rule among their peers.

    Args:
        state: the signals.
        now_s: the tick's time.
        threshold_s: what counts as a queue.
        high, of: a destination sees a queue when `high` of its last `of` samples do; of samples once a second, two.
        stalled: destinations that count as unsure, as `broker.law.capacity.delivery_rate` finds them.
        shared: two destinations have to see one, and one of them by our own measurement.
    """
    votes: list[tuple[DestinationState, _Vote]] = []
    clear_two_way: list[tuple[DestinationState, bool]] = []
    for entry in state.destinations:
        if entry.two_way:
            if (clear := _is_clear(entry, now_s=now_s, threshold_s=threshold_s)) is not None:
                clear_two_way.append((entry, clear))
            continue
        vote = _sees(entry, now_s=now_s, threshold_s=threshold_s, high=high, of=of)
        if vote is not None:
            vote = 0 if peer_of_user(entry.uid, entry.peer) in stalled else vote
            votes.append((entry, (vote, vote if entry.one_way else 0)))
    by_voter = _by_voter(votes, together=_one_vote)
    if _one_vote(by_voter)[0] <= 0 or _most(_by_voter(clear_two_way, together=_most)):
        return 0
    see = [entry for entry, (vote, _) in votes if vote > 0]
    seeing = _at_most_peers(sum(vote > 0 for vote, _ in by_voter), (entry.peer for entry in see))
    return 0 if shared and (seeing < 2 or all(entry.source == REPORT for entry in see)) else seeing


def voting(samples: Sequence[Sample], *, now_s: float, high: int = HIGH, of: int = OF) -> tuple[list[Sample], int]:
    """The last samples of a series, which vote together, and how many of them have to see a queue.

    Where samples come about once a second, these are the last two.
    """
    slow = samples[-2:]
    if len(slow) == 2 and slow[1][0] - slow[0][0] > SLOW_APART_S:
        return [sample for sample in slow if sample[0] > now_s - SLOW_S], 2
    return [sample for sample in samples[-of:] if sample[0] > now_s - VOTE_S], high


def _sees(entry: DestinationState, *, now_s: float, threshold_s: float, high: int, of: int) -> int | None:
    """A one-way destination's vote: 1, -1 or 0 as in `_Vote`; None without fresh samples."""
    fresh, needed = voting(entry.excess, now_s=now_s, high=high, of=of)
    if len(fresh) < 2:
        return None
    if sum(least_s > threshold_s for _, least_s, _ in fresh) >= needed:
        return 1
    return -1 if 2 * sum(most_s <= threshold_s for _, _, most_s in fresh) >= len(fresh) else 0


def _is_clear(entry: DestinationState, *, now_s: float, threshold_s: float) -> bool | None:
    """Whether most of a two-way destination's last samples show no queue; None without samples."""
    recent = [sample for sample in entry.excess if sample[0] > now_s - FRESH_S]
    return 2 * sum(most_s <= threshold_s for _, _, most_s in recent) > len(recent) if recent else None


def destination_reports(
    state: SignalState, *, flows: Sequence[FlowSample], threshold_s: float, high: int, of: int
) -> list[DestinationReport]:  # fmt: skip
    """What each destination reports as of the last tick, for the status.

    At most `FLOWS_MAX` are listed: those that our kernel measured first, then as many of each user's.

    Args:
        flows: as of that tick, with each connection's peer.
        threshold_s, high, of: as in `agree`.
    """
    if not state.ticks:
        return []
    now_s, by_key = state.ticks[-1].at_s, {flow.key: flow for flow in flows}
    baselines: dict[str, float] = {}
    for known in state.flows:
        if known.key in by_key and known.baseline_s is not None:
            peer = by_key[known.key].peer
            baselines[peer] = min(known.baseline_s, baselines.get(peer, math.inf))
    found = []
    for entry in state.destinations:
        if entry.excess[-1][0] <= now_s - FRESH_S:
            continue
        vote = None if entry.two_way else _sees(entry, now_s=now_s, threshold_s=threshold_s, high=high, of=of)
        sees = {1: True, -1: False}.get(vote or 0)
        if entry.two_way and _is_clear(entry, now_s=now_s, threshold_s=threshold_s):
            sees = False
        excess_s = entry.excess[-1][1]
        found.append(
            DestinationReport(
                entry.peer, excess_s, baselines.get(entry.peer), entry.source, entry.two_way, sees, entry.uid
            )
        )
    measured = [one for one in found if one.source != REPORT]
    reported = in_turns([one for one in found if one.source == REPORT], of=lambda one: one.uid)
    return [*measured, *reported][:FLOWS_MAX]


def dropping(state: SignalState) -> set[int]:
    """The classes, by their place in `CLASS_NAMES`, whose own queues dropped packets within `KEPT_S`."""
    return {index for tick in state.ticks for index, dropped in enumerate(tick.dropped_packets) if dropped}


def losing(state: SignalState, flows: Sequence[FlowSample]) -> int:
    """How many destinations lose packets on the path, with one vote each; 0 unless most of those that are sure do.

    Connections of classes that dropped packets here lately do not count.
    """
    ours = dropping(state)
    known = {flow.key: flow for flow in state.flows}
    lost: list[tuple[FlowSample, tuple[int, int]]] = []
    for sample in flows:
        points = known[sample.key].points if sample.key in known else ()
        if points and class_index(sample) not in ours:
            lost.append((sample, (points[-1][3] - points[0][3], points[-1][2] - points[0][2])))
    votes = [_loses(pair) for pair in _by_voter(lost, together=_summed)]
    sure = [loses for loses in votes if loses is not None]
    return _at_most_peers(sum(sure), (sample.peer for sample, pair in lost if _loses(pair))) if _most(sure) else 0


def clear(state: SignalState, *, two_way: bool, since_s: float, threshold_s: float) -> bool | None:
    """Whether at least half of one kind's destinations that reported since a time surely see no queue.

    None: none of them reported.
    """
    of_kind = [entry for entry in state.destinations if entry.two_way is two_way]
    reported = [(entry, [most_s for at_s, _, most_s in entry.excess[-2:] if at_s >= since_s]) for entry in of_kind]
    worst = _by_voter(((entry, max(excess)) for entry, excess in reported if excess), together=_lower_middle)
    return _lower_middle(worst) <= threshold_s if worst else None


def median_of_voters(reports: Iterable[tuple[DestinationState, float]]) -> float | None:
    """The median of what destinations report, each user's programs with one vote; None where none does."""
    votes = _by_voter(reports, together=_middle)
    return _middle(votes) if votes else None


class _Reporter(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def uid(self) -> int | None: ...


def _by_voter(
    reports: Iterable[tuple[_Reporter, Value]], *, together: Callable[[Sequence[Value]], Value]
) -> list[Value]:  # fmt: skip
    """The votes: one for each destination that our kernel measured, and one for each user's programs."""
    found: list[Value] = []
    by_user: dict[int | None, list[Value]] = {}
    for reporter, value in reports:
        if reporter.source == REPORT:
            by_user.setdefault(reporter.uid, []).append(value)
        else:
            found.append(value)
    return [*found, *(together(values) for values in by_user.values())]


def _at_most_peers(votes: int, peers: Iterable[str]) -> int:
    """Limit the votes to one for each destination."""
    return min(votes, len(set(peers)))


def _one_vote(votes: Sequence[_Vote]) -> _Vote:
    """Combine several votes into one."""
    total, alone = sum(vote for vote, _ in votes), sum(alone for _, alone in votes)
    sees = _most([vote > 0 for vote, _ in votes]) or min(total, alone) > 0
    together = 1 if sees else min(0, max(-1, total))
    return together, together if any(alone for _, alone in votes) else 0


def _most(votes: Sequence[bool]) -> bool:
    return 2 * sum(votes) > len(votes)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _lower_middle(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _loses(pair: tuple[int, int]) -> bool | None:
    """Whether a path loses packets, from the counts lost and sent; None where too few were sent."""
    lost, sent = pair
    return True if lost > 0 and lost >= LOSS_PART * sent else False if sent >= LOSS_SENT_SURE else None


def _summed(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(one for one, _ in pairs), sum(other for _, other in pairs)

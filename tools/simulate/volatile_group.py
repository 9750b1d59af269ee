"""A volatile group in virtual time, without a network.

What decides is the real core (`transport.volatile.protocol`). Around it is a model of what `transport.volatile.control`
does:

- A lost member is noticed by each of the others by itself, from its last acknowledgement on: that came up to one keep-
  alive before the loss. Who notices tells all others where it stands and whom it misses, and so does whoever hears it,
  again with each one more that is missed.
- The first living member decides when it knows where all living ones stand, asks the register to take the next view,
  and tells the others, who read it there. The connections stay.
- Who has waited for that for a moment looks into the register now and then, and leaves a note there.
- Who joins connects and learns beside the steps. The view changes twice for it, at the ends of steps.

Each message takes its sender and its receiver `MAIL_S` of a processor, one after the other: of a thousand members a
round of messages is a million.

Sessions have a Weibull distribution of shape 0.7: the time between failures of the machines in Schroeder and Gibson, A
large-scale study of failures in high-performance computing systems (DSN 2006), with shapes of 0.7 to 0.8. So a machine
that has just come is more likely to go than one that has been there for long. Shape 1 is exponential. The mean is an
argument: minutes for lent desktops, days for a cluster. Pauses between two sessions are exponential.

What it leaves out: the time from a request to join until the state has been fetched, in which the others go on, and
how many requests the register can answer at a time. How many there are is in the report.

Commits between two changes of the view are alike. The core is driven through the last of them; the others are counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from transport.engine.base import EngineSettings
from transport.volatile.membership.succession import NOTE_S, SIDE_S
from transport.volatile.protocol import commit, messages
from transport.volatile.protocol.commit import Action, Advance, Commit, Frozen, Left, Send, State
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import POLL_S

NOTICED_S = 2.0
"""From the last acknowledgement to the loss of a member: the silence that the native engine allows."""
KEEP_ALIVE_S = EngineSettings.keep_alive_s
MESSAGE_BYTES = 100
"""A message's header and its packet's, as `transport.settings` counts them."""
MAIL_S = 80e-6
"""Of a processor for a small message, its sender's and its receiver's alike: 167 us for both over loopback."""
TAKE_S = 0.5e-6
"""The same for the core's part of taking one in, for each member of the view: measured with 100 to 1,000."""
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


@dataclass
class Change:
    """What changes of the view cost: seconds without steps, until all who stay work in the new view.

    Args:
        requests: to the register.
        sent_bytes: of each member's messages, about.
    """

    lost: int = 0
    joined: int = 0
    agreed_s: float = 0.0
    requests: int = 0
    sent_bytes: int = 0
    committed: bool = False


class SimulatedGroup:
    """A group in virtual time. Members are numbers; those of its view hold the same state at each change."""

    def __init__(self, numbers: Sequence[int], *, network: Network, step_s: float, chance: random.Random) -> None:
        self._network, self._step_s, self._chance = network, step_s, chance
        members = tuple(sorted(map(_member, numbers)))
        self.state = commit.begin(members[0], View(1, members, 0, bytes(DIGEST_BYTES)))
        self.commits = 0
        self.prepared_bytes = 0

    @property
    def numbers(self) -> list[int]:
        """The members of the present view, in rank order."""
        return [int(one.name) for one in self.state.view.members]

    def exchange_s(self) -> float:
        """From a step's result to its commit on the member that hears last: a message to each of the others, one way,
        and one from each."""
        numbers = self.numbers
        if len(numbers) < 2:
            return 0.0
        sites = {one % self._network.sites for one in numbers}
        way_s = self._network.far_s if len(sites) > 1 else self._network.near_s
        return way_s + 2 * (len(numbers) - 1) * MAIL_S

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
        """Through the core: one member is prepared, and hears of all others that they are."""
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

    def lose(self, lost: Sequence[int], *, into_s: float) -> Change:
        """Members are gone at once, and all others enter the next view, through the core.

        Args:
            into_s: how far into the step that was under way; beyond the step's time it lies in the exchange.
        """
        living = [one for one in self.numbers if one not in set(lost)]
        if not living:
            raise RuntimeError("nobody is left")
        heard_s = self._heard_s(living, lost)
        all_reduced = into_s > self._step_s  # what the lost ones had to give is with the others
        states = self._each_site(living, all_reduced=all_reduced)
        change = self._agreed(living, states, heard_s)
        change.lost = len(lost)
        return change

    def admit(self, joining: Sequence[int]) -> Change:
        """Others have connected, and learn; when they have, they work: two changes at the ends of steps."""
        asking = frozenset(map(_member, joining))
        living = [one for one in self.numbers if _member(one) not in asking]
        whole = Change(joined=len(joining))
        for new, learnt in ((asking, frozenset[Member]()), (frozenset[Member](), asking)):
            states = self._each_site(living)
            first = states[living[0]]
            states[living[0]], _ = commit.changed(first, joining=new, ready=learnt, at_boundary=True)
            change = self._agreed(living, states, {})
            whole.agreed_s += change.agreed_s
            whole.requests += change.requests
            whole.sent_bytes += change.sent_bytes
        size = len(self.numbers)
        whole.requests += size * (size + 1)  # each writes its address and reads all others', beside the steps
        return whole

    def _each_site(self, living: Sequence[int], *, all_reduced: bool = False) -> dict[int, State]:
        """The states of the first one, and of one other of each site: all of a site hear and say the same."""
        some = {one % self._network.sites: one for one in living[1:]}.values()
        states = {one: replace(self.state, me=_member(one)) for one in (living[0], *some)}
        if not all_reduced:
            return states
        return {one: commit.reduced(each, each.committed + 1, RESULT)[0] for one, each in states.items()}

    def _heard_s(self, living: Sequence[int], lost: Sequence[int]) -> dict[int, dict[Member, float]]:
        """When each site knows of each lost member: by its own, or by another's word."""
        sites = {one % self._network.sites for one in living}
        first = {site: dict.fromkeys(map(_member, lost), math.inf) for site in sites}
        for one in living:
            noticed = first[one % self._network.sites]
            for gone in noticed:
                noticed[gone] = min(noticed[gone], NOTICED_S - self._chance.random() * KEEP_ALIVE_S)
        return {
            site: {
                gone: min(first[other][gone] + self._network.way_s(other, site) for other in sites)
                for gone in first[site]
            }
            for site in sites
        }

    def _agreed(
        self,
        living: Sequence[int],
        states: Mapping[int, State],
        heard_s: Mapping[int, Mapping[Member, float]],
    ) -> Change:
        """From the members' freezing to the view that all of them have entered.

        The first living member is driven through the core. Every other one sends about as much as it does.

        Args:
            states: of the first living one, and of one of each site.
            heard_s: of `_heard_s`; without, all freeze now, at the end of a step.
        """
        before, decider, sites = self.state.view, living[0], self._network.sites
        others = len(before.members) - 1
        said: dict[int, Frozen] = {}
        frozen_s: dict[int, float] = {}
        for one, state in states.items():
            known = heard_s.get(one % sites, {})
            frozen_s[one % sites] = at_s = min(known.values(), default=0.0)
            gone = frozenset(one for one in known if known[one] <= at_s)
            frozen, does = commit.changed(state, lost=gone, between_steps=not heard_s)
            if one == decider:
                actions, deciding = does, frozen
            else:
                (said[one % sites],) = _said(does)
        stands = {_member(one): said[one % sites] for one in living[1:]}
        arrives_s = {
            _member(one): frozen_s[one % sites] + others * MAIL_S + self._network.way_s(one, decider)
            for one in living[1:]
        }
        state_s = frozen_s[decider % sites]
        missed_s = heard_s.get(decider % self._network.sites, {})
        now_s, sent, deciding, after = self._decided(deciding, actions, stands, arrives_s, missed_s, begin_s=state_s)
        if 2 * len(missed_s) > len(before.workers):
            now_s += SIDE_S
        now_s += self._network.register_s(decider)
        hears_s = {
            one: others * MAIL_S + self._network.way_s(decider, one) + self._network.register_s(one)
            for one in living[1:]
        }
        entered_s = {decider: now_s} | {one: now_s + more_s for one, more_s in hears_s.items()}
        committed = self._enter({**states, decider: deciding}, after)
        waits_s = {one: max(entered_s[one] - frozen_s[one % sites] - NOTE_S, 0.0) for one in living}
        looks = sum(
            math.ceil(waits_s[one] / (POLL_S + self._network.register_s(one))) + math.ceil(waits_s[one] / NOTE_S)
            for one in living
        )
        return Change(
            agreed_s=max(entered_s.values()),
            requests=len(living) + looks,
            sent_bytes=sum(len(messages.encode(one)) + MESSAGE_BYTES for one in sent) * others,
            committed=committed,
        )

    def _decided(
        self,
        state: State,
        actions: list[Action],
        stands: Mapping[Member, Frozen],
        arrives_s: Mapping[Member, float],
        missed_s: Mapping[Member, float],
        *,
        begin_s: float,
    ) -> tuple[float, list[Frozen], State, View]:
        """Turn after turn, take what has come, and tell all others what is new: when the next view is known, and what
        was sent."""
        others, sent, now_s = len(state.view.members) - 1, list[Frozen](), begin_s
        coming: list[tuple[float, Member, bool]] = sorted(
            [(at_s, who, True) for who, at_s in arrives_s.items()]
            + [(at_s, who, False) for who, at_s in missed_s.items() if who not in state.lost]
        )
        place = 0
        while True:
            news = _said(actions)
            sent += news
            now_s += others * MAIL_S * len(news)
            now_s += len(stands) * (MAIL_S + TAKE_S * others) * (len(news) if place else 0)  # the others say it, too
            for one in actions:
                if isinstance(one, Advance):
                    return now_s, sent, state, one.view
            if place == len(coming):
                raise RuntimeError("all have said where they stand, and nothing is decided")
            now_s = max(now_s, coming[place][0])
            actions, gone = [], set()
            while place < len(coming) and coming[place][0] <= now_s:
                _, who, speaks = coming[place]
                place += 1
                if not speaks:
                    gone.add(who)
                    continue
                now_s += MAIL_S + TAKE_S * others
                state, more = commit.received(state, who, stands[who])
                actions += more
            if gone - state.lost:
                state, more = commit.changed(state, lost=frozenset(gone))
                actions += more

    def _enter(self, states: Mapping[int, State], after: View) -> bool:
        """All members enter the new view; whether the step that was under way is committed with it."""
        before, entered = self.state.committed, self.state
        for one, state in states.items():
            entered, actions = commit.entered(state, after)
            if any(isinstance(action, Left) for action in actions):
                raise RuntimeError(f"{one} was left out")
            if (entered.committed, entered.digest) != (after.base_step, after.digest):
                raise RuntimeError(f"{one} does not hold what the view says")
        self.state = entered
        self.commits += after.base_step - before
        return after.base_step > before


def _said(actions: Sequence[Action]) -> list[Frozen]:
    return [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, Frozen)]


def _member(number: int) -> Member:
    return Member(f"{number:04}", 1)

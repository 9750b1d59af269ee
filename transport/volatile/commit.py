"""All members of a view commit a step's result, or none does: the decision, without a socket and without a clock.

    REDUCING --reduced--> PREPARED --prepared by everybody--> REDUCING (the step is committed)
    REDUCING, PREPARED --a member is lost--> FROZEN --the next view--> REDUCING, or OUT where it is without us

A member that has the whole result of a step is prepared, and says so to everybody. It commits once every member of
the view is prepared with an equal digest. Nobody waits for anything else, and nothing of this passes the register.

Who hears of a loss freezes: it neither prepares nor commits in this view any more, and says to all where it stands.
The first living member that knows where all living ones stand decides, by these rules:

- A survivor that has committed the step: everybody was prepared, so all survivors hold the result. It is committed.
- All survivors are prepared: the lost member may have committed before it was lost. It is committed.
- Otherwise a survivor was not prepared when it froze, so nobody has committed, nor ever will. The step is done again.

The decision counts only as the next view, of which the register takes one. So two members may decide, and differ:
each of the two decisions agrees with whatever was committed, and one of them becomes the view.

A member that is no longer in the view has committed nothing that the others have not: for what it was to commit it
needed a message of each member, and those were frozen. (The same argument in general: Bernstein, Hadzilacos, Goodman,
Concurrency Control and Recovery, 1987, section 7.5; the register takes the place of the elected coordinator.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from transport.volatile.view import DIGEST_BYTES, Member, View


class Phase(Enum):
    """Where a member stands with the step after the last one that it has committed."""

    REDUCING = "reducing"
    PREPARED = "prepared"
    FROZEN = "frozen"
    OUT = "out"


@dataclass(frozen=True)
class Prepared:
    """To every member: the sender holds the whole result of `step`."""

    epoch: int
    step: int
    digest: bytes


@dataclass(frozen=True)
class Frozen:
    """To every member: where the sender stood when it froze, and whom it holds for lost.

    Args:
        committed: its last committed step; `digest` is of all results up to it.
        prepared: the digest up to the step after that, where it holds that result.
        lost: whom it holds for lost, or has heard to be leaving.
        joining: who asks to become a member, or is one and has yet to receive the state.
    """

    epoch: int
    committed: int
    digest: bytes
    prepared: bytes | None
    lost: frozenset[Member]
    joining: frozenset[Member] = frozenset()


@dataclass(frozen=True)
class Send:
    """Ask the caller to send `message` to each other member of the view. It may come in any order, or not at all."""

    message: Prepared | Frozen


@dataclass(frozen=True)
class Commit:
    """The result of `step` is everybody's: apply it. `digest` is of all results up to it."""

    step: int
    digest: bytes


@dataclass(frozen=True)
class Retry:
    """Reduce `step` again, in the new view, from the inputs that were kept."""

    step: int


@dataclass(frozen=True)
class Advance:
    """Offer `view` to the register as the successor of the view before it, then call `entered` with what it holds."""

    view: View


@dataclass(frozen=True)
class Left:
    """The view goes on without this member. `behind`: steps were committed that it does not hold."""

    epoch: int
    behind: bool


@dataclass(frozen=True)
class Differ:
    """Members hold unequal results of `step`: nobody commits it in this view."""

    step: int
    digests: Mapping[Member, bytes]


Action = Send | Commit | Retry | Advance | Left | Differ


@dataclass(frozen=True)
class State:
    """One member's knowledge. Replaced, never changed, so that a search can keep all states that it has met."""

    me: Member
    view: View
    committed: int
    digest: bytes
    phase: Phase = Phase.REDUCING
    prepared: frozenset[tuple[Member, int, bytes]] = frozenset()
    frozen: frozenset[tuple[Member, Frozen]] = frozenset()
    lost: frozenset[Member] = frozenset()
    joining: frozenset[Member] = frozenset()
    asked: int = 0
    offered: frozenset[Member] | None = None


def begin(me: Member, view: View) -> State:
    """The state of a member that holds everything up to `view.base_step`."""
    return State(me, view, view.base_step, view.digest)


def chained(before: bytes, result: bytes) -> bytes:
    """The digest up to a step, of the one up to the step before and the step's own."""
    return hashlib.blake2b(before + result, digest_size=DIGEST_BYTES).digest()


def reduced(state: State, step: int, result: bytes) -> tuple[State, list[Action]]:
    """This member holds the whole result of `step`, whose own digest is `result`."""
    if state.phase is not Phase.REDUCING or step != state.committed + 1:
        return state, []
    digest = chained(state.digest, result)
    state = replace(state, phase=Phase.PREPARED, prepared=state.prepared | {(state.me, step, digest)})
    actions: list[Action] = [Send(Prepared(state.view.epoch, step, digest))]
    return _commit_if_all_prepared(state, actions)


def received(state: State, sender: Member, message: Prepared | Frozen) -> tuple[State, list[Action]]:
    """Take in a message of another member. Those of other epochs and of strangers change nothing."""
    if message.epoch != state.view.epoch or sender not in state.view.members or state.phase is Phase.OUT:
        return state, []
    if isinstance(message, Prepared):
        if state.phase is Phase.FROZEN or not 0 < message.step - state.committed <= 2:
            return state, []
        state = replace(state, prepared=state.prepared | {(sender, message.step, message.digest)})
        return _commit_if_all_prepared(state, [])
    if sender in state.lost:
        return state, []
    if sender not in message.lost:  # else it leaves, and is not asked
        others = {one for one in state.frozen if one[0] != sender}
        state = replace(state, frozen=frozenset(others) | {(sender, message)})
    return _freeze(state, message.lost & set(state.view.members) - {state.me})


def changed(
    state: State,
    *,
    lost: frozenset[Member] = frozenset(),
    joining: frozenset[Member] = frozenset(),
    asked: int = 0,
) -> tuple[State, list[Action]]:
    """The view has to change: members cannot be reached any more, or leave; others ask to join.

    Without either, somebody else has said so, and this member freezes to hear what. `asked` is how many requests to
    join have been looked at.
    """
    if state.phase is Phase.OUT:
        return state, []
    state = replace(state, joining=state.joining | joining, asked=max(asked, state.asked, state.view.asked))
    return _freeze(state, lost & set(state.view.members) - {state.me})


def leaving(state: State) -> Frozen:
    """What this member tells the others when it goes: they go on without it, and need not hear of it again."""
    return Frozen(state.view.epoch, state.committed, state.digest, None, frozenset({state.me}))


def entered(state: State, view: View) -> tuple[State, list[Action]]:
    """The register holds `view`. It may be older than ours, ours, the next one, or a later one."""
    if view.epoch <= state.view.epoch or state.phase is Phase.OUT:
        return state, []
    holds = {state.committed: state.digest}
    holds.update({step: digest for who, step, digest in state.prepared if who == state.me})
    known = holds.get(view.base_step) == view.digest
    if state.me not in view.members or not known:
        return replace(state, phase=Phase.OUT), [Left(view.epoch, behind=not known)]
    actions: list[Action] = []
    if view.base_step > state.committed:
        actions.append(Commit(view.base_step, view.digest))
    actions.append(Retry(view.base_step + 1))
    return begin(state.me, view), actions


def _commit_if_all_prepared(state: State, actions: list[Action]) -> tuple[State, list[Action]]:
    step = state.committed + 1
    digests = {who: digest for who, of, digest in state.prepared if of == step}
    if state.phase is not Phase.PREPARED or len(digests) < len(state.view.members):
        return state, actions
    if len(set(digests.values())) > 1:
        state, more = _freeze(state, frozenset())
        return state, [*actions, Differ(step, digests), *more]
    digest = digests[state.me]
    ahead = frozenset(one for one in state.prepared if one[1] > step)
    state = replace(state, phase=Phase.REDUCING, committed=step, digest=digest, prepared=ahead)
    return state, [*actions, Commit(step, digest)]


def _freeze(state: State, gone: frozenset[Member]) -> tuple[State, list[Action]]:
    """Stop preparing and committing; say where we stand if that is news; decide if it is ours to decide."""
    actions: list[Action] = []
    if state.phase is not Phase.FROZEN or gone - state.lost:
        own = {step: digest for who, step, digest in state.prepared if who == state.me}
        state = replace(state, phase=Phase.FROZEN, lost=state.lost | gone)
        prepared = own.get(state.committed + 1)
        stand = Frozen(state.view.epoch, state.committed, state.digest, prepared, state.lost, state.joining)
        others = {one for one in state.frozen if one[0] != state.me}
        state = replace(state, frozen=frozenset(others) | {(state.me, stand)})
        actions.append(Send(stand))
    living = tuple(one for one in state.view.members if one not in state.lost)
    stands = {who: stand for who, stand in state.frozen if who in living}
    unwanted = any(state.me in stand.lost for stand in stands.values())  # they will go on without us: do not race them
    if living[0] == state.me and len(stands) == len(living) and state.offered != state.lost and not unwanted:
        step, digest = _decide(stands)
        joining = tuple(sorted(frozenset().union(*(one.joining for one in stands.values()))))
        members = tuple(sorted({*living, *joining}))
        actions.append(Advance(View(state.view.epoch + 1, members, step, digest, joining, state.asked)))
        state = replace(state, offered=state.lost)
    return state, actions


def _decide(stands: Mapping[Member, Frozen]) -> tuple[int, bytes]:
    """The step up to which the survivors commit, and its digest."""
    last = max(stands.values(), key=lambda one: one.committed)
    following = {one.prepared if one.committed == last.committed else None for one in stands.values()}
    if len(following) == 1 and (digest := next(iter(following))) is not None:
        return last.committed + 1, digest
    return last.committed, last.digest

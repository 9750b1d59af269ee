"""All members of a view commit a step's result, or none does: the decision, without a socket and without a clock.

    REDUCING --reduced--> PREPARED --prepared by all contributors--> REDUCING (the step is committed)
    REDUCING, PREPARED, BEHIND --a worker is lost--> FROZEN --the next view--> REDUCING, BEHIND, or OUT without us
    BEHIND --it has followed the others--> REDUCING

A view has workers, which take part in steps, and learners, which only follow. The contributors of a step are all
workers, or those that the first worker announces: it does so once for a step, so there is one such set.

A contributor that has the whole result is prepared, and says so to the others. It commits once every contributor is
prepared with an equal digest. Whoever is no contributor fetches the result of one that has committed it. Nobody waits
for anything else, and nothing of this passes the register.

Who hears that a worker is lost freezes: it neither prepares nor commits in this view any more, and says to all where
it stands. The first living worker that knows where all living ones stand decides, by these rules:

- A survivor that has committed the step: every contributor was prepared. It is committed.
- A survivor is prepared, and so are all living contributors: the lost ones may have committed. It is committed.
- Otherwise the step is done again. For then a living contributor was not prepared when it froze, and nobody has
  committed, nor ever will; or no contributor lives.

So whoever lives agrees with whatever was committed by anybody, as long as one contributor of each step lives. If all
of them are lost at once, so is the result, which nobody else had: the others do the step again. A set that is more
than half of the workers makes that the loss of most of them; and the smaller side of a cut lets the larger go first.

The decision counts only as the next view, of which the register takes one. So two members may decide, and differ:
each of the two decisions agrees with whatever was committed, and one of them becomes the view.

A learner becomes a worker at the end of a step: who wants that says so in its `Prepared`, of which every contributor
needs one to commit. So all freeze after that step, and none is undone.

A member that is no longer in the view has committed nothing that the others have not: for what it was to commit it
needed a message of each contributor, and those were frozen. (The same argument in general: Bernstein, Hadzilacos,
Goodman, Concurrency Control and Recovery, 1987, section 7.5; the register takes the place of the coordinator.)
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from transport.volatile.protocol.view import DIGEST_BYTES, Member, View

AHEAD_MAX = 16
"""Steps of which a late member keeps the contributors: it hears them again when it gets there."""


class Phase(Enum):
    """Where a member stands with the step after the last one that it has committed."""

    REDUCING = "reducing"
    PREPARED = "prepared"
    BEHIND = "behind"
    FROZEN = "frozen"
    OUT = "out"


@dataclass(frozen=True)
class Contributors:
    """From the first worker to every other: whose parts the result of `step` has; `turn` as in `Prepared`."""

    epoch: int
    step: int
    members: tuple[Member, ...]
    turn: bool = False


@dataclass(frozen=True)
class Prepared:
    """To every other contributor: the sender holds the whole result of `step`.

    Args:
        digest: of all results up to this one.
        contributors: whose parts it has.
        turn: the view is to change after this step.
    """

    epoch: int
    step: int
    digest: bytes
    contributors: tuple[Member, ...]
    turn: bool = False


@dataclass(frozen=True)
class Wish:
    """What a member wants of the next view, beside that those who are lost are not in it.

    Args:
        joining: who is to learn: new ones, or workers that are always late.
        ready: who has learnt, and is to work.
        asked: how many requests to join have been looked at.
        mesh: the newest connections that the member has, and all who learn.
        pause: the view is to wait for those who learn.
    """

    joining: frozenset[Member] = frozenset()
    ready: frozenset[Member] = frozenset()
    asked: int = 0
    mesh: int = 1
    pause: bool = False


@dataclass(frozen=True)
class Frozen:
    """To every member: where the sender stood when it froze, and whom it holds for lost.

    Args:
        committed: its last committed step; `digest` is of all results up to it.
        prepared: the digest up to the step after that, where it holds that result.
        contributors: of that result.
        lost: whom it holds for lost, or has heard to be leaving.
        between_steps: it froze at the end of a step, or while its caller waited for the next one.
    """

    epoch: int
    committed: int
    digest: bytes
    prepared: bytes | None = None
    contributors: tuple[Member, ...] = ()
    lost: frozenset[Member] = frozenset()
    wish: Wish = Wish()
    between_steps: bool = False


Message = Contributors | Prepared | Frozen


@dataclass(frozen=True)
class Send:
    """Ask the caller to send `message` to each other member of the view. It may come in any order, or not at all."""

    message: Message


@dataclass(frozen=True)
class Commit:
    """The result of `step` is everybody's: apply it. `digest` is of all results up to it."""

    step: int
    digest: bytes


@dataclass(frozen=True)
class Advance:
    """Offer `view` to the register as the successor of the view before it, then call `entered` with what it holds."""

    view: View


@dataclass(frozen=True)
class Left:
    """The view goes on without this member.

    Args:
        base_step: of that view.
        behind: steps were committed that it does not hold.
        differs: the last of them, where it holds a result of it that is not the others'.
    """

    epoch: int
    base_step: int
    behind: bool
    differs: int | None = None


@dataclass(frozen=True)
class Differ:
    """Contributors hold unequal results of `step`: nobody commits it in this view.

    Args:
        odd: those who differ from more than half of them, if there are so many alike. The others go on without them.
    """

    step: int
    digests: Mapping[Member, bytes]
    odd: frozenset[Member]


Action = Send | Commit | Advance | Left | Differ


@dataclass(frozen=True)
class State:
    """One member's knowledge. Replaced, never changed, so that a search can keep all states that it has met."""

    me: Member
    view: View
    committed: int
    digest: bytes
    phase: Phase = Phase.REDUCING
    announced: frozenset[Contributors] = frozenset()
    prepared: frozenset[tuple[Member, Prepared]] = frozenset()
    frozen: frozenset[tuple[Member, Frozen]] = frozenset()
    lost: frozenset[Member] = frozenset()
    wish: Wish = Wish()
    turn: bool = False
    offered: frozenset[Member] | None = None


def begin(me: Member, view: View) -> State:
    """The state of a worker that holds everything up to `view.base_step`."""
    return State(me, view, view.base_step, view.digest, wish=_wish(view))


def begin_behind(me: Member, view: View) -> State:
    """The state of a member that has nothing yet."""
    return State(me, view, -1, bytes(DIGEST_BYTES), Phase.BEHIND, wish=_wish(view))


def chained(before: bytes, result: bytes) -> bytes:
    """The digest up to a step, of the one up to the step before and the step's own."""
    return hashlib.blake2b(before + result, digest_size=DIGEST_BYTES).digest()


def announced(state: State, step: int) -> Contributors | None:
    """What the first worker has said of `step`, as far as this member knows."""
    return next((one for one in state.announced if one.step == step), None)


def choose(state: State, step: int, members: Iterable[Member]) -> tuple[State, list[Action]]:
    """Announce the contributors of `step`: the first worker's task, and done once. Again it says the same again."""
    ours = state.view.workers[0] == state.me and state.phase not in (Phase.FROZEN, Phase.OUT)
    if not ours or step <= state.committed:
        return state, []
    some = tuple(sorted(set(members) & set(state.view.workers)))
    message = announced(state, step) or Contributors(state.view.epoch, step, some, state.turn)
    return replace(state, announced=state.announced | {message}), [Send(message)]


def reduced(state: State, step: int, result: bytes) -> tuple[State, list[Action]]:
    """This member holds the whole result of `step`, whose own digest is `result`."""
    chosen = announced(state, step) or Contributors(state.view.epoch, step, state.view.workers)
    if state.phase is not Phase.REDUCING or step != state.committed + 1 or state.me not in chosen.members:
        return state, []
    turn = state.turn or chosen.turn
    message = Prepared(state.view.epoch, step, chained(state.digest, result), chosen.members, turn)
    state = replace(state, phase=Phase.PREPARED, prepared=state.prepared | {(state.me, message)})
    return _commit_if_all_prepared(state, [Send(message)])


def followed(state: State, step: int, result: bytes) -> tuple[State, list[Action]]:
    """This member has fetched the result of `step`, which another one has committed."""
    if state.phase not in (Phase.REDUCING, Phase.BEHIND) or step != state.committed + 1:
        return state, []
    return _holds(state, step, chained(state.digest, result))


def learned(state: State, step: int, digest: bytes) -> tuple[State, list[Action]]:
    """This member has fetched the state after `step`; `digest` is of all results up to it."""
    if state.phase is not Phase.BEHIND or step <= state.committed:
        return state, []
    return _holds(state, step, digest)


def received(state: State, sender: Member, message: Message) -> tuple[State, list[Action]]:
    """Take in a message of another member. Those of other epochs and of strangers change nothing, or to a learner."""
    stranger = message.epoch != state.view.epoch or sender not in state.view.members
    if stranger or state.me in state.view.joining or state.phase is Phase.OUT:
        return state, []
    if isinstance(message, Frozen):
        return _received_frozen(state, sender, message)
    if state.phase is Phase.FROZEN or not 0 < message.step - state.committed <= AHEAD_MAX:
        return state, []
    if isinstance(message, Contributors):
        if sender != state.view.workers[0] or announced(state, message.step):
            return state, []
        return replace(state, announced=state.announced | {message}), []
    state = replace(state, prepared=state.prepared | {(sender, message)})
    return _commit_if_all_prepared(state, [])


def changed(
    state: State,
    *,
    lost: frozenset[Member] = frozenset(),
    joining: frozenset[Member] = frozenset(),
    ready: frozenset[Member] = frozenset(),
    asked: int = 0,
    pause: bool = False,
    at_boundary: bool = False,
    between_steps: bool = False,
) -> tuple[State, list[Action]]:
    """The view has to change: members cannot be reached any more, or leave; others are to learn, or have learnt.

    Without any of these, somebody else has said so, and this member freezes to hear what.

    Args:
        joining, ready, asked, pause: as in `Wish`, to which they are added.
        at_boundary: unless a worker is lost, wait for the end of the step that this member is about to commit.
        between_steps: the caller waits for the next step.
    """
    if state.phase is Phase.OUT:
        return state, []
    gone = lost & set(state.view.workers) - {state.me}
    if joining or ready or asked or pause:
        before = state.wish
        wish = Wish(
            before.joining | joining,
            before.ready | ready,
            max(asked, before.asked),
            before.mesh,
            pause or before.pause,
        )
        state = replace(state, wish=wish)
    if gone != lost:
        state = replace(state, lost=state.lost | lost & set(state.view.joining))
    if at_boundary and not gone and state.phase is not Phase.FROZEN:
        return replace(state, turn=True), []
    return _freeze(state, gone, between_steps=between_steps)


def connected(state: State, mesh: int) -> tuple[State, list[Action]]:
    """This member has the connections of that number, too, and so have all who learn, who have no say."""
    return replace(state, wish=replace(state.wish, mesh=mesh)), []


def disconnected(state: State) -> tuple[State, list[Action]]:
    """The connections that the next view was to work on are gone: so is who was to be let in with them."""
    return replace(state, wish=replace(state.wish, mesh=state.view.mesh, joining=frozenset())), []


def is_in_their_result(left: Left, epoch: int, step: int) -> bool:
    """Whether those who went on without this member have committed `step` with its part.

    It began to reduce the step in that epoch, and has not committed it. Only the next view can tell: in a later one the
    step may have been done again, without this member.
    """
    return left.epoch == epoch + 1 and left.base_step >= step


def leave(state: State) -> tuple[State, list[Action]]:
    """Go: the others go on without this member, and need not hear of it again."""
    if state.phase is Phase.OUT:
        return state, []
    stand = Frozen(state.view.epoch, state.committed, state.digest, lost=frozenset({state.me}))
    return replace(state, phase=Phase.OUT), [Send(stand)]


def entered(state: State, view: View) -> tuple[State, list[Action]]:
    """The register holds `view`. It may be older than ours, ours, the next one, or a later one.

    A worker that holds what the view begins with reduces the next step in it, from the inputs that were kept. One that
    is behind fetches the results of those who have committed them.
    """
    if view.epoch <= state.view.epoch or state.phase is Phase.OUT:
        return state, []
    holds = {state.committed: state.digest}
    holds.update({one.step: one.digest for who, one in state.prepared if who == state.me})
    known = holds.get(view.base_step) == view.digest
    behind = state.committed < view.base_step and not known
    if state.me not in view.members or not (known or behind or state.me in view.joining):
        # In a view after the next one the step may have been done again, with other contributors.
        differs = behind and view.base_step in holds and view.epoch == state.view.epoch + 1
        left = Left(view.epoch, view.base_step, behind=not known, differs=view.base_step if differs else None)
        return replace(state, phase=Phase.OUT), [left]
    if behind or state.me in view.joining:
        return State(state.me, view, state.committed, state.digest, Phase.BEHIND, wish=_wish(view)), []
    commits = view.base_step > state.committed
    return begin(state.me, view), [Commit(view.base_step, view.digest)] if commits else []


def _holds(state: State, step: int, digest: bytes) -> tuple[State, list[Action]]:
    """Take over what others have committed; whoever arrives at the view's first step must hold what the view says."""
    view = state.view
    if step == view.base_step and digest != view.digest:
        return replace(state, phase=Phase.OUT), [Left(view.epoch, view.base_step, behind=True)]
    works = state.me in view.workers and step >= view.base_step
    state = _after(state, step, digest)
    return replace(state, phase=Phase.REDUCING if works else Phase.BEHIND), [Commit(step, digest)]


def _after(state: State, step: int, digest: bytes) -> State:
    ahead = frozenset(one for one in state.prepared if one[1].step > step)
    announced = frozenset(one for one in state.announced if one.step > step)
    return replace(state, committed=step, digest=digest, prepared=ahead, announced=announced)


def _commit_if_all_prepared(state: State, actions: list[Action]) -> tuple[State, list[Action]]:
    step = state.committed + 1
    said = {who: one for who, one in state.prepared if one.step == step}
    if state.phase is not Phase.PREPARED or not all(one in said for one in said[state.me].contributors):
        return state, actions
    said = {one: said[one] for one in said[state.me].contributors}
    results = Counter((one.digest, one.contributors) for one in said.values())
    if len(results) > 1:
        usual, count = results.most_common(1)[0]
        alike = {who for who, one in said.items() if (one.digest, one.contributors) == usual}
        odd = frozenset(set(said) - alike) if 2 * count > len(said) else frozenset()
        state, more = _freeze(state, odd - {state.me})
        return state, [*actions, Differ(step, {who: one.digest for who, one in said.items()}, odd), *more]
    state = replace(_after(state, step, said[state.me].digest), phase=Phase.REDUCING)
    actions = [*actions, Commit(step, state.digest)]
    if not any(one.turn for one in said.values()):
        return state, actions
    state, more = _freeze(state, frozenset(), between_steps=True)
    return state, [*actions, *more]


def _received_frozen(state: State, sender: Member, message: Frozen) -> tuple[State, list[Action]]:
    if sender in state.lost:
        return state, []
    if sender in state.view.joining:  # it has no say, and can only go
        gone = message.lost & {sender}
        return replace(state, lost=state.lost | gone, turn=state.turn or bool(gone)), []
    if sender not in message.lost:  # else it leaves, and is not asked
        state = replace(state, frozen=_with_stand(state.frozen, sender, message))
    return _freeze(state, message.lost & set(state.view.workers) - {state.me})


def _freeze(state: State, gone: frozenset[Member], *, between_steps: bool = False) -> tuple[State, list[Action]]:
    """Stop preparing and committing; say where we stand if that is news; decide if it is ours to decide."""
    actions: list[Action] = []
    if state.me in state.view.joining:  # it follows what the workers do
        state = replace(state, lost=state.lost | gone)
        if state.lost >= set(state.view.workers):
            return replace(state, phase=Phase.OUT), [Left(state.view.epoch, state.view.base_step, behind=True)]
        return state, []
    if state.phase is not Phase.FROZEN or gone - state.lost:
        own = next((one for who, one in state.prepared if who == state.me), None)
        state = replace(state, phase=Phase.FROZEN, lost=state.lost | gone)
        stand = Frozen(
            state.view.epoch,
            state.committed,
            state.digest,
            own.digest if own else None,
            own.contributors if own else (),
            state.lost,
            state.wish,
            between_steps,
        )
        state = replace(state, frozen=_with_stand(state.frozen, state.me, stand))
        actions.append(Send(stand))
    living = tuple(one for one in state.view.workers if one not in state.lost)
    if living[0] != state.me or len(state.frozen) < len(living) or state.offered == state.lost:
        return state, actions
    voters = frozenset(living)
    stands = {who: stand for who, stand in state.frozen if who in voters}
    unwanted = any(state.me in stand.lost for stand in stands.values())  # they will go on without us: do not race them
    if len(stands) < len(living) or unwanted:
        return state, actions
    step, digest = _decide(stands)
    if step < state.view.base_step:
        return replace(state, phase=Phase.OUT), [*actions, Left(state.view.epoch, state.view.base_step, behind=True)]
    actions.append(Advance(_successor(state, stands, step, digest)))
    return replace(state, offered=state.lost), actions


def _with_stand(
    frozen: frozenset[tuple[Member, Frozen]], who: Member, stand: Frozen
) -> frozenset[tuple[Member, Frozen]]:
    """The same with what a member has said last. No other one's is hashed anew: in large groups that took seconds."""
    return frozen - {one for one in frozen if one[0] == who} | {(who, stand)}


def _decide(stands: Mapping[Member, Frozen]) -> tuple[int, bytes]:
    """The step up to which the survivors commit, and its digest."""
    last = max(stands.values(), key=lambda one: one.committed)
    abreast = [one for one in stands.values() if one.committed == last.committed and one.prepared is not None]
    for one in abreast:  # they name the same contributors
        living = [stands[who] for who in one.contributors if who in stands]
        if all(other.prepared == one.prepared for other in living):
            assert one.prepared is not None
            return last.committed + 1, one.prepared
    return last.committed, last.digest


def _successor(state: State, stands: Mapping[Member, Frozen], step: int, digest: bytes) -> View:
    """The next view. Who is new to it enters where all living workers have the connections to it.

    Who has learnt works from the end of a step on: in the middle of a long round the others would have to wait for it.
    """
    view, wishes = state.view, [one.wish for one in stands.values()]
    meshes = {one.mesh for one in wishes}
    mesh = meshes.pop() if len(meshes) == 1 else view.mesh
    joining = frozenset().union(*(one.joining for one in wishes if one.mesh == mesh))
    at_end = any(one.between_steps for one in stands.values())
    ready = frozenset().union(*(one.ready for one in wishes if at_end)) & frozenset(view.joining)
    workers = (set(stands) | ready) - joining - state.lost
    learners = (set(view.joining) | joining) - ready - state.lost
    return View(
        view.epoch + 1,
        tuple(sorted(workers | learners)),
        step,
        digest,
        tuple(sorted(learners)),
        max(one.asked for one in wishes),
        mesh,
        pause=bool(learners) and (view.pause or any(one.pause for one in wishes)),
        run=view.run,
    )


def _wish(view: View) -> Wish:
    return Wish(asked=view.asked, mesh=view.mesh)

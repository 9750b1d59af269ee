"""Every course that three members can take through two steps, with a crash or a false suspicion at every point.

A breadth-first search over worlds. A world has the members' states, the messages under way, offers on their way to the
register, and the register. Messages arrive in any order. Those of a crashed member arrive, or never do.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Action, Advance, Commit, Left, Message, Phase, Send, State
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View

NOTHING = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class World:
    """Args:
    begun: who has begun which step of which view.
    commits: what was committed by anybody: step, digest up to it, the result's own.
    reduced: as commits, of what somebody was prepared with.
    quorum: how many contributors the first worker may announce; 0 where all workers are, and nothing is announced.
    promoted: the learner was asked for as a worker.
    """

    states: tuple[State, ...]
    register: View
    under_way: frozenset[tuple[int, Member, Message]] = frozenset()
    offers: frozenset[tuple[int, View]] = frozenset()
    begun: frozenset[tuple[Member, int, int]] = frozenset()
    commits: frozenset[tuple[int, bytes]] = frozenset()
    results: frozenset[tuple[bytes, bytes]] = frozenset()
    steps: int = 2
    quorum: int = 0
    promoted: bool = False
    crashed: frozenset[int] = frozenset()
    suspected: frozenset[tuple[int, int]] = frozenset()
    crashes_left: int = 1
    suspicions_left: int = 0


def first_world(
    count: int, *, steps: int, crashes: int = 0, suspicions: int = 0, quorum: int = 0, learners: int = 0
) -> World:
    """All members in the first view, each worker with its part of the first step given."""
    members = tuple(Member(name, 1) for name in "abcde"[:count])
    joining = members[count - learners :]
    view = View(1, members, 0, NOTHING, joining)
    states = tuple(commit.begin_behind(one, view) if one in joining else commit.begin(one, view) for one in members)
    begun = frozenset((one, 1, 1) for one in view.workers)
    return World(
        states,
        view,
        begun=begun,
        steps=steps,
        quorum=quorum,
        promoted=not learners,
        crashes_left=crashes,
        suspicions_left=suspicions,
    )


def following(world: World) -> Iterator[tuple[bool, World]]:
    """All that can happen next; True where it has to happen some day, unless something else makes it void."""
    for place, state in enumerate(world.states):
        if place in world.crashed:
            continue
        yield from _own_moves(world, place, state)
        if world.crashes_left:
            crashed = world.crashed | {place}
            under_way = frozenset(one for one in world.under_way if _matters(one, world.states, crashed))
            left = world.crashes_left - 1
            yield False, replace(world, crashed=crashed, crashes_left=left, under_way=under_way)
        if world.suspicions_left:
            for other in range(len(world.states)):
                if other != place and other not in world.crashed:
                    pairs = world.suspected | {(place, other)}
                    yield False, replace(world, suspected=pairs, suspicions_left=world.suspicions_left - 1)
    for message in world.under_way:
        place, sender, content = message
        if content.epoch > world.states[place].view.epoch:
            continue  # kept until the receiver is in that view
        rest = replace(world, under_way=world.under_way - {message})
        surely = all(world.states[one].me != sender for one in world.crashed)
        yield surely, _after(rest, place, *commit.received(world.states[place], sender, content))
    for offer in world.offers:
        place, view = offer
        register = view if view.epoch == world.register.epoch + 1 else world.register
        rest = replace(world, offers=world.offers - {offer}, register=register)
        if place not in world.crashed:
            rest = _after(rest, place, *commit.entered(world.states[place], register))
            yield True, rest
        else:
            yield False, rest


def _own_moves(world: World, place: int, state: State) -> Iterator[tuple[bool, World]]:
    """What a living member may do of itself."""
    view, step = state.view, state.committed + 1
    chosen = commit.announced(state, step)
    if state.phase is Phase.REDUCING and step <= world.steps and (chosen or not world.quorum):
        members = chosen.members if chosen else view.workers
        if state.me in members and {(one, view.epoch, step) for one in members} <= world.begun:
            yield True, _after(world, place, *commit.reduced(state, step, _result(view.epoch, step, members)))
    announces = state.me == view.workers[0] and state.phase not in (Phase.FROZEN, Phase.OUT)
    if world.quorum and announces and not chosen:
        here = [one for one in view.workers if (one, view.epoch, step) in world.begun]
        least = min(world.quorum if step == 1 else len(view.workers), len(view.workers))
        for count in range(least, len(here) + 1) if step <= world.steps else ():
            for some in itertools.combinations(here, count):
                yield True, _after(world, place, *commit.choose(state, step, some))
    yield from _follow(world, place, state)
    learner = next((one for one in view.joining if _state(world, one).committed >= state.committed - 1), None)
    if not world.promoted and learner and announces:
        asked = replace(world, promoted=True)
        idle = state.committed == world.steps  # nothing is under way: it need not wait for the end of a step
        wish = commit.changed(state, ready=frozenset({learner}), at_boundary=not idle)
        yield True, _after(asked, place, *wish)
    if state.phase in (Phase.FROZEN, Phase.BEHIND) and world.register.epoch > view.epoch:
        yield True, _after(world, place, *commit.entered(state, world.register))
    for other, unreachable in enumerate(world.states):
        gone = other in world.crashed or (place, other) in world.suspected
        news = unreachable.me in view.workers and unreachable.me not in state.lost
        if gone and news and state.phase is not Phase.OUT:
            yield True, _after(world, place, *commit.changed(state, lost=frozenset({unreachable.me})))


def _follow(world: World, place: int, state: State) -> Iterator[tuple[bool, World]]:
    """A member that is no contributor, or behind, fetches what a living one has committed: a result, or the state."""
    step = state.committed + 1
    chosen = commit.announced(state, step)
    if not (
        state.phase is Phase.BEHIND or (state.phase is Phase.REDUCING and chosen and state.me not in chosen.members)
    ):
        return
    known = dict(world.results)
    for other, source in enumerate(world.states):
        if other in world.crashed or source.phase is Phase.OUT or source.committed < max(step, 0):
            continue
        if step == 0:
            yield True, _after(world, place, *commit.learned(state, source.committed, source.digest))
            continue
        for of, digest in world.commits:
            if of == step and commit.chained(state.digest, known[digest]) == digest:
                yield True, _after(world, place, *commit.followed(state, step, known[digest]))


def _state(world: World, member: Member) -> State:
    return next(one for one in world.states if one.me == member)


def _matters(message: tuple[int, Member, Message], states: tuple[State, ...], crashed: frozenset[int]) -> bool:
    """Whether its arrival could change anything: one world instead of two where it cannot."""
    place, sender, content = message
    if place in crashed:
        return False
    state = states[place]
    return content.epoch > state.view.epoch or commit.received(state, sender, content) != (state, [])


def _reduces(world: World, state: State) -> bool:
    """Whether it may have begun to reduce the step after the last one that it has committed."""
    chosen = commit.announced(state, state.committed + 1)
    whole = () if world.quorum else state.view.workers
    return state.me in (chosen.members if chosen else whole) and state.phase is not Phase.BEHIND


def _has_part(world: World, state: State) -> bool:
    """Whether what others have committed as the step after this member's last one has its part."""
    step, register = state.committed + 1, world.register
    known = {digest for of, digest in (*world.commits, (register.base_step, register.digest)) if of == step}
    part = 1 << "abcde".index(state.me.name)
    found = [result for digest, result in world.results if digest in known]
    return bool(found) and all(result[2] & part for result in found)


def _result(epoch: int, step: int, members: tuple[Member, ...]) -> bytes:
    """Unlike in each view, and for each set of contributors."""
    some = sum(1 << "abcde".index(one.name) for one in members)
    return bytes([epoch, step, some, 0] * (DIGEST_BYTES // 4))


def _after(world: World, place: int, state: State, actions: list[Action]) -> World:
    before = world.states[place]
    states = (*world.states[:place], state, *world.states[place + 1 :])
    under_way, offers, begun, commits = set(world.under_way), set(world.offers), set(world.begun), set(world.commits)
    results = set(world.results)
    step = before.committed
    for action in actions:
        match action:
            case Send(message):
                others = [n for n, one in enumerate(world.states) if one.me in before.view.members and n != place]
                sent = {(n, state.me, message) for n in others}
                under_way |= {one for one in sent if _matters(one, states, world.crashed)}
                if isinstance(message, commit.Prepared):
                    result = _result(message.epoch, message.step, message.contributors)
                    results.add((message.digest, result))
            case Commit():
                assert action.step == step + 1 or step == -1, "a step was left out, or committed twice"
                step = action.step
                if step:
                    commits.add((action.step, action.digest))
                begun |= {(state.me, state.view.epoch, step + 1)} if state.me in state.view.workers else set()
            case Advance(view):
                offers.add((place, view))
            case Left():
                assert state.phase is Phase.OUT
                counted = commit.is_in_their_result(action, before.view.epoch, before.committed + 1)
                if counted and _reduces(world, before):
                    assert _has_part(world, before), "the others have a result that this member's part is not in"
            case _:
                raise AssertionError(f"{state.me} found results that differ")
    if state.view != before.view and state.phase is Phase.REDUCING:
        begun.add((state.me, state.view.epoch, state.committed + 1))
    under_way -= {one for one in under_way if one[0] == place and not _matters(one, states, world.crashed)}
    assert state.committed == step
    assert len({of for of, _ in commits}) == len(commits), "two results of one step were committed"
    if state.phase is not Phase.OUT:
        assert all(digest == state.digest for of, digest in commits if of == state.committed)
    return replace(
        world,
        states=states,
        under_way=frozenset(under_way),
        offers=frozenset(offers),
        begun=frozenset(begun),
        commits=frozenset(commits),
        results=frozenset(results),
    )


def search(start: World) -> tuple[int, list[World]]:
    """Visit every world once; how many there are, and those in which nothing more can happen."""
    gc.disable()  # all is kept until the end: the collector would look through it in vain, a fifth of the time
    try:
        return _search(start)
    finally:
        gc.enable()


def _search(start: World) -> tuple[int, list[World]]:
    seen, ends, todo = {start}, [], [start]
    while todo:
        after: list[World] = []
        for world in todo:
            moved = False
            for surely, following_world in following(world):
                moved |= surely
                if following_world not in seen:
                    seen.add(following_world)
                    after.append(following_world)
            if not moved:
                ends.append(world)
        todo = after
    return len(seen), ends

"""Every course that three members can take through two steps, with a crash or a false suspicion at every point.

A breadth-first search over worlds. A world has the members' states, the messages under way, offers on their way to the
register, and the register. Messages arrive in any order. Those of a crashed member arrive, or never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transport.volatile import commit
from transport.volatile.commit import Action, Advance, Commit, Frozen, Left, Phase, Prepared, Retry, Send, State
from transport.volatile.view import DIGEST_BYTES, Member, View

NOTHING = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class World:
    """Args: who has begun which step of which view; what was committed by anybody; and the faults still to come."""

    states: tuple[State, ...]
    register: View
    under_way: frozenset[tuple[int, Member, Prepared | Frozen]] = frozenset()
    offers: frozenset[tuple[int, View]] = frozenset()
    begun: frozenset[tuple[Member, int, int]] = frozenset()
    commits: frozenset[tuple[int, bytes]] = frozenset()
    steps: int = 2
    crashed: frozenset[int] = frozenset()
    suspected: frozenset[tuple[int, int]] = frozenset()
    crashes_left: int = 1
    suspicions_left: int = 0


def first_world(count: int, *, steps: int, crashes: int = 0, suspicions: int = 0) -> World:
    """All members in the first view, each with its part of the first step given."""
    members = tuple(Member(name, 1) for name in "abcde"[:count])
    view = View(1, members, 0, NOTHING)
    states = tuple(commit.begin(one, view) for one in members)
    begun = frozenset((one, 1, 1) for one in members)
    return World(states, view, begun=begun, steps=steps, crashes_left=crashes, suspicions_left=suspicions)


def following(world: World) -> Iterator[tuple[bool, World]]:
    """All that can happen next; True where it has to happen some day, unless something else makes it void."""
    for place, state in enumerate(world.states):
        if place in world.crashed:
            continue
        step = state.committed + 1
        everybody = {(one, state.view.epoch, step) for one in state.view.members}
        if state.phase is Phase.REDUCING and step <= world.steps and everybody <= world.begun:
            yield True, _after(world, place, *commit.reduced(state, step, _result(state, step)))
        if state.phase is Phase.FROZEN and world.register.epoch > state.view.epoch:
            yield True, _after(world, place, *commit.entered(state, world.register))
        for other, unreachable in enumerate(world.states):
            gone = other in world.crashed or (place, other) in world.suspected
            news = unreachable.me in state.view.members and unreachable.me not in state.lost
            if gone and news and state.phase is not Phase.OUT:
                yield True, _after(world, place, *commit.changed(state, lost=frozenset({unreachable.me})))
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


def _matters(
    message: tuple[int, Member, Prepared | Frozen], states: tuple[State, ...], crashed: frozenset[int]
) -> bool:
    """Whether its arrival could change anything: one world instead of two where it cannot."""
    place, sender, content = message
    if place in crashed:
        return False
    state = states[place]
    return content.epoch > state.view.epoch or commit.received(state, sender, content) != (state, [])


def _result(state: State, step: int) -> bytes:
    """Unlike in each view: another attempt has other contributors."""
    return bytes([state.view.epoch, step] * (DIGEST_BYTES // 2))


def _after(world: World, place: int, state: State, actions: list[Action]) -> World:
    before = world.states[place]
    states = (*world.states[:place], state, *world.states[place + 1 :])
    under_way, offers, begun, commits = set(world.under_way), set(world.offers), set(world.begun), set(world.commits)
    step = before.committed
    for action in actions:
        match action:
            case Send(message):
                others = [n for n, one in enumerate(world.states) if one.me in before.view.members and n != place]
                under_way |= {(n, state.me, message) for n in others}
            case Commit():
                assert action.step == step + 1, "a step was left out, or committed twice"
                step = action.step
                commits.add((action.step, action.digest))
                begun.add((state.me, state.view.epoch, action.step + 1))
            case Retry():
                assert action.step == step + 1
                begun.add((state.me, state.view.epoch, action.step))
            case Advance(view):
                offers.add((place, view))
            case Left():
                assert state.phase is Phase.OUT
            case _:
                raise AssertionError(f"{state.me} found results that differ")
    assert state.committed == step
    assert len({of for of, _ in commits}) == len(commits), "two results of one step were committed"
    if state.phase is not Phase.OUT:
        assert all(digest == state.digest for of, digest in commits if of == state.committed)
    return replace(
        world,
        states=states,
        under_way=frozenset(one for one in under_way if _matters(one, states, world.crashed)),
        offers=frozenset(offers),
        begun=frozenset(begun),
        commits=frozenset(commits),
    )


def search(start: World) -> tuple[int, list[World]]:
    """Visit every world once; how many there are, and those in which nothing more can happen."""
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

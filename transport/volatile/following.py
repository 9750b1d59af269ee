"""What a member does that is behind: it fetches the state after some step and the results after it. And the other end.

Whoever joins has nothing: `learn` takes a state, then results, until this member works. Who was late in a step takes
its result: `follow`. The first workers hold for them what was committed, as long as there may be anybody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hive_qos.errors import EvictedError, PeerError, TimedOutError
from transport.tensors import TensorView
from transport.volatile.control import Control
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Commit, Phase
from transport.volatile.protocol.messages import Pause, Ready
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import POLL_S
from transport.volatile.transfer.fetch import SAY_S, Fetch, agreed, ask_all
from transport.volatile.transfer.manifest import STATE, Absent, Manifest

_log = logging.getLogger("transport.volatile")

HOLDERS_MAX = 4
"""So many of the first workers hold the state for those who learn: a copy each, and one link rarely takes more."""

ApplyResult = Callable[[int, Sequence[memoryview]], None]


@dataclass(frozen=True)
class Followed:
    """The last step that was followed; `members` and `applied` as of `Committed`.

    Args:
        contributed: this member's part is in that result or in one of those before it: it was reduced here as well, but
            the others alone heard that it is committed.
    """

    step: int
    members: tuple[Member, ...]
    contributed: bool
    applied: bool


class Follower:
    """See the module. All methods belong to the caller's thread.

    Args:
        control: of the member.
        get_state, set_state, apply_result: as of `VolatileGroup`.
        state_bytes_max: a larger state is refused, and so is a larger result, unless the caller's tensors are as large.
    """

    def __init__(
        self,
        control: Control,
        *,
        get_state: Callable[[], bytes | None],
        set_state: Callable[[bytes], None],
        apply_result: ApplyResult,
        state_bytes_max: int,
    ) -> None:
        self._control = control
        self._get_state, self._set_state, self._apply_result = get_state, set_state, apply_result
        self._state_bytes_max = state_bytes_max

    # For those who are behind.

    def is_asked_for_state(self) -> bool:
        """Whether somebody learns who has no state yet, and it is this member's to give one."""
        state, shelf = self._control.state, self._control.shelf
        holds = bool(self._control.member in state.view.workers[:HOLDERS_MAX] and state.view.joining)
        holds = holds and not self._control.is_over()  # then it may lack what was committed last
        return holds and shelf.wanted and not shelf.has_state() and state.phase is Phase.REDUCING

    def give_state(self) -> bool:
        """Put the state on the shelf, if this member is asked for it. False where the caller cannot give it now."""
        if self.is_asked_for_state():
            state, data = self._control.state, self._get_state()
            if data is None:
                return False
            if self._control.state.committed == state.committed:
                self._control.shelf.put_state(state.committed, state.digest, bytes(data))
        return True

    def keep(
        self,
        step: int,
        members: tuple[Member, ...],
        view: View,
        views: Sequence[TensorView],
        pieces: tuple[bytes, ...],
        *,
        late: bool,
    ) -> None:
        """Hold the result of a step for those who are behind, as long as there may be any.

        Args:
            members: whose parts it has.
            view: in which the step was made.
            views, pieces: the result, and the digests of its pieces.
            late: there may be workers whose parts it does not have.
        """
        state, shelf = self._control.state, self._control.shelf
        holds = self._control.member in view.workers[:HOLDERS_MAX] and (view.joining or state.view.joining)
        if holds or late:
            data = [one.data for one in views]
            lengths = tuple(one.nbytes for one in data)
            shelf.put_result(Manifest(step, state.digest, members, lengths, pieces, step), data)
        else:
            shelf.clear(step)

    # Who joins.

    def learn(self, give_up_s: float, timeout_s: float) -> None:
        """Fetch the state and what follows it, until this member works.

        Raises: as `VolatileGroup`.
        """
        control, pace = self._control, Pace()
        say_s = time.monotonic() + SAY_S
        while True:
            with control.changed:
                control.raise_failure()
                state = control.state
            if state.phase is not Phase.BEHIND and control.member in state.view.workers:
                return
            if time.monotonic() >= give_up_s:
                reason = (
                    "who joins works after the second step from when it asked: raise join_timeout_s above two rounds"
                )
                raise TimedOutError(f"joining: {control.member} did not catch up; {reason}", timeout_s=timeout_s)
            if state.committed < 0:
                self._learn_state(state.view, pace)
            elif not self._learn_result(state, pace):
                self._tell_ready()
                if time.monotonic() >= say_s:
                    say_s += SAY_S
                    _log.warning(
                        "%s holds all that is there, and works once the others end their round", control.member
                    )
                time.sleep(2 * POLL_S)

    def _learn_state(self, view: View, pace: Pace) -> None:
        """Fetch the state that most holders have, and take it over once it is here (`Control.fetches`)."""
        holders = self._control.links.holders(view.workers[:HOLDERS_MAX])
        best = agreed(ask_all(holders, STATE))
        if best is None:
            time.sleep(POLL_S)
            return
        (what, same), fetch = best, self._control.fetches
        if fetch is None or (fetch.what.step, fetch.what.pieces) != (what.step, what.pieces):
            _require_fits(what, same[0], self._state_bytes_max)
            if fetch is not None:
                self._control.tell_first(Pause("its state takes longer to fetch than the others keep it"))
            self._control.fetches = fetch = Fetch(what, state=True)
        if not fetch.run([one for one in holders if one.member in same], stop=self._control.is_over):
            return
        given = ", ".join(f"{one} {count}" for one, count in sorted(fetch.given.items()))
        _log.info("the state after step %d is here; pieces by %s", what.step, given or "nobody: it is empty")
        self._control.fetches = None
        self._set_state(bytes(fetch.data))
        self._control.shelf.clear(what.step)
        self._control.apply(commit.learned, what.step, what.digest)
        pace.learned(fetch.what)

    def _learn_result(self, state: commit.State, pace: Pace) -> bool:
        """Fetch the result after the last one that is here, and apply it; whether it was there."""
        found = self._fetch_result(state.committed + 1, state.view.workers[:HOLDERS_MAX])
        if found is None:
            return False
        if isinstance(found, Absent):
            self._forget("the results it needs are not kept")
            return True
        if not self._followed(found):
            return True  # the view has changed meanwhile: it is fetched again, if it is still to be
        self._apply_result(found.what.step, found.tensors())
        reason = pace.followed(found.what)
        if reason:
            self._control.tell_first(Pause(reason))
        return True

    def _forget(self, reason: str) -> None:
        """Learn from the state on again."""
        control = self._control
        _log.info("%s learns anew: %s", control.member, reason)
        control.tell_first(Pause(reason))
        control.apply(lambda state: (replace(state, committed=-1, digest=bytes(DIGEST_BYTES)), []))

    def _tell_ready(self) -> None:
        """Nothing more is there to follow."""
        state = self._control.state
        if self._control.member in state.view.joining and state.committed >= 0:
            self._control.tell_first(Ready(state.committed, state.digest))

    # Who was late.

    def follow(self, view: View, views: Sequence[TensorView], give_up_s: float, timeout_s: float) -> Followed | None:
        """Take the next results of those who have committed them; None where the view changes before there is one.

        `apply_result` gets those before the last one, each with its step. The tensors hold the last one, unless that
        has other sizes, as where each step is of another part of a model. Then `apply_result` gets that, too, and the
        tensors stay as they are.

        Raises:
            EvictedError: the result is not kept any more.
            TimedOutError: nobody has committed it in time.
            PeerError: it does not fit what this member holds.
        """
        control, last, contributed = self._control, None, False
        own_bytes = sum(one.data.nbytes for one in views)
        while control.view is view and control.state.phase is not Phase.FROZEN:
            control.raise_failure()
            if last is None:
                control.raise_if_ending()
            state = control.state
            step = state.committed + 1
            if time.monotonic() >= give_up_s:
                if last is not None:
                    break
                raise TimedOutError(f"following step {step}", timeout_s=timeout_s)
            chosen = commit.announced(state, step)
            found = self._fetch_result(step, chosen.members if chosen else view.workers, own_bytes)
            if last is not None and not isinstance(found, Fetch):
                break
            if isinstance(found, Absent):
                raise EvictedError(f"{control.member} is too far behind: step {step} is not kept any more")
            if found is None:
                self._tell_ready()
                time.sleep(2 * POLL_S)
                continue
            if not self._followed(found):
                continue
            if last is not None:
                self._apply_result(last.what.step, last.tensors())
            last, contributed = found, contributed or control.member in found.what.members
            if found.what.head <= step:
                self._tell_ready()
                break
        return None if last is None else self._hand_over(last, views, contributed=contributed)

    def _hand_over(self, last: Fetch, views: Sequence[TensorView], *, contributed: bool) -> Followed:
        what = last.what
        if what.lengths == tuple(one.data.nbytes for one in views):
            for one, data in zip(views, last.tensors(), strict=True):
                one.data[:] = data
            return Followed(what.step, what.members, contributed=contributed, applied=False)
        self._apply_result(what.step, last.tensors())
        return Followed(what.step, what.members, contributed=contributed, applied=True)

    # What both do.

    def _fetch_result(self, step: int, members: Sequence[Member], own_bytes: int = 0) -> Fetch | Absent | None:
        """The result of a step; None where nobody has it yet, Absent where nobody has it any more."""
        holders = self._control.links.holders(members)
        found = ask_all(holders, step)
        best = agreed(found)
        if best is None:
            gone = [one for one in found.values() if isinstance(one, Absent) and one.gone]
            return gone[0] if gone and len(gone) == len(found) else None
        what, same = best
        _require_fits(what, same[0], max(own_bytes, self._state_bytes_max))
        fetch = Fetch(what, state=False)
        done = fetch.run([one for one in holders if one.member in same], stop=self._control.is_over)
        return fetch if done else None

    def _followed(self, found: Fetch) -> bool:
        """Count a result that was fetched as committed here, if it is the one that follows, and hold it for others."""
        control, what = self._control, found.what
        with control.changed:
            control.raise_failure()
            if commit.chained(control.state.digest, what.result) != what.digest:
                reason = f"the others' result of step {what.step} does not follow from what this member holds"
                raise PeerError("the group", reason)
            actions = control.apply(commit.followed, what.step, what.result)
        if not any(isinstance(one, Commit) for one in actions):
            return False
        control.shelf.put_result(what, found.tensors())
        return True


def _require_fits(what: Manifest, holder: Member, bytes_max: int) -> None:
    size, named = sum(what.lengths), f"result of step {what.step}" if what.members else "state"
    if size > bytes_max:
        reason = f"its {named} has {size} bytes, and this process takes at most {bytes_max}"
        raise PeerError(str(holder), f"{reason}: if both train the same, raise Settings.receive_bytes_max")


class Pace:
    """Whether who follows comes nearer: judged after each so many results, by how far ahead the others are.

    And at once where the others made results of as many bytes as the state while it fetched that: when it has those, it
    will be as far behind again.
    """

    RESULTS = 8
    """A shorter look would take one slow step of the others for slowness of ours."""

    def __init__(self) -> None:
        self._count = 0
        self._lag: int | None = None
        self._learned: Manifest | None = None

    def learned(self, state: Manifest) -> None:
        """A state was fetched, whose manifest is of when that began."""
        self._count, self._lag, self._learned = 0, None, state

    def followed(self, result: Manifest) -> str:
        """One more result was applied; why this member cannot catch up, or "" as long as it may."""
        self._count += 1
        lag, state, self._learned = result.head - result.step, self._learned, None
        if self._lag is None:
            self._lag = lag
        made = 0 if state is None else result.head - state.head
        if state is not None and min(lag, made) >= 2 and made * sum(result.lengths) >= sum(state.lengths):
            return f"the others made {made} steps while it fetched the state"
        if self._count < self.RESULTS:
            return ""
        before, self._lag, self._count = self._lag, lag, 0
        return f"{lag} steps behind, {before} before the last {self.RESULTS} results" if lag >= max(before, 2) else ""

"""A step of a volatile group: it is reduced, agreed on and committed, or fetched of those who have made it without us.

Each attempt is an all-reduce among the contributors, then an exchange of the result's digest. Where one fails the view
changes, and the step is done again from the inputs that were kept, unless the change has committed it.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from hive_qos.errors import CancelledError, HiveError, MisuseError, PeerError, TimedOutError, TransportError
from transport.collectives.reduce_op import ReduceOp
from transport.group import Group
from transport.tensors import TensorView
from transport.volatile.control import Control
from transport.volatile.following import Follower
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Commit, Differ, Phase, Prepared
from transport.volatile.protocol.messages import Arrived
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.transfer.manifest import digest_of, piece_digests
from transport.work import Work

_log = logging.getLogger("transport.volatile")

SAY_S = 5.0
"""A step that cannot begin for so long is worth a word: somebody may wait for members that look elsewhere."""
ARRIVE_AGAIN_S = 1.0
"""A worker says again that its part is ready: the first one may have changed."""
DIFFER_MAX = 3
"""Unequal results in so many attempts at a step, and no majority, are no accident."""


@dataclass(frozen=True)
class Committed:
    """A step that all members have applied or are about to apply.

    Args:
        step: its number, from 1. Where this member was left out, the last one of the state that it got.
        members: whose parts the result has, in rank order; none where this member was left out.
        attempts: how often it was reduced here; more than 1 after a loss, 0 where the result was fetched.
        contributed: this member's part is in the result. Else `make_up` may have it count in the next step. Where this
            member was left out, False also if that is not known.
        applied: there is nothing left to apply, and the tensors are as they were: `apply_result` has got the result,
            whose sizes are others than the caller's; or this member was left out, and `set_state` has got its state.
    """

    step: int
    members: tuple[Member, ...]
    attempts: int
    contributed: bool = True
    applied: bool = False


class Steps:
    """Those of one member. All methods belong to the caller's thread.

    Args:
        control: the member's part in the agreement.
        follower: of the member, for steps that it has no part in.
    """

    def __init__(self, control: Control, follower: Follower) -> None:
        self._control, self._follower = control, follower
        self._member = control.member
        self._has_quorum = False
        self._reduced = 0, 0
        """The epoch and step of the reduction that `make` has begun and not ended well; (0, 0) where there is none."""
        self.is_under_way = False
        """Since this call's `ready` has returned, others may count on what follows."""

    def make(
        self,
        tensors: object | Sequence[object],
        op: ReduceOp,
        timeout_s: float,
        *,
        quorum: int,
        compression: str,
        feedback: Hashable,
        within: View | None = None,
    ) -> Committed | None:
        """As `VolatileGroup.all_reduce`, and as its `make_up` where it is to be done `within` a view or not at all."""
        self.is_under_way = False
        listed = tensors if isinstance(tensors, list | tuple) else [tensors]
        views = [TensorView.of(one, writable=True) for one in listed]
        require_finite(views)
        kept = [bytes(one.data) for one in views]
        part_bytes = sum(map(len, kept))
        attempts, differed, self._reduced = 0, 0, (0, 0)
        pieces: tuple[bytes, ...] = ()
        give_up_s = math.inf if within else time.monotonic() + timeout_s  # the others have yet to make theirs
        while True:
            group, view = self.ready(give_up_s, timeout_s, within)
            step, members = self._control.step + 1, view.workers
            if within is not None and (view is not within or self._control.unfit == (view.epoch, step)):
                return None
            if group is not None and quorum:
                self._has_quorum = True
                arrived = Arrived(view.epoch, step, quorum, part_bytes, made_up=within is not None)
                chosen = self._contributors(view, arrived, give_up_s, timeout_s)
                if chosen is None:
                    continue
                members = chosen
                group = self._group_of(group, view, members, step)
            elif group is not None and self._has_quorum:  # somebody may make up for the step before
                self._control.tell_first(Arrived(view.epoch, step, 0, part_bytes, made_up=False))
            if group is None:
                followed = self._follower.follow(view, views, give_up_s, timeout_s)
                if followed is None:
                    continue
                met = Committed(
                    followed.step,
                    followed.members,
                    attempts=0,
                    contributed=followed.contributed,
                    applied=followed.applied,
                )
                break
            self._control.attempts = attempts = attempts + 1
            self._reduced = view.epoch, step
            met = Committed(step, members, attempts)
            try:
                works = [
                    group.allreduce(
                        one,
                        op,
                        timeout_s=timeout_s,
                        compression=compression,
                        feedback=None if feedback is None else (feedback, place),
                    )
                    for place, one in enumerate(views)
                ]
                _end(works)
                pieces = piece_digests([one.data for one in views])
                committed, differs = self._exchange(group, view, members, step, pieces)
                if committed:
                    break
                differed += differs
            except TransportError as error:
                _name_ranks(error, members)
                if isinstance(error, MisuseError | PeerError) and self._control.connects(view):
                    raise
                over = time.monotonic() > give_up_s and not self._control.links.present.lost()
                if over and self._control.state.phase is not Phase.PREPARED:  # else the others may commit it
                    if isinstance(error, CancelledError):  # another one's time was over first
                        raise TimedOutError(f"step {step}, as {error}", timeout_s=timeout_s) from error
                    raise
                _log.info("step %d of epoch %d was not finished: %s", step, view.epoch, error)
            committed = False
            try:
                if committed := self.settled(view, step):
                    break
            finally:
                if not committed:
                    for one, data in zip(views, kept, strict=True):
                        one.data[:] = data
            if differed >= DIFFER_MAX:
                raise PeerError("the group", f"members hold unequal results of step {step}: one of them computes wrong")
        self._reduced = 0, 0  # who is left out later has given no part since
        for one in views:
            one.write_back()
        if met.attempts:
            self._follower.keep(met.step, met.members, view, views, pieces, late=quorum > 0)
        self._control.hand_over.committed(met.members)
        return met

    def is_in_their_result(self) -> bool:
        """Where the others went on without this member: whether they surely have committed the step with its part."""
        left, (epoch, step) = self._control.left, self._reduced
        if left is None or not step:
            return False
        return self._control.step == step or commit.is_in_their_result(left, epoch, step)

    def ready(self, give_up_s: float, timeout_s: float, within: View | None = None) -> tuple[Group | None, View]:
        """Wait until a step may begin: the connected workers, or None where this member has to follow them.

        Args:
            within: wait no longer than for as long as this is the view.
        """
        control, say_s = self._control, time.monotonic() + SAY_S
        try:
            while True:
                given = self._follower.give_state()
                with control.changed:
                    control.raise_failure()
                    state, view = control.state, control.view
                    if state.phase is Phase.BEHIND or (within is not None and view is not within):
                        self.is_under_way = True
                        return None, view
                    control.raise_if_ending()
                    if given and self._follower.is_asked_for_state():
                        continue  # since a moment ago, and before the next step
                    waits = view.pause or len(view.workers) < self._control.members_min
                    if control.group is not None and state.phase is Phase.REDUCING and not waits:
                        self.is_under_way = True
                        return control.group, view
                    control.wait_between_steps(idle=waits)
                    now_s = time.monotonic()
                    if now_s >= say_s and (what := control.what_waits()):
                        _log.warning("%s: %s", self._member, what)
                        say_s = math.inf
                    left_s = give_up_s - now_s
                    if left_s <= 0:
                        what = control.what_waits() or "the view changes"
                        raise TimedOutError(f"a volatile group of {len(view.workers)}: {what}", timeout_s=timeout_s)
                    control.changed.wait(min(left_s, 0.1))
        finally:
            control.wait_between_steps(idle=False)

    def _contributors(
        self, view: View, arrived: Arrived, give_up_s: float, timeout_s: float
    ) -> tuple[Member, ...] | None:
        """Say that this member's part is ready, and wait to hear whose parts count.

        None where the view changes, or the part was made up and does not fit.
        """
        control, again_s = self._control, 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= give_up_s:
                raise TimedOutError(
                    f"step {arrived.step}: {view.workers[0]} did not say whose parts count", timeout_s=timeout_s
                )
            if now_s >= again_s:
                control.tell_first(arrived)
                again_s = now_s + ARRIVE_AGAIN_S
            with control.changed:
                control.raise_failure()
                control.raise_if_ending()
                if control.view is not view or control.state.phase is Phase.FROZEN:
                    return None
                if arrived.made_up and control.unfit == (arrived.epoch, arrived.step):
                    return None
                chosen = commit.announced(control.state, arrived.step)
                if chosen is not None:
                    return chosen.members
                control.changed.wait(0.1)

    def _group_of(self, whole: Group, view: View, members: tuple[Member, ...], step: int) -> Group | None:
        """The group of a step's contributors; None where this member is not among them."""
        if members == view.workers:
            return whole
        if self._member not in members:
            return None
        return self._control.some(view, members, f"{view.epoch}.{step}")

    def _exchange(
        self, group: Group, view: View, members: tuple[Member, ...], step: int, pieces: tuple[bytes, ...]
    ) -> tuple[bool, bool]:
        """Say that this member is prepared, and hear the others; whether it is committed, and whether they differ."""
        control, differs = self._control, False
        result = digest_of(pieces)
        with control.changed:
            if control.view is not view:
                return False, False
            before = control.state
            actions = control.apply(commit.reduced, step, result)
            own = next((one for who, one in control.state.prepared if who == self._member and one.step == step), None)
            if any(isinstance(one, Commit) for one in actions):
                return True, False
            if control.state is before or own is None:
                return False, False
        said = np.frombuffer(own.digest + bytes([own.turn]), np.uint8)
        outputs = [np.zeros(said.size, np.uint8) for _ in members]
        group.all_gather(outputs, said).wait()
        with control.changed:
            for member, heard in zip(members, outputs, strict=True):
                if member == self._member or control.view is not view:
                    continue
                data = heard.tobytes()
                prepared = Prepared(view.epoch, step, data[:DIGEST_BYTES], members, bool(data[DIGEST_BYTES]))
                actions = control.apply(commit.received, member, prepared)
                for one in actions:
                    if isinstance(one, Differ):
                        differs = True
                        self._name(one)
                if any(isinstance(one, Commit) and one.step == step for one in actions):
                    return True, differs
        return False, differs

    def _name(self, differ: Differ) -> None:
        """Whose result is another one. A majority sends the odd ones away."""
        shown = ", ".join(f"{one}: {digest.hex()[:8]}" for one, digest in sorted(differ.digests.items()))
        odd = ", ".join(map(str, sorted(differ.odd)))
        _log.warning("results of step %d differ%s: %s", differ.step, f", {odd} is odd" if odd else "", shown)
        if self._member in differ.odd:
            reason = (
                f"its result of step {differ.step} is not that of the others ({shown}): this machine computes wrong, "
                "or one that has sent it a part of the sum"
            )
            self._control.fail(PeerError(str(self._member), reason))

    def settled(self, view: View, step: int) -> bool:
        """After a failure: have the view changed, and wait until it is. Whether the step was committed with that."""
        control = self._control
        with control.changed:
            if control.view is view and control.state.phase is not Phase.FROZEN:
                control.suspect()
            while control.view is view and control.failure is None and not control.closing:
                control.changed.wait(0.5)
            control.raise_failure()
            return control.decided is not None and control.decided.step == step


def _end(works: Sequence[Work]) -> None:
    """Wait for all, then raise the first error: until they end, the tensors are theirs."""
    errors: list[HiveError] = []
    for one in works:
        try:
            one.wait()
        except HiveError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _name_ranks(error: TransportError, members: Sequence[Member]) -> None:
    """Add to each rank in the text of an error whose it is: callers know members by their names."""

    def named(rank: re.Match[str]) -> str:
        number = int(rank[1])
        return f"{rank[0]} ({members[number].name})" if number < len(members) else rank[0]

    error.args = tuple(re.sub(r"\brank (\d+)", named, one) if isinstance(one, str) else one for one in error.args)


def require_finite(views: Sequence[TensorView]) -> None:
    """Raises: MisuseError: a tensor holds NaN or infinity, which would be all members' after a step or an exchange."""
    for place, one in enumerate(views):
        if not one.numpy_has_dtype:
            continue
        values = one.numpy()
        if values.dtype.kind not in "fc":
            continue
        with np.errstate(all="ignore"):
            total = values.sum()  # one pass without a copy; where it is not finite, it may have overflown
        if not np.isfinite(total) and not (finite := np.isfinite(values)).all():
            where = int(np.flatnonzero(~finite)[0])
            raise MisuseError(f"tensor {place} holds {values.reshape(-1)[where]} at {where}: nothing of it was sent")

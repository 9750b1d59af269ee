"""A group of processes that come and go while it works: all of its members commit a step, or none does.

    with VolatileGroup(register, name="worker-7", get_state=..., set_state=..., apply_result=...) as group:
        while group.step < steps:
            gradients = ...                         # of the state after group.step
            group.all_reduce(gradients)             # with whom is there; a lost member only costs time
            optimizer.step()

Each epoch of the view has a group of connected workers. A step is an all-reduce, then an exchange of the result's
digest: whoever has that of every contributor may apply it. When a worker is lost, leaves or joins, a thread of each
member agrees with the others on the next view (`control`). It does so while the caller computes.

The inputs of a step are kept until it is committed. Whoever joins learns first: it fetches the state after some step
and the results after it, while the others go on. Where it cannot follow, the others wait once, and say why.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TypeVar

import numpy as np

from hive_qos.errors import HiveError, MisuseError, PeerError, TimedOutError, TransportError
from transport.collectives.reduce_op import ReduceOp
from transport.group import Group
from transport.settings import Settings
from transport.tensors import TensorView
from transport.volatile import departure
from transport.volatile.control import Control
from transport.volatile.following import ApplyResult, Follower
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Commit, Differ, Phase, Prepared
from transport.volatile.protocol.hand_over import ASK_S, STAY_S
from transport.volatile.protocol.messages import Arrived
from transport.volatile.protocol.view import DIGEST_BYTES, MEMBERS_MAX, NAME_BYTES_MAX, Member, View
from transport.volatile.register.register import Register
from transport.volatile.transfer.manifest import digest_of, piece_digests
from transport.work import Work

T = TypeVar("T")

_log = logging.getLogger("transport.volatile")

EVERYBODY = MEMBERS_MAX
"""As a quorum: this step waits for all."""
JOIN_S = 300.0
"""A step of the others may take minutes, and a newcomer is let in after one."""
LEAVE_S = 1.0
ARRIVE_AGAIN_S = 1.0
"""A worker says again that its part is ready: the first one may have changed."""
DIFFER_MAX = 3
"""Unequal results in so many attempts at a step, and no majority, are no accident."""


@dataclass(frozen=True)
class Committed:
    """A step that all members have applied or are about to apply.

    Args:
        step: its number, from 1.
        members: whose parts the result has, in rank order.
        attempts: how often it was reduced here; more than 1 after a loss, 0 where the result was fetched.
        contributed: this member's part is among them. Else `make_up` may have it count in the next step.
        applied: `apply_result` has got the result, whose sizes are others than the caller's: the tensors are as they
            were, and there is nothing left to apply.
    """

    step: int
    members: tuple[Member, ...]
    attempts: int
    contributed: bool = True
    applied: bool = False


class VolatileGroup:
    """This process as a member of a job. All methods but `close` belong to one thread.

    Args:
        register: of the job, the same for all.
        name: of this process, unique in the job.
        get_state: returns the state after `group.step`, as bytes, the same on all members: called where somebody joins.
            None where another thread of the caller's is still to apply a step: it is called again soon.
        set_state: takes such bytes: called before this returns, unless this is the first member.
        apply_result: takes a step's number and the bytes of each of its reduced tensors, and does what the caller does
            after `all_reduce`. With it this member joins while the others go on; without it they wait.
        members_min: `all_reduce` waits until so many work.
        settings: addresses, engine and identity; None reads the `HIVE_*` environment. A state larger than its
            `receive_bytes_max` is refused.

    Raises:
        TimedOutError: nobody has admitted this process in time, or it did not catch up.
        EvictedError: all who held the state are gone.
        PeerError: the state cannot be received.
        MisuseError: the name cannot be one.
        RegisterLostError: the register cannot be reached.
    """

    def __init__(
        self,
        register: Register,
        *,
        name: str,
        get_state: Callable[[], bytes | None],
        set_state: Callable[[bytes], None],
        apply_result: ApplyResult | None = None,
        members_min: int = 1,
        settings: Settings | None = None,
        join_timeout_s: float = JOIN_S,
    ) -> None:
        settings = settings or Settings.from_environment()
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise MisuseError(f"a member's name has 1 to {NAME_BYTES_MAX} bytes: {name!r}")
        self.member = Member(name, secrets.randbits(62))
        self._broker = settings.broker
        self._has_quorum = False
        self._control = Control(register, self.member, settings=settings)
        self._control.members_min = members_min
        self._follower = Follower(
            self._control,
            get_state=get_state,
            set_state=set_state,
            apply_result=apply_result,
            state_bytes_max=settings.receive_bytes_max,
        )
        give_up_s = time.monotonic() + join_timeout_s
        try:
            self._control.join(join_timeout_s, follows=apply_result is not None)
            self._follower.learn(give_up_s, join_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def step(self) -> int:
        """The last step that is committed here: 0 before the first."""
        return max(self._control.state.committed, 0)

    @property
    def members_min(self) -> int:
        """`all_reduce` waits until so many work. It may be set between two steps."""
        return self._control.members_min

    @members_min.setter
    def members_min(self, members: int) -> None:
        self._control.members_min = members

    @property
    def view(self) -> View:
        """Who is in the group now."""
        return self._control.view

    @property
    def digest(self) -> bytes:
        """Of all results up to `step`, 16 bytes: the same on all members that have committed it."""
        return self._control.state.digest

    def all_reduce(
        self,
        tensors: object | Sequence[object],
        op: ReduceOp = ReduceOp.MEAN,
        *,
        timeout_s: float = 300.0,
        quorum: int = 0,
        finite: bool = True,
        compression: str = "",
        feedback: Hashable = None,
    ) -> Committed:
        """Reduce the members' `tensors` into them, in place, as step `self.step + 1`; return when it is committed.

        Where this member was left behind and has `apply_result`, the steps up to the last one but one are applied by
        it, and the tensors hold the result of the last one. Tensors may have other sizes in each step, such as those of
        a fragment of a model: where the last result is of another fragment, it is applied so, too
        (`Committed.applied`).

        Args:
            quorum: with that many parts, and more than half of all, a step does not wait for one that is later than the
                last arrivals let expect. Who is late three times in a row only follows the next three steps, and
                twice as many each time that it is late again, 48 at most. 0 on all members waits for all, and so
                does `EVERYBODY` of one where others have a quorum.
            finite: refuse to send NaN or infinity.
            compression, feedback: as of `Group.allreduce`. What is left out is kept for as long as the view is.

        Raises:
            EvictedError: the others go on without this process.
            RegisterLostError: the view has to change, and the register cannot be reached.
            TimedOutError: fewer than `members_min` members were there.
            PeerError: members called with different tensors or operations, or hold unequal results.
            MisuseError: a tensor cannot be reduced, or is not finite.
        """
        met = self._step(
            tensors, op, timeout_s, quorum=quorum, finite=finite, compression=compression, feedback=feedback
        )
        assert met is not None
        return met

    def make_up(
        self,
        tensors: object | Sequence[object],
        op: ReduceOp = ReduceOp.MEAN,
        *,
        quorum: int,
        timeout_s: float = 300.0,
        finite: bool = True,
        compression: str = "",
        feedback: Hashable = None,
    ) -> Committed | None:
        """After a step that this member's part came too late for: have the part count in the next one.

        It waits there for the others, and this member begins the step after together with them. So one that takes up
        to twice as long as they do counts in every other step. Where it went on at once it would be late in each.

        Returns:
            As `all_reduce`. None where nothing was done: the view changes before that, this member only follows, or
            the next step has no quorum, or parts of another size.

        Raises: as `all_reduce`, which has the arguments. `timeout_s` is of the reduction, not of the waiting.
        """
        if self.member not in self.view.workers:
            return None
        return self._step(
            tensors,
            op,
            timeout_s,
            quorum=quorum,
            finite=finite,
            compression=compression,
            feedback=feedback,
            within=self.view,
        )

    def _step(
        self,
        tensors: object | Sequence[object],
        op: ReduceOp,
        timeout_s: float,
        *,
        quorum: int,
        finite: bool,
        compression: str,
        feedback: Hashable,
        within: View | None = None,
    ) -> Committed | None:
        """See `all_reduce`, and `make_up` where it is to be done `within` a view or not at all."""
        listed = tensors if isinstance(tensors, list | tuple) else [tensors]
        views = [TensorView.of(one, writable=True) for one in listed]
        if finite:
            _require_finite(views)
        kept = [bytes(one.data) for one in views]
        part_bytes = sum(map(len, kept))
        attempts, differed = 0, 0
        give_up_s = math.inf if within else time.monotonic() + timeout_s  # the others have yet to make theirs
        while True:
            group, view = self._ready(give_up_s, timeout_s, within)
            if within is not None and view is not within:
                return None
            step, members = self.step + 1, view.workers
            if group is not None and quorum:
                self._has_quorum = True
                arrived = Arrived(view.epoch, step, quorum, part_bytes, made_up=within is not None)
                chosen = self._contributors(view, arrived, give_up_s, timeout_s)
                if chosen is None:
                    continue
                if within is not None and self._control.unfit == (view.epoch, step):
                    return None
                members = chosen
                group = self._group_of(group, view, members, step)
            elif group is not None and self._has_quorum:  # somebody may make up for the step before
                self._control.tell_first(Arrived(view.epoch, step, 0, part_bytes, made_up=False))
            if group is None:
                followed = self._follower.follow(view, views, give_up_s, timeout_s)
                if followed is None:
                    continue
                met = Committed(
                    followed.step, followed.members, attempts=0, contributed=False, applied=followed.applied
                )
                break
            attempts += 1
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
                if self._exchange(group, view, members, step, views):
                    break
                differed += self._control.view is view
            except TransportError as error:
                if isinstance(error, MisuseError | PeerError) and self._control.group is not None:
                    raise
                if time.monotonic() > give_up_s and not self._control.links.present.lost():
                    raise
                _log.info("step %d of epoch %d was not finished: %s", step, view.epoch, error)
            if self._settled(view, step):
                break
            if differed >= DIFFER_MAX:
                raise PeerError("the group", f"members hold unequal results of step {step}: one of them computes wrong")
            for one, data in zip(views, kept, strict=True):
                one.data[:] = data
        for one in views:
            one.write_back()
        if met.contributed:
            self._follower.keep(met.step, met.members, view, views, late=quorum > 0)
        self._control.hand_over.committed(met.members)
        return met

    def aside(self, run: Callable[[Group, View], T], *, timeout_s: float = 300.0) -> T | None:
        """Run something on the group of the present view's workers, apart from steps: exchanges between single members.

        Returns:
            What `run` returns; None where the view changed before it was done, as after the loss of a member.

        Raises: as of `all_reduce`, and what `run` raises while the view stays.
        """
        group, view = self._ready(time.monotonic() + timeout_s, timeout_s)
        if group is None:  # this member has to follow the others' steps first
            return None
        self._control.wait_between_steps(idle=True)  # or a change of the view would wait for the end of a step
        try:
            return run(group, view)
        except TransportError as error:
            if isinstance(error, MisuseError | PeerError) and self._control.group is not None:
                raise
            _log.info("an exchange in epoch %d was given up: %s", view.epoch, error)
        self._settled(view, self.step + 1)
        return None

    def stepped(self, gradient_bytes: int) -> None:
        """Say that a step of training was made. `hive-qos job` then shows what DDP would have sent for it.

        Args:
            gradient_bytes: of all gradients of the model, in their dtype.
        """
        self._control.stepped(gradient_bytes)

    def leave(self) -> None:
        """Tell the others that this process goes, and close: within a second they go on.

        Call it between two steps. Where somebody learns, or was late for the last step, and nobody else will have what
        that one needs, this member stays for it, `STAY_S` at most.
        """
        give_up_s, said = time.monotonic() + STAY_S, False
        try:
            while time.monotonic() < give_up_s and (needed_by := self._control.needed_by()):
                if not said:
                    _log.info("%s stays for %s, %.0f s at most", self.member, ", ".join(needed_by), STAY_S)
                said = True
                self._control.wait_between_steps(idle=True)
                self._follower.give_state()
                time.sleep(ASK_S)
        finally:
            self._go()

    def leave_on(self, number: signal.Signals = signal.SIGTERM, *, at: str = "", schedule: str = "") -> None:
        """From now on that signal lets this process leave, whatever it does, and ends it: `SystemExit(0)` is raised.

        Call it in the main thread.

        Args:
            at: the process gets the signal when the local clock next shows this, such as "08:00"; "" for never.
            schedule: and when the broker of this host says that this `[[schedule]]` of its holds; "" for none.

        Raises: as `departure.watch`.
        """

        def leave(_number: int, _frame: FrameType | None) -> None:
            going = threading.Thread(target=self._go, name="hive-volatile-leave")  # this thread may hold its locks
            going.start()
            going.join(LEAVE_S)
            raise SystemExit(0)

        signal.signal(number, leave)
        if at or schedule:
            main = threading.main_thread().ident or 0
            departure.watch(
                at=at,
                schedule=schedule,
                broker=self._broker,
                leave=lambda: signal.pthread_kill(main, number),
                is_over=lambda: self._control.closing,
            )

    def close(self) -> None:
        """End without a word: the others see a loss. Idempotent."""
        self._control.close()

    def __enter__(self) -> VolatileGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self._go()

    def _go(self) -> None:
        with contextlib.suppress(HiveError):
            self._control.leave()
        self.close()

    # A step.

    def _ready(self, give_up_s: float, timeout_s: float, within: View | None = None) -> tuple[Group | None, View]:
        """Wait until a step may begin: the connected workers, or None where this member has to follow them.

        Args:
            within: wait no longer than for as long as this is the view.
        """
        control = self._control
        try:
            while True:
                given = self._follower.give_state()
                with control.changed:
                    control.raise_failure()
                    state, view = control.state, control.view
                    if state.phase is Phase.BEHIND or (within is not None and view is not within):
                        return None, view
                    if given and self._follower.is_asked_for_state():
                        continue  # since a moment ago, and before the next step
                    waits = view.pause or len(view.workers) < self.members_min
                    if control.group is not None and state.phase is Phase.REDUCING and not waits:
                        return control.group, view
                    control.wait_between_steps(idle=waits)
                    left_s = give_up_s - time.monotonic()
                    if left_s <= 0:
                        raise TimedOutError(self._what_waits(view), timeout_s=timeout_s)
                    control.changed.wait(min(left_s, 0.1))
        finally:
            control.wait_between_steps(idle=False)

    def _what_waits(self, view: View) -> str:
        if view.pause:
            return f"waiting for {', '.join(map(str, view.joining))}, which could not follow"
        return f"a volatile group of {len(view.workers)}, of at least {self.members_min} members"

    def _contributors(
        self, view: View, arrived: Arrived, give_up_s: float, timeout_s: float
    ) -> tuple[Member, ...] | None:
        """Say that this member's part is ready, and wait to hear whose parts count; None where the view changes.

        Nobody's, where the part was made up and does not fit.
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
                if control.view is not view or control.state.phase is Phase.FROZEN:
                    return None
                if arrived.made_up and control.unfit == (arrived.epoch, arrived.step):
                    return ()
                chosen = commit.announced(control.state, arrived.step)
                if chosen is not None:
                    return chosen.members
                control.changed.wait(0.1)

    def _group_of(self, whole: Group, view: View, members: tuple[Member, ...], step: int) -> Group | None:
        """The group of a step's contributors; None where this member is not among them."""
        if members == view.workers:
            return whole
        if self.member not in members:
            return None
        return self._control.some(members, f"{view.epoch}.{step}")

    def _exchange(
        self, group: Group, view: View, members: tuple[Member, ...], step: int, views: Sequence[TensorView]
    ) -> bool:
        """Say that this member is prepared, and hear it of the others; whether the step is committed."""
        control = self._control
        result = digest_of(piece_digests([one.data for one in views]))
        with control.changed:
            if control.view is not view:
                return False
            before = control.state
            actions = control.apply(commit.reduced, step, result)
            own = next((one for who, one in control.state.prepared if who == self.member and one.step == step), None)
            if any(isinstance(one, Commit) for one in actions):
                return True
            if control.state is before or own is None:
                return False
        said = np.frombuffer(own.digest + bytes([own.turn]), np.uint8)
        outputs = [np.zeros(said.size, np.uint8) for _ in members]
        group.all_gather(outputs, said).wait()
        with control.changed:
            for member, heard in zip(members, outputs, strict=True):
                if member == self.member or control.view is not view:
                    continue
                data = heard.tobytes()
                prepared = Prepared(view.epoch, step, data[:DIGEST_BYTES], members, bool(data[DIGEST_BYTES]))
                actions = control.apply(commit.received, member, prepared)
                for one in actions:
                    if isinstance(one, Differ):
                        self._name(one)
                if any(isinstance(one, Commit) and one.step == step for one in actions):
                    return True
        return False

    def _name(self, differ: Differ) -> None:
        """Whose result is another one. A majority sends the odd ones away."""
        shown = ", ".join(f"{one}: {digest.hex()[:8]}" for one, digest in sorted(differ.digests.items()))
        odd = ", ".join(map(str, sorted(differ.odd)))
        _log.warning("results of step %d differ%s: %s", differ.step, f", {odd} is odd" if odd else "", shown)
        if self.member in differ.odd:
            reason = (
                f"its result of step {differ.step} is not that of the others ({shown}): this machine computes wrong"
            )
            self._control.fail(PeerError(str(self.member), reason))

    def _settled(self, view: View, step: int) -> bool:
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


def _require_finite(views: Sequence[TensorView]) -> None:
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

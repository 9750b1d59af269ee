"""A group of processes that come and go while it works: all of its members commit a step, or none does.

    with VolatileGroup(register, name="worker-7", get_state=..., set_state=..., apply_result=...) as group:
        while group.step < steps:
            gradients = ...                         # of the state after group.step
            if not group.all_reduce(gradients).applied:     # with whom is there; a lost member only costs time
                optimizer.step()

Each epoch of the view has a group of connected workers. A step is an all-reduce, then an exchange of the result's
digest: whoever has that of every contributor may apply it. When a worker is lost, leaves or joins, a thread of each
member agrees with the others on the next view (`control`). It does so while the caller computes.

The inputs of a step are kept until it is committed. Whoever joins learns first: it fetches the state after some step
and the results after it, while the others go on. Where it cannot follow, the others wait once, and say why.

Who was out of reach, as a laptop that slept, is left out by the others, and joins again by itself.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from types import FrameType, TracebackType
from typing import TypeVar

from hive_qos.errors import (
    EvictedError,
    HiveError,
    MisuseError,
    PeerError,
    RegisterLostError,
    TransportError,
)
from transport.arguments import check_count, check_seconds
from transport.collectives.reduce_op import ReduceOp
from transport.group import Group
from transport.settings import Settings
from transport.volatile import departure, interrupts
from transport.volatile.control import TELL_S, Control
from transport.volatile.following import ApplyResult, Follower
from transport.volatile.membership.joining import JobOverError
from transport.volatile.protocol.hand_over import ASK_S, STAY_S
from transport.volatile.protocol.view import MEMBERS_MAX, NAME_BYTES_MAX, Member, View
from transport.volatile.record.tape import require_folder
from transport.volatile.register.register import POLL_S, Register, RegisterForgotError
from transport.volatile.steps import Committed, Steps

T = TypeVar("T")

_log = logging.getLogger("transport.volatile")

EVERYBODY = MEMBERS_MAX
"""As a quorum: this step waits for all."""
STEP_S = 1800.0
"""As torch's `default_pg_timeout`: who needs 10 minutes for a round can wait for one who needs 40. A lost member is
found within seconds without it."""
JOIN_S = STEP_S
"""A newcomer is let in within seconds, and works after the step that is under way then."""
AGAIN_S = 1.0
"""Before a member that could not join again tries to: so long a link may take to come back, of a machine that slept."""
END_S = 10.0
"""A step that is to end does so within a few round trips, or once a loss is seen and agreed on."""
LEAVE_S = 1.0
"""On a signal, `TELL_S` of it to tell the others: service managers and clouds kill some seconds after theirs."""


class VolatileGroup:
    """This process as a member of a job. All methods but `close` belong to one thread.

    Args:
        register: of the job, the same for all.
        name: of this process, unique in the job.
        get_state: returns the state after `group.step`, as bytes, the same on all members: called where somebody joins.
            None where another thread of the caller's is still to apply a step: it is called again soon.
        set_state: takes such bytes: called before this returns, unless this is the first member; and by `all_reduce`,
            `make_up` or `aside` after this member was left out.
        apply_result: takes a step's number and the bytes of each of its reduced tensors, and does what the caller does
            after `all_reduce`. So this member joins while the others go on, and again after it was left out.
        members_min: `all_reduce` waits until so many work.
        settings: addresses, engine and identity; None reads the `HIVE_*` environment.
        state_bytes_max: a state or result that is larger than this, and than `receive_bytes_max` of the settings, is
            refused.
        timeout_s: so long a call waits for a member that lives and does not come.
        join_timeout_s: so long to be admitted, and again after this member was left out; and for a register that
            cannot be reached when the view has to change.

    Raises:
        TimedOutError: nobody has admitted this process in time, or it did not catch up.
        EvictedError: all who held the state are gone.
        PeerError: the state cannot be received.
        MisuseError: the name cannot be one.
        RegisterLostError: the register cannot be reached.
        ConfigurationError: no tape can be written into the folder of the settings.
    """

    def __init__(
        self,
        register: Register,
        *,
        name: str,
        get_state: Callable[[], bytes | None],
        set_state: Callable[[bytes], None],
        apply_result: ApplyResult,
        members_min: int = 1,
        settings: Settings | None = None,
        state_bytes_max: int = 0,
        timeout_s: float = STEP_S,
        join_timeout_s: float = JOIN_S,
    ) -> None:
        check_count("members_min", members_min)
        check_seconds("timeout_s", timeout_s)
        check_seconds("join_timeout_s", join_timeout_s)
        settings = settings or Settings.from_environment()
        if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise MisuseError(f"a member's name has 1 to {NAME_BYTES_MAX} bytes: {name!r}")
        if not isinstance(register, Register):
            raise MisuseError(f'a group joins a register, as torch_register("host:port") makes, not {register!r:.80}')
        if settings.tape:
            require_folder(settings.tape)  # only here: where it is gone later, training goes on
        self._register, self._name, self._settings = register, name, settings
        self._state_bytes_max = max(state_bytes_max, settings.receive_bytes_max)
        self._get_state, self._set_state, self._apply_result = get_state, set_state, apply_result
        self._members_min, self._timeout_s, self._join_timeout_s = members_min, timeout_s, join_timeout_s
        self._closed = False
        self._handlers: list[Callable[[], None]] = []
        """Each takes a handler of a signal away (`leave_on`)."""
        self._joining: Control | None = None
        self._join_first()

    def _join_first(self) -> None:
        give_up_s = time.monotonic() + self._join_timeout_s
        while True:
            try:
                return self._join(None, give_up_s - time.monotonic())
            except EvictedError as error:
                assert self._joining is not None
                view, learned_in = self._register.view(), self._joining.view
                if view is None or view.epoch <= learned_in.epoch or time.monotonic() > give_up_s:
                    raise  # those it learned from are gone, and nobody has gone on
                _log.info("%s joins anew: %s", self._name, error)

    def _join(self, left: View | None, timeout_s: float) -> None:
        """Be a member: one that nobody has met, also where this was in a view that it has `left`."""
        give_up_s = time.monotonic() + timeout_s
        member = Member(self._name, secrets.randbits(62))
        control = Control(self._register, member, settings=self._settings, without_register_s=self._join_timeout_s)
        control.members_min = self._members_min
        follower = Follower(
            control,
            get_state=self._get_state,
            set_state=self._set_state,
            apply_result=self._apply_result,
            state_bytes_max=self._state_bytes_max,
        )
        self._joining = control
        try:
            if self._closed:
                control.close()
            control.join(timeout_s, left=left)
            follower.learn(give_up_s, timeout_s)
        except BaseException:
            control.close()
            raise
        control.members_min = self._members_min  # of now
        self.member, self._control, self._follower = member, control, follower
        self._steps, self._joining = Steps(control, follower), None

    def _join_again(self, reason: EvictedError) -> None:
        """Be a member again, with the state that the others have by now.

        Raises: as `VolatileGroup`.
        """
        _log.warning("%s joins again: %s", self.member, reason)
        self._control.fail(reason)
        self._control.close()
        state, give_up_s = self._control.state, time.monotonic() + self._join_timeout_s
        left = replace(state.view, base_step=state.committed, digest=state.digest)
        while True:
            try:
                return self._join(left, give_up_s - time.monotonic())
            except (EvictedError, RegisterLostError) as error:
                if time.monotonic() + AGAIN_S > give_up_s or isinstance(error, JobOverError | RegisterForgotError):
                    raise
                _log.info("%s could not join: %s", self._name, error)
                time.sleep(AGAIN_S)

    @property
    def step(self) -> int:
        """The last step that is committed here: 0 before the first."""
        return self._control.step

    @property
    def members_min(self) -> int:
        """`all_reduce` waits until so many work. It may be set between two steps."""
        return self._members_min

    @members_min.setter
    def members_min(self, members: int) -> None:
        check_count("members_min", members)
        self._members_min = self._control.members_min = members

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
        timeout_s: float | None = None,
        quorum: int = 0,
        compression: str = "",
        feedback: Hashable = None,
    ) -> Committed:
        """Reduce the members' `tensors` into them, in place, as step `self.step + 1`; return when it is committed.

        Where this member was left behind, `apply_result` gets the steps up to the last one but one, and the tensors
        hold the result of the last one. Tensors may have other sizes in each step, such as those of a fragment of a
        model: where the last result is of another fragment, it is applied so, too (`Committed.applied`). Where this
        member was left out it joins again, and `set_state` gets what the others hold: the tensors are as they were
        then, too, and what they say was learned from an older state.

        An error of another kind than below, as of a signal's handler, leaves the step half done: the others go on
        without this member, and its next call joins again. So it is in `make_up` and `aside`. `unbroken` puts Ctrl-C
        off.

        Args:
            timeout_s: of this step; None is the group's.
            quorum: with that many parts, and more than half of all, a step does not wait for one that is later than the
                last arrivals let expect. Who is late three times in a row only follows the next three steps, and
                twice as many each time that it is late again, 48 at most. 0 on all members waits for all, and so
                does `EVERYBODY` of one where others have a quorum.
            compression, feedback: as of `Group.allreduce`. What is left out is kept for as long as the view is.

        Raises:
            EvictedError: the others have all left.
            RegisterLostError: the view has to change, and the register cannot be reached for long.
            TimedOutError: a member that lives did not come in time, or fewer than `members_min` were there; or none
                admitted this one again.
            PeerError: members called with different tensors or operations, or hold unequal results.
            MisuseError: a tensor cannot be reduced, or is not finite.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            with self._whole():
                met = self._steps.make(
                    tensors, op, timeout_s, quorum=quorum, compression=compression, feedback=feedback
                )
        except EvictedError as error:
            return self._left_out(error)
        assert met is not None
        return met

    def make_up(
        self,
        tensors: object | Sequence[object],
        op: ReduceOp = ReduceOp.MEAN,
        *,
        quorum: int,
        timeout_s: float | None = None,
        compression: str = "",
        feedback: Hashable = None,
    ) -> Committed | None:
        """After a step that this member's part came too late for: have the part count in the next one.

        It waits there for the others, and this member begins the step after together with them. So one that takes up
        to twice as long as they do counts in every other step. Where it went on at once it would be late in each.

        Returns:
            As `all_reduce`. None where nothing was done, and the part does not count: the view changes before that;
            this member only follows; or the next step has no quorum, or parts of another size.

        Raises: as `all_reduce`, which has the arguments. `timeout_s` is of the reduction, not of the waiting.
        """
        if self.member not in self.view.workers:
            return None
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            with self._whole():
                return self._steps.make(
                    tensors,
                    op,
                    timeout_s,
                    quorum=quorum,
                    compression=compression,
                    feedback=feedback,
                    within=self.view,
                )
        except EvictedError as error:
            return self._left_out(error)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What is broken off half done, as by Ctrl-C, is not taken up again: the others go on without this member."""
        control = self._control
        control.in_step = threading.get_ident()
        try:
            yield
        except HiveError:
            raise
        except BaseException as error:
            if self._steps.is_under_way:
                self.lose_state(f"{type(error).__name__} has broken off what the members do together")
            raise
        finally:
            control.in_step = 0

    def unbroken(self) -> contextlib.AbstractContextManager[None]:
        """A block that Ctrl-C does not cut in two: a step and the use of its result.

        The first one has a step that this thread makes end soon, however late the others are. Either it is committed,
        or `all_reduce` raises KeyboardInterrupt, and this member's part counts nowhere. Else that is raised where the
        block ends. A second Ctrl-C raises at once, and a part may count that is taken for one that does not.
        """
        return interrupts.put_off(self._end_step)

    def _end_step(self) -> None:
        if self._control.in_step == threading.main_thread().ident and self._steps.is_under_way:
            self._control.suspect()

    def rejoin(self) -> Committed | None:
        """Between two steps: join again now, where the others have gone on without this member.

        Who trains apart for long calls it now and then. The next step does it as well, but it may be far off.

        Returns:
            None where this member is in the group; else as `all_reduce` of one that was left out.

        Raises: as `all_reduce`.
        """
        failure = self._control.failure
        return self._left_out(failure) if isinstance(failure, EvictedError) else None

    def _left_out(self, reason: EvictedError) -> Committed:
        """Join again; what then counts as the step that this member was left out of."""
        contributed = self._steps.is_in_their_result()
        with interrupts.may_raise():
            self._join_again(reason)
        return Committed(self.step, (), attempts=0, contributed=contributed, applied=True)

    def aside(self, run: Callable[[Group, View], T], *, timeout_s: float | None = None) -> T | None:
        """Run something on the group of the present view's workers, apart from steps: exchanges between single members.

        Pipelines over members that come and go are not built; they would begin here. Members of one stage are a group
        with `PartialMean`. Those of all stages are a second one, whose `run` sends a micro-batch to any living member
        of the next stage.

        Returns:
            What `run` returns; None where the view changed before it was done, as after the loss of a member.

        Raises: as of `all_reduce`, and what `run` raises while the view stays.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            group, view = self._steps.ready(time.monotonic() + timeout_s, timeout_s)
            if group is None:  # this member has to follow the others' steps first
                return None
            self._control.wait_between_steps(idle=True)  # or a change of the view would wait for the end of a step
            try:
                with self._whole():
                    return run(group, view)
            except TransportError as error:
                if isinstance(error, MisuseError | PeerError) and self._control.connects(view):
                    raise
                _log.info("an exchange in epoch %d was given up: %s", view.epoch, error)
            self._steps.settled(view, self.step + 1)
        except EvictedError as error:
            self._join_again(error)
        return None

    def lose_state(self, reason: str) -> None:
        """Say that this process does not hold what the others hold any more: it joins again with its next call.

        Where nobody else works they begin with what it holds now: who learns does so anew.
        """
        self._control.lose_state(reason)

    def stepped(self, gradient_bytes: int) -> None:
        """Say that a step of training was made. Who joins gets the state now, if it waits for one (`get_state`).

        `hive-qos job` then shows what DDP would have sent for the step.

        Args:
            gradient_bytes: of all gradients of the model, in their dtype.
        """
        self._control.stepped(gradient_bytes)
        self._follower.give_state()

    def leave(self) -> None:
        """Tell the others that this process goes, and close: within a second they go on.

        Call it between two steps. Where somebody learns, or was late for the last step, and nobody else will have what
        that one needs, this member stays for it, `STAY_S` at most.
        """
        try:
            self._stay(STAY_S, between_steps=self._follower.give_state)
        finally:
            self._end_step_and_go()

    def _stay(self, stay_s: float, *, between_steps: Callable[[], object] = lambda: None) -> None:
        """For so long at most, while somebody needs what nobody else will have."""
        give_up_s, said = time.monotonic() + stay_s, False
        while time.monotonic() < give_up_s and (needed_by := self._control.needed_by()):
            if not said:
                _log.info("%s stays for %s, %g s at most", self.member, ", ".join(needed_by), stay_s)
            said = True
            self._control.wait_between_steps(idle=True)
            between_steps()
            time.sleep(min(ASK_S, max(give_up_s - time.monotonic(), 0.0)))

    def leave_on(self, number: signal.Signals = signal.SIGTERM, *, at: str = "", schedule: str = "") -> None:
        """Until this is closed that signal lets the process leave, whatever it does, and ends it by `SystemExit(0)`.

        It does so within a second. Half of that is for who learns, or was late for the last step, where nobody else
        will have what that one needs: results, and a state that it has begun to fetch. What the caller has made since
        the last step is in none. Call it in the main thread. Where that closes the group too, and in a forked child,
        which is no member, the signal does again what it did before.

        Args:
            at: the process gets the signal when the local clock next shows this, such as "08:00"; "" for never.
            schedule: and when the broker of this host says that this `[[schedule]]` of its holds; "" for none.

        Raises: as `departure.watch`.
        """

        def hand_over() -> None:
            try:
                self._stay(LEAVE_S - TELL_S)  # without `get_state`, which belongs to the thread that stands still
            finally:
                self._go()

        before = signal.getsignal(number) or signal.SIG_DFL  # None is one that was not set in Python

        def leave(_number: int, _frame: FrameType | None) -> None:
            if self._control.is_inherited:
                signal.signal(number, before)
                return signal.raise_signal(number)
            self._handlers.clear()  # the process ends: another signal is not to cut that short
            going = threading.Thread(target=hand_over, name="hive-volatile-leave")  # this thread may hold its locks
            going.start()
            going.join(LEAVE_S)
            raise SystemExit(0)

        def put_back() -> None:
            if signal.getsignal(number) is leave:  # else it is the caller's
                signal.signal(number, before)

        signal.signal(number, leave)
        self._handlers.append(put_back)
        if at or schedule:
            main = threading.main_thread().ident or 0
            departure.watch(
                at=at,
                schedule=schedule,
                broker=self._settings.broker,
                leave=lambda: None if self._closed else signal.pthread_kill(main, number),
                is_over=lambda: self._closed,
            )

    def close(self) -> None:
        """End without a word: the others see a loss. Idempotent."""
        self._closed = True
        joining = self._joining
        for one in (self._control,) if joining is None else (joining, self._control):
            one.close()
        while self._handlers and threading.current_thread() is threading.main_thread():
            self._handlers.pop()()

    def __enter__(self) -> VolatileGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self._end_step_and_go()

    def _end_step_and_go(self) -> None:
        """A step that another thread makes is ended first: the caller hears whether this member's part counts."""
        control, give_up_s = self._control, time.monotonic() + END_S
        control.leaving = True

        def is_under_way() -> bool:
            return bool(control.in_step) and not (control.is_inherited or control.is_over())

        try:
            if is_under_way():
                control.suspect()
            while is_under_way() and time.monotonic() < give_up_s:
                time.sleep(POLL_S)
        finally:
            self._go()

    def _go(self) -> None:
        try:
            with contextlib.suppress(HiveError):
                self._control.leave()
        finally:  # also of a second Ctrl-C
            self.close()

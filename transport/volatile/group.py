"""A group of processes that come and go while it works: all of its members commit a step, or none does.

    with VolatileGroup(register, name="worker-7", get_state=..., set_state=...) as group:
        while group.step < steps:
            gradients = ...                         # of the state after group.step
            group.all_reduce(gradients)             # with whom is there; a lost member only costs time
            optimizer.step()

Each epoch of the view has a `transport.Group` of its own. A step is an all-reduce, then an exchange of the result's
digest: whoever has everybody's may apply it. When a member is lost, leaves or joins, a thread of each member agrees
with the others on the next view (`transport.volatile.commit`) and connects. It does so while the caller computes.

The inputs of a step are kept until it is committed. Whoever joins receives the state when all have applied the step
that the view begins with: all wait for that transfer.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from hive_qos.errors import (
    EvictedError,
    HiveError,
    MisuseError,
    PeerError,
    RegisterLostError,
    TimedOutError,
    TransportError,
)
from transport.collectives.reduce_op import ReduceOp
from transport.engine.base import Priority
from transport.group import Group
from transport.settings import Settings
from transport.tensors import TensorView
from transport.volatile import commit
from transport.volatile.commit import Action, Advance, Commit, Differ, Left, Phase, Prepared, Send, State
from transport.volatile.register import POLL_S, Register
from transport.volatile.view import DIGEST_BYTES, Member, View
from transport.work import Work

_log = logging.getLogger("transport.volatile")

LATE_S = 5.0
"""Who has not said so long after the first where it stands is left out. A thread says it, whatever is computed."""
CONNECT_S = 10.0
"""A view whose members do not all connect in that time changes again."""
LOOK_S = 0.5
"""How often the first member looks who asks to join: one small request."""
JOIN_S = 300.0
"""A member that computes admits others meanwhile; but the state is handed over when it next calls."""
RING_S = 1.0
"""To a member that does not take its doorbell's message in that time, the loss of its connection says the same."""
_DOORBELL = 2**31 - 7
"""The tag of messages that say: look into the register."""
_FOREVER_S = 10.0 * 365 * 86400


@dataclass(frozen=True)
class Committed:
    """A step that all members have applied or are about to apply.

    Args:
        step: its number, from 1.
        members: who took part, in rank order.
        attempts: how often it was reduced; more than 1 after a loss.
    """

    step: int
    members: tuple[Member, ...]
    attempts: int


class VolatileGroup:
    """This process as a member of a job. All methods but `close` belong to one thread.

    Args:
        register: of the job, the same for all.
        name: of this process, unique in the job.
        get_state: returns the state after `group.step`, as bytes: called where somebody joins.
        set_state: takes such bytes: called once, before this returns, unless this is the first member.
        members_min: `all_reduce` waits until there are so many.
        settings: addresses, engine and identity; None reads the `HIVE_*` environment.

    Raises:
        TimedOutError: nobody has admitted this process in time.
        RegisterLostError: the register cannot be reached.
    """

    def __init__(
        self,
        register: Register,
        *,
        name: str,
        get_state: Callable[[], bytes],
        set_state: Callable[[bytes], None],
        members_min: int = 1,
        settings: Settings | None = None,
        join_timeout_s: float = JOIN_S,
    ) -> None:
        self.member = Member(name, secrets.randbits(62))
        self._register = register
        self._settings = settings
        self._get_state, self._set_state = get_state, set_state
        self._members_min = members_min
        self._changed = threading.Condition()
        self._group: Group | None = None
        self._attempt: Group | None = None
        self._wanted = threading.Event()
        self._closing = False
        self._failure: HiveError | None = None
        self._decided: Commit | None = None
        self._asked = 0
        self._state = commit.begin(self.member, self._enter(join_timeout_s))
        self._stateless = self.member in self._state.view.joining
        self._control = threading.Thread(target=self._run, name="hive-volatile", daemon=True)
        self._control.start()
        try:
            if self._stateless:
                self._ready(join_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def step(self) -> int:
        """The last step that is committed here: 0 before the first."""
        return self._state.committed

    @property
    def view(self) -> View:
        """Who is in the group now."""
        return self._state.view

    @property
    def digest(self) -> bytes:
        """Of all results up to `step`, 16 bytes: the same on all members that have committed it."""
        return self._state.digest

    def all_reduce(
        self, tensors: object | Sequence[object], op: ReduceOp = ReduceOp.MEAN, *, timeout_s: float = 300.0
    ) -> Committed:
        """Reduce the members' `tensors` into them, in place, as step `self.step + 1`; return when it is committed.

        Raises:
            EvictedError: the others go on without this process.
            RegisterLostError: the view has to change, and the register cannot be reached.
            TimedOutError: fewer than `members_min` members were there.
            PeerError: members called with different tensors or operations.
            MisuseError: a tensor cannot be reduced.
        """
        listed = tensors if isinstance(tensors, list | tuple) else [tensors]
        views = [TensorView.of(one, writable=True) for one in listed]
        kept = [bytes(one.data) for one in views]
        step, attempts, give_up_s = self.step + 1, 0, time.monotonic() + timeout_s
        while True:
            group = self._ready(timeout_s)
            members = self.view.members
            attempts += 1
            try:
                for work in [group.allreduce(one, op, timeout_s=timeout_s) for one in views]:
                    work.wait()
                if self._exchange(group, step, _digest(views), timeout_s):
                    break
            except TransportError as error:
                if isinstance(error, MisuseError | PeerError) and self._group is group:
                    raise
                if time.monotonic() > give_up_s and not group.lost_ranks():
                    raise
                _log.info("step %d of epoch %d was not finished: %s", step, self.view.epoch, error)
            outcome = self._settled(group, step)
            if outcome is not None:
                break
            for one, data in zip(views, kept, strict=True):
                one.data[:] = data
        for one in views:
            one.write_back()
        return Committed(step, members, attempts)

    def leave(self) -> None:
        """Tell the others that this process goes, and close. They go on at once.

        The last one leaves a view without members: whoever comes then is the first again.
        """
        self._stop_control()  # or it would say after us that we stay
        with contextlib.suppress(HiveError):
            if self._state.phase is not Phase.OUT and len(self.view.members) > 1:
                self._register.say_frozen(self.member, commit.leaving(self._state))
                self._ring(self._group)
            elif self._state.phase is not Phase.OUT:
                self._register.advance(View(self.view.epoch + 1, (), self.step, self.digest), self.view)
        self.close()

    def close(self) -> None:
        """End without a word: the others see a loss. Idempotent."""
        self._stop_control()
        self._drop_group()

    def _stop_control(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._wanted.set()
        if self._control.is_alive() and self._control is not threading.current_thread():
            self._control.join(CONNECT_S)

    def __enter__(self) -> VolatileGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # The caller's side.

    def _ready(self, timeout_s: float) -> Group:
        """Wait for a connected group of enough members that all hold the state."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                while True:
                    if self._failure is not None:
                        raise self._failure
                    if self._closing:
                        raise MisuseError("this volatile group is closed")
                    enough = len(self.view.members) >= self._members_min
                    if self._group is not None and (enough or self.view.joining or self._stateless):
                        break
                    left_s = give_up_s - time.monotonic()
                    if left_s <= 0:
                        what = f"a volatile group of {len(self.view.members)}, of at least {self._members_min} members"
                        raise TimedOutError(what, timeout_s=timeout_s)
                    self._changed.wait(min(left_s, 0.5))
                group, view = self._group, self.view
            if not view.joining or group is self._attempt:
                if enough:
                    return group
                time.sleep(POLL_S)
                continue
            try:
                self._hand_over(group, view)
                self._attempt = group
                if self._stateless:
                    self._stateless = False
                    return group
            except TransportError as error:
                if isinstance(error, MisuseError) and self._group is group:
                    raise
                _log.info("the state was not handed over in epoch %d: %s", view.epoch, error)
                self._settled(group, self.step + 1)

    def _hand_over(self, group: Group, view: View) -> None:
        """Give the state to who has joined: the first of the others sends it to all."""
        holders = [one for one in view.members if one not in view.joining]
        if not holders:
            raise EvictedError("the last member that held the state is lost: start again from a checkpoint")
        root = view.rank_of(holders[0])
        data = self._get_state() if view.rank_of(self.member) == root else b""
        length = np.array([len(data)], np.int64)
        group.broadcast(length, root).wait()
        state = np.frombuffer(data, np.uint8).copy() if data else np.zeros(int(length[0]), np.uint8)
        if length[0]:
            group.broadcast(state, root, priority=Priority.BULK).wait()
        if self._stateless:
            self._set_state(state.tobytes())
        group.barrier().wait()

    def _exchange(self, group: Group, step: int, result: bytes, timeout_s: float) -> bool:
        """Say that this member is prepared, and hear it of the others; whether the step is committed."""
        with self._changed:
            epoch = self.view.epoch
            before = self._state
            self._state, actions = commit.reduced(self._state, step, result)
            if self._state is before:
                return False
            if self._carry_out(actions, step):
                return True
            own = next(one.message for one in actions if isinstance(one, Send))
            assert isinstance(own, Prepared)
        outputs = [np.zeros(DIGEST_BYTES, np.uint8) for _ in range(group.size)]
        group.all_gather(outputs, np.frombuffer(own.digest, np.uint8), timeout_s=timeout_s).wait()
        with self._changed:
            if self.view.epoch != epoch:
                return False
            for member, digest in zip(self.view.members, outputs, strict=True):
                if member != self.member:
                    heard = Prepared(epoch, step, digest.tobytes())
                    self._state, actions = commit.received(self._state, member, heard)
                    if self._carry_out(actions, step):
                        return True
        return False

    def _carry_out(self, actions: Sequence[Action], step: int) -> bool:
        """Whether `step` is committed. Members that hold unequal results are named, and do it again."""
        for action in actions:
            if isinstance(action, Differ):
                told = ", ".join(f"{one}: {digest.hex()[:8]}" for one, digest in sorted(action.digests.items()))
                _log.warning("results of step %d differ, it is done again: %s", action.step, told)
                self._wanted.set()
        return any(isinstance(one, Commit) and one.step == step for one in actions)

    def _settled(self, group: Group, step: int) -> Commit | None:
        """After a failure: have the view changed, and wait until it is. The commit of `step`, if that was decided."""
        with self._changed:
            if self._group is group:
                self._wanted.set()
                while self._group is group and self._failure is None and not self._closing:
                    self._changed.wait(0.5)
            if self._failure is not None:
                raise self._failure
            decided, self._decided = self._decided, None
        return decided if decided is not None and decided.step == step else None

    # The control thread's side.

    def _enter(self, timeout_s: float) -> View:
        """The first view that this member is in."""
        give_up_s = time.monotonic() + timeout_s
        view, asked = self._register.view(), False
        while view is None or self.member not in view.members:
            if view is None or not view.members:
                epoch, seen = (1, 0) if view is None else (view.epoch + 1, view.asked)
                first = View(epoch, (self.member,), 0, bytes(DIGEST_BYTES), asked=seen)
                view = self._register.advance(first, view)
                continue
            if not asked:
                self._register.ask_to_join(self.member)
                asked = True
            if time.monotonic() >= give_up_s:
                what = f"joining: {view.members[0]} did not admit {self.member}; if no member lives, start another job"
                raise TimedOutError(what, timeout_s=timeout_s)
            time.sleep(POLL_S * 5)
            view = self._register.view() or view
        return view

    def _run(self) -> None:
        try:
            while not self._closing and self._failure is None:
                if self._group is None:
                    self._connect()
                    continue
                self._wanted.wait(LOOK_S)
                if self._closing:
                    return
                joining = self._who_asks()
                if self._wanted.is_set() or joining:
                    self._wanted.clear()
                    self._change(joining)
        except HiveError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the caller waits for this thread
            _log.exception("the control thread of a volatile group failed")
            self._fail(TransportError(f"the volatile group's control thread failed: {error}"))

    def _fail(self, error: HiveError) -> None:
        group = self._group
        with self._changed:
            self._failure = self._failure or error
            self._group = None
            self._changed.notify_all()
        if group is not None:
            group.abort(str(error))
            group.close(timeout_s=1.0)

    def _who_asks(self) -> frozenset[Member]:
        if self.view.members[0] != self.member:
            return frozenset()
        self._asked, found = self._register.asked(max(self._asked, self.view.asked))
        here = {one.name: one for one in self.view.members}
        return frozenset(one for one in found if here.get(one.name) != one)

    def _connect(self) -> None:
        """Connect the members of the present view; have it changed again where they do not come."""
        view = self.view
        try:
            group = Group.connect(
                self._register.rendezvous(view.epoch),
                rank=view.rank_of(self.member),
                world_size=len(view.members),
                name=f"volatile/{view.epoch}",
                connect_timeout_s=CONNECT_S,
                settings=self._settings,
            )
        except RegisterLostError:
            raise
        except TransportError as error:
            _log.info("epoch %d did not connect: %s", view.epoch, error)
            self._change(frozenset())
            return
        if len(view.members) > 1:
            bell = group.recv(np.zeros(1, np.uint8), None, _DOORBELL, timeout_s=_FOREVER_S)
            bell.add_done_callback(lambda _: self._rung(view))
        with self._changed:
            self._group = group
            self._changed.notify_all()

    def _rung(self, view: View) -> None:
        if self.view is view:  # else the bell of a group that was closed
            self._wanted.set()

    def _change(self, joining: frozenset[Member]) -> None:
        """Agree with the living members on the next view, and take it."""
        group, view = self._group, self.view
        joining |= {self.member} if self._stateless else frozenset()
        gone = frozenset(view.members[rank] for rank in (group.lost_ranks() if group is not None else ()))
        began_s = time.monotonic()
        with self._changed:
            self._take(commit.changed(self._state, lost=gone, joining=joining, asked=self._asked))
        self._ring(group)
        if group is not None:
            group.abort("the view changes")
        while self.view is view and self._failure is None and not self._closing:
            held = self._register.view()
            if held is None:
                raise RegisterLostError("reading the view", "the register has forgotten it")
            stands = {one: self._register.frozen(view.epoch, one) for one in view.members if one != self.member}
            late = time.monotonic() - began_s > LATE_S
            missing = frozenset(one for one, stand in stands.items() if stand is None)
            if late and not missing - self._state.lost:  # all have said where they stand: who decides has gone since
                living = [one for one in view.members if one not in self._state.lost]
                missing = frozenset(living[:1]) - {self.member}
                began_s = time.monotonic()
            with self._changed:
                self._take(commit.entered(self._state, held))
                for one, stand in stands.items():
                    if stand is not None:
                        self._take(commit.received(self._state, one, stand))
                if late and missing - self._state.lost:
                    self._take(commit.changed(self._state, lost=missing))
            if self.view is view:
                time.sleep(POLL_S)
        self._wanted.clear()
        self._drop_group()

    def _take(self, result: tuple[State, list[Action]]) -> None:
        """Adopt a new state and carry its actions out. The lock is held."""
        self._state, actions = result
        for action in actions:
            match action:
                case Send(message) if not isinstance(message, Prepared):
                    self._register.say_frozen(self.member, message)
                case Advance(view):
                    held = self._register.advance(view, self.view)
                    _log.info("epoch %d: %s", held.epoch, ", ".join(map(str, held.members)))
                    self._take(commit.entered(self._state, held))
                case Commit():
                    self._decided = action
                case Left(epoch, behind):
                    why = "steps were committed that it does not hold" if behind else "it was out of reach"
                    self._failure = EvictedError(f"epoch {epoch} goes on without {self.member}: {why}")
                case _:
                    pass

    def _ring(self, group: Group | None) -> None:
        """Have the other members look into the register."""
        if group is None:
            return
        others = [rank for rank in range(group.size) if rank != group.rank and rank not in group.lost_ranks()]
        rung: list[Work] = []
        for rank in others:
            with contextlib.suppress(HiveError):
                rung.append(group.send(np.ones(1, np.uint8), rank, _DOORBELL, priority=Priority.CONTROL))
        for work in rung:  # an abort would take back what has not left
            try:
                work.wait(RING_S)
            except HiveError as error:
                _log.info("a member was not told that the view changes: %s", error)

    def _drop_group(self) -> None:
        with self._changed:
            group, self._group = self._group, None
            self._changed.notify_all()
        if group is not None:
            group.close(timeout_s=1.0)


def _digest(views: Sequence[TensorView]) -> bytes:
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for one in views:
        found.update(one.data)
    return found.digest()

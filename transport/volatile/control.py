"""A member's part in the agreement on views: a thread that hears the others, sees who is lost, and asks the register.

The rules are those of `protocol.commit`; this carries its actions out. Members tell each other where they
stand over their connections. Who cannot be reached so finds a note in the register a moment later. So a loss costs its
detection, a round trip until all know where all stand, one write of the register, and one message that it is written.

The same thread does what the first worker does for all, where it is one (`membership.first_worker`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate

from hive_qos.errors import EvictedError, HiveError, MisuseError, PeerError, RegisterLostError, TransportError
from transport.group import Group
from transport.settings import Settings
from transport.volatile import interrupts
from transport.volatile.links.links import Links
from transport.volatile.membership.agreement import P
from transport.volatile.membership.first_worker import FirstWorker
from transport.volatile.membership.joining import Newcomer
from transport.volatile.membership.succession import Succession
from transport.volatile.protocol import commit
from transport.volatile.protocol.admission import LOOK_S
from transport.volatile.protocol.commit import Action, Advance, Commit, Contributors, Frozen, Left, Phase, Send, State
from transport.volatile.protocol.hand_over import HandOver
from transport.volatile.protocol.messages import (
    Arrived,
    AskReady,
    Connect,
    Connected,
    Look,
    Mail,
    Pause,
    Ready,
    Unfit,
)
from transport.volatile.protocol.view import MEMBERS_MAX, Member, View
from transport.volatile.record.report import MemberReport
from transport.volatile.register.register import POLL_S, STORE_S, Register, RegisterForgotError
from transport.volatile.transfer.fetch import Fetch
from transport.volatile.transfer.shelf import Shelf
from transport.work import Work

_log = logging.getLogger("transport.volatile")

TELL_S = 0.5
"""Who leaves waits so long for the others to have its word. Where they have not, they see a loss."""
ANSWER_S = 2.0
"""So long a member waits for an answer of the register, and hears nobody meanwhile; then it asks anew, over another
connection. Over a link that was cut, TCP itself tries again only after as long as the cut has lasted."""
REST_TIMES = 5
"""Where no answer came, steps go on for so many times as long before anybody looks again who asks to join."""
END_S = 1.0
"""And so long for each answer of the register, to end the job where all leave."""


class Control:
    """See the module. `changed` guards `state`, `group` and `failure`, which the caller's thread sees, too.

    Args:
        register: of the job.
        member: who this is.
        settings: of its connections; None reads the `HIVE_*` environment.
        without_register_s: for how long the view waits to be changed where the register cannot be reached.
    """

    def __init__(
        self, register: Register, member: Member, *, settings: Settings | None, without_register_s: float
    ) -> None:
        self.member = member
        self._process = os.getpid()
        self.changed = threading.Condition()
        self.shelf = Shelf()
        self.hand_over = HandOver(member)
        self.state: State
        self.group: Group | None = None
        self.failure: HiveError | None = None
        self.decided: Commit | None = None
        self.left: Left | None = None
        """The others go on without this member."""
        self.unfit = 0, 0
        """The epoch and step that this member cannot make up a part for."""
        self.members_min = 1
        self.attempts = 0
        """How often the caller has begun to reduce the step that it is at."""
        self.in_step = 0
        """The thread of the caller's whose call for a step is not over; 0 where there is none."""
        self.leaving = False
        """The caller's step, in another thread, is the last one."""
        self.idle = False
        """The caller waits between two steps, for others."""
        self.fetches: Fetch | None = None
        """The state that this member fetches, which learns."""
        self.closing = False
        self._patient, self._register = register, register.within(ANSWER_S)
        settings = Settings.from_environment() if settings is None else settings
        self._settings = settings = replace(settings, silence_ends=True)
        self._wake = threading.Event()
        self._mail: queue.SimpleQueue[tuple[Member, Mail]] = queue.SimpleQueue()
        self.links = Links(
            register, member, settings=settings, shelf=self.shelf, heard=self._heard, on_loss=self._wake.set
        )
        self._misled: frozenset[Member] = frozenset()
        """Who learned from this member what it does not hold any more."""
        self._first = FirstWorker(self._register, self)
        self._succession = Succession(self._register, self)
        self._report: MemberReport | None = None
        self._some: Group | None = None
        self._early: deque[tuple[Member, Mail]] = deque(maxlen=MEMBERS_MAX)
        self._todo: deque[Action] = deque()
        self._look_s = 0.0
        self._suspicious = False
        self._without_register_s = without_register_s
        self._waits_since_s: float | None = None
        """For a register that cannot be reached."""
        self._unread = False
        """Others have told of a view that this member has not read."""
        self._register_lost: type[RegisterLostError] | None = None  # of which kind, as was said
        self._thread = threading.Thread(target=self._run, name="hive-volatile", daemon=True)

    @property
    def view(self) -> View:
        """The one in force, as far as this member knows."""
        return self.state.view

    # For the caller's thread.

    def join(self, timeout_s: float, *, left: View | None) -> None:
        """Become a member: the first one, or a learner that the others have admitted.

        Args:
            left: as of `Newcomer`.

        Raises: as `Newcomer.join`.
        """
        register = self._patient if left is None else self._register  # it has answered before
        newcomer = Newcomer(register, self.member, self.links, left, self.raise_failure)
        self.state = newcomer.join(timeout_s)
        self._report = MemberReport(
            self.state,
            job=self._register.job,
            settings=self._settings,
            mesh=lambda: self.links.present,
            waits=self.what_is_shown,
            attempts=lambda: self.attempts,
        )
        with self.changed:
            self._adopt(None)
        self._thread.start()

    def apply(
        self, rule: Callable[Concatenate[State, P], tuple[State, list[Action]]], *args: P.args, **named: P.kwargs
    ) -> list[Action]:
        """Replace the state by what a rule of `commit` makes of it, and have its actions carried out."""
        with self.changed:
            before = self.state.phase
            self.state, actions = rule(self.state, *args, **named)
            self._tell()
            self._todo.extend(actions)
            if self.state.phase is Phase.FROZEN and before is not Phase.FROZEN:
                self._waits_since_s = None
                self._succession.froze()
                self._end_steps()
            for one in actions:
                if isinstance(one, Commit):
                    self.decided = one
                if isinstance(one, Left):
                    self._is_left(one)
            self.changed.notify_all()
        if actions:
            self._wake.set()
        return actions

    def _is_left(self, left: Left) -> None:
        self.left = left
        if left.differs is not None:
            reason = "is not the one that the others go on with: this machine computes wrong, or they do"
            return self.fail(PeerError(str(self.member), f"its result of step {left.differs} {reason}"))
        why = "steps were committed that it does not hold" if left.behind else "it was out of reach"
        self.fail(EvictedError(f"epoch {left.epoch} goes on without {self.member}: {why}"))

    def _tell(self) -> None:
        if self._report is not None:
            self._report.saw(self.state)

    def stepped(self, gradient_bytes: int) -> None:
        """Count a step of the caller's training, for `hive-qos job`."""
        if self._report is not None:
            self._report.stepped(gradient_bytes)

    def lose_state(self, reason: str) -> None:
        """As of `VolatileGroup`."""
        with self.changed:
            if self.view.workers != (self.member,):
                self.fail(EvictedError(reason))
                self.links.close_soon()  # or the others would wait for this process until its next call
            elif self.view.joining:
                _log.warning("%s learn anew: %s", ", ".join(map(str, self.view.joining)), reason)
                self._misled = frozenset(self.view.joining)
                self.shelf.clear(self.state.committed)
                self.apply(commit.changed, lost=self._misled)

    def suspect(self) -> None:
        """A step failed, or is to end: have the view changed, or hear that it is."""
        self._suspicious = True
        self._wake.set()

    def connects(self, view: View) -> bool:
        """Whether this is the view, and its workers have a group."""
        return self.group is not None and self.view is view

    def some(self, view: View, members: Sequence[Member], name: str) -> Group | None:
        """A group of some workers, instead of the last such one; None where this is not the view any more."""
        with self.changed:
            if not self.connects(view):
                return None
            before, self._some = self._some, self.links.present.subgroup(members, name)
            if self.group is not None:
                self._some.share_feedback(self.group)
        if before is not None:
            before.close()
        return self._some

    def needed_by(self) -> list[str]:
        """Who needs what nobody else will have once this member has left, as it is about to."""
        if self.is_inherited or self.is_over():
            return []
        with self.changed:
            state = self.state
            found = self.hand_over.needed_by(state, expects_somebody=self._first.expects_somebody)
        if found:
            for one in self.hand_over.in_doubt(state):
                self.links.mail(one, AskReady())
        return found

    def wait_between_steps(self, *, idle: bool) -> None:
        """The caller waits for others (`idle`), or goes on: a change of the view need not wait for a step then."""
        if idle and not self.idle:
            self._wake.set()
        self.idle = idle

    def what_is_shown(self) -> str:
        """For `hive-qos job`: what keeps this member from its next step, or how far it has learnt."""
        fetch = self.fetches
        if fetch is not None:
            return f"it has {fetch.progress()}"
        return self.what_waits() if self.idle or self.state.phase is Phase.FROZEN else ""

    def what_waits(self) -> str:
        """What keeps the next step from beginning; "" where nothing does."""
        view, missing = self.view, self.members_min - len(self.view.workers)
        if self.state.phase is Phase.FROZEN:
            return f"epoch {view.epoch} has to change, and the register or a member does not answer"
        if view.pause:
            return f"it waits for {', '.join(map(str, view.joining))}, which could not follow"
        return f"it waits for {missing} more to join, as members_min is {self.members_min}" if missing > 0 else ""

    def tell_first(self, message: Mail) -> None:
        """Mail the first worker, which may be this one."""
        self.links.mail(self.view.workers[0], message)

    def leave(self) -> None:
        """Tell the others that this process goes: they go on at once.

        Where all of them go, too, whoever is last leaves a view without members: who comes then is the first again.
        In a forked child it does nothing: the parent stays.
        """
        if self.is_inherited:
            return
        with self.changed:
            before = self.state
            members = [one for one in self.view.members if one != self.member]
            self.state, actions = commit.leave(self.state)
            self.closing = True  # a thread of the caller's that makes a step ends now, whatever interrupts this
            self._tell()
            self._end_steps()
            said = [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, Frozen)]
        told = [self.links.mail(one, message) for message in said for one in members]
        give_up_s = time.monotonic() + TELL_S
        for work in told:
            if work is not None:
                _wait(work, give_up_s)
        if said:
            self._end_job(before)

    def _end_job(self, last: State) -> None:
        """Write a view without members, where no worker of the one in force is there any more."""
        register = self._register.within(END_S)
        with contextlib.suppress(HiveError):  # the others go on without its word
            register.say_left(self.member)
            view, epoch = register.view(), 0
            while view and view.epoch > epoch and view.workers and all(map(register.has_left, view.workers)):
                epoch = view.epoch
                step, digest = last.committed, last.digest
                over = View(epoch + 1, (), step, digest, asked=view.asked, mesh=view.mesh, run=view.run)
                view = register.advance(over, view)  # where another one was written meanwhile, that one

    def close(self) -> None:
        """End the thread and the connections. Idempotent; in a forked child it does nothing."""
        if self.is_inherited:
            return
        with self.changed:
            self.closing = True
            self.changed.notify_all()
            self._end_steps()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(TELL_S)
        self.links.close()
        if self._report is not None:
            self._report.close()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy. Asked before any lock is taken: there it may be held for ever."""
        return os.getpid() != self._process

    def raise_failure(self) -> None:
        """Raise what has ended this member's part, if anything has."""
        if self.failure is not None:
            raise self.failure
        if self.closing:
            raise MisuseError("this volatile group is closed")

    def raise_if_ending(self) -> None:
        """Raise what ends the caller's step, at a moment when no other member can have its part of it."""
        if self.leaving:
            raise MisuseError("this volatile group is being closed")
        interrupts.raise_if_put_off()

    def is_over(self) -> bool:
        """Whether `raise_failure` would raise."""
        return self.failure is not None or self.closing

    # The thread.

    def _run(self) -> None:
        try:
            while not self.closing and self.failure is None:
                self._wake.wait(self._rest_s())
                self._wake.clear()
                if self.closing:
                    return
                try:
                    self._do_what_is_due()
                except RegisterLostError as error:
                    self._wait_for_register(error)
        except HiveError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - the caller waits for this thread
            _log.exception("the control thread of a volatile group failed")
            self.fail(TransportError(f"the volatile group's control thread failed: {error}"))

    def _do_what_is_due(self) -> None:
        missed = self._hear()
        self._see_losses()
        if self.state.turn and self.idle and self.state.phase is not Phase.FROZEN:
            self.apply(commit.changed, between_steps=True)  # no step will end
        if self.state.phase is Phase.FROZEN:
            self._succession.look()
        elif time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + LOOK_S
            self._look()
        self._first.choose_contributors()
        self._carry_out()
        if missed is not None:
            raise missed
        if self.state.phase is not Phase.FROZEN:
            self._waits_since_s = None

    def _wait_for_register(self, error: RegisterLostError) -> None:
        """Until it is back nobody can decide on the view: an uplink may be down for a while, or the register's host.

        Raises:
            RegisterLostError: it has forgotten the view; or the view has to change, and has not for too long.
            EvictedError: others could change it, and wait for this member's next step.
        """
        if isinstance(error, RegisterForgotError):
            raise error
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
            _log.warning("epoch %d waits for the register: %s", self.view.epoch, error)
        waited_s = now_s - self._waits_since_s
        if self._unread and waited_s > STORE_S:
            raise EvictedError(f"others have left epoch {self.view.epoch}, and {self.member} cannot: {error}")
        if self.state.phase is Phase.FROZEN and waited_s > self._without_register_s:
            raise error
        self._succession.froze()

    def _rest_s(self) -> float:
        if self.state.phase is Phase.FROZEN or self._unread:
            return POLL_S
        now_s = time.monotonic()
        return max(min([self._look_s, *self._first.due_s().values()]) - now_s, 0.0)

    def fail(self, error: HiveError) -> None:
        """This member cannot go on: the caller hears why."""
        with self.changed:
            self.failure = self.failure or error
            self._end_steps()
            self.changed.notify_all()
        self._wake.set()

    def _heard(self, sender: Member, message: Mail) -> None:
        """In any thread."""
        self._mail.put((sender, message))
        self._wake.set()

    def _end_steps(self) -> None:
        """End what the caller does in the group of the workers. `changed` is held."""
        groups = (self.group, self._some)
        self.group = self._some = None
        for one in groups:
            if one is not None:
                one.close()
        self.changed.notify_all()

    def _hear(self) -> RegisterLostError | None:
        """Take in all mail; what the register was asked for in vain, if it was."""
        missed: RegisterLostError | None = None
        while True:
            try:
                sender, message = self._mail.get_nowait()
            except queue.Empty:
                break
            try:
                self._hear_one(sender, message)
            except RegisterLostError as error:
                missed = error
        if self._unread:
            try:
                self.read_view()
                self._unread = False
            except RegisterLostError as error:
                missed = error
        return missed

    def _hear_one(self, sender: Member, message: Mail) -> None:
        match message:
            case Contributors() | Frozen() | Arrived() if message.epoch > self.view.epoch:
                self._early.append((sender, message))
                self._unread = True  # the sender has entered it
            case Contributors() | Frozen():
                if isinstance(message, Frozen) and sender in message.lost:
                    self._succession.leaves(sender)
                self.apply(commit.received, sender, message)
            case Look():
                self._unread = True
            case Connect(number):
                self._follow_plan(number, sender)
            case Connected(number):
                self._first.connected(sender, number)
            case Arrived() if message.epoch == self.view.epoch:
                self._first.arrived(sender, message)
            case Ready(step, digest):
                self.hand_over.holds(sender, step)
                if step == self.state.committed or not self.hand_over.leaves:  # else nobody would have the rest
                    self._first.learnt(sender, step, digest)
            case AskReady():
                self.links.mail(sender, Ready(self.state.committed, self.state.digest))
            case Unfit(epoch, step):
                with self.changed:
                    self.unfit = epoch, step
                    self.changed.notify_all()
            case Pause(reason):
                self._first.asked_to_pause(sender, reason)
            case _:
                pass

    def _see_losses(self) -> None:
        lost = self._lost_now()
        if self.member in self.view.joining and lost | self.state.lost >= set(self.view.workers):
            self.read_view()  # they may have gone on, over other connections: nobody tells a learner
            lost = self._lost_now()
        suspicious, self._suspicious = self._suspicious, False
        if lost or (suspicious and self.state.phase is not Phase.FROZEN):
            if lost:  # or they work in a newer view already, and closed these connections
                _log.info("epoch %d: %s cannot be reached", self.view.epoch, ", ".join(map(str, sorted(lost))))
            idle = self.is_idle
            self.apply(commit.changed, lost=lost, at_boundary=not suspicious and not idle, between_steps=idle)

    def _lost_now(self) -> frozenset[Member]:
        """Members of the view that are gone, as the state does not know yet."""
        return self.links.present.lost() & set(self.view.members) - self.state.lost

    def read_view(self) -> None:
        """Enter the view that the register holds."""
        held = self._register.view()
        if held is None or held.epoch < self.view.epoch:
            what = "it" if held is None else f"epoch {self.view.epoch}, and holds {held.epoch}"
            raise RegisterForgotError("reading the view", f"the register has forgotten {what}")
        self.enter(held)

    def enter(self, held: View) -> None:
        """Work in that view from now on, if it is newer.

        Raises:
            RegisterForgotError: it is another one of the same epoch: the register was emptied, and another run began.
        """
        if held.epoch == self.view.epoch and held != self.view:
            raise RegisterForgotError("reading the view", f"the register holds another epoch {held.epoch}")
        with self.changed:
            before = self.view
            self.apply(commit.entered, held)
            if self.view is not before and self.failure is None:
                self._adopt(before)

    def _adopt(self, before: View | None) -> None:
        """Work in the state's view, a new one, over its connections. `changed` is held."""
        view = self.view
        _log.info("epoch %d after step %d: %s", view.epoch, view.base_step, view.described())
        self._end_steps()
        for one in sorted(set(before.members) - set(view.members) - {self.member}) if before is not None else ():
            reason = self.links.present.why_lost(one) or "it has left, or others have lost it"
            _log.warning("epoch %d goes on without %s: %s", view.epoch, one, reason)
        if not self.links.switch(view.mesh):
            self.fail(EvictedError(f"epoch {view.epoch} has connections that {self.member} has not made"))
            return
        mesh = self.links.present
        if self._report is not None:
            mesh.group.describe(self._report.document)
        if self.member in view.workers:
            self.group = mesh.subgroup(view.workers, f"{view.epoch}")
        known = before.members if before is not None else ()
        self.links.learner_is_waited_for = view.pause
        if view.pause:
            self.shelf.drop_state(view.base_step)
        if set(view.joining) - set(known) and not self.shelf.has_state():
            self.shelf.begin(view.base_step)
        self._first.entered(view)
        self._succession.entered()
        if self._misled & set(view.members):  # it was decided on before
            self.lose_state(f"{self.member} has lost the state that others have learned")
        for sender, message in self._early:
            self._heard(sender, message)
        self._early.clear()
        self.look_soon()

    def look_soon(self) -> None:
        """Look once all mail is heard."""
        self._look_s = 0.0

    def _look(self) -> None:
        """What the first worker does now and then, and a learner, which nobody need tell of a view.

        Where the register is lost, steps go on until the view has to change. A try may take seconds, in which nothing
        is heard, so there is a longer time between two.
        """
        began_s = time.monotonic()
        try:
            if self.member in self.view.joining:
                self.read_view()
            else:
                self._first.admit()
        except RegisterLostError as error:
            now_s = time.monotonic()
            self._look_s = now_s + max(LOOK_S, REST_TIMES * (now_s - began_s))
            if self._register_lost is not type(error):
                _log.warning("nobody can join: %s", error)
            self._register_lost = type(error)
        else:
            self._register_lost = None

    @property
    def step(self) -> int:
        """The last step that is committed here: 0 before the first."""
        return max(self.state.committed, 0)

    @property
    def is_idle(self) -> bool:
        return self.idle or self.view.workers == (self.member,)

    def _follow_plan(self, number: int, sender: Member) -> None:
        """A first worker has all connect anew."""
        note = self._register.mesh(number)
        plan = self.links.plan
        known = plan.number if plan is not None else self.links.present.number
        if note is None or note[0] != self.view.epoch or self.member not in note[1] or number <= known:
            _log.info("%s wants mesh %d, which does not fit epoch %d", sender, number, self.view.epoch)
            return
        self.links.begin(number, frozenset(note[1]))

    def _carry_out(self) -> None:
        while True:
            try:
                action = self._todo.popleft()
            except IndexError:
                break
            match action:
                case Send(message) if not isinstance(message, commit.Prepared):
                    for one in self.view.members:
                        if one != self.member:
                            self.links.mail(one, message)
                case Advance():
                    self._succession.offer(action)
                case _:
                    pass
        self._succession.go_on()


def _wait(work: Work, give_up_s: float) -> None:
    try:
        work.wait(max(give_up_s - time.monotonic(), 0.0))
    except HiveError as error:
        _log.info("a member was not told that this one leaves: %s", error)

"""A member's part in the agreement on views: a thread that hears the others, sees who is lost, and asks the register.

The rules are those of `transport.volatile.commit`; this carries its actions out. Members tell each other where they
stand over their connections. Who cannot be reached so finds a note in the register a moment later. So a loss costs its
detection, a round trip until all know where all stand, one write of the register, and one message that it is written.

The first worker admits others: it has all members connect to them beside their work, and once all are, lets them in as
learners. Its caller's steps go on meanwhile.
"""

from __future__ import annotations

import functools
import itertools
import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hive_qos.errors import EvictedError, HiveError, PeerError, RegisterLostError, TimedOutError, TransportError
from transport.group import Group
from transport.settings import Settings
from transport.volatile import commit, messages
from transport.volatile.arrivals import STEPS_KEPT, Arrivals
from transport.volatile.commit import Action, Advance, Commit, Contributors, Frozen, Left, Phase, Send, State
from transport.volatile.mesh import CONNECT_S, Mesh
from transport.volatile.messages import Arrived, Ask, Connect, Connected, Look, Mail, Pause, Ready
from transport.volatile.register import POLL_S, Register
from transport.volatile.report import MemberReport
from transport.volatile.transfer import UNANSWERED_S, Holder, Shelf
from transport.volatile.view import DIGEST_BYTES, MEMBERS_MAX, Member, View
from transport.work import Work

_log = logging.getLogger("transport.volatile")

LATE_S = 5.0
"""Who has not said so long after the first where it stands is left out. A thread says it, whatever is computed."""
LOOK_S = 0.5
"""How often the first worker looks who asks to join: one small request."""
LOST_S = 10.0
"""How often it tries a register that was lost, and says so."""
NOTE_S = 0.25
"""Who has not heard from everybody by then writes and reads notes in the register: more than a bad round trip."""
SIDE_S = 2.0
"""The smaller side of a cut lets the larger one go first for as long as a loss takes to be seen."""
TELL_S = 0.5
"""Who leaves waits so long for the others to have its word. Where they have not, they see a loss."""


@dataclass(frozen=True)
class Plan:
    """Connections that this member makes, or has made, by the word of a first worker."""

    number: int
    members: frozenset[Member]
    give_up_s: float


class Control:
    """See the module. `changed` guards `state`, `mesh`, `group` and `failure`, which the caller's thread sees, too.

    Args:
        register: of the job.
        name: of this member.
        follows: it can apply results of others, so that it joins without a pause.
    """

    def __init__(self, register: Register, member: Member, *, settings: Settings | None, follows: bool) -> None:
        self.member = member
        self.changed = threading.Condition()
        self.shelf = Shelf()
        self.state: State
        self.mesh: Mesh
        self.group: Group | None = None
        self.failure: HiveError | None = None
        self.decided: Commit | None = None
        self.idle = False
        """The caller waits between two steps, for others."""
        self.closing = False
        self._register = register
        self._settings = settings = Settings.from_environment() if settings is None else settings
        self._report: MemberReport | None = None
        self._follows = follows
        self._some: Group | None = None
        self._next: Mesh | None = None
        self._plan: Plan | None = None
        self._connected: dict[int, set[Member]] = {}
        self._candidates: dict[Member, bool] = {}
        self._asked = 0
        self._arrivals = Arrivals()
        self._chosen: OrderedDict[int, Contributors] = OrderedDict()
        self._quorum = 0
        self._mail: queue.SimpleQueue[tuple[Member, Mail]] = queue.SimpleQueue()
        self._early: deque[tuple[Member, Mail]] = deque(maxlen=MEMBERS_MAX)
        self._todo: deque[Action] = deque()
        self._offer: tuple[Advance, float] | None = None
        self._frozen_s = 0.0
        self._note_s = 0.0
        self._look_s = 0.0
        self._suspicious = False
        self._left: set[Member] = set()
        self._wake = threading.Event()
        self._tags = itertools.count()
        self._thread = threading.Thread(target=self._run, name="hive-volatile", daemon=True)

    @property
    def view(self) -> View:
        """The one in force, as far as this member knows."""
        return self.state.view

    # For the caller's thread.

    def enter(self, timeout_s: float) -> None:
        """Become a member: the first one, or a learner that the others have admitted.

        Raises:
            TimedOutError: nobody has admitted this process in time.
        """
        give_up_s = time.monotonic() + timeout_s
        while True:
            view = self._register.view()
            if view is None or not view.members:
                view = self._begin(view)
            if self.member in view.members:
                self.mesh = self._connect_to(view.mesh, frozenset(view.members))
                self.state = commit.begin(self.member, view)
                break
            admitted = self._be_admitted(view, give_up_s, timeout_s)
            if admitted is not None:
                self.state = commit.begin_behind(self.member, admitted)
                break
        job, group = self._register.job, lambda: self.mesh.group
        self._report = MemberReport(self.state, job=job, settings=self._settings, group=group)
        with self.changed:
            self._adopt(None)
        self._thread.start()

    def take(self, result: tuple[State, list[Action]]) -> list[Action]:
        """Adopt a new state, and have its actions carried out. `changed` is held."""
        before = self.state.phase
        self.state, actions = result
        self._tell()
        self._todo.extend(actions)
        if self.state.phase is Phase.FROZEN and before is not Phase.FROZEN:
            self._frozen_s = time.monotonic()
            self._end_steps()
        for one in actions:
            if isinstance(one, Commit):
                self.decided = one
            if isinstance(one, Left):
                why = "steps were committed that it does not hold" if one.behind else "it was out of reach"
                self.fail(EvictedError(f"epoch {one.epoch} goes on without {self.member}: {why}"))
        if actions:
            self._wake.set()
        return actions

    def _tell(self) -> None:
        if self._report is not None:
            self._report.saw(self.state)

    def suspect(self) -> None:
        """A step failed: have the view changed, or hear that it is."""
        self._suspicious = True
        self._wake.set()

    def arrive(self, step: int, quorum: int) -> None:
        """Say that this member's part of a step is ready."""
        self.tell_first(Arrived(self.view.epoch, step, quorum))

    def some(self, members: Sequence[Member], name: str) -> Group | None:
        """A group of some workers, instead of the last such one; None while the view changes."""
        with self.changed:
            if self.group is None:
                return None
            before, self._some = self._some, self.mesh.subgroup(members, name)
        if before is not None:
            before.close()
        return self._some

    def somebody_learns(self) -> bool:
        """Whether there are learners, or some who are about to be."""
        return bool(self.view.joining or self._candidates)

    def wait_between_steps(self, *, idle: bool) -> None:
        """The caller waits for others (`idle`), or goes on: a change of the view need not wait for a step then."""
        if idle and not self.idle:
            self._wake.set()
        self.idle = idle

    def tell_first(self, message: Mail) -> None:
        """Mail the first worker, which may be this one."""
        self._mail_to(self.view.workers[0], message)

    def holders(self, members: Sequence[Member]) -> list[Holder]:
        """Those of the members that can be asked for what they hold."""
        mesh = self.mesh
        lost = mesh.lost()
        return [
            Holder(one, functools.partial(self._question, mesh, one))
            for one in members
            if one != self.member and one in mesh.members and one not in lost
        ]

    def leave(self) -> None:
        """Tell the others that this process goes: they go on at once.

        The last worker leaves a view without members: whoever comes then is the first again.
        """
        with self.changed:
            last = self.state if self.state.phase is not Phase.OUT and self.view.workers == (self.member,) else None
            members = [one for one in self.view.members if one != self.member]
            self.state, actions = commit.leave(self.state)
            self._tell()
            self._end_steps()
            said = [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, Frozen)]
        told = [self._mail_to(one, message) for message in said for one in members]
        give_up_s = time.monotonic() + TELL_S
        for work in told:
            if work is not None:
                _wait(work, give_up_s)
        if last is not None:
            over = View(
                last.view.epoch + 1, (), last.committed, last.digest, asked=last.view.asked, mesh=last.view.mesh
            )
            self._register.advance(over, last.view)

    def close(self) -> None:
        """End the thread and the connections. Idempotent."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
            self._end_steps()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(TELL_S)
        with self.changed:
            meshes = [one for one in (getattr(self, "mesh", None), self._next) if one is not None]
            self._next = None
        for one in meshes:
            one.close()
        if self._report is not None:
            self._report.close()

    # Becoming a member.

    def _begin(self, ended: View | None) -> View:
        """Try to be the first member, of a job that begins or whose last member has left; the view in force then."""
        if ended is None:
            return self._register.advance(View(1, (self.member,), 0, bytes(DIGEST_BYTES)), None)
        mesh = self._register.plan_mesh(ended.epoch + 1, [self.member])
        first = View(ended.epoch + 1, (self.member,), 0, bytes(DIGEST_BYTES), asked=ended.asked, mesh=mesh)
        return self._register.advance(first, ended)

    def _be_admitted(self, view: View, give_up_s: float, timeout_s: float) -> View | None:
        """Wait until this member learns, over connections to the others; None where all of them have left."""
        ask_s, tried = 0.0, 0
        while True:
            now_s = time.monotonic()
            if now_s >= give_up_s:
                what = f"joining: {view.workers[0]} did not admit {self.member}; if no member lives, start another job"
                raise TimedOutError(what, timeout_s=timeout_s)
            if now_s >= ask_s:
                self._register.ask_to_join(self.member, follows=self._follows)
                ask_s = now_s + 2 * CONNECT_S
            number = self._register.last_mesh()
            if number > tried and (note := self._register.mesh(number)) is not None:
                tried = number
                if self.member in note[1]:
                    self._begin_connecting(number, frozenset(note[1]))
            view = self._register.view() or view
            if not view.members:
                return None
            if self.member in view.members:
                with self.changed:
                    if self._next is not None and self._next.number == view.mesh:
                        self.mesh, self._next = self._next, None
                        return view
            time.sleep(5 * POLL_S)

    def _connect_to(self, number: int, members: frozenset[Member]) -> Mesh:
        return Mesh.connect(
            self._register,
            number,
            members,
            self.member,
            settings=replace(self._settings, inspect=False),  # this member's socket serves all epochs
            on_mail=self._mailed,
            on_loss=self._wake.set,
        )

    def _begin_connecting(self, number: int, members: frozenset[Member]) -> None:
        """Connect in a thread of its own, while steps go on."""
        self._plan = plan = Plan(number, members, time.monotonic() + CONNECT_S + LOOK_S)

        def run() -> None:
            try:
                mesh = self._connect_to(number, members)
            except HiveError as error:
                _log.info("mesh %d did not connect: %s", number, error)
                return
            with self.changed:
                kept = self._plan is plan and not self.closing
                replaced, self._next = (self._next, mesh) if kept else (mesh, self._next)
            if replaced is not None:
                replaced.close()
            if kept:
                self._heard(self.member, Connected(number))
            for one in members - {self.member} if kept else ():
                mesh.mail(one, messages.encode(Connected(number)))

        threading.Thread(target=run, name="hive-volatile-connect", daemon=True).start()

    # Mail. `_mailed` runs in the transport's thread.

    def _mailed(self, sender: Member, data: bytes) -> None:
        try:
            message = messages.decode(data, sender=str(sender))
        except PeerError as error:
            _log.warning("%s", error)
            return
        if not isinstance(message, Ask):
            self._heard(sender, message)
            return
        for mesh in (getattr(self, "mesh", None), self._next):
            if mesh is not None and sender in mesh.members:
                mesh.reply(sender, message.tag, self.shelf.answer(message))
                return

    def _heard(self, sender: Member, message: Mail) -> None:
        self._mail.put((sender, message))
        self._wake.set()

    def _mail_to(self, to: Member, message: Mail) -> Work | None:
        if to == self.member:
            self._heard(to, message)
            return None
        for mesh in (self.mesh, self._next):
            if mesh is not None and to in mesh.members:
                return mesh.mail(to, messages.encode(message))
        return None

    def _question(self, mesh: Mesh, member: Member, step: int, index: int | None) -> Work:
        tag = next(self._tags)
        work = mesh.replied(member, tag, timeout_s=UNANSWERED_S)
        mesh.mail(member, messages.encode(Ask(step, index, tag)))
        return work

    # The thread.

    def _run(self) -> None:
        try:
            while not self.closing and self.failure is None:
                self._wake.wait(self._rest_s())
                self._wake.clear()
                if self.closing:
                    return
                self._hear()
                self._see_losses()
                if self.state.turn and self.idle and self.state.phase is not Phase.FROZEN:
                    with self.changed:
                        self.take(commit.changed(self.state))  # no step will end
                if self.state.phase is Phase.FROZEN:
                    self._agree()
                elif time.monotonic() >= self._look_s:
                    self._look_s = time.monotonic() + LOOK_S
                    self._look()
                self._choose_contributors()
                self._carry_out()
        except HiveError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - the caller waits for this thread
            _log.exception("the control thread of a volatile group failed")
            self.fail(TransportError(f"the volatile group's control thread failed: {error}"))

    def _rest_s(self) -> float:
        if self.state.phase is Phase.FROZEN:
            return POLL_S
        now_s = time.monotonic()
        due_s = [self._look_s, *(self._due_s(step) for step in self._open_steps())]
        return max(min(due_s) - now_s, 0.0)

    def fail(self, error: HiveError) -> None:
        """This member cannot go on: the caller hears why."""
        with self.changed:
            self.failure = self.failure or error
            self._end_steps()
            self.changed.notify_all()
        self._wake.set()

    def _end_steps(self) -> None:
        """End what the caller does in the group of the workers. `changed` is held."""
        groups = (self.group, self._some)
        self.group = self._some = None
        for one in groups:
            if one is not None:
                one.close()
        self.changed.notify_all()

    def _hear(self) -> None:
        while True:
            try:
                sender, message = self._mail.get_nowait()
            except queue.Empty:
                return
            match message:
                case Contributors() | Frozen() | Arrived() if message.epoch > self.view.epoch:
                    self._early.append((sender, message))
                    self._read_view()  # the sender has entered it
                case Contributors() | Frozen():
                    if isinstance(message, Frozen) and sender in message.lost:
                        self._left.add(sender)
                    with self.changed:
                        self.take(commit.received(self.state, sender, message))
                        self.changed.notify_all()
                case Look():
                    self._read_view()
                case Connect(number):
                    self._follow_plan(number, sender)
                case Connected(number):
                    self._now_connected(number, sender)
                case Arrived(epoch, step, quorum) if epoch == self.view.epoch:
                    self._has_arrived(sender, step, quorum)
                case Ready(step, digest):
                    self._has_learnt(sender, step, digest)
                case Pause(reason):
                    self._wants_pause(sender, reason)
                case _:
                    pass

    def _see_losses(self) -> None:
        lost = self.mesh.lost() & set(self.view.members) - self.state.lost
        suspicious, self._suspicious = self._suspicious, False
        if lost or (suspicious and self.state.phase is not Phase.FROZEN):
            if lost:
                _log.info("epoch %d: %s cannot be reached", self.view.epoch, ", ".join(map(str, sorted(lost))))
            with self.changed:
                self.take(commit.changed(self.state, lost=lost, at_boundary=not suspicious and not self._is_idle()))

    def _read_view(self) -> None:
        held = self._register.view()
        if held is None or held.epoch < self.view.epoch:
            what = "it" if held is None else f"epoch {self.view.epoch}, and holds {held.epoch}"
            raise RegisterLostError("reading the view", f"the register has forgotten {what}")
        self._enter(held)

    def _enter(self, held: View) -> None:
        with self.changed:
            before = self.view
            self.take(commit.entered(self.state, held))
            if self.view is not before and self.failure is None:
                self._adopt(before)
            self.changed.notify_all()

    def _adopt(self, before: View | None) -> None:
        """Work in the state's view, a new one, over its connections. `changed` is held."""
        view = self.view
        _log.info("epoch %d after step %d: %s", view.epoch, view.base_step, described(view))
        self._end_steps()
        if view.mesh != self.mesh.number:
            if self._next is None or self._next.number != view.mesh:
                self.fail(EvictedError(f"epoch {view.epoch} has connections that {self.member} has not made"))
                return
            self.mesh.close_soon()
            self.mesh, self._next = self._next, None
        if self._report is not None:
            self.mesh.group.describe(self._report.document)
        if self.member in view.workers:
            self.group = self.mesh.subgroup(view.workers, f"{view.epoch}")
        known = before.members if before is not None else ()
        if view.pause:
            self.shelf.clear(view.base_step)
        if set(view.joining) - set(known) and not self.shelf.has_state():
            self.shelf.begin(view.base_step)
        for one in view.members:
            self._candidates.pop(one, None)
        if self._plan is not None and self._plan.number > (self._next or self.mesh).number:
            self._plan = None  # whoever is first now makes a new one
        for sender, message in self._early:
            self._heard(sender, message)
        self._early.clear()
        self._offer = None
        self._left.clear()
        self._arrivals.forget()
        self._chosen.clear()
        self._look_s = 0.0

    def _look(self) -> None:
        """What the first worker does now and then, and a learner, which nobody need tell of a view.

        Where the register is lost, steps go on until the view has to change.
        """
        try:
            if self.member in self.view.joining:
                self._read_view()
            elif self.view.workers[0] == self.member:
                self._admit()
        except RegisterLostError as error:
            self._look_s = time.monotonic() + LOST_S
            _log.warning("nobody can join: %s", error)

    def _is_idle(self) -> bool:
        return self.idle or self.view.workers == (self.member,)

    # Agreeing on a view.

    def _agree(self) -> None:
        """Frozen: see whether there is a new view, and whether those are there who were to say where they stand."""
        now_s = time.monotonic()
        if now_s - self._frozen_s < NOTE_S:
            return
        view = self.view
        self._read_view()
        if self.view is not view:
            return
        stand = dict(self.state.frozen).get(self.member)
        if now_s >= self._note_s and stand is not None:
            self._note_s = now_s + NOTE_S
            self._register.say_frozen(self.member, stand)
        heard = {who for who, _ in self.state.frozen} | self.state.lost
        missing = frozenset(view.workers) - heard
        for one in missing:
            note = self._register.frozen(view.epoch, one)
            if note is not None:
                with self.changed:
                    self.take(commit.received(self.state, one, note))
        if now_s - self._frozen_s > LATE_S:
            self._frozen_s = now_s
            living = [one for one in view.workers if one not in self.state.lost]
            gone = missing or frozenset(living[:1])  # all have said where they stand: who decides has gone since
            with self.changed:
                self.take(commit.changed(self.state, lost=gone - {self.member}))

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
                            self._mail_to(one, message)
                case Advance():
                    self._offer = (action, time.monotonic() + self._deference_s())
                case _:
                    pass
        if self._offer is not None and time.monotonic() >= self._offer[1]:
            (advance, _), self._offer = self._offer, None
            if self.state.phase is Phase.FROZEN and advance.view.epoch == self.view.epoch + 1:
                self._advance(advance.view)

    def _deference_s(self) -> float:
        """How long to let another side go first: it may hold most of the workers, and be well."""
        workers = self.view.workers
        unheard = (self.state.lost - self._left) & set(workers)
        return SIDE_S if 2 * len(unheard) > len(workers) else 0.0

    def _advance(self, view: View) -> None:
        before = self.view
        held = self._register.advance(view, before)
        for one in {*before.members, *held.members} - {self.member}:
            self._mail_to(one, Look())
        self._enter(held)

    # The first worker's tasks.

    def _admit(self) -> None:
        """See who asks to join; have all connect to them; let them in when all are."""
        view, plan, now_s = self.view, self._plan, time.monotonic()
        self._asked, found = self._register.asked(max(self._asked, view.asked))
        self._candidates.update({one: follows for one, follows in found.items() if one not in view.members})
        newest = self._next or self.mesh
        if plan is not None and newest.number < plan.number and now_s > plan.give_up_s:
            for one in plan.members:
                self._candidates.pop(one, None)  # who lives asks again
            self._plan = plan = None
        for one in newest.lost():
            self._candidates.pop(one, None)
        if not self._candidates:
            return
        wanted = (frozenset(view.members) - self.mesh.lost()) | self._candidates.keys()
        if self._connected.get(newest.number, set()) >= wanted:
            self._let_in(newest)
        elif plan is None or now_s > plan.give_up_s or (newest.number >= plan.number and not wanted <= plan.members):
            self._make_plan(wanted)

    def _make_plan(self, members: frozenset[Member]) -> None:
        number = self._register.plan_mesh(self.view.epoch, sorted(members))
        _log.info("mesh %d: %s", number, ", ".join(map(str, sorted(members))))
        self._connected = {number: set()}
        self._begin_connecting(number, members)
        for one in self.view.members:
            if one != self.member:
                self._mail_to(one, Connect(number))

    def _let_in(self, mesh: Mesh) -> None:
        joining = frozenset(self._candidates) & frozenset(mesh.members)
        pause = not all(self._candidates[one] for one in joining)
        with self.changed:
            wish = {"joining": joining, "asked": self._asked, "pause": pause}
            if joining and not joining <= self.state.wish.joining:
                self.take(commit.changed(self.state, **wish, at_boundary=not self._is_idle()))  # type: ignore[arg-type]

    def _follow_plan(self, number: int, sender: Member) -> None:
        """A first worker has all connect anew."""
        note = self._register.mesh(number)
        known = self._plan.number if self._plan is not None else self.mesh.number
        if note is None or note[0] != self.view.epoch or self.member not in note[1] or number <= known:
            _log.info("%s wants mesh %d, which does not fit epoch %d", sender, number, self.view.epoch)
            return
        self._begin_connecting(number, frozenset(note[1]))

    def _now_connected(self, number: int, sender: Member) -> None:
        self._connected.setdefault(number, set()).add(sender)
        for old in sorted(self._connected)[:-2]:
            del self._connected[old]
        if sender == self.member:
            with self.changed:
                self.state = commit.connected(self.state, number)
        if self.view.workers[0] == self.member and self.state.phase is not Phase.FROZEN:
            self._admit()

    def _has_learnt(self, sender: Member, step: int, digest: bytes) -> None:
        """A learner holds all up to a step: it becomes a worker where that is what we hold, at the next boundary."""
        if self.view.workers[0] != self.member or sender not in self.view.joining:
            return
        ours = self.state.digest if step == self.state.committed else self.shelf.digest_after(step)
        if ours is None or sender in self.state.wish.ready:
            return  # it goes on, and says it again
        if ours != digest:
            _log.warning("%s holds other results up to step %d than the others: it is sent away", sender, step)
            change = {"lost": frozenset({sender})}
        else:
            change = {"ready": frozenset({sender})}
        with self.changed:
            self.take(commit.changed(self.state, **change, at_boundary=not self._is_idle()))  # type: ignore[arg-type]

    def _wants_pause(self, sender: Member, reason: str) -> None:
        ours = self.view.workers[0] == self.member and sender in self.view.joining
        if not ours or self.view.pause or self.state.wish.pause:
            return
        _log.warning("the next step waits for %s, which does not catch up: %s", sender, reason)
        with self.changed:
            self.take(commit.changed(self.state, pause=True, at_boundary=not self._is_idle()))

    # Steps that some may miss.

    def _has_arrived(self, sender: Member, step: int, quorum: int) -> None:
        if self.view.workers[0] != self.member:
            return
        self._quorum = quorum
        self._arrivals.arrived(sender, step, time.monotonic())
        if step in self._chosen or step <= self.state.committed:  # it is late, and has perhaps not heard
            late = self._chosen.get(step, Contributors(self.view.epoch, step, ()))
            self._mail_to(sender, late)

    def _open_steps(self) -> list[int]:
        if self.view.workers[0] != self.member or not self._quorum or self.state.phase is Phase.FROZEN:
            return []
        return [one for one in self._arrivals.steps() if one not in self._chosen and one > self.state.committed]

    def _due_s(self, step: int) -> float:
        workers = self.view.workers
        least = min(max(self._quorum, len(workers) // 2 + 1), len(workers))
        return self._arrivals.due_s(step, workers, least, rtt_s=self.mesh.round_trip_s())

    def _choose_contributors(self) -> None:
        for step in self._open_steps():
            if self._due_s(step) > time.monotonic():
                continue
            some = self._arrivals.take(step, self.view.workers)
            with self.changed:
                late = self._arrivals.always_late() - self.state.wish.joining
                if late and len(self.view.workers) - len(late) >= self._quorum:
                    _log.warning("%s learns from now on: always late", ", ".join(map(str, sorted(late))))
                    self.take(commit.changed(self.state, joining=late, at_boundary=True))
                for one in self.take(commit.choose(self.state, step, some)):
                    if isinstance(one, Send) and isinstance(one.message, Contributors):
                        self._chosen[step] = one.message
                self.changed.notify_all()
            while len(self._chosen) > STEPS_KEPT:
                self._chosen.popitem(last=False)


def described(view: View) -> str:
    """Who works, who learns, and who is waited for."""
    working = ", ".join(map(str, view.workers))
    if not view.joining:
        return working
    return f"{working}; {', '.join(map(str, view.joining))} {'is waited for' if view.pause else 'learns'}"


def _wait(work: Work, give_up_s: float) -> None:
    try:
        work.wait(max(give_up_s - time.monotonic(), 0.0))
    except HiveError as error:
        _log.info("a member was not told that this one leaves: %s", error)

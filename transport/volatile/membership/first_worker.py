"""What the first worker of a view does for all: it admits who asks to join, and says which parts of a step count.

Who is to join is connected beside the steps, which go on, and then learns. It works once it holds what the others hold.
Every member has one of these. Where its member is not the first, it only knows who has which connections.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from transport.volatile.membership.agreement import Agreement
from transport.volatile.protocol import commit
from transport.volatile.protocol.admission import READ_S, Admission, LetIn, MakePlan
from transport.volatile.protocol.arrivals import Deadlines
from transport.volatile.protocol.commit import Contributors, Phase, Send
from transport.volatile.protocol.messages import Arrived, Connect, Unfit
from transport.volatile.protocol.view import Member, View
from transport.volatile.register.register import Register, RegisterForgotError

_log = logging.getLogger("transport.volatile")


class FirstWorker:
    """See the module.

    Args:
        register: of the job.
        agreement: of the member whose this is.
    """

    def __init__(self, register: Register, agreement: Agreement) -> None:
        self._register, self._agreement = register, agreement
        self._admission = Admission()
        self._deadlines = Deadlines()

    @property
    def is_us(self) -> bool:
        """Whether this member is the first worker."""
        return self._view.workers[0] == self._agreement.member

    @property
    def expects_somebody(self) -> bool:
        """Whether there are any who are about to learn."""
        return self._admission.expects_somebody

    @property
    def _view(self) -> View:
        return self._agreement.state.view

    def entered(self, view: View) -> None:
        """That view is in force now."""
        self._admission.forget(view.members)
        self._agreement.links.give_up_plan()  # whoever is first now makes a new one
        self._deadlines.entered(view)
        self._wish_connections()

    # Who asks to join.

    def admit(self) -> None:
        """As the first, see who asks to join, and do what is next for them. As any member, see who is connected.

        Raises:
            RegisterLostError: the register cannot be reached; of the kind `RegisterForgotError` where it was emptied.
        """
        self._wish_connections()
        if not self.is_us:
            return
        view, links, admission, now_s = self._view, self._agreement.links, self._admission, time.monotonic()
        # A register may be far away, and while it is read nothing is heard: the rest is read at the next look.
        found = {}
        asked = self._register.asked()
        if asked < view.asked:
            raise RegisterForgotError("counting who asks to join", "the register has forgotten this job")
        for number in admission.to_read(view, asked):
            found[number] = self._register.request(number)
            if time.monotonic() - now_s > READ_S:
                break
        admission.hear(found, view, now_s)
        for one in admission.doubted(now_s):
            if admission.beat(one, self._register.beat(one), now_s):
                _log.info("%s asked to join, and is gone", one)
            if time.monotonic() - now_s > READ_S:
                break
        step = admission.next(
            frozenset(view.members) - links.present.lost(),
            plan=links.plan,
            newest=links.newest.number,
            newest_lost=links.newest.lost(),
            now_s=now_s,
        )
        match step:
            case MakePlan(members):
                self._connect(view, members)
            case LetIn(joining, asked) if joining and self._agreement.state.wish.mesh == links.newest.number:
                if not joining <= self._agreement.state.wish.joining:
                    self._change(joining=joining, asked=asked)
                elif not (self._agreement.in_step or self._agreement.state.announced):
                    self._agreement.apply(commit.changed)  # no step has ended since the last look, and none is undone
            case _:
                pass

    def _connect(self, view: View, members: frozenset[Member]) -> None:
        number = self._register.plan_mesh(view.epoch, sorted(members))
        _log.info("mesh %d: %s", number, _named(members))
        self._admission.plan(number, time.monotonic())
        self._agreement.links.begin(number, members)
        for one in view.members:
            if one != self._agreement.member:
                self._agreement.links.mail(one, Connect(number))

    def connected(self, sender: Member, number: int) -> None:
        """That member has the connections of that number."""
        self._admission.connected(number, sender)
        if self._agreement.state.phase is not Phase.FROZEN:
            self._wish_connections()
            self._agreement.look_soon()

    def _wish_connections(self) -> None:
        """Every member's task: have the next view work on its newest connections, once all who learn have them, too."""
        links = self._agreement.links
        if self._agreement.state.wish.mesh not in (links.present.number, links.newest.number):
            self._agreement.apply(commit.disconnected)  # others were made instead, which not all have yet
        # Who is frozen, or learns, has said that the next view may work on these.
        if self._agreement.state.phase is not Phase.FROZEN and self._agreement.member not in self._view.joining:
            links.forget_replaced()
        state = self._agreement.state
        need = {self._agreement.member, *self._view.joining} - links.present.lost()
        if state.wish.mesh < links.newest.number and self._admission.have(links.newest.number) >= need:
            self._agreement.apply(commit.connected, links.newest.number)

    # Who learns.

    def learnt(self, sender: Member, step: int, digest: bytes) -> None:
        """A learner holds all up to a step: it becomes a worker where that is what we hold, at the next boundary.

        One that was always late learns for longer, unless it is waited for.
        """
        state = self._agreement.state
        if not self.is_us or sender not in self._view.joining:
            return
        ours = state.digest if step == state.committed else self._agreement.shelf.digest_after(step)
        too_early = not (self._agreement.is_idle or self._deadlines.may_work(sender, step))
        if ours is None or too_early or sender in state.wish.ready:
            return  # it goes on, and says it again
        if ours != digest:
            _log.warning("%s holds other results up to step %d than the others: it is sent away", sender, step)
            self._change(lost=frozenset({sender}))
        else:
            self._change(ready=frozenset({sender}))

    def asked_to_pause(self, sender: Member, reason: str) -> None:
        """A learner does not catch up unless the others wait for it."""
        ours = self.is_us and sender in self._view.joining
        if not ours or self._view.pause or self._agreement.state.wish.pause:
            return
        _log.warning("the next step waits for %s, which does not catch up: %s", sender, reason)
        self._change(pause=True)

    # Steps that some may miss.

    def arrived(self, sender: Member, message: Arrived) -> None:
        """The part of that member for a step is ready."""
        if not self.is_us:
            return
        step = message.step
        for one in self._deadlines.arrived(sender, message, time.monotonic()):
            self._agreement.links.mail(one, Unfit(self._view.epoch, step))
        if not message.quorum:
            return
        said = self._deadlines.chosen(step)
        if said is not None or step <= self._agreement.state.committed:  # it is late, and has perhaps not heard
            self._agreement.links.mail(sender, said or Contributors(self._view.epoch, step, ()))

    def due_s(self) -> dict[int, float]:
        """The steps whose contributors are to be chosen, and when."""
        state = self._agreement.state
        if not self.is_us or state.phase is Phase.FROZEN:
            return {}
        rtt_s = self._agreement.links.present.round_trip_s()
        return self._deadlines.due_s(state.view.workers, state.committed, rtt_s=rtt_s)

    def choose_contributors(self) -> None:
        """Say whose parts count, of the steps that are due."""
        for step, due_s in self.due_s().items():
            if due_s > time.monotonic():
                continue
            learning, least = self._agreement.state.wish.joining, self._agreement.members_min
            some, late = self._deadlines.take(self._view, step, learning=learning, members_min=least)
            if late:
                _log.warning("%s learns from now on: always late", _named(late))
                self._agreement.apply(commit.changed, joining=late, at_boundary=True)
            for one in self._agreement.apply(commit.choose, step, some):
                if isinstance(one, Send) and isinstance(one.message, Contributors):
                    self._deadlines.chose(one.message)

    def _change(self, **wish: Any) -> None:
        """Have the view changed (`commit.changed`): after the step under way, or at once where there is none."""
        idle = self._agreement.is_idle
        self._agreement.apply(commit.changed, **wish, at_boundary=not idle, between_steps=idle)


def _named(members: Iterable[Member]) -> str:
    return ", ".join(map(str, sorted(members)))

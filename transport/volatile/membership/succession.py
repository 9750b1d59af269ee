"""From one view to the next, while members are frozen: notes in the register beside their messages, and its one write.

Who decides is told by `protocol.commit`, as an `Advance`. This carries it out, and does not wait for ever.
"""

from __future__ import annotations

import time

from transport.volatile.membership.agreement import Agreement
from transport.volatile.protocol import commit
from transport.volatile.protocol.commit import Advance, Phase
from transport.volatile.protocol.messages import Look
from transport.volatile.protocol.view import Member, View
from transport.volatile.register.register import Register

LATE_S = 5.0
"""Who has not said so long after the first where it stands is left out. A thread says it, whatever is computed."""
NOTE_S = 0.25
"""Who has not heard from everybody by then writes and reads notes in the register: more than a bad round trip."""
SIDE_S = 2.0
"""The smaller side of a cut lets the larger one go first for as long as a loss takes to be seen."""


class Succession:
    """See the module.

    Args:
        register: of the job.
        agreement: of the member whose this is.
    """

    def __init__(self, register: Register, agreement: Agreement) -> None:
        self._register, self._agreement = register, agreement
        self._offer: tuple[Advance, float] | None = None
        self._frozen_s = 0.0
        self._note_s = 0.0
        self._left: set[Member] = set()

    def froze(self) -> None:
        """The member has just frozen; or it could not reach the register, and perhaps nobody could."""
        self._frozen_s = time.monotonic()
        if self._offer is not None:
            self.offer(self._offer[0])

    def leaves(self, member: Member) -> None:
        """That one has said that it goes."""
        self._left.add(member)

    def entered(self) -> None:
        """A new view is in force."""
        self._offer = None
        self._left.clear()

    def offer(self, advance: Advance) -> None:
        """It is this member's to write the next view: soon, unless another side is to go first."""
        self._offer = (advance, time.monotonic() + self._deference_s())

    def go_on(self) -> None:
        """Write the next view, if it is this member's to do so by now.

        Raises:
            RegisterLostError: the register cannot be reached.
        """
        if self._offer is None or time.monotonic() < self._offer[1]:
            return
        offered, state = self._offer, self._agreement.state
        if state.phase is Phase.FROZEN and offered[0].view.epoch == state.view.epoch + 1:
            self._advance(offered[0].view)
        if self._offer is offered:
            self._offer = None

    def look(self) -> None:
        """See whether there is a new view, and whether those are there who were to say where they stand.

        Raises:
            RegisterLostError: the register cannot be reached.
        """
        agreement, now_s = self._agreement, time.monotonic()
        if now_s - self._frozen_s < NOTE_S:
            return
        view = agreement.state.view
        agreement.read_view()
        if agreement.state.view is not view:
            return
        stand = dict(agreement.state.frozen).get(agreement.member)
        if now_s >= self._note_s and stand is not None:
            self._note_s = now_s + NOTE_S
            self._register.say_frozen(agreement.member, stand)
        heard = {who for who, _ in agreement.state.frozen} | agreement.state.lost
        missing = frozenset(view.workers) - heard
        for one in missing:
            note = self._register.frozen(view.epoch, one)
            if note is not None:
                agreement.apply(commit.received, one, note)
        if now_s - self._frozen_s > LATE_S:
            self._frozen_s = now_s
            living = [one for one in view.workers if one not in agreement.state.lost]
            gone = missing or frozenset(living[:1])  # all have said where they stand: who decides has gone since
            agreement.apply(commit.changed, lost=gone - {agreement.member})

    def _deference_s(self) -> float:
        """How long to let another side go first: it may hold most of the workers, and be well."""
        state = self._agreement.state
        unheard = (state.lost - self._left) & set(state.view.workers)
        return SIDE_S if 2 * len(unheard) > len(state.view.workers) else 0.0

    def _advance(self, view: View) -> None:
        before = self._agreement.state.view
        held = self._register.advance(view, before)
        for one in {*before.members, *held.members} - {self._agreement.member}:
            self._agreement.links.mail(one, Look())
        self._agreement.enter(held)

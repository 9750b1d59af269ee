"""How a process becomes a member: as the first one of a job, or as a learner that the others have admitted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hive_qos.errors import EvictedError, RegisterLostError, TimedOutError
from transport.volatile.links.links import Links
from transport.volatile.links.mesh import CONNECT_S
from transport.volatile.membership.restart import Restart
from transport.volatile.protocol import commit
from transport.volatile.protocol.admission import BEAT_S
from transport.volatile.protocol.commit import State
from transport.volatile.protocol.view import DIGEST_BYTES, Member, View
from transport.volatile.register.register import POLL_S, Register, RegisterForgotError
from transport.volatile.transfer.fetch import SAY_S

_log = logging.getLogger("transport.volatile")


class JobOverError(EvictedError):
    """A member that was left out cannot join again: the others have left, or the job has begun anew."""


@dataclass(frozen=True)
class Newcomer:
    """A process that is to join.

    Args:
        links: its connections, none yet.
        left: the last view that it was in, if it was left out, with the step that this member holds. It joins others
            then, and goes on itself only where nobody else has: where all have failed alike, as in one meeting.
        raise_failure: raises what ends the waiting, if anything does.
    """

    register: Register
    member: Member
    links: Links
    left: View | None
    raise_failure: Callable[[], None]

    def join(self, timeout_s: float) -> State:
        """Wait until this process is a member, over connections to the others; its first state.

        Raises:
            TimedOutError: nobody has admitted it in time.
            RegisterLostError: the register cannot be reached, at first or until `timeout_s` have passed.
            RegisterForgotError: it holds an older view than the one that was `left`.
            JobOverError: everybody has left since then, or the job has begun anew.
            PeerError: what the register holds is not of this job.
        """
        give_up_s, heard = time.monotonic() + timeout_s, False
        while True:
            self.raise_failure()
            try:
                view = self.register.view()
                heard = True
                joined = self._joined(view, give_up_s, timeout_s)
            except RegisterLostError as error:
                if not heard or time.monotonic() >= give_up_s or isinstance(error, RegisterForgotError):
                    raise
                _log.warning("%s joins once the register answers again: %s", self.member, error)
                time.sleep(BEAT_S)  # one that refuses does so at once
            else:
                if joined is not None:
                    return joined

    def _joined(self, view: View | None, give_up_s: float, timeout_s: float) -> State | None:
        """The first state; None where all others have left, or died, meanwhile."""
        self._require_same_job(view)
        if view is None or not view.members:
            view = self._begin(view)
        if self.member in view.members:  # it is the first
            self.links.connect(view.mesh, frozenset(view.members))
            return commit.begin(self.member, view)
        admitted = self._be_admitted(view, give_up_s, timeout_s)
        return None if admitted is None else commit.begin_behind(self.member, admitted)

    def _require_same_job(self, view: View | None) -> None:
        """Who was left out does not go on in another run, whose steps count from 0."""
        left, job = self.left, self.register.job
        if left is None:
            return
        if view is None or view.epoch < left.epoch:
            raise RegisterForgotError("joining again", f"the register has forgotten epoch {left.epoch}")
        if not view.members:
            raise JobOverError(f"all members of job {job} have left since epoch {left.epoch}")
        if view.run != left.run:
            raise JobOverError(f"job {job} has begun anew, without {self.member} of epoch {left.epoch}")

    def _begin(self, ended: View | None) -> View:
        """Try to be the first member, of a job that begins or has nobody any more; the view in force then."""
        first = View(1, (self.member,), 0, bytes(DIGEST_BYTES), run=self.member.incarnation)
        if self.left is not None:
            first = replace(first, base_step=self.left.base_step, digest=self.left.digest, run=self.left.run)
        if ended is not None:
            mesh = self.register.plan_mesh(ended.epoch + 1, [self.member])
            first = replace(first, epoch=ended.epoch + 1, asked=ended.asked, mesh=mesh)
        return self.register.advance(first, ended)

    def _be_admitted(self, view: View, give_up_s: float, timeout_s: float) -> View | None:
        """Wait until this member learns; None where all others have left, or died."""
        asked, ask_s, beats, beat_s, tried = 0, 0.0, 0, 0.0, 0
        restart, say_s = Restart(self.register), time.monotonic() + SAY_S
        while True:
            self.raise_failure()
            now_s = time.monotonic()
            if now_s >= say_s:
                say_s += SAY_S
                _log.warning("%s waits for %s", self.member, self._awaited(view))
            if now_s >= give_up_s:
                raise TimedOutError(self._nobody_answers(view), timeout_s=timeout_s)
            if now_s >= ask_s or asked <= view.asked:  # whoever is first now does not look at that request again
                asked = self.register.ask_to_join(self.member)
                ask_s = now_s + CONNECT_S
            if now_s >= beat_s:
                beats, beat_s = beats + 1, now_s + BEAT_S
                self.register.say_waiting(self.member, beats, self._held(view))
            number = self.register.last_mesh()
            if number > tried and (note := self.register.mesh(number)) is not None:
                tried = number
                if self.member in note[1]:
                    self.links.begin(number, frozenset(note[1]))
            view = self.register.view() or view
            self._require_same_job(view)
            if not view.members:
                return None
            if self.member in view.members and self.links.switch(view.mesh):
                if any(one.name == self.member.name for one in set(view.members) - {self.member}):
                    _log.warning(
                        "another member of job %s is called %s: names should differ",
                        self.register.job,
                        self.member.name,
                    )
                return view
            stands = self.left is None or view.epoch == self.left.epoch
            if stands and not self.links.reach(view.workers) and restart.is_due(view, number, now_s, self._held(view)):
                what = "begins anew" if self.left is None else f"goes on after step {self.left.base_step}"
                _log.warning("job %s %s: half of the workers of epoch %d died", self.register.job, what, view.epoch)
                self._begin(view)
                return None
            time.sleep(5 * POLL_S)

    def _held(self, view: View) -> int:
        """The step that this member can go on from while that view is in force; -1 for none."""
        return -1 if self.left is None or self.left.epoch != view.epoch else self.left.base_step

    def _awaited(self, view: View) -> str:
        first = f"{view.workers[0]}, the first member,"
        if self.links.reach(view.workers):
            return f"{first} to admit it"
        earlier = "an earlier " if view.workers[0].name == self.member.name else ""
        names = ", ".join(one.name for one in view.workers)
        go_on = f"half of them ({names}) begin anew" if self.left is None else f"most of them ({names}) go on"
        return f"{earlier}{first} to answer; if all members died, {go_on} when started"

    def _nobody_answers(self, view: View) -> str:
        register, failure = self.register, self.links.failure
        refused = f"joining: {view.workers[0]}, the first member of job {register.job}, did not admit {self.member}: "
        refused += "raise join_timeout_s above two rounds" if failure is None else str(failure)
        if self.left is not None:
            return refused
        names = ", ".join(one.name for one in view.workers)
        return f"{refused}; if no member lives, start half of {names} again, or delete {register.view_key} in the store"

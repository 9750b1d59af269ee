"""A member's connections: those that it works on, and those that it makes beside them while steps go on; and its mail.

Who joins needs a new mesh, which all members connect beside the one they work on. A member has one of each at most, and
for a while the one before that beside it: the next view may name that one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hive_qos.errors import HiveError, PeerError
from transport.settings import Settings
from transport.volatile.links.mesh import Mesh, connect_s
from transport.volatile.protocol import messages
from transport.volatile.protocol.admission import LOOK_S, Plan
from transport.volatile.protocol.messages import Ask, Connected, Mail
from transport.volatile.protocol.view import Member
from transport.volatile.register.register import Register
from transport.volatile.transfer.fetch import UNANSWERED_S, Holder
from transport.volatile.transfer.shelf import Shelf
from transport.work import Work

AGAIN_S = 2.0
"""After connections that failed before their time was over, until others are made: a loss is seen by then."""
_log = logging.getLogger("transport.volatile")


class Links:
    """See the module. For any thread.

    Args:
        me: the member whose they are.
        settings: of its connections.
        shelf: answers what the others ask for.
        heard: takes each other message, in the transport's thread: short, and it waits for nothing.
        on_loss: called there when a member is lost.
    """

    def __init__(
        self,
        register: Register,
        me: Member,
        *,
        settings: Settings,
        shelf: Shelf,
        heard: Callable[[Member, Mail], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._register, self._me, self._shelf = register, me, shelf
        self._settings = replace(settings, inspect=False)  # a member's socket serves all meshes
        self._heard, self._on_loss = heard, on_loss
        self._lock = threading.Lock()
        self._present: Mesh | None = None
        self._beside: list[Mesh] = []  # the newest last, and the one before
        self._plan: Plan | None = None
        self._closed = False
        self.failure: HiveError | None = None
        """Why the connections that were begun last could not be made; None as long as they may be."""
        self.learner_is_waited_for = False
        """Nobody makes a step before who learns has what it asks for."""
        self._tags = itertools.count()
        self._free_tags: list[int] = []

    @property
    def present(self) -> Mesh:
        """The mesh that this member works on; it has one once it has joined."""
        assert self._present is not None, "this member has not joined"
        return self._present

    @property
    def newest(self) -> Mesh:
        """The one beside it, where that stands; else the same."""
        return self._beside[-1] if self._beside else self.present

    @property
    def plan(self) -> Plan | None:
        """The connections that were begun last; None where those were given up."""
        return self._plan

    def connect(self, number: int, members: frozenset[Member]) -> None:
        """Connect to those members, and work on that.

        Raises: as `Mesh.connect`.
        """
        self._present = self._connected_to(number, members)

    def begin(self, number: int, members: frozenset[Member]) -> None:
        """Connect in a thread of its own. Once it is done, all of them hear `Connected`, this member too."""
        plan = Plan(number, members, time.monotonic() + connect_s(len(members)) + LOOK_S)
        with self._lock:
            self._plan = plan
        run = functools.partial(self._connect_beside, plan)
        threading.Thread(target=run, name="hive-volatile-connect", daemon=True).start()

    def give_up_plan(self) -> None:
        """Take no connections that do not stand yet."""
        with self._lock:
            if self._plan is not None and self._plan.number > self.newest.number:
                self._plan = None

    def switch(self, number: int) -> bool:
        """Work on the mesh of that number from now on; whether this member has it."""
        with self._lock:
            if self._present is not None and self._present.number == number:
                return True
            place = next((place for place, one in enumerate(self._beside) if one.number == number), None)
            if place is None:
                return False
            left = [self._present, *self._beside[:place]]
            self._present, self._beside = self._beside[place], self._beside[place + 1 :]
        for one in left:
            if one is not None:
                one.close_soon()
        return True

    def forget_replaced(self) -> None:
        """No view will name connections beside but the newest."""
        with self._lock:
            left, self._beside = self._beside[:-1], self._beside[-1:]
        for one in left:
            one.close_soon()

    def reach(self, members: Iterable[Member]) -> bool:
        """Whether any of those is there, over the connections that were made last."""
        mesh = self._beside[-1] if self._beside else None
        return mesh is not None and bool(set(members) & set(mesh.members) - mesh.lost() - {self._me})

    def mail(self, to: Member, message: Mail) -> Work | None:
        """Send a message, to this member itself, too; None where that one cannot be reached."""
        if to == self._me:
            self._heard(to, message)
            return None
        mesh = self._mesh_of(to)
        return None if mesh is None else mesh.mail(to, messages.encode(message))

    def holders(self, members: Sequence[Member]) -> list[Holder]:
        """Those of the members that can be asked for what they hold."""
        mesh = self.present
        lost = mesh.lost()
        return [
            Holder(one, functools.partial(self._question, mesh, one))
            for one in members
            if one != self._me and one in mesh.members and one not in lost
        ]

    def close(self) -> None:
        """Leave all of them. Idempotent."""
        for one in self._given_up():
            one.close()

    def close_soon(self) -> None:
        """Leave all of them, without waiting for it. Idempotent."""
        for one in self._given_up():
            one.close_soon()

    def _given_up(self) -> list[Mesh]:
        with self._lock:
            self._closed = True
            meshes = [one for one in (self._present, *self._beside) if one is not None]
            self._beside = []
        return meshes

    def _connected_to(self, number: int, members: frozenset[Member]) -> Mesh:
        return Mesh.connect(
            self._register,
            number,
            members,
            self._me,
            settings=self._settings,
            on_mail=self._mailed,
            on_loss=self._on_loss,
            is_cancelled=lambda: self._closed,
        )

    def _connect_beside(self, plan: Plan) -> None:
        try:
            mesh = self._connected_to(plan.number, plan.members)
        except HiveError as error:
            # Who cannot be reached is tried for as long as it asks, each 12 s: said once.
            again = self._closed or str(error) == str(self.failure)
            _log.log(logging.INFO if again else logging.WARNING, "members could not all be connected: %s", error)
            self.failure = error
            with self._lock:
                if self._plan is plan:
                    self._plan = replace(plan, give_up_s=min(plan.give_up_s, time.monotonic() + AGAIN_S))
            return
        with self._lock:
            kept = self._plan is plan and not self._closed
            made = [*self._beside, mesh] if kept else self._beside
            left, self._beside = [*made[:-2], *(() if kept else (mesh,))], made[-2:]
            self.failure = None
        if kept:
            self._heard(self._me, Connected(plan.number))
        for one in plan.members - {self._me} if kept else ():
            mesh.mail(one, messages.encode(Connected(plan.number)))
        for one in left:
            one.close()

    def _mailed(self, mesh: Mesh, sender: Member, data: bytes) -> None:
        """In the transport's thread."""
        try:
            message = messages.decode(data, sender=str(sender))
        except PeerError as error:
            _log.warning("%s", error)
            return
        if not isinstance(message, Ask):
            self._heard(sender, message)
        else:  # where it was asked: one of both may work on the next mesh already
            mesh.reply(sender, message.tag, self._shelf.answer(message), urgent=self.learner_is_waited_for)

    def _mesh_of(self, member: Member) -> Mesh | None:
        meshes = (self._present, *self._beside[-1:])
        return next((one for one in meshes if one is not None and member in one.members), None)

    def _question(self, mesh: Mesh, member: Member, step: int, index: int | None) -> Work:
        try:
            tag = self._free_tags.pop()
        except IndexError:
            tag = next(self._tags)
        work = mesh.replied(member, tag, timeout_s=UNANSWERED_S)
        # Who asks for days may not take a new one each time: both ends keep a count of each. One whose answer may still
        # come is not taken again.
        work.add_done_callback(lambda ended: self._free_tags.append(tag) if ended.exception() is None else None)
        mesh.mail(member, messages.encode(Ask(step, index, tag)))
        return work

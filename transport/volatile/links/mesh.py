"""Connections between members, on which views come and go: those of a view are of one mesh, and perhaps not all of it.

A view that only loses members works on over the connections that are there. Who is new needs a new mesh, which
members connect beside the one that they work on, and take once all have it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

import numpy as np

from hive_qos.errors import CancelledError, ConnectionLostError, HiveError, PeerError
from transport.engine.base import Priority
from transport.group import Group
from transport.settings import Settings
from transport.volatile.protocol.view import Member
from transport.volatile.register.register import Register
from transport.work import Work

CONNECT_S, CONNECT_EACH_S = 10.0, 0.5
"""A mesh whose members do not all connect in that time, and some for each, comes to nothing. Each member reads of each
other one in the register, which may be far from it."""
CLOSE_S = 1.0
_MAIL = 2**31 - 7
_REPLIES = 2**32
"""Tags of mail, and from where on those of replies lie."""
_FOREVER_S = 10.0 * 365 * 86400
_log = logging.getLogger("transport.volatile")

OnMail = Callable[["Mesh", Member, bytes], None]


def connect_s(members: int) -> float:
    """How long so many may take to connect."""
    return CONNECT_S + CONNECT_EACH_S * members


class Mesh:
    """The connections of one number, as one of their ends.

    Args:
        members: whom it connects, sorted: their places are the group's ranks.
        on_mail: takes this, who has mailed and what, in the transport's thread: short, and it waits for nothing.
        on_loss: called there when one is lost.
    """

    def __init__(
        self,
        number: int,
        members: tuple[Member, ...],
        group: Group,
        *,
        on_mail: OnMail,
        on_loss: Callable[[], None],
    ) -> None:
        self.number = number
        self.members = members
        self._group = group
        self._on_mail = on_mail
        self._closed = False
        group.call_on_loss(on_loss)
        if group.size > 1:
            self._listen()

    @classmethod
    def connect(
        cls,
        register: Register,
        number: int,
        members: Iterable[Member],
        me: Member,
        *,
        settings: Settings | None,
        on_mail: OnMail,
        on_loss: Callable[[], None],
        is_cancelled: Callable[[], bool],
    ) -> Mesh:
        """Connect to the others, who do the same.

        Raises:
            CancelledError: `is_cancelled` is true.
            RegisterLostError: the register cannot be reached.
            TransportError: as `Group.connect`.
        """
        ordered = tuple(sorted(members))
        group = Group.connect(
            register.rendezvous(number),
            rank=ordered.index(me),
            world_size=len(ordered),
            name=f"volatile/{number}",
            connect_timeout_s=connect_s(len(ordered)),
            settings=settings,
            is_cancelled=is_cancelled,
        )
        return cls(number, ordered, group, on_mail=on_mail, on_loss=on_loss)

    @property
    def group(self) -> Group:
        """Of all members."""
        return self._group

    def lost(self) -> frozenset[Member]:
        """Who is known to be gone."""
        return frozenset(self.members[rank] for rank in self._group.lost_ranks())

    def why_lost(self, member: Member) -> str:
        """Why a member of these connections is gone; "" of one that is not known to be."""
        lost = self._group.lost_ranks()
        return lost.get(self.members.index(member), "") if member in self.members else ""

    def subgroup(self, members: Iterable[Member], name: str) -> Group:
        """A group of some members, this one among them, for collectives."""
        return self._group.subgroup([self.members.index(one) for one in members], name=f"volatile/{self.number}/{name}")

    def round_trip_s(self) -> float:
        """The longest of those to the other members, as measured; 0 where nothing was."""
        return max(self._group.round_trips_s().values(), default=0.0)

    def mail(self, to: Member, data: bytes) -> Work | None:
        """Send a small message; None where that member cannot be reached."""
        return self._send(to, _MAIL, np.frombuffer(data, np.uint8), Priority.CONTROL)

    def reply(self, to: Member, tag: int, data: bytes | memoryview, *, urgent: bool = False) -> None:
        """Send what a member has asked for: in the bulk class, or where it is urgent as a step's own tensors."""
        priority = Priority.GRADIENT if urgent else Priority.BULK
        self._send(to, _REPLIES + tag, np.frombuffer(data, np.uint8), priority)

    def replied(self, source: Member, tag: int, *, timeout_s: float) -> Work:
        """What a member sends to a question with this tag.

        Raises:
            ConnectionLostError: it is gone.
            ValueError: it is not of this mesh.
        """
        return self._group.recv(None, self.members.index(source), _REPLIES + tag, timeout_s=timeout_s)

    def close(self) -> None:
        """Leave. Idempotent."""
        self._closed = True
        self._group.close(timeout_s=CLOSE_S)

    def close_soon(self) -> None:
        """Leave, without waiting for it."""
        self._closed = True
        threading.Thread(target=self.close, name="hive-volatile-close", daemon=True).start()

    def _send(self, to: Member, tag: int, payload: object, priority: Priority) -> Work | None:
        try:
            return self._group.send(payload, self.members.index(to), tag, priority=priority)
        except (HiveError, ValueError) as error:
            _log.debug("nothing was sent to %s: %s", to, error)
            return None

    def _listen(self) -> None:
        try:
            self._group.recv(None, None, _MAIL, timeout_s=_FOREVER_S).add_done_callback(self._mailed)
        except HiveError as error:
            if not self._closed:
                _log.info("mesh %d hears nothing any more: %s", self.number, error)

    def _mailed(self, work: Work) -> None:
        error = work.exception()
        of_one_message = isinstance(error, ConnectionLostError | PeerError | CancelledError)
        if error is not None and (self._closed or not of_one_message):
            return  # or nobody else is left
        self._listen()
        if error is not None:
            _log.info("mesh %d: a message did not come, others may: %s", self.number, error)
            return
        payload, source = work.result(), work.source
        if isinstance(payload, np.ndarray) and source is not None:
            self._on_mail(self, self.members[source], payload.tobytes())

"""What one member of a volatile group tells of itself: to its tape, and to who asks at its socket.

`saw` is called with each new state of the commit's core. The rest looks at the latest one, and takes no lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from transport.inspection.member_socket import MemberSocket
from transport.settings import Settings
from transport.volatile.links.mesh import Mesh
from transport.volatile.links.traffic import Traffic
from transport.volatile.protocol.commit import State
from transport.volatile.record.tape import Tape

COMMITS_KEPT = 8
"""As many as somebody reads."""
MEMBERS_SHOWN_MAX = 64


class MemberReport:
    """See the module.

    Args:
        state: of the member at its start.
        settings: whether it listens, and where its tape goes.
        mesh: its present connections.
        waits: what keeps its next step from beginning; "" where nothing does.
        attempts: how often it has reduced the step that it is at.
    """

    def __init__(
        self,
        state: State,
        *,
        job: str,
        settings: Settings,
        mesh: Callable[[], Mesh],
        waits: Callable[[], str],
        attempts: Callable[[], int],
    ) -> None:
        self._job = job
        self._mesh, self._waits, self._attempts = mesh, waits, attempts
        self._state = state
        self._entered_s = time.time()
        self._traffic = Traffic()
        self._commits: deque[dict[str, object]] = deque(maxlen=COMMITS_KEPT)
        self._tape = Tape(settings.tape, job=job, state=state) if settings.tape else None
        self._socket: MemberSocket | None = None
        if settings.inspect:
            self._socket = MemberSocket(job=job, name=state.me.name, answer=self._answer)

    def saw(self, state: State) -> None:
        """Take in the member's new state. The caller holds its lock."""
        before, self._state = self._state, state
        if self._tape is not None:
            self._tape.saw(before, state, attempt=self._attempts())
        if state.committed > before.committed >= 0:
            told = {"step": state.committed, "epoch": before.view.epoch, "digest": state.digest.hex()}
            self._commits.append({**told, "at_s": round(time.time(), 3)})
        if state.view.epoch > before.view.epoch:
            self._entered_s = time.time()
        if state.committed > before.committed or state.view.epoch > before.view.epoch:
            self._traffic.look(self._mesh().group)  # those of the view before: a new one may bring others

    def stepped(self, gradient_bytes: int) -> None:
        """Its caller has made a step of training, of a model with so many bytes of gradients."""
        self._traffic.stepped(gradient_bytes, members=len(self._state.view.workers))

    def document(self) -> Mapping[str, object]:
        """The part of a member's document that only volatile groups have. From any thread."""
        state = self._state
        view = state.view
        self._traffic.look(self._mesh().group)
        return {
            "job": self._job,
            "volatile": {
                "member": state.me.name,
                "incarnation": state.me.incarnation,
                "epoch": view.epoch,
                "epoch_s": round(time.time() - self._entered_s, 3),
                "members": [one.name for one in view.members[:MEMBERS_SHOWN_MAX]],
                "members_total": len(view.members),
                "joining": [one.name for one in view.joining[:MEMBERS_SHOWN_MAX]],
                "lost": [one.name for one in sorted(state.lost)[:MEMBERS_SHOWN_MAX]],
                "phase": state.phase.value,
                "waits_for": self._waits(),
                "step": state.committed,
                "digest": state.digest.hex(),
                "commits": list(self._commits),
                **self._traffic.document(),
            },
        }

    def close(self) -> None:
        """Take the socket away and end the tape. Idempotent."""
        if self._socket is not None:
            self._socket.close()
        if self._tape is not None:
            self._tape.close()

    def _answer(self, want: str, limit_s: float) -> Mapping[str, object]:
        mesh, view = self._mesh(), self._state.view
        found = mesh.group.survey(want, limit_s=limit_s)
        silent = found.get("silent")
        if not isinstance(silent, list):
            return found
        told = [(mesh.members[one["rank"]], one) for one in silent]
        # Who left the view has connections still, and is no member.
        return {**found, "silent": [{**one, "member": who.name} for who, one in told if who in view.members]}

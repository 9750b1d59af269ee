"""The session socket: accepts, asks the kernel who it is, receives packets with descriptors, and feeds the machine.

One thread and one selector, shared with the daemon. Every descriptor that arrives, and every connection that ends, is
handed to `CloserClient`: this thread closes nothing of a client's, for a close may last as long as its owner chose.
What a client may cost is bounded: sessions, messages and bytes a second, sockets, replies that it does not read.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import socket
from collections.abc import Callable

from broker.client.protocol import DESCRIPTORS_MAX, PACKET_BYTES_MAX
from broker.events.log import Log
from broker.model.token_bucket import TokenBuckets
from broker.process.closer import SPACE
from broker.process.closer_client import CloserClient
from broker.process.locks import listen
from broker.process.rights import Authority, Peer, Right, peer_of, process_of
from broker.sessions.messages import (
    Announce,
    AnnounceEnd,
    Declare,
    Enter,
    Hello,
    Program,
    Register,
    Reply,
    Report,
    Unregister,
    error,
)
from broker.sessions.protocol import End, Phase
from broker.sessions.service import SessionService
from broker.sessions.session import Session

SESSIONS_MAX = 256
"""Programs of one host that train or store; each costs a few kilobytes and two descriptors."""
SESSIONS_PER_USER_MAX = 64
"""So that no user takes them all."""
HELLO_TIMEOUT_S = 5.0
REQUEST_BYTES_PER_S, REQUEST_BYTES_AT_ONCE = 512 * 1024, 128 * 1024
"""Messages of one user's sessions, without reports: 64 programs with 20 bursts of 400 bytes a second. Reading a byte
takes 0.3 microseconds, so one user delays the others by 40 ms. What is beyond waits in the session's socket."""
REPORT_BYTES_PER_TICK = 16 * 1024
"""Reports read between two ticks: about 64 connections, 2 ms. What is beyond is dropped unread, not queued."""
REPORT_INTERVAL_S_MAX = 1.0
"""But every session is read once a second."""
_REPORT_PREFIX = b'{"op":"report"'
"""How a report of `broker.client` begins; one that is written in another order is read all the same."""
PACKETS_PER_WAKE = 16
"""Then the other sessions get their turn."""
PAUSE_S = 0.1
"""How long a session is not read whose user is `CloserClient.behind`."""
_NOBODY = 2**32 - 1
"""The user of a connection whose owner the kernel does not report: (uid_t) -1."""
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
"""Flags of a packet, or of descriptors, that the kernel had to cut; as a number, for an enumeration takes longer."""


class SessionServer:
    """All sessions of one daemon.

    Args:
        authority: the rights in force now.
        closing: gets what is to be closed.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        path: str,
        selector: selectors.BaseSelector,
        authority: Callable[[], Authority],
        host: str,
        service: SessionService,
        closing: CloserClient,
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._authority, self._judged_by = authority, authority()
        self.sessions: dict[str, Session] = {}
        self._selector, self._host, self._service, self._log, self._clock = selector, host, service, log, clock
        self._closing = closing
        self._requests = TokenBuckets[int](
            per_s=REQUEST_BYTES_PER_S, at_once=REQUEST_BYTES_AT_ONCE, remembered=SESSIONS_MAX
        )
        self._numbers = 0
        self._report_bytes_left = REPORT_BYTES_PER_TICK
        self._path = path
        mode, group = authority().socket_mode, authority().group
        self._listener = listen(path, kind=socket.SOCK_SEQPACKET, mode=mode, group=group)
        self._accepts = False
        self.housekeeping()

    def close(self) -> None:
        """End every session and remove the socket."""
        for session in list(self.sessions.values()):
            self._end(session, "", "the broker stops")
        if self._accepts:
            self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def housekeeping(self) -> None:
        """Once a tick: read again from paused sessions, end those that sent no hello or have lost their right.

        What a user may still send goes first to those of his sessions that were read longest ago.
        """
        now_s = self._clock()
        self._report_bytes_left = REPORT_BYTES_PER_TICK
        self._closing.look()
        if not self._accepts and not self._closing.full:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._accepts = True
        self._judge_again()
        for session in sorted(self.sessions.values(), key=lambda one: one.read_s):
            if session.paused_until_s is not None and now_s >= session.paused_until_s:
                session.paused_until_s = None
                self._selector.register(session.sock, selectors.EVENT_READ, lambda one=session: self._read(one))
            if session.machine.phase is Phase.NEW and now_s - session.since_s > HELLO_TIMEOUT_S:
                self._dismiss(session, "no-hello", f"no hello within {HELLO_TIMEOUT_S:g} s")

    def _judge_again(self) -> None:
        """End the sessions of those whom a new policy does not let in."""
        authority = self._authority()
        if authority is self._judged_by:
            return
        self._judged_by = authority
        for session in list(self.sessions.values()):
            if authority.right_of(session.peer) is Right.NONE:
                self._dismiss(session, *_not_allowed(session.peer))

    def _dismiss(self, session: Session, code: str, text: str) -> None:
        """End a session, and tell it why."""
        session.send(error(code, text))
        self._end(session, code, text)

    def fail(self, session: Session) -> None:
        """End a session of which a message brought about the exception that is handled now, and log that."""
        self._log.error("session-failed", session=session.name, uid=session.peer.uid, exc_info=True)
        if not session.closed:
            session.send(error("internal", "the broker made a mistake with this message; see its log"))
            self._end(session, "internal", "a mistake of ours")

    def _accept(self) -> None:
        if self._closing.full:  # who comes now waits in the listener's queue, until housekeeping
            self._selector.unregister(self._listener)
            self._accepts = False
            return
        try:
            sock, _ = self._listener.accept()
        except OSError as problem:  # out of descriptors, or gone before we came
            self._log.warning("accept-failed", uid=None, error=str(problem))
            return
        try:
            peer = peer_of(sock)
            right = self._authority().right_of(peer)
            refusal = self._refusal(peer, right)
            pidfd = process_of(sock, peer) if refusal is None else None
        except OSError as problem:
            self._log.warning("accept-failed", uid=None, error=f"the kernel does not report its owner: {problem}")
            self._closing.take([sock.detach()], uid=_NOBODY)
            return
        if refusal is None and pidfd is None:
            refusal = ("no-process", "the process that connected cannot be seen from here, or has ended")
        self._numbers += 1
        name = f"s-{self._numbers}"
        session = Session(name=name, host=self._host, sock=sock, peer=peer, pidfd=pidfd, now_s=self._clock())
        if refusal is not None:
            session.send(error(*refusal))
            self._hang_up(session)
            self._log.warning("session-refused", uid=peer.uid, pid=peer.pid, code=refusal[0])
            return
        assert pidfd is not None
        sock.setblocking(False)
        self.sessions[name] = session
        try:
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._read(session))
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._end(session, "", "its process ended"))
        except OSError as problem:  # more descriptors than epoll may watch
            self._end(session, "", f"cannot be watched: {problem.strerror}")

    def _refusal(self, peer: Peer, right: Right) -> tuple[str, str] | None:
        if right is Right.NONE:
            return _not_allowed(peer)
        if len(self.sessions) >= SESSIONS_MAX:
            return "too-many", f"at most {SESSIONS_MAX} sessions"
        if sum(one.peer.uid == peer.uid for one in self.sessions.values()) >= SESSIONS_PER_USER_MAX:
            return "too-many", f"at most {SESSIONS_PER_USER_MAX} sessions of one user"
        return None

    def _read(self, session: Session) -> None:
        try:
            self._read_packets(session)
        except Exception:  # noqa: BLE001 - whatever one client brings about ends its session, never the daemon
            self.fail(session)

    def _read_packets(self, session: Session) -> None:
        for _ in range(PACKETS_PER_WAKE):
            if session.closed:
                return
            uid, now_s = session.peer.uid, self._clock()
            wait_s = PAUSE_S if self._closing.behind(uid) else self._requests.charge(uid, count=0, now_s=now_s)
            if wait_s > 0:
                self._pause(session, wait_s)
                return
            try:
                packet, descriptors, truncated = _receive(session.sock)
            except BlockingIOError:
                return
            except OSError as problem:
                self._end(session, "", f"connection lost: {problem}")
                return
            session.read_s = now_s
            if self._admits(session, packet, with_descriptors=bool(descriptors)):
                try:
                    actions = session.machine.receive(packet, descriptors=len(descriptors), truncated=truncated)
                    self._perform(session, actions, descriptors)
                finally:
                    if descriptors:
                        self._closing.take(descriptors, uid=uid)
            session.allowance.take(now_s=self._clock())
            if not session.closed and session.allowance.wait_s() > 0:
                self._pause(session, session.allowance.wait_s())
                return

    def _pause(self, session: Session, wait_s: float) -> None:
        """Read nothing of a session until a time has passed."""
        session.paused_until_s = self._clock() + wait_s
        self._selector.unregister(session.sock)

    def _admits(self, session: Session, packet: bytes, *, with_descriptors: bool) -> bool:
        """Charge a packet to its user, or a report to this tick; False for a report beyond what a tick reads."""
        now_s = self._clock()
        if with_descriptors or session.machine.phase is not Phase.OPEN or not packet.startswith(_REPORT_PREFIX):
            self._requests.charge(session.peer.uid, count=len(packet), now_s=now_s)
            return True
        if self._report_bytes_left <= 0 and now_s - session.reported_s < REPORT_INTERVAL_S_MAX:
            return False
        self._report_bytes_left -= len(packet)
        session.reported_s = now_s
        return True

    def _perform(self, session: Session, actions: tuple[object, ...], descriptors: list[int]) -> None:
        for action in actions:
            reply: Reply | None = None
            match action:
                case Reply():
                    reply = action
                case End():
                    self._end(session, action.code, action.text)
                case Hello():
                    self._log.info("session-opened", session=session.name, client=action.client, job=action.job,
                                   pid=session.peer.pid, uid=session.peer.uid)  # fmt: skip
                case Register():
                    reply = self._register(session, action, descriptors)
                case Unregister():
                    self._service.unregister(session, action)
                case Announce():
                    self._service.announce(session, action)
                case AnnounceEnd():
                    self._service.announce_end(session, action)
                case Declare():
                    reply = self._service.need(session, action)
                case Program():
                    reply = self._service.program(session, action)
                case Report():
                    self._service.report(session, action)
                case Enter():
                    reply = self._service.enter(session, action)
            if reply is not None and not session.closed and not session.send(reply):
                self._end(session, "not-reading", "the client does not read its answers")

    def _register(self, session: Session, message: Register, descriptors: list[int]) -> Reply:
        sockets: list[socket.socket] = []
        try:
            for descriptor in descriptors:
                try:
                    sockets.append(socket.socket(fileno=descriptor))
                except OSError:
                    return error("not-a-socket", "a descriptor that is no socket", number=message.number)
            return self._service.register(session, message, sockets)
        finally:
            for sock in sockets:
                sock.detach()  # handed to `CloserClient` with all the others, where they were received

    def _end(self, session: Session, code: str, text: str) -> None:
        if session.closed:
            return
        session.closed = True
        if session.paused_until_s is None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(session.sock)
        if session.pidfd is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(session.pidfd)
            os.close(session.pidfd)
        self._hang_up(session)
        self.sessions.pop(session.name, None)
        self._log.info("session-closed", session=session.name, uid=session.peer.uid, reason=text, code=code or None)
        self._service.gone(session)

    def _hang_up(self, session: Session) -> None:
        """End a connection so that the peer reads our last answer: where packets of his are unread when it is closed,
        he gets ECONNRESET first. What carries descriptors is left unread: they would become ours to close."""
        sock = session.sock
        with contextlib.suppress(OSError):  # he has gone, or nothing more is there
            sock.shutdown(socket.SHUT_RDWR)
            for _ in range(PACKETS_PER_WAKE):
                packet, _, flags, _ = sock.recvmsg(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                if not packet or flags & socket.MSG_CTRUNC:
                    break
                sock.recv(1, socket.MSG_DONTWAIT)
        self._closing.take([sock.detach()], uid=session.peer.uid)


def _receive(sock: socket.socket) -> tuple[bytes, list[int], bool]:
    """One packet, its descriptors, and whether it is beyond the limits.

    There is room for all descriptors that a packet can carry: those without room would be closed here, by the kernel.
    """
    packet, ancillary, flags, _ = sock.recvmsg(PACKET_BYTES_MAX, SPACE, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return packet, list(descriptors), bool(flags & _CUT) or len(descriptors) > DESCRIPTORS_MAX


def _not_allowed(peer: Peer) -> tuple[str, str]:
    return "not-allowed", f"user {peer.uid} is not in the broker's group"

"""One connected client of the session socket."""

from __future__ import annotations

import select
import socket

from broker.model.token_bucket import TokenBucket
from broker.process.rights import Peer
from broker.sessions.messages import Reply, write
from broker.sessions.protocol import MESSAGES_AT_ONCE, MESSAGES_PER_S, SessionProtocol


class Session:
    """One connected client."""

    def __init__(
        self, *, name: str, host: str, sock: socket.socket, peer: Peer, pidfd: int | None, now_s: float
    ) -> None:
        self.name = name
        self.sock = sock
        self.peer = peer
        self.since_s = now_s
        self.machine = SessionProtocol(name=name, host=host)
        self.allowance = TokenBucket(per_s=MESSAGES_PER_S, at_once=MESSAGES_AT_ONCE, now_s=now_s)
        self.reported_s = float("-inf")
        self.read_s = now_s
        self.paused_until_s: float | None = None
        self.pidfd = pidfd
        self.closed = False

    @property
    def job(self) -> str:
        """What the client calls its job."""
        return self.machine.hello.job

    def has_ended(self) -> bool:
        """Whether the process that connected is gone: its number may be somebody else's then."""
        if self.pidfd is None or self.closed:
            return True
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, reply: Reply) -> bool:
        """Send one reply; False when the client does not read its answers, or is gone."""
        try:
            self.sock.send(write(reply), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

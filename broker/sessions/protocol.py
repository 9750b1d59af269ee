"""One session as a state machine: packets in, actions out; all rules of the protocol stand here. No sockets, no clock.

    NEW --hello--> OPEN --bye, end--> OVER
    any --garbage, or a message out of order--> error reply, OVER

A broken protocol (no JSON, too long, unknown operation before hello, descriptors where none belong) ends the session.
A request that is merely refused (bad field, not a socket, policy) is answered with an error, and the session lives on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from msgspec import Struct

from broker.client.protocol import DESCRIPTORS_MAX, PACKET_BYTES_MAX, VERSION
from broker.sessions.messages import Bye, ErrorReply, Hello, Message, Register, Reply, Unregister, Welcome, error, read

MESSAGES_PER_S = 200.0
"""Ten reports and a burst or two each 100 ms are 30 a second; more than 200 is a program gone wrong."""
MESSAGES_AT_ONCE = 100.0
"""What may come in one go: a reconnecting program that registers all its sockets."""
FLOWS_MAX = 256
"""Sockets that one session has registered at once; the client library keeps to the same bound."""


class Phase(enum.Enum):
    """Where a session stands."""

    NEW = "new"
    OPEN = "open"
    OVER = "over"


class End(Struct, frozen=True):
    """Close the connection, after the replies before it. `code` is empty for a goodbye."""

    code: str
    text: str


Action = Reply | End | Message
"""What to do: send a reply, close the connection, or what the message asks for."""
_FATAL = ("not-json", "too-long", "unknown-version")
"""Errors after which nothing of a client is believed."""


@dataclass
class SessionProtocol:
    """The protocol state of one session.

    Args:
        name: what the broker calls the session.
        host: this host's description in the welcome.
    """

    name: str
    host: str
    phase: Phase = Phase.NEW
    hello: Hello = field(default_factory=lambda: Hello(v=VERSION))
    flows: dict[int, int] = field(default_factory=dict)
    """Sockets registered now, by the number of the message that they came with."""

    def receive(self, packet: bytes, *, descriptors: int = 0, truncated: bool = False) -> tuple[Action, ...]:
        """Take one packet.

        Args:
            packet: as received; empty means that the client closed its end.
            descriptors: how many came with it.
            truncated: the kernel had to cut the packet or its descriptors.
        """
        if self.phase is Phase.OVER:
            return ()
        if not packet and not truncated:
            return self._end("the client closed its end")
        if truncated or len(packet) > PACKET_BYTES_MAX:
            return self._broken(error("too-long", f"beyond 64 KiB or {DESCRIPTORS_MAX} descriptors"))
        message = read(packet)
        if not isinstance(message, ErrorReply):
            return self._advance(message, descriptors)
        fatal = self.phase is Phase.NEW or message.code in _FATAL
        return self._broken(message) if fatal else (message,)

    def _advance(self, message: Message, descriptors: int) -> tuple[Action, ...]:
        if isinstance(message, Hello) != (self.phase is Phase.NEW):
            return self._broken(error("out-of-order", "hello comes first, and once"))
        if descriptors and not isinstance(message, Register):
            return self._broken(error("unexpected-descriptors", "only register carries descriptors"))
        if isinstance(message, Hello):
            self.phase, self.hello = Phase.OPEN, message
            return (message, Welcome(v=VERSION, session=self.name, host=self.host))
        if isinstance(message, Bye):
            return self._end("the client sent bye")
        if isinstance(message, Register):
            return self._register(message, descriptors)
        if isinstance(message, Unregister):
            self.flows.pop(message.number, None)
        return (message,)

    def _register(self, message: Register, descriptors: int) -> tuple[Action, ...]:
        if not 1 <= descriptors <= DESCRIPTORS_MAX:
            text = f"register needs 1 to {DESCRIPTORS_MAX} descriptors, came with {descriptors}"
            return (error("no-descriptor" if not descriptors else "too-many", text, number=message.number),)
        if sum(self.flows.values()) + descriptors > FLOWS_MAX:
            return (error("too-many", f"a session has at most {FLOWS_MAX} sockets at once", number=message.number),)
        self.flows[message.number] = self.flows.get(message.number, 0) + descriptors
        return (message,)

    def _broken(self, why: ErrorReply) -> tuple[Action, ...]:
        self.phase = Phase.OVER
        return (why, End(why.code, why.text))

    def _end(self, text: str) -> tuple[Action, ...]:
        self.phase = Phase.OVER
        return (End("", text),)

"""What a QUIC stack must offer: the one seam between the transport and the two engines behind it.

Rules that both engines keep
- An engine owns a thread (or a runtime) of its own. Every method here may be called from any thread, returns at once
  and never raises for what happens on the network: outcomes arrive as events, in batches, through `on_events`, which
  the engine calls from one thread of its own, never re-entrantly and never while it holds a lock of its own.
- A payload is borrowed: the engine may read `payload` until the `SendDone` of that operation, and not after. A posted
  buffer is lent: the engine may write it until `Received` or `OperationFailed` of that operation, and not after.
  The engine holds a view of it meanwhile, so that nothing is collected under it, nor resized where its owner counts
  views (bytearrays do; `transport.tensors` says what a torch tensor does).
- Every operation ends in exactly one event: `SendDone`, `Received` or `OperationFailed`.
- When a connection ends, its sends fail with `ConnectionLostError` and its half-received messages are dropped; the
  posts they were for wait on, for the peer may send again over another connection. When the last connection to a peer
  has ended, every post for that peer fails with `ConnectionLostError`. A post for a peer never connected waits.
- A peer that resets the stream of a message fails the post which that message had taken, with `CancelledError`.
- A wrong argument or a closed engine raises `MisuseError` at the call, before anything is started; so does a call that
  `close` overtakes in another thread, if the engine does not take it any more. A socket is the engine's as soon as it
  comes with a call: where that raises, for whatever reason, it is closed.
- Messages are matched by (authenticated peer, `MatchKey`), whatever connection they come over: a connection may be
  replaced by another one to the same peer while operations wait. Two messages with the same key from the same peer are
  delivered in the order in which they were completed.
- A message that nobody posted a buffer for waits in a bounded store (`unexpected_bytes_max`, for each peer); when that
  is full the engine stops granting flow-control credit to that peer's streams until something is taken.
- Nothing here reads a tensor's meaning: payload is bytes.
"""

from __future__ import annotations

import abc
import enum
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hive_qos.errors import TransportError
from transport.identity.credentials import Credentials, Trust
from transport.wire.control_frames import ALPN
from transport.wire.header import Header, MatchKey

Buffer: TypeAlias = memoryview
"""A C-contiguous memoryview of format "B". Read-only will do for sending; receiving needs a writable one."""

Address: TypeAlias = tuple[str, int]
"""A literal IPv4 or IPv6 address and a UDP port."""


class Priority(enum.IntEnum):
    """Order in which streams of one connection are served; the smaller goes first, equals take turns (design.md)."""

    CONTROL = 0
    ACTIVATION_GRADIENT = 1
    ACTIVATION = 2
    GRADIENT = 3
    BULK = 4


DEAD_AFTER_S = 5.0
"""Silence of a peer whose acknowledgements Python may hold up, until it counts as dead."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine may use, and how patient it is. Every bound is enforced by the engine.

    Args:
        unexpected_bytes_max: memory for messages that nobody posted for, for each peer (64 MiB).
        message_bytes_max: largest payload accepted (1 TiB), checked before anything is allocated.
        streams_max: incoming messages open at once, for each connection.
        keep_alive_s: how often an idle connection proves that it lives.
        dead_after_s: no acknowledgement for so long means that the peer is dead. None: `DEAD_AFTER_S`, for Python may
            be held up; less where both sides are native and nothing of Python's is in the way.
        handshake_timeout_s: a connection that is not up by then has failed.
        datagram_bytes: UDP payload of a packet; 1200 passes everywhere, and is what aioquic sends; 1452 fits Ethernet
            without tunnels.
        congestion: for gradients, `auto` (CUBIC, which on native tolerates random loss), `cubic`, or, native
            only, `bbr`. Native's bulk endpoints use its delay-bounded controller instead.
        shared_memory: whether messages to peers of this host go through memory that both share; native only, and only
            where the peer's engine has it too.
        protocol: which of `PROTOCOLS` is spoken (ALPN); a peer that speaks another is refused in its handshake.
    """

    unexpected_bytes_max: int = 64 * 2**20
    message_bytes_max: int = 2**40
    streams_max: int = 1024
    keep_alive_s: float = 0.5
    dead_after_s: float | None = None
    handshake_timeout_s: float = 10.0
    datagram_bytes: int = 1452
    congestion: str = "auto"
    shared_memory: bool = False
    protocol: str = ALPN


@dataclass(frozen=True)
class ConnectionStatistics:
    """What one connection measured. Times in seconds, counters since it came up.

    `delivery_rate_bits_per_s` is over the last 100 ms or longer of acknowledged bytes; `application_limited` says that
    the sender had nothing to send in that interval, so that the rate says nothing of the path (BBR's rule).
    `path_mtu_bytes` is the UDP payload of the largest packets sent now.
    `shared_sent_bytes` and `shared_received_bytes` are payloads through memory that the peer shares: no network.
    """

    peer: str
    remote: Address
    bulk: bool
    rtt_s: float
    rtt_s_min: float
    rtt_latest_s: float
    congestion_window_bytes: int
    sent_bytes: int
    received_bytes: int
    delivered_bytes: int
    lost_packets: int
    sent_packets: int
    delivery_rate_bits_per_s: int
    application_limited: bool
    path_mtu_bytes: int
    shared_sent_bytes: int = 0
    shared_received_bytes: int = 0


@dataclass(frozen=True)
class ConnectionUp:
    """A connection is ready: both sides verified, hello exchanged.

    `attempt` is what `connect` returned, or None where the peer dialled. `hello` is what the peer said of itself.
    `addresses` are those that its certificate names, where a CA vouches for them (`hive-qos ca issue --address`).
    """

    connection: int
    endpoint: int
    peer: str
    remote: Address
    hello: Mapping[int, object]
    attempt: int | None
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ConnectionDown:
    """A connection ended, or the attempt `attempt` never came up (`connection` is then None).

    `gone`: the peer's host says that its process has ended. Nobody is there who could connect again.
    `silent`: nothing was heard of the peer for `dead_after_s`.
    """

    connection: int | None
    peer: str
    error: TransportError | None
    attempt: int | None = None
    gone: bool = False
    silent: bool = False


@dataclass(frozen=True)
class SendDone:
    """The peer's stack has acknowledged every byte; the payload is the caller's again."""

    operation: int


@dataclass(frozen=True)
class Received:
    """A message is complete. `payload` is the posted buffer cut to length, or the engine's own memory.

    `connection` is the one that it came over, which may have ended since.
    """

    operation: int
    peer: str
    header: Header
    payload: Buffer
    connection: int


@dataclass(frozen=True)
class OperationFailed:
    """A send or a post ended without success; the buffer is the caller's again (a posted one may be half written)."""

    operation: int
    error: TransportError


@dataclass(frozen=True)
class UnexpectedMessage:
    """A complete message waits that nobody has posted for; `post` takes it. Lets control messages arrive unasked.

    Of a collective's message an engine that carries out collectives tells only if it still waits a moment later. Also
    told of one that is refused for its length, before its post fails: it names its call.
    """

    peer: str
    header: Header


HOLDS_MAX = 1024
"""Of one connection, that have not ended. Neither side says or keeps more."""


@dataclass(frozen=True)
class Hold:
    """The peer asks over a connection that a group's collectives to it wait from a step on, or go on.

    Those that the engine carries out do.
    """

    connection: int
    group: str
    step: int
    waits: bool


@dataclass(frozen=True)
class StepFailed:
    """A message of a collective failed (`error`), or one came that is not what the step receives (`header`).

    The collective goes on with its other steps until it is stopped. `peer` is a rank of its group, `length` are the
    bytes that the step sends or receives.
    """

    collective: int
    peer: int
    length: int
    error: TransportError | None
    header: Header | None


@dataclass(frozen=True)
class CollectiveEnded:
    """Its buffers are the caller's again. `complete`: every step was done; else it was stopped, or the engine ended."""

    collective: int
    complete: bool
    bytes_done: int


Event: TypeAlias = (
    ConnectionUp
    | ConnectionDown
    | SendDone
    | Received
    | OperationFailed
    | UnexpectedMessage
    | Hold
    | StepFailed
    | CollectiveEnded
)


@dataclass(frozen=True)
class Member:
    """A rank of a collective's group.

    Args:
        rank: of the endpoint; its messages have it as their tag.
        name: as which it has proved itself; of the own rank nobody looks at it.
        says, hears: the call in our words to it, and as its messages have to say it.
    """

    rank: int
    name: str
    says: str
    hears: str


@dataclass(frozen=True)
class Collective:
    """One rank's part of a collective, for an engine that carries it out.

    Args:
        schedule: as `transport.collectives.schedule` encodes it.
        buffers: what its regions refer to; lent until `CollectiveEnded`, those that are written not read-only.
        dtype, item_bytes, reduce_op: of all values, the last by its name.
        job, group, step, operation: what messages say; the upper half of their bucket is `operation`.
        members: by rank of the group.
        rank: the own rank in the group.
        order: of the collective among all of this rank; earlier ones send first.
        missing: addresses in the buffers, first and behind the last, that no step may touch yet.
    """

    schedule: bytes
    buffers: Sequence[Buffer]
    dtype: str
    item_bytes: int
    reduce_op: str
    job: str
    group: str
    step: int
    operation: int
    members: Sequence[Member]
    rank: int
    priority: Priority
    order: int
    missing: tuple[int, int] = (0, 0)


class Collectives(abc.ABC):
    """Carries out whole collectives; see `Engine` for what holds of every method.

    A lost connection fails nothing: what it carried is sent again over the next one that `route` gives.
    """

    @abc.abstractmethod
    def reduces(self, dtype: str, reduce_op: str) -> bool:
        """Whether values can be reduced so."""

    @abc.abstractmethod
    def start(self, collective: Collective) -> int:
        """Begin one. Ends in `CollectiveEnded` with the returned number.

        Raises:
            MisuseError: the schedule does not fit the call; says what is wrong in which step.
        """

    @abc.abstractmethod
    def read_on(self, collective: int, *, missing_from: int) -> None:
        """Of what is `missing`, steps may touch all before this address. Harmless for one that has ended."""

    @abc.abstractmethod
    def stop(self, collective: int) -> None:
        """Begin nothing more of it and cancel what is under way; then it ends. Harmless for one that has ended."""

    @abc.abstractmethod
    def route(self, rank: int, *, bulk: bool, connections: Sequence[int]) -> None:
        """Send what is for a rank of the endpoint over these connections from now on, each message over the one that
        is through with it first; none: wait for others."""

    @abc.abstractmethod
    def gone(self, rank: int) -> None:
        """A rank of the endpoint is gone for good: fail what waits for it."""

    @abc.abstractmethod
    def drain(self, timeout_s: float) -> bool:
        """Wait until the peers have what ended collectives sent, for so long at most; whether they have."""

    @abc.abstractmethod
    def progress(self, collective: int) -> tuple[int, Sequence[int]]:
        """Payload bytes sent and received, and the ranks of the group that it waits for."""


class Engine(abc.ABC):
    """A QUIC stack that moves messages. See the rules at the top of this file."""

    name: str
    collectives: Collectives | None = None
    """Where it carries out whole collectives."""

    def __init__(self, *, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> None:
        self.settings = settings
        self.on_events = on_events

    @abc.abstractmethod
    def add_endpoint(
        self, sock: socket.socket, *, credentials: Credentials, trust: Trust, hello: Mapping[int, object], bulk: bool
    ) -> int:
        """Serve a bound UDP socket, for dialling and for being dialled. The engine owns the socket from now on.

        It closes it at its end, and at once where it raises.

        Args:
            sock: a bound, non-blocking UDP socket; its marks (TOS, priority) are somebody else's.
            hello: what to say of ourselves, by the keys of `docs/reference/wire.md`.
            bulk: state that yields: to gradients in what this side sends, and, native only, to everything on the path
                (the delay-bounded controller).

        Raises:
            ConfigurationError: this process may have no more files open.
            MisuseError: the engine is closed, or the socket, the credentials, trust or hello cannot be used.
        """

    @abc.abstractmethod
    def rebind(self, endpoint: int, sock: socket.socket) -> None:
        """Go on with another socket, because the address of this host has changed. The engine owns it like one that is
        added.

        Connections that this side dialled move: the peer hears from the new address and validates it, and both sides
        measure the new path afresh (RFC 9000 section 9). Only who dialled can move: connections that this side has
        accepted, and attempts that are not up yet, end with `ConnectionDown`, to be dialled again by whoever can.
        """

    @abc.abstractmethod
    def connect(self, endpoint: int, remote: Address, *, expected_peer: str | None) -> int:
        """Dial. Ends in `ConnectionUp` or `ConnectionDown` with the returned attempt; `expected_peer` must match."""

    @abc.abstractmethod
    def send(self, connection: int, header: Header, payload: Buffer | None, *, priority: Priority) -> int:
        """Send one message on a stream of its own.

        Args:
            header: its `length` must be the payload's.
            payload: borrowed until this operation's event.

        Raises:
            MisuseError: the header cannot be written or does not fit the payload.
        """

    @abc.abstractmethod
    def post(self, peer: str, key: MatchKey, buffer: Buffer | None) -> int:
        """Take the next message with this key from this peer, into `buffer`, or into memory of the engine (None).

        A message that is longer than the buffer, or without one than `unexpected_bytes_max`, fails the operation with
        `PeerError` and is discarded.

        Args:
            key: within the types and bounds of a header's fields.

        Raises:
            MisuseError: no message can have this key.
        """

    @abc.abstractmethod
    def cancel(self, operation: int) -> None:
        """End an operation: a send resets its stream, a post is withdrawn. Its event is `OperationFailed` (cancelled)
        unless it was already done. Never blocks; harmless for an operation that has ended."""

    @abc.abstractmethod
    def discard(self, *, group: str, before_step: int) -> None:
        """Drop waiting messages of a group's steps before `before_step`, late ones too (an abandoned step).

        Args:
            before_step: not below an earlier one; 0 takes all that comes from now on.
        """

    @abc.abstractmethod
    def statistics(self) -> Mapping[int, ConnectionStatistics]:
        """What every living connection measured, at most 100 ms old."""

    @abc.abstractmethod
    def disconnect(self, connection: int, *, wire_code: int, reason: str) -> None:
        """Close one connection and say why."""

    @abc.abstractmethod
    def close(self, *, timeout_s: float = 2.0) -> None:
        """Say goodbye to every peer, fail what is open, close the sockets, end the thread. Idempotent."""

"""The messages of `session.sock`, from and to clients, and how they become packets.

`docs/reference/broker-api.md` is the specification. The types are the check: `read` gives a message whose every field
has its type and is within its bounds, or the error to answer with. Names are made printable: they are shown and
logged. Unknown keys are ignored, so that a newer client can send more.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from broker.client.protocol import CONNECTIONS_PER_REPORT, DESCRIPTORS_MAX, NAME_CHARS_MAX, VERSION
from broker.model.addresses import plain
from broker.model.connection_report import DURATION_S_MAX, ConnectionReport, Count, Endpoint, Seconds
from broker.policy.types import CLASS_NAMES, TrafficClass
from hive_qos.text import printable

DESTINATIONS_MAX = 1024
"""Destinations of one burst: more than any group of ranks that fits one packet."""
DEADLINE_S_MAX = 7 * 86_400.0
"""Of a storage program: a week. Copies that take longer have no deadline that anybody watches."""
ADDRESS_CHARS_MAX = 80
"""Of an address with its scope, or with brackets and a port. Those read lately are kept, so each has to be short."""

Role = Literal["gradient", "bulk", "storage", "control", "other"]
Number = Annotated[int, Meta(ge=0, le=2**53)]
ProgramState = Literal["working", "unreachable", "refused", "unexpected"]
PROGRAM_TEXT_MAX = 500
"""Of what an adapter says: two sentences with a path in them."""
Step = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_AddressText = Annotated[str, Meta(max_length=ADDRESS_CHARS_MAX)]
Destinations = Annotated[dict[_AddressText, Count], Meta(min_length=1, max_length=DESTINATIONS_MAX)]
"""Bytes by literal address. Keys are in canonical form once read."""


class _Message(Struct, frozen=True, kw_only=True, tag_field="op", omit_defaults=True):
    """What all messages share: `op` names the type."""


# --- from a client ------------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The first message: the client's identity."""

    v: Literal[1]
    client: Name = ""
    job: Name = ""

    def __post_init__(self) -> None:
        force_setattr(self, "client", printable(self.client))
        force_setattr(self, "job", printable(self.job))


class Register(_Message, frozen=True, kw_only=True, tag="register"):
    """Mark the sockets that came with this packet."""

    number: Number = field(name="id")
    traffic_class: TrafficClass = field(name="class")
    role: Role


class Unregister(_Message, frozen=True, kw_only=True, tag="unregister"):
    """The sockets of an earlier `register` with this number are closed, or shall be forgotten."""

    number: Number = field(name="id")


class Announce(_Message, frozen=True, kw_only=True, tag="burst"):
    """A burst begins: bytes to each address, seconds until they should be there, seconds until the next burst."""

    number: Number | None = field(name="id", default=None)
    job: Name = ""
    step: Step
    bytes_by_destination: Destinations = field(name="bytes")
    deadline_s: Seconds
    next_s: Seconds | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "job", printable(self.job))
        force_setattr(self, "bytes_by_destination", _canonical(self.bytes_by_destination))
        force_setattr(self, "deadline_s", min(self.deadline_s, DURATION_S_MAX))
        if self.next_s is not None:
            force_setattr(self, "next_s", min(self.next_s, DURATION_S_MAX))


class AnnounceEnd(_Message, frozen=True, kw_only=True, tag="burst-end"):
    """The burst of this step is over."""

    job: Name = ""
    step: Step

    def __post_init__(self) -> None:
        force_setattr(self, "job", printable(self.job))


class Declare(_Message, frozen=True, kw_only=True, tag="need"):
    """What a storage program has to do: its backlog, seconds until it has to be done, objects with too few copies.

    `bytes_by_destination` is the backlog by address, where the program declares it; else empty. A backlog of 0 ends the
    need.
    """

    number: Number = field(name="id")
    backlog_bytes: Count
    deadline_s: Seconds | None = None
    replicas_at_risk: bool | Number = 0
    bytes_by_destination: Destinations = field(name="bytes", default_factory=dict)

    def __post_init__(self) -> None:
        force_setattr(self, "bytes_by_destination", _canonical(self.bytes_by_destination))
        force_setattr(self, "replicas_at_risk", int(self.replicas_at_risk))
        if self.deadline_s is not None:
            force_setattr(self, "deadline_s", min(self.deadline_s, DEADLINE_S_MAX))


class Program(_Message, frozen=True, kw_only=True, tag="program"):
    """How a storage program does, as its adapter sees it. `text` says what is to be done, where something is."""

    number: Number = field(name="id")
    name: Name
    kind: Name
    state: ProgramState
    text: Annotated[str, Meta(max_length=PROGRAM_TEXT_MAX)] = ""
    limit_bits_per_s: Number | None = None
    upload_bytes: Count = 0
    waiting_bytes: Count = 0
    download_bytes: Count = 0

    def __post_init__(self) -> None:
        force_setattr(self, "name", printable(self.name))
        force_setattr(self, "kind", printable(self.kind))
        force_setattr(self, "text", printable(self.text, length_max=PROGRAM_TEXT_MAX))


class Report(_Message, frozen=True, kw_only=True, tag="report"):
    """Everything that the client measures, or a part of it: each connection replaces its former figures."""

    connections: Annotated[tuple[ConnectionReport, ...], Meta(max_length=CONNECTIONS_PER_REPORT)]


class Enter(_Message, frozen=True, kw_only=True, tag="enter"):
    """Move the client's own process into the cgroup of a class."""

    number: Number = field(name="id")
    traffic_class: TrafficClass = field(name="class")


class Bye(_Message, frozen=True, kw_only=True, tag="bye"):
    """The client is done."""


Message = Hello | Register | Unregister | Announce | AnnounceEnd | Declare | Program | Report | Enter | Bye


# --- from the broker ----------------------------------------------------------------------------------------------


class Reply(_Message, frozen=True, kw_only=True):
    """What is sent to a client."""


class Welcome(Reply, frozen=True, kw_only=True, tag="welcome"):
    """The session is open."""

    v: int
    session: str
    host: str


class Registered(Reply, frozen=True, kw_only=True, tag="registered"):
    """The sockets are marked; the broker's names of them."""

    number: int = field(name="id")
    flows: list[str]
    note: str = ""


class Noted(Reply, frozen=True, kw_only=True, tag="noted"):
    """The need is entered."""

    number: int = field(name="id")


class AllowanceReply(Reply, frozen=True, kw_only=True, tag="allowance"):
    """What class storage may use now, over all interfaces; both are 0 before the first decision."""

    number: int = field(name="id")
    guarantee_bits_per_s: int
    ceiling_bits_per_s: int


class Entered(Reply, frozen=True, kw_only=True, tag="entered"):
    """The process has moved."""

    number: int = field(name="id")
    traffic_class: str = field(name="class")


class ErrorReply(Reply, frozen=True, kw_only=True, tag="error"):
    """What was wrong, with the number of the request that it answers where there was one."""

    code: str
    text: str
    number: int | None = field(name="id", default=None)


def error(code: str, text: str, *, number: int | None = None) -> ErrorReply:
    """Make an error reply; what names of others bring into its text is made printable."""
    return ErrorReply(code=code, text=printable(text, length_max=1000), number=number)


# --- packets ------------------------------------------------------------------------------------------------------


def write(reply: Reply) -> bytes:
    """Give the packet of a reply."""
    return _ENCODER.encode(reply)


def read(packet: bytes) -> Message | ErrorReply:
    """Read one packet of a client; the error to answer with where it is none of the messages."""
    try:
        return _DECODER.decode(packet)
    except (ValueError, RecursionError) as problem:
        return _why_not(packet, problem)


class _Envelope(Struct):
    """As much of a message as an error reply needs."""

    op: Any = None
    id: Any = None
    v: Any = None


def _why_not(packet: bytes, problem: Exception) -> ErrorReply:
    try:
        sent = _ENVELOPE.decode(packet)
    except (ValueError, RecursionError):
        return error("not-json", "a packet must be one JSON object in UTF-8")
    number = sent.id if type(sent.id) is int and 0 <= sent.id <= 2**53 else None
    if sent.op not in OPERATIONS:
        return error("unknown-operation", f"op must be one of {', '.join(OPERATIONS)}", number=number)
    if sent.op == "hello" and sent.v != VERSION:
        return error("unknown-version", f"v must be {VERSION}", number=number)
    text = f"{sent.op}: {problem}"
    allowed = _CHOICES.get(text.rpartition(".")[2].rstrip("`"))
    return error("bad-field", text if allowed is None else f"{text}; one of {', '.join(allowed)}", number=number)


@functools.lru_cache(maxsize=4096)  # the same peers come ten times a second; parsing was half of a report's cost
def _address(text: str) -> str:
    try:
        return plain(text)
    except ValueError:
        raise ValueError("a destination must be a literal IPv4 or IPv6 address") from None


def _canonical(destinations: dict[str, int]) -> dict[str, int]:
    return {_address(text): size_bytes for text, size_bytes in destinations.items()}


@functools.lru_cache(maxsize=4096)
def _endpoint(text: str) -> Endpoint:
    address, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be text: address, colon, port")
    return Endpoint(_address(address.strip("[]")), int(port))


def _decoded(kind: type, value: Any) -> Endpoint:
    """Read an endpoint, the one type that JSON does not have."""
    if not isinstance(value, str) or len(value) > ADDRESS_CHARS_MAX:
        raise ValueError("must be text: address, colon, port")
    return _endpoint(value)


OPERATIONS: Final = tuple(str(one.__struct_config__.tag) for one in get_args(Message))
_CHOICES: Final = {"class": CLASS_NAMES, "role": get_args(Role), "state": get_args(ProgramState)}
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message, dec_hook=_decoded)
_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_ENCODER: Final = msgspec.json.Encoder()

assert DESCRIPTORS_MAX <= 253, "SCM_MAX_FD of the kernel"

"""The messages of `hive-broker/1` as bytes: each a CBOR map with integer keys, the payload of one engine message.

Three of them: an ask (hold a class back towards me), its answer, and a release. Durations are whole milliseconds,
never points in time: hosts' clocks differ. Rates are whole bits per second on the wire. Who asks, and towards which
address, is not in a message: it is that of the connection. Keys that this side does not know are ignored, and so are
messages of an unknown type, so that a newer peer can send more. docs/reference/broker-protocol.md fixes every number in
here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

from msgspec import Struct

from broker.model.leases import HELD_CLASS, LEASE_S_MAX
from broker.model.reasons import Reason
from hive_qos.units import RATE_BITS_PER_S_MAX
from transport.wire.cbor import decode_map, encode_map
from transport.wire.error_codes import WireCode, WireError

MESSAGE_BYTES_MAX = 1024
"""An ask with the longest reason has about 620."""
NUMBER_MAX = 2**63 - 1
LEASE_S_MIN = 0.01
"""Shorter than a round trip between sites: nothing could be renewed in time."""
RATE_MIN, CAPACITY_MIN = 0, 1
CODE_CHARS_MAX, CLASS_CHARS_MAX, TEXT_BYTES_MAX = 48, 16, 512
HELLO_RUN = 72
"""Key of the hello: 16 random bytes of this start of the broker. Numbers count from 1 in each (`book`)."""
RUN_BYTES = 16
"""Nobody draws the same twice: 128 bits, as a UUID."""


class MessageType(enum.IntEnum):
    """What a message is, under key 0."""

    ASK = 0
    ANSWER = 1
    RELEASE = 2


class Key(enum.IntEnum):
    """Keys of the messages."""

    TYPE = 0
    NUMBER = 1
    CLASS = 2
    RATE = 3
    CAPACITY = 4
    LEASE_MS = 5
    GRANTED = 6
    CODE = 7
    TEXT = 8


class Refusal(enum.StrEnum):
    """Why an ask is refused before any decision has looked at it: the code of the answer."""

    CLASS = "hold-class-refused"
    RATE = "hold-rate-absurd"
    CAPACITY = "hold-capacity-absurd"
    LEASE = "hold-lease-absurd"
    ADDRESS = "hold-address-not-certified"
    STALE = "hold-stale"
    FULL = "hold-too-many-peers"


class Ask(Struct, frozen=True):
    """Hold `traffic_class` back to `rate_bits_per_s` towards whoever sent this, for `lease_s`. See `holds.Hold`."""

    number: int
    traffic_class: str
    rate_bits_per_s: int
    capacity_bits_per_s: int
    lease_s: float
    reason: Reason


class Answer(Struct, frozen=True):
    """What came of the ask with this number; `remaining_s` is how long its lease still has, 0 for a refusal."""

    number: int
    granted: bool
    rate_bits_per_s: int
    remaining_s: float
    reason: Reason


class Release(Struct, frozen=True):
    """The class need not be held back any more. Its number is higher than that of every ask that it ends."""

    number: int
    traffic_class: str


Message: TypeAlias = Ask | Answer | Release


class UnacceptableAsk(Exception):
    """A well-formed ask that asks for what nobody grants. Answer with `refusal`."""

    def __init__(self, number: int, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.number, self.refusal, self.text = number, refusal, text


def write(message: Message) -> bytes:
    """A message's bytes, at most `MESSAGE_BYTES_MAX`."""
    fields: dict[int, object] = {Key.NUMBER: message.number}
    match message:
        case Ask():
            fields |= {
                Key.TYPE: int(MessageType.ASK),
                Key.CLASS: message.traffic_class,
                Key.RATE: message.rate_bits_per_s,
                Key.CAPACITY: message.capacity_bits_per_s,
                Key.LEASE_MS: _milliseconds(message.lease_s),
                **_reason_fields(message.reason),
            }
        case Answer():
            fields |= {
                Key.TYPE: int(MessageType.ANSWER),
                Key.GRANTED: message.granted,
                Key.RATE: message.rate_bits_per_s,
                Key.LEASE_MS: _milliseconds(message.remaining_s),
                **_reason_fields(message.reason),
            }
        case Release():
            fields |= {Key.TYPE: int(MessageType.RELEASE), Key.CLASS: message.traffic_class}
    return encode_map({int(key): value for key, value in fields.items()})


def read(data: bytes) -> Message | None:
    """A message from a peer, with every figure within its bounds; None for a type that this side does not know.

    Raises:
        WireError: not a message of this protocol; close the connection with its code.
        UnacceptableAsk: an ask that is to be refused.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        reason = f"a message of {len(data)} bytes; {MESSAGE_BYTES_MAX} are allowed"
        raise WireError(WireCode.MESSAGE_TOO_LONG, reason)
    fields = decode_map(data)
    kind = fields.get(Key.TYPE)
    if type(kind) is not int:
        raise WireError(WireCode.HEADER_INVALID, "a message without a type")
    if kind not in MessageType.__members__.values():
        return None
    number = fields.get(Key.NUMBER)
    if type(number) is not int or not 1 <= number <= NUMBER_MAX:
        raise WireError(WireCode.HEADER_INVALID, f"a message whose number is not from 1 to {NUMBER_MAX}")
    if kind == MessageType.ASK:
        return _read_ask(fields, number)
    if kind == MessageType.ANSWER:
        return _read_answer(fields, number)
    return Release(number=number, traffic_class=_class_of(fields))


def _read_ask(fields: Mapping[int, Any], number: int) -> Ask:
    traffic_class = _class_of(fields)
    if traffic_class != HELD_CLASS:
        text = f"only {HELD_CLASS} is held back for others"
        raise UnacceptableAsk(number, Refusal.CLASS, text)
    rate, capacity, lease_ms = (fields.get(key) for key in (Key.RATE, Key.CAPACITY, Key.LEASE_MS))
    if not _is_between(rate, RATE_MIN, RATE_BITS_PER_S_MAX):
        text = f"the rate is not a whole number of bits per second from {RATE_MIN} to {RATE_BITS_PER_S_MAX}"
        raise UnacceptableAsk(number, Refusal.RATE, text)
    if not _is_between(capacity, CAPACITY_MIN, RATE_BITS_PER_S_MAX):
        text = f"the capacity is not a whole number of bits per second from {CAPACITY_MIN} to {RATE_BITS_PER_S_MAX}"
        raise UnacceptableAsk(number, Refusal.CAPACITY, text)
    if not _is_between(lease_ms, _milliseconds(LEASE_S_MIN), _milliseconds(LEASE_S_MAX)):
        text = f"a lease is {_milliseconds(LEASE_S_MIN)} to {_milliseconds(LEASE_S_MAX)} ms"
        raise UnacceptableAsk(number, Refusal.LEASE, text)
    return Ask(number, traffic_class, rate, capacity, lease_ms / 1000, _read_reason(fields))


def _read_answer(fields: Mapping[int, Any], number: int) -> Answer:
    granted, rate, remaining_ms = (fields.get(key) for key in (Key.GRANTED, Key.RATE, Key.LEASE_MS))
    if type(granted) is not bool:
        raise WireError(WireCode.HEADER_INVALID, "an answer that says neither yes nor no")
    if not _is_between(rate, 0, RATE_BITS_PER_S_MAX) or not _is_between(remaining_ms, 0, _milliseconds(LEASE_S_MAX)):
        raise WireError(WireCode.HEADER_INVALID, "an answer whose rate or remaining time is out of bounds")
    return Answer(number, granted, rate, remaining_ms / 1000, _read_reason(fields))


def _class_of(fields: Mapping[int, Any]) -> str:
    name = fields.get(Key.CLASS)
    if type(name) is not str or len(name) > CLASS_CHARS_MAX:
        raise WireError(WireCode.HEADER_INVALID, f"a class that is not a text of at most {CLASS_CHARS_MAX} characters")
    return name


def _is_between(value: object, low: int, high: int) -> TypeGuard[int]:
    return type(value) is int and low <= value <= high  # not a bool, and no float: there is no NaN among integers


def _milliseconds(duration_s: float) -> int:
    return round(duration_s * 1000)


def _reason_fields(reason: Reason) -> dict[int, object]:
    return {Key.CODE: reason.code[:CODE_CHARS_MAX], Key.TEXT: _shown(reason.text)}


def _read_reason(fields: Mapping[int, Any]) -> Reason:
    """The peer's reason: for people alone, so an invalid one is corrected and not refused."""
    code, text = fields.get(Key.CODE), fields.get(Key.TEXT)
    if type(code) is not str or not code.isascii() or not code.replace("-", "").isalnum():
        code = "unknown"
    return Reason(code=code[:CODE_CHARS_MAX], text=_shown(text) if type(text) is str else "")


def _shown(text: str) -> str:
    """Cut, and with nothing in it that paints on a terminal or begins a line."""
    clean = "".join(char if char.isprintable() else "?" for char in text[:TEXT_BYTES_MAX])
    return clean.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")

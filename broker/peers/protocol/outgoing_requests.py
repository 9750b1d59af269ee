"""What we want of other brokers against what they have been asked: whom to dial, and which message to send now.

Rules
- What is new or has changed is asked at once, over whatever connection there is to that address, or over the next.
- A lease is asked for again when half of it is over, those of `PROMPT` addresses five times a second; what is not
  wanted any more is released.
- Where nobody answers, the next attempt waits: 1 s, twice as long each time, at most `RETRY_S_MAX`.
- At most `ASKS_PER_S` an address, so that a peer never has to hold us back.

No input or output, no clock, no threads: the channel reports events and performs what is returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from broker.model.leases import LEASE_S_MAX, Hold, HoldOutcome
from broker.model.token_bucket import TokenBucket
from broker.model.values import BrokerThere
from broker.peers.protocol.wire import LEASE_S_MIN, Answer, Ask, Refusal, Release

WANTED_MAX = 64
"""Addresses that are dialled and asked at once; a flood comes from fewer."""
KNOWN_MAX = 256
"""Addresses that are remembered, so that one that nobody answers at is not dialled each time that it is wanted."""
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
DIALS_MAX = 8
"""Handshakes under way at once towards addresses where nothing is asked yet: each costs milliseconds of CPU."""
PROMPT, PROMPT_S = 4, 0.15
"""At every second tick. Each message is a round trip measured, and whether a queue stands in front of our link is seen
by few as well as by all (`broker.law.capacity.inbound_delay`): two that agree are enough, and four are two where others
lose packets.
"""
SHORT_LIFE_S = 5.0
"""A connection that lived for less did not work: the next one waits, or two brokers would dial each other for ever."""
ASKS_PER_S, ASKS_AT_ONCE = 30.0, 10.0
"""Ten ticks a second, and bursts between them; a peer takes 50 a second, answers to its own asks included."""


@dataclass
class _Contact:
    """What is known of an address."""

    allowance: TokenBucket
    reached: bool = False
    dialling: bool = False
    failures: int = 0
    retry_at_s: float = 0.0
    refused: str = ""

    @property
    def broker(self) -> BrokerThere:
        if self.reached:
            return BrokerThere.YES
        return BrokerThere.NO if self.failures else BrokerThere.UNKNOWN


@dataclass
class _Held:
    """One class at one address: what is wanted, what was asked last, and what was answered."""

    hold: Hold
    asked: Hold | None = None
    asked_at_s: float = 0.0
    first_number: int = 0
    number: int = 0
    verdict: HoldOutcome | None = None
    verdict_ends_s: float = 0.0


class Outgoing(Struct, frozen=True):
    """A message to send to an address now."""

    address: str
    message: Ask | Release


@dataclass
class HoldRequests:
    """Everything that this host wants of others. Addresses are plain (`addresses.plain`)."""

    _contacts: dict[str, _Contact] = field(default_factory=dict)
    _held: dict[tuple[str, str], _Held] = field(default_factory=dict)
    _wanted: tuple[str, ...] = ()
    _gone: list[_Held] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def want(self, holds: Sequence[Hold], *, reach: Iterable[str] = (), now_s: float) -> None:
        """Say what is wanted from now on, all of it. What is over is released with the next `messages`.

        Args:
            holds: one for each address and class; the last of two for the same counts. Leases are cut to what the
                protocol has.
            reach: addresses to which a connection is kept though nothing is asked there yet.
        """
        addresses = list(dict.fromkeys([*(hold.address for hold in holds), *reach]))
        self._wanted = tuple(addresses[:WANTED_MAX])
        for address in self._wanted:
            self._contact(address, now_s=now_s)
        fresh = {
            (hold.address, hold.traffic_class): replace(hold, lease_s=min(max(hold.lease_s, LEASE_S_MIN), LEASE_S_MAX))
            for hold in holds
            if hold.address in self._wanted
        }
        for key in [key for key in self._held if key not in fresh]:
            self._gone.append(self._held.pop(key))
        for key, hold in fresh.items():
            self._held.setdefault(key, _Held(hold)).hold = hold

    def is_wanted(self, address: str) -> bool:
        """Whether a connection to an address is needed."""
        return address in self._wanted

    def dials(self, *, now_s: float) -> list[str]:
        """Addresses to dial now; each is under way until `reached` or `failed`.

        Whoever is to be asked is dialled at once; of the others `DIALS_MAX` at a time.
        """
        asked = {address for address, _ in self._held}
        under_way = sum(contact.dialling for contact in self._contacts.values())
        chosen = []
        for address in self._wanted:
            contact = self._contacts[address]
            if contact.reached or contact.dialling or now_s < contact.retry_at_s:
                continue
            if address in asked or under_way < DIALS_MAX:
                contact.dialling = True
                under_way += 1
                chosen.append(address)
        return chosen

    def reached(self, address: str, *, now_s: float) -> None:
        """A connection to an address is up, whoever dialled."""
        contact = self._contact(address, now_s=now_s)
        contact.reached, contact.dialling, contact.refused = True, False, ""

    def failed(self, address: str, *, refused: str = "", now_s: float) -> None:
        """An attempt came to nothing; `refused` is the reason where who answered is no broker to ask."""
        contact = self._contact(address, now_s=now_s)
        contact.dialling = False
        contact.refused = refused
        self._wait_longer(contact, now_s=now_s)
        if refused:
            contact.retry_at_s = now_s + RETRY_S_MAX

    def lost(self, address: str, *, lived_s: float, now_s: float) -> None:
        """The last connection to an address ended: what was asked there is asked anew over the next one."""
        contact = self._contact(address, now_s=now_s)
        contact.reached = False
        if lived_s < SHORT_LIFE_S:
            self._wait_longer(contact, now_s=now_s)
        else:
            contact.failures, contact.retry_at_s = 0, now_s
        for (at, _), held in self._held.items():
            if at == address:
                held.asked = held.verdict = None

    def start_afresh(self) -> None:
        """Everybody may be dialled at once: earlier failures belong to another certificate."""
        for contact in self._contacts.values():
            contact.dialling, contact.refused, contact.failures, contact.retry_at_s = False, "", 0, 0.0

    def messages(self, *, now_s: float) -> list[Outgoing]:
        """What to send now."""
        out = []
        for held in self._gone:
            if held.asked is not None and now_s < held.asked_at_s + held.asked.lease_s:
                release = Release(number=self._number(), traffic_class=held.hold.traffic_class)
                out.append(Outgoing(held.hold.address, release))
        self._gone.clear()
        for place, ((address, _), held) in enumerate(sorted(self._held.items())):
            contact = self._contacts[address]
            if (
                contact.reached
                and _is_due(held, prompt=place < PROMPT, now_s=now_s)
                and contact.allowance.take(now_s=now_s)
            ):
                out.append(Outgoing(address, self._ask(held, now_s=now_s)))
        return out

    def answered(self, address: str, peer: str, answer: Answer, *, now_s: float) -> None:
        """A broker has answered an ask. Answers to what was not asked there are ignored."""
        for (at, _), held in self._held.items():
            newest = held.verdict.number if held.verdict is not None else held.first_number
            if answer.reason.code == Refusal.STALE and answer.number < held.number:
                continue  # overtaken on its way by a later ask of ours: the answer to that one counts
            if at == address and held.asked is not None and newest <= answer.number <= held.number:
                held.verdict = HoldOutcome(
                    peer=peer,
                    address=address,
                    number=answer.number,
                    granted=answer.granted,
                    rate_bits_per_s=answer.rate_bits_per_s,
                    reason=answer.reason,
                )
                held.verdict_ends_s = now_s + answer.remaining_s if answer.granted else float("inf")

    def brokers(self) -> dict[str, BrokerThere]:
        """Address to whether a broker answers there: NO where the last attempt failed."""
        return {address: contact.broker for address, contact in self._contacts.items()}

    def held(self, *, now_s: float) -> dict[str, HoldOutcome]:
        """Address to what was answered there; nothing where no answer has come yet, or its lease is over."""
        return {
            address: held.verdict
            for (address, _), held in self._held.items()
            if held.verdict is not None and now_s < held.verdict_ends_s
        }

    def state(self, address: str, *, now_s: float) -> str:
        """What the operator reads of an address that has no connection."""
        contact = self._contacts.get(address)
        if contact is None:
            return "unknown"
        if contact.refused:
            return f"refused: {contact.refused}"
        if contact.dialling:
            return "dialling"
        if contact.failures:
            return f"no broker answers; next attempt in {max(0.0, contact.retry_at_s - now_s):.0f} s"
        return "not dialled yet"

    def addresses(self) -> list[str]:
        """Every address that is wanted or where somebody was refused."""
        return sorted({*self._wanted, *(address for address, contact in self._contacts.items() if contact.refused)})

    def _ask(self, held: _Held, *, now_s: float) -> Ask:
        hold = held.hold
        held.number = self._number()
        if held.asked is None:
            held.first_number = held.number
        held.asked, held.asked_at_s = hold, now_s
        return Ask(
            number=held.number,
            traffic_class=hold.traffic_class,
            rate_bits_per_s=hold.rate_bits_per_s,
            capacity_bits_per_s=hold.capacity_bits_per_s,
            lease_s=hold.lease_s,
            reason=hold.reason,
        )

    def _number(self) -> int:
        return next(self._numbers)

    def _contact(self, address: str, *, now_s: float) -> _Contact:
        contact = self._contacts.get(address)
        if contact is None:
            contact = _Contact(TokenBucket(per_s=ASKS_PER_S, at_once=ASKS_AT_ONCE, now_s=now_s))
            self._contacts[address] = contact
            self._forget_old()
        return contact

    def _forget_old(self) -> None:
        """Keep `KNOWN_MAX` addresses, those that are needed first."""
        for address, contact in list(self._contacts.items())[:-1]:
            if len(self._contacts) <= KNOWN_MAX:
                return
            if not (contact.reached or contact.dialling or address in self._wanted):
                del self._contacts[address]

    def _wait_longer(self, contact: _Contact, *, now_s: float) -> None:
        contact.failures += 1
        contact.retry_at_s = now_s + min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(contact.failures - 1, 10))


def _is_due(held: _Held, *, prompt: bool, now_s: float) -> bool:
    asked, hold = held.asked, held.hold
    if asked is None:
        return True
    wanted, before = (
        (one.rate_bits_per_s, one.capacity_bits_per_s, one.lease_s) for one in (hold, asked)
    )  # a reason that reads differently is no change
    again_s = min(PROMPT_S, asked.lease_s / 2) if prompt else asked.lease_s / 2
    return wanted != before or now_s >= held.asked_at_s + again_s

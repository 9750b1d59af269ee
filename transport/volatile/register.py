"""Where a job keeps its view: one value that is only ever replaced by comparing and setting, and notes beside it.

Nothing of a step passes it. Members write there when the view has to change. Any store with an atomic compare-and-set
serves, as torch's TCPStore does. Who can write to it can forge a view, so every value carries an authenticator of the
job's secret (HMAC-SHA-256, RFC 2104) over its key and itself.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from hive_qos.errors import PeerError, TimedOutError
from transport.volatile import view as views
from transport.volatile.commit import Frozen
from transport.volatile.view import Member, View
from transport.wire import cbor
from transport.wire.error_codes import WireError

TAG_BYTES = 32
POLL_S = 0.02
"""Between two looks for a value: a fifth of a round trip of the Internet, and 50 small requests a second at most."""


class Store(Protocol):
    """What a register needs. All may be called from any thread.

    Raises:
        RegisterLostError: of each method, where the store cannot be reached.
    """

    def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none."""

    def set(self, key: str, value: bytes) -> None:
        """Replace the value."""

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Replace the value if it is `expected` (b"" for none), and return what is there then."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, 0 at first, and return its value."""


class MemoryStore:
    """A store for members that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        with self._lock:
            if self._values.get(key, b"") == expected:
                self._values[key] = value
            return self._values.get(key, b"")

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount
            return self._counters[key]


class Register:
    """A job's view and its notes in a store.

    Args:
        job: keeps jobs that share a store apart.
        secret: of the job; b"" trusts whoever can write to the store.
    """

    def __init__(self, store: Store, *, job: str, secret: bytes = b"") -> None:
        self.store = store
        self._prefix = f"hive/volatile/{job}/"
        self._secret = secret

    def view(self) -> View | None:
        """The view in force, or None before the first.

        Raises:
            PeerError: what is there is no view of this job's.
        """
        held = self.store.get(self._key("view"))
        return None if not held else views.decode(self._opened("view", held))

    def advance(self, view: View, before: View | None) -> View:
        """Make `view` the successor of `before`, unless that has another one already; the view in force then."""
        expected = b"" if before is None else self._sealed("view", views.encode(before))
        held = self.store.compare_set(self._key("view"), expected, self._sealed("view", views.encode(view)))
        return views.decode(self._opened("view", held))

    def say_frozen(self, member: Member, stand: Frozen) -> None:
        """Tell the others of this epoch where `member` stands."""
        self._write(_frozen_key(stand.epoch, member), _encode_stand(stand))

    def frozen(self, epoch: int, member: Member) -> Frozen | None:
        """Where a member said that it stands, or None."""
        held = self._read(_frozen_key(epoch, member))
        return None if held is None else _decode_stand(held, epoch)

    def ask_to_join(self, member: Member) -> None:
        """Put `member` behind those who have asked before."""
        place = self.store.add(self._key("asked"), 1)
        self._write(f"asks/{place}", cbor.encode_map({0: member.name, 1: member.incarnation}))

    def asked(self, after: int) -> tuple[int, tuple[Member, ...]]:
        """Who has asked to join since place `after`, and the place to go on from."""
        found: list[Member] = []
        last = self.store.add(self._key("asked"), 0)
        for place in range(after + 1, last + 1):
            held = self._read(f"asks/{place}")
            if held is None:  # its number is taken, its name follows in a moment
                return place - 1, tuple(found)
            found.append(_decode_member(held))
        return last, tuple(found)

    def rendezvous(self, epoch: int) -> RegisterRendezvous:
        """Where the ranks of an epoch publish how to reach them."""
        return RegisterRendezvous(self, f"connect/{epoch}/")

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _write(self, name: str, value: bytes) -> None:
        self.store.set(self._key(name), self._sealed(name, value))

    def _read(self, name: str) -> bytes | None:
        held = self.store.get(self._key(name))
        return None if held is None else self._opened(name, held)

    def _sealed(self, name: str, value: bytes) -> bytes:
        return self._tag(name, value) + value

    def _opened(self, name: str, held: bytes) -> bytes:
        tag, value = held[:TAG_BYTES], held[TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(name, value)):
            reason = f"{name} was not written with this job's secret; give all members the same HIVE_JOB_SECRET"
            raise PeerError("register", reason)
        return value

    def _tag(self, name: str, value: bytes) -> bytes:
        return hmac.digest(self._secret or b"-", self._key(name).encode() + b"\0" + value, "sha256")


class RegisterRendezvous:
    """`transport.Rendezvous` of one epoch."""

    def __init__(self, register: Register, prefix: str) -> None:
        self._register = register
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        self._register._write(self._prefix + key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        give_up_s = time.monotonic() + timeout_s
        while (value := self._register._read(self._prefix + key)) is None:
            if time.monotonic() >= give_up_s:
                raise TimedOutError(f"rendezvous key {key}", timeout_s=timeout_s)
            time.sleep(POLL_S)
        return value


def _frozen_key(epoch: int, member: Member) -> str:
    return f"frozen/{epoch}/{member.name}/{member.incarnation}"


def _encode_stand(stand: Frozen) -> bytes:
    return cbor.encode_map(
        {
            0: stand.committed,
            1: stand.digest,
            2: stand.prepared,
            3: _encode_members(stand.lost),
            4: _encode_members(stand.joining),
        }
    )


def _decode_stand(data: bytes, epoch: int) -> Frozen:
    try:
        held = cbor.decode_map(data)
        lost, joining = (frozenset(Member(str(name), int(number)) for name, number in held[key]) for key in (3, 4))
        return Frozen(epoch, int(held[0]), bytes(held[1]), held[2] and bytes(held[2]), lost, joining)
    except (KeyError, TypeError, ValueError, WireError) as error:
        raise PeerError("register", f"a member's note cannot be read: {error}") from error


def _encode_members(members: Iterable[Member]) -> list[list[object]]:
    return [[one.name, one.incarnation] for one in sorted(members)]


def _decode_member(data: bytes) -> Member:
    try:
        held = cbor.decode_map(data)
        return Member(str(held[0]), int(held[1]))
    except (KeyError, TypeError, ValueError, WireError) as error:
        raise PeerError("register", f"a request to join cannot be read: {error}") from error

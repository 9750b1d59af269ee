"""Where a job keeps its view: one value that is only ever replaced by comparing and setting, and notes beside it.

Nothing of a step passes it. Members write there when the view has to change. Any store with an atomic compare-and-set
serves, as torch's TCPStore does. Who can write to it can forge a view, so every value carries an authenticator of the
job's secret (HMAC-SHA-256, RFC 2104) over its key and itself.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from hive_qos.errors import PeerError, RegisterLostError, TimedOutError
from transport.volatile.protocol import messages
from transport.volatile.protocol import view as views
from transport.volatile.protocol.commit import Frozen
from transport.volatile.protocol.view import Member, View
from transport.wire import cbor
from transport.wire.error_codes import WireError

TAG_BYTES = 32
T = TypeVar("T")
STORE_S = 10.0
"""A store in another part of the world answers within a second, and one that restarts within some."""
HURRIED = 8
"""At 2 s each (`control.ANSWER_S`) a link may be cut for a quarter of a minute, and be used again at once."""
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

    def renew(self) -> bool:
        """A call has not ended in time: whether the next ones do not wait for it, as they have a new connection."""


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

    def renew(self) -> bool:
        return False


class RegisterForgotError(RegisterLostError):
    """It can be reached, and does not hold what it held: waiting for it is in vain. Join anew."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, f"{reason}; it was emptied, as by a new start: join anew, with the same algorithm")


class Register:
    """A job's view and its notes in a store.

    Args:
        job: keeps jobs that share a store apart.
        secret: of the job; b"" trusts whoever can write to the store.
        timeout_s: a store that does not answer for so long counts as lost, whatever its own client thinks.
    """

    def __init__(self, store: Store, *, job: str, secret: bytes = b"", timeout_s: float = STORE_S) -> None:
        self.store: Store = Bounded(store, timeout_s)
        self.job = job
        self._prefix = f"hive/volatile/{job}/"
        self._secret = secret

    def within(self, timeout_s: float) -> Register:
        """The same one, for who cannot wait longer for an answer."""
        return Register(self.store, job=self.job, secret=self._secret, timeout_s=timeout_s)

    @property
    def view_key(self) -> str:
        """The key of the view in the store."""
        return self._key("view")

    def view(self) -> View | None:
        """The view in force, or None before the first.

        Raises:
            PeerError: what is there is no view of this job's.
        """
        held = self.store.get(self._key("view"))
        return None if not held else views.decode(self._opened("view", held))

    def advance(self, view: View, before: View | None) -> View:
        """Make `view` the successor of `before`, unless that has another one already; the view in force then.

        Raises:
            RegisterForgotError: the register holds neither of the two, nor another one.
        """
        expected = b"" if before is None else self._sealed("view", views.encode(before))
        held = self.store.compare_set(self._key("view"), expected, self._sealed("view", views.encode(view)))
        if not held:
            raise RegisterForgotError("advancing the view", "the register has forgotten it")
        return views.decode(self._opened("view", held))

    def say_frozen(self, member: Member, stand: Frozen) -> None:
        """Tell the others of this epoch where `member` stands."""
        self._write(_frozen_key(stand.epoch, member), messages.encode(stand))

    def frozen(self, epoch: int, member: Member) -> Frozen | None:
        """Where a member said that it stands, or None."""
        held = self._read(_frozen_key(epoch, member))
        if held is None:
            return None
        stand = messages.decode(held, sender="register")
        if not isinstance(stand, Frozen) or stand.epoch != epoch:
            raise PeerError("register", f"{member} has left no note of where it stands, but something else")
        return stand

    def ask_to_join(self, member: Member) -> int:
        """Put `member` behind those who have asked before; its number."""
        number = self.store.add(self._key("asked"), 1)
        self._write(f"asks/{number}", cbor.encode_map({0: member.name, 1: member.incarnation}))
        return number

    def asked(self) -> int:
        """The number of the newest request to join."""
        return self.store.add(self._key("asked"), 0)

    def request(self, number: int) -> Member | None:
        """Who has asked to join; None where it has not written that yet, or died before."""
        held = self._read(f"asks/{number}")
        if held is None:
            return None
        with _readable("a request to join"):
            values = cbor.decode_map(held)
            return Member(str(values[0]), int(values[1]))

    def say_waiting(self, member: Member, count: int, step: int) -> None:
        """Tell whom `member` waits for that it lives: `count` is another one each time.

        Args:
            step: the last one that it holds, and can go on from in the view in force; -1 for none.
        """
        self._write(_beat_key(member), cbor.encode_map({0: count, 1: step}))

    def beat(self, member: Member) -> tuple[int, int] | None:
        """The last such count and step, or None."""
        held = self._read(_beat_key(member))
        if held is None:
            return None
        with _readable("the beat of who waits"):
            count, step = (int(cbor.decode_map(held)[key]) for key in (0, 1))
            return count, step

    def say_left(self, member: Member) -> None:
        """Tell who leaves later that `member` has left."""
        self._write(_left_key(member), cbor.encode_map({}))

    def has_left(self, member: Member) -> bool:
        """Whether it has said that it left."""
        return self._read(_left_key(member)) is not None

    def plan_mesh(self, epoch: int, members: Sequence[Member]) -> int:
        """Note that `members` are to connect to each other, by the word of a view's first worker; a number for it."""
        number = self.store.add(self._key("meshes"), 1) + 1  # the first view's is 1
        pairs = [[one.name, one.incarnation] for one in members]
        self._write(f"mesh/{number}", cbor.encode_map({0: epoch, 1: pairs}))
        return number

    def last_mesh(self) -> int:
        """The number of the newest connections that were planned."""
        return self.store.add(self._key("meshes"), 0) + 1

    def mesh(self, number: int) -> tuple[int, tuple[Member, ...]] | None:
        """In which epoch they were planned, and who is to have them; None where that is not written yet."""
        held = self._read(f"mesh/{number}")
        if held is None:
            return None
        with _readable("a note of who is to connect"):
            values = cbor.decode_map(held)
            members = tuple(Member(str(name), int(incarnation)) for name, incarnation in values[1])
            return int(values[0]), members

    def rendezvous(self, mesh: int) -> RegisterRendezvous:
        """Where the ranks of a mesh publish how to reach them."""
        return RegisterRendezvous(self, f"connect/{mesh}/")

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


class Bounded:
    """A store whose calls end in time: clients of remote ones wait for ever where a host is cut off.

    A call that does not end keeps its thread, which is a daemon. Later calls fail at once until it does end, as where
    the host can be reached again; or they go over another connection, if the store makes one.

    Where `HURRIED` calls in a row had no answer in time, further ones wait for `STORE_S`: the store may be slow, and
    not out of reach.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._missed = 0
        self._stuck: dict[threading.Event, str] = {}
        """Calls that have not ended in time, and what they were for."""

    def get(self, key: str) -> bytes | None:
        return self._in_time(f"reading {key}", lambda: self._store.get(key))

    def set(self, key: str, value: bytes) -> None:
        self._in_time(f"writing {key}", lambda: self._store.set(key, value))

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        return self._in_time(f"replacing {key}", lambda: self._store.compare_set(key, expected, value))

    def add(self, key: str, amount: int) -> int:
        return self._in_time(f"counting {key}", lambda: self._store.add(key, amount))

    def renew(self) -> bool:
        return self._store.renew()

    def _in_time(self, what: str, call: Callable[[], T]) -> T:
        with self._lock:
            if self._stuck:
                raise RegisterLostError(what, f"it has not answered since {next(iter(self._stuck.values()))}")
        results: list[T] = []
        errors: list[BaseException] = []
        ended = threading.Event()

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                errors.append(error)
            with self._lock:
                ended.set()
                self._stuck.pop(ended, None)

        threading.Thread(target=run, name="hive-register", daemon=True).start()
        limit_s = self._timeout_s if self._missed < HURRIED else max(self._timeout_s, STORE_S)
        if not ended.wait(limit_s):
            with self._lock:
                if not ended.is_set():
                    self._missed += 1
                    if not self._store.renew():
                        self._stuck[ended] = what
                    raise RegisterLostError(what, f"no answer within {limit_s:g} s")
        self._missed = 0
        if errors:
            raise errors[0]
        return results[0]


class RegisterRendezvous:
    """`transport.Rendezvous` of one mesh."""

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


def _left_key(member: Member) -> str:
    return f"left/{member.name}/{member.incarnation}"


def _beat_key(member: Member) -> str:
    return f"waits/{member.name}/{member.incarnation}"


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, WireError) as error:
        raise PeerError("register", f"{what} cannot be read: {error}") from error

"""What a session shares with its thread: bounded queues, the registered sockets, and a way to wake the thread."""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

BURSTS_MAX = 64
"""Announcements that wait for the broker; the oldest is dropped first. A step has one or two."""
REPORTS_MAX = 4
"""Reports that wait: 0.4 s of them; older measurements would only mislead."""
REGISTRATIONS_MAX = 256
"""Open sockets of one session, as the broker allows it."""


class SessionState(enum.Enum):
    """Where a session stands. None of them is an error for the program that holds it."""

    OFF = "off"
    """Switched off (`HIVE_BROKER=off`), or the copy of a session in a forked child."""
    CONNECTING = "connecting"
    """No broker yet, or not any more; the session tries again by itself."""
    CONNECTED = "connected"
    """The broker knows this session; registered sockets are, or are just being, marked."""
    CLOSED = "closed"


class Wake:
    """Wakes a thread that sleeps in poll(2). Harmless after `close`."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._lock = threading.RLock()  # a signal handler may wake while another one does
        self.closed = False

    def set(self) -> None:
        """Wake the sleeper, now or at its next sleep."""
        with self._lock:
            if not self.closed:
                with contextlib.suppress(BlockingIOError):  # full: it is awake already
                    os.write(self._writer, b"w")

    def clear(self) -> None:
        """Take back every wake-up so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.reader, 4096):
                pass

    def close(self) -> None:
        """Close both ends. Only the sleeper itself may do that."""
        with self._lock:
            if not self.closed:
                self.closed = True
                os.close(self.reader)
                os.close(self._writer)

    def close_in_child(self) -> None:
        """Close a forked child's copy: nobody sleeps there, and the fork may have caught the lock held."""
        self._lock = threading.RLock()
        self.close()


@dataclass(frozen=True)
class Registration:
    """One socket that the broker should mark, for as long as the socket object lives and is open."""

    number: int
    sock: weakref.ref[socket.socket]
    traffic_class: str
    role: str

    @property
    def closed(self) -> bool:
        """The socket is closed, or nobody has it any more."""
        sock = self.sock()
        return sock is None or sock.fileno() < 0


@dataclass(frozen=True)
class Allowance:
    """What class storage may use now, over all interfaces: `ceiling_bits_per_s` at most, its guarantee at least."""

    guarantee_bits_per_s: int
    ceiling_bits_per_s: int


@dataclass
class Mailbox:
    """What the session's callers and its thread share; every field is guarded by `lock`."""

    job: str
    client: str
    lock: threading.RLock = field(default_factory=threading.RLock)  # a finalizer may run while its thread holds it
    state: SessionState = SessionState.CONNECTING
    registrations: dict[int, Registration] = field(default_factory=dict)
    unsent: deque[int] = field(default_factory=deque)
    """Registrations of which the broker is to be told: that they are there, or that they are not any more."""
    bursts: deque[tuple[float, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=BURSTS_MAX))
    need: tuple[float, dict[str, Any]] | None = None
    """What was declared last, and when; sent again to a broker that comes back."""
    need_unsent: bool = False
    program: dict[str, Any] | None = None
    """What an adapter said last of its program; sent again to a broker that comes back."""
    program_unsent: bool = False
    allowance: tuple[Allowance | None, float] = (None, 0.0)  # until when it counts
    reports: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=REPORTS_MAX))
    flows: dict[int, tuple[str, ...]] = field(default_factory=dict)
    noted: str = ""  # the last note on a registered socket
    rejections: deque[str] = field(default_factory=lambda: deque(maxlen=16))
    reconnects: int = 0
    numbers: int = 0
    connection: socket.socket | None = None
    wake: Wake = field(default_factory=Wake)

    def tell(self, number: int) -> None:
        """Have the broker told of a registration; a broker that comes is told of all. The caller holds the lock."""
        if self.state is SessionState.CONNECTED:
            self.unsent.append(number)

    def forget(self, number: int) -> None:
        """Take a registration out; the caller holds the lock."""
        self.flows.pop(number, None)
        if self.registrations.pop(number, None) is not None:
            self.tell(number)

    def number(self) -> int:
        """The next message id; the caller holds the lock."""
        self.numbers += 1
        return self.numbers

"""Closes descriptors that clients passed, and connections of clients, without waiting for any close.

A close may last as long as the client chose. Sockets go to another process (`broker.process.closer`). They are on their
way there when we close ours, so that ours are never the last. Files (FUSE, NFS) are flushed by every close, the last or
not: one thread a user closes them. While it hangs, that user is `behind`, and nothing is received from them.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable

from broker.events.log import Log
from broker.process.side_process import SideProcess, python

MODULE = "broker.process.closer"
WAITING_MAX = 256
"""Sockets that wait for the closer. It takes thousands a second: more wait only where it cannot be started."""


class CloserClient:
    """For any thread."""

    def __init__(
        self,
        *,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._clock, self._process = log, clock, SideProcess(python(MODULE))
        self._lock = threading.Lock()
        self._sockets: collections.deque[tuple[list[int], int]] = collections.deque()
        self._waiting = 0
        self._files: dict[int, list[int]] = {}
        self._users_with_thread: set[int] = set()
        self._ours, self._its = socket.socketpair()
        """We hold both ends, so that descriptors on their way outlive a closer that dies: the next one goes on."""
        self._permits, self._permitting = os.pipe()

    def take(self, descriptors: Iterable[int], *, uid: int) -> None:
        """Close descriptors soon. They belong to this object from now on.

        Args:
            uid: whose they were: a close that hangs, hangs for this user alone.
        """
        with self._lock:
            sockets = []
            for descriptor in descriptors:
                if _is_socket(descriptor):
                    sockets.append(descriptor)
                else:
                    self._files.setdefault(uid, []).append(descriptor)
            if sockets:
                self._sockets.append((sockets, uid))
                self._waiting += len(sockets)
            self._go_on()

    def look(self) -> None:
        """Close what could not be closed at once, and start the closer where it does not run: once a tick."""
        with self._lock:
            if self._process.may_start(now_s=self._clock()):
                self._launch()
            self._go_on()

    @property
    def full(self) -> bool:
        """Whether so much waits that nobody new should come."""
        return self._waiting >= WAITING_MAX

    def behind(self, uid: int) -> bool:
        """Whether to receive nothing from a user now, because what they passed before is not closed."""
        return self.full or uid in self._files

    def close(self) -> None:
        """Hand over what is left, and end the closer. What it does not take is left to the end of this process."""
        with self._lock:
            self._go_on()
            os.close(self._permitting)
            os.close(self._permits)
            started, done = self._process.pid is not None, self._process.end()
            self._ours.close()
            if done:
                self._its.close()
            else:
                if started:
                    self._log.warning("closer-stuck")
                self._its.detach()  # descriptors are under way to it, and closing it would close them here

    def _go_on(self) -> None:
        while self._sockets:
            batch, uid = self._sockets[0]
            try:
                socket.send_fds(self._ours, [b"+"], batch, socket.MSG_DONTWAIT)
            except BlockingIOError:  # it has much to do, or does not live
                break
            except OSError as problem:  # ETOOMANYREFS: sockets that carry sockets that carry sockets
                self._log.warning("close-delayed", uid=uid, error=str(problem))
                self._files.setdefault(uid, []).extend(batch)
            else:
                for descriptor in batch:
                    os.close(descriptor)  # never the last: the message holds another, until it is permitted
                os.write(self._permitting, b"+")
            self._sockets.popleft()
            self._waiting -= len(batch)
        for uid in self._files.keys() - self._users_with_thread:
            self._start_thread(uid)

    def _start_thread(self, uid: int) -> None:
        thread = threading.Thread(target=self._close_files, args=(uid,), name="hive-broker-close", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # no thread to spare: the next look tries again
            self._log.warning("close-delayed", uid=uid, error=str(problem))
        else:
            self._users_with_thread.add(uid)

    def _close_files(self, uid: int) -> None:
        """In a thread of its own: it may hang in each close."""
        while True:
            with self._lock:
                left = self._files[uid]
                if not left:
                    del self._files[uid]
                    self._users_with_thread.discard(uid)
                    return
                descriptor = left.pop()
            with contextlib.suppress(OSError):  # what the flush met is its owner's matter; closed it is (close(2))
                os.close(descriptor)

    def _launch(self) -> None:
        if self._process.pid is not None:
            self._log.error("closer-lost")
        theirs = (self._its.fileno(), self._permits)
        try:
            self._process.start(*theirs, descriptors=theirs, now_s=self._clock())
        except OSError as problem:
            self._log.error("closer-start-failed", error=str(problem))


def _is_socket(descriptor: int) -> bool:
    """By getsockname, which no file system sees; fstat might wait for one."""
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor).detach()
    except OSError:
        return False
    return True

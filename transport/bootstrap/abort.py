"""A rank that cannot connect publishes why, so that the others need not wait until their time is over.

One key for a world holds the reason of the first rank that gives up. It is checked as rank infos are: it names the run,
and where the job has a secret, an HMAC covers all of it. A reason that fails the check is ignored. So somebody who can
write to the store can hide an abort, but not cause one. A rank whose time is over publishes nothing: the others' time
is over too, and each names the ranks that it misses. Nor does one that is cancelled before it knows the run, without
which it has published nothing: it may try again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TimedOutError, TransportError
from transport.bootstrap.rank_info import RUN_BYTES, Run
from transport.bootstrap.rendezvous import Rendezvous
from transport.identity import sign_entry, verify_entry
from transport.settings import Settings

VERSION = 1
REASON_CHARS_MAX = 400
RUN_WAIT_S = 5.0
"""For the run's random bytes, without which an abort cannot be told from an earlier run's. Where rank 0 starts
later than that, it waits for this rank in vain."""
TELL_S_MAX = 8.0
"""For all of it: a store on a host that has died lets one wait for a minute."""
LINGER_S = 1.5
"""Rank 0's process may be what serves the store: it stays until those that wait, who look every half second, know."""
THREAD_NAME = "hive-transport-withdrawal"
_log = logging.getLogger("transport.bootstrap.abort")


class BootstrapAbort:
    """Publishes why this rank cannot connect, and reads why another one cannot.

    Args:
        is_cancelled: whether whoever wanted the connection wants it no more.

    Attributes:
        run: None until it is known.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        *,
        rank: int,
        world: str,
        world_size: int,
        settings: Settings,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.run: Run | None = None
        self._is_cancelled = is_cancelled
        self._rendezvous = rendezvous
        self._rank = rank
        self._world = world
        self._world_size = world_size
        self._settings = settings
        self._warned = False

    def check(self, *, missing: Collection[int] = ()) -> None:
        """Raise what another rank gave up for, if one did.

        Args:
            missing: who has not connected yet, where all have published themselves: the store is not needed any more,
                and its end means something only to those whom rank 0 has not reached.

        Raises:
            PeerError: a rank gave up; names it and its reason.
            ConnectionLostError: the store is gone.
            CancelledError: the caller has cancelled.
        """
        if self._is_cancelled():
            raise CancelledError("connecting: the caller has cancelled it")
        try:
            published = self._read_reason()
        except TransportError as error:
            if 0 in missing:
                raise ConnectionLostError("rank 0", f"it is not connected, and {error}", rank=0) from error
            return
        if published is not None:
            raise published

    @contextlib.contextmanager
    def published_on_failure(self) -> Iterator[None]:
        """Publish why the body failed, where it did and the store can still be reached."""
        try:
            yield
        except Exception as error:
            if isinstance(error, TimedOutError) or (isinstance(error, CancelledError) and self.run is None):
                raise
            reason = str(error) or type(error).__name__
            telling = threading.Thread(target=self._tell, args=(reason,), name=THREAD_NAME, daemon=True)
            telling.start()
            telling.join(TELL_S_MAX)
            raise

    def _tell(self, reason: str) -> None:
        with contextlib.suppress(Exception):  # this rank raises its error in any case
            self._publish(reason)

    def _publish(self, reason: str) -> None:
        if self._world_size == 1 or (self.run is None and not self._read_run()):
            return
        if self._read_reason() is None:  # else we pass on what stopped us, and the others can read it as we did
            self._rendezvous.set(self._key, self._written(_cleaned(reason)))
        if self._rank == 0:
            with contextlib.suppress(TimedOutError):  # a key that nobody sets; a store may need rank 0 to wait in `get`
                self._rendezvous.get(f"{self._key}/never", LINGER_S)

    def _written(self, reason: str) -> bytes:
        fields: dict[str, object] = {"v": VERSION, "rank": self._rank, "reason": reason, "run": self._nonce.hex()}
        if self._settings.job_secret:
            fields["mac"] = sign_entry(self._settings.job_secret, *self._signed_parts(self._rank, reason)).hex()
        return json.dumps(fields).encode()

    def _read_run(self) -> bool:
        try:
            nonce = bytes(self._rendezvous.get(run_key(self._world), RUN_WAIT_S))
        except TimedOutError:
            return False
        self.run = Run(self._world, self._world_size, nonce)
        return len(nonce) == RUN_BYTES

    def _read_reason(self) -> PeerError | None:
        """What somebody gave up for; None where nobody did, or it cannot be believed."""
        if self.run is None:
            return None
        try:
            fields = json.loads(self._rendezvous.get(self._key, 0.0))
            rank, reason, mac = fields["rank"], fields["reason"], bytes.fromhex(fields.get("mac", ""))
            if type(rank) is not int or not 0 <= rank < self._world_size or type(reason) is not str:
                raise ValueError("not a rank and its reason")
            believed = fields["v"] == VERSION
            if believed and fields["run"] != self._nonce.hex():
                return None  # somebody gave up an earlier run
            if self._settings.job_secret:
                parts = self._signed_parts(rank, reason)
                believed = believed and verify_entry(self._settings.job_secret, *parts, signature=mac)
        except TimedOutError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            believed = False
        if not believed:
            if not self._warned:
                _log.warning("the rendezvous says that a rank has given up, but not credibly: going on")
            self._warned = True
            return None
        return PeerError(f"rank {rank}", f"it gave up connecting: {_cleaned(reason)}")

    def _signed_parts(self, rank: int, reason: str) -> list[bytes]:
        """Begins with what no entry begins with: those start with the run's 16 bytes."""
        texts = [self._settings.job, self._world, reason]
        numbers = [self._world_size, rank]
        return [
            b"withdrawal",
            self._nonce,
            *(text.encode(errors="replace") for text in texts),
            *(number.to_bytes(8, "big") for number in numbers),
        ]

    @property
    def _nonce(self) -> bytes:
        return self.run.nonce if self.run is not None else b""

    @property
    def _key(self) -> str:
        return f"hive/{self._world}/withdrawal"


class LocalAbort:
    """Takes the place of `BootstrapAbort` where ranks meet without a store: this process alone can end its attempt."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def cancel(self, reason: str) -> None:
        """Let `check` raise from now on. From any thread."""
        self._reason = reason

    def check(self, *, missing: Collection[int] = ()) -> None:
        """Raise `CancelledError` once `cancel` was called."""
        if self._reason is not None:
            raise CancelledError(f"connecting: {self._reason}")

    def published_on_failure(self) -> contextlib.nullcontext[None]:
        """There is nowhere to publish: the others wait until their time is over, and name this rank."""
        return contextlib.nullcontext()


def _cleaned(reason: str) -> str:
    """What may stand in a log or a terminal, of bounded length."""
    return "".join(letter if letter.isprintable() else " " for letter in reason)[:REASON_CHARS_MAX]


def run_key(world: str) -> str:
    """Where rank 0 publishes the random bytes of this run."""
    return f"hive/{world}/run"

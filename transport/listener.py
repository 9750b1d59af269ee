"""A rank that is not connected yet: it listens, and its handle tells the others where and how it proves itself.

    listener = transport.Listener()
    handles = exchange(listener.handle)  # by whatever way; all ranks get the same list, in rank order
    group = listener.connect(handles)

Where ranks come and go, each opens a new listener, and those that are left or new connect among themselves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from hive_qos.errors import MisuseError, PeerError
from transport.bootstrap.abort import LocalAbort
from transport.bootstrap.connect import Bootstrap, Factories
from transport.bootstrap.handles import bootstrap_of, write_handle
from transport.bootstrap.rank_info import RUN_BYTES
from transport.collectives.algorithms.registry import check_name
from transport.collectives.membership import check_group_name
from transport.group import TIMEOUT_S, Group
from transport.runtime import Runtime
from transport.settings import Settings


class Listener:
    """Sockets and identity of one rank, good for one attempt to connect.

    Args:
        settings: addresses, engine and identity; None reads the `HIVE_*` environment.
        hint: a host to which the first address leads, where the settings name none.
        factories: how to make engine, sockets and identity; None for the real ones.

    Attributes:
        handle: a printable text of some hundred bytes. It holds no secret.

    Raises:
        ConfigurationError: a setting cannot work, or the address cannot be bound.
    """

    def __init__(self, settings: Settings | None = None, *, hint: str = "", factories: Factories | None = None) -> None:
        self._settings = Settings.from_environment() if settings is None else settings
        self._factories = factories or Factories()
        self._abort = LocalAbort()
        self._lock = threading.Lock()
        self._used = False
        check_name(self._settings.algorithm)
        self._factories.check_engine(self._settings.engine)
        self._identity = self._factories.own_identity(self._settings, 0)
        self._sockets = self._factories.open_sockets(self._settings, hint)
        self.handle = write_handle(self._identity, self._sockets, self._settings, os.urandom(RUN_BYTES))

    def connect(
        self,
        handles: Sequence[str],
        *,
        name: str = "default",
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = 60.0,
    ) -> Group:
        """Connect to exactly the ranks of these handles, all of which call this with the same list.

        Args:
            handles: of all ranks, this one's too, in rank order.
            name: the group's, the same on every rank.
            timeout_s: default timeout of its operations.
            connect_timeout_s: by then every rank must be there.

        Raises:
            MisuseError: a handle is there twice, this rank's is not there, the name cannot be a group's, or this
                listener has been used or closed. After all but the last it is as before.
            PeerError: a handle is malformed or not signed with our secret, with which this listener is as before; or a
                rank refused us, as one does whose handle is of an earlier listener, or that has another list.
            TimedOutError: a rank did not answer; the text names it.
            CancelledError: `close` was called meanwhile.
        """
        give_up_s = time.monotonic() + connect_timeout_s
        check_group_name(name)
        with self._lock:
            self._abort.check()
            bootstrap = self._bootstrap(handles, name)
            self._used = True
        rank = handles.index(self.handle)
        try:
            runtime = Runtime.over(bootstrap, rank=rank, give_up_s=give_up_s, timeout_s=connect_timeout_s)
        except PeerError as error:
            hint = "is the handle its newest, and were all given the same list of handles?"
            raise PeerError(error.peer, f"{error.reason}; {hint}") from error
        return Group(runtime, name=name, ranks=tuple(range(len(handles))), timeout_s=timeout_s, parent=True)

    def check(self, handles: Sequence[str]) -> None:
        """Raise what `connect` would raise of these handles at once. Nothing is sent or changed."""
        self._bootstrap(handles, "")

    def close(self, reason: str = "the listener was closed") -> None:
        """Give the sockets back, or end `connect` in another thread within half a second, with this reason.

        A group that has come of it stays. Idempotent.
        """
        self._abort.cancel(reason)
        with self._lock:
            used, self._used = self._used, True
        for pair in () if used else self._sockets:
            pair.close()

    def _bootstrap(self, handles: Sequence[str], name: str) -> Bootstrap:
        if self._used:
            raise MisuseError("this listener has been used or closed: each is good for one attempt to connect")
        return bootstrap_of(
            handles,
            self.handle,
            world=name,
            identity=self._identity,
            sockets=self._sockets,
            settings=self._settings,
            factories=self._factories,
            abort=self._abort,
        )

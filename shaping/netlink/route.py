"""rtnetlink through pyroute2: filters, links and what else is made once, on one socket of a network namespace.

A message costs 0.2 to 0.5 ms of CPU, and pyroute2 takes 7 MB of the daemon's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterator
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_DUMP_INTR
from pyroute2.netlink.exceptions import NetlinkError

from hive_qos.errors import KernelRejectedError
from hive_qos.netlink import lost, refusal
from shaping.netlink import plugins

_DUMP_TRIES = 5
"""A list that another program's change interrupted is read again; so many in a row mean a fight over the tree."""


class Route:
    """pyroute2's IPRoute, in the namespace and for the thread in which it is made; not inside a running asyncio loop.

    Each method takes in words what it does, for the error.

    Raises:
        PrivilegeError: EPERM.
        KernelRejectedError: the kernel refused, with its own words.
    """

    def __init__(self) -> None:
        plugins.register()
        self._open()

    def tc(self, what: str, command: str, kind: str, index: int, **wanted: Any) -> None:
        """Add, change or delete a queue, class or filter: `IPRoute.tc`."""
        with self._asking(what):
            self._ip.tc(command, kind, index, **wanted)

    def link(self, what: str, command: str, **wanted: Any) -> None:
        """Add, set or delete a link: `IPRoute.link`. Not "get", whose acknowledgement pyroute2 0.9.7 never frees."""
        with self._asking(what):
            self._ip.link(command, **wanted)

    def filters(self, what: str, index: int, parent: int) -> list[Any]:
        """The filters at one class or queue of an interface."""
        for _ in range(_DUMP_TRIES):
            with self._asking(what):
                found = list(self._ip.get_filters(index, parent=parent))
            if not any(message["header"]["flags"] & NLM_F_DUMP_INTR for message in found):
                return found
        raise KernelRejectedError(what, errno_value=errno.EAGAIN, detail="the list changed each time while it was read")

    def close(self) -> None:
        """Close the socket and its loop. A second time changes nothing."""
        if self._loop.is_closed():
            return
        self._ip.close()
        self._loop.run_until_complete(asyncio.sleep(0))  # its transport says goodbye
        self._loop.close()

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()  # our own: with its own, what failed once could not even be closed
        try:
            self._ip = IPRoute(ext_ack=True, use_event_loop=self._loop)
        except OSError as error:
            self._loop.close()
            raise lost("open one", error) from error

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except NetlinkError as error:
            raise refusal(what, error.code, str(error.args[1])) from error
        except OSError as error:  # no memory for an answer: pyroute2 does not use a socket again that failed once
            self.close()
            self._open()
            raise lost(what, error) from error

"""Notice that the address of this host has changed: Wi-Fi to cable, another lease, a link that went away.

Five times a second it asks the kernel which of our addresses leads to the others. That sends nothing and costs some
microseconds. It is cheaper than following netlink, and needs no privilege.
- An address that the user has chosen (`HIVE_LISTEN`) is kept, there or not.
- With `HIVE_INTERFACE` the address of the first interface that it names counts.
- Else we move when our address is gone, or when no peer is reached from it any more though one was at first. Where
  they are reached from another address of ours that they know, its sockets are used, and there is no need to move.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from hive_qos.errors import ConfigurationError, TransportError
from transport.mesh.sockets import Sockets, address_of_interface, address_towards, is_ours, reopen_sockets
from transport.settings import Settings

LOOK_S = 0.2
"""A peer is patient for two seconds, and the sockets have to be made and the path validated within them."""
LOOKS = 2
"""While our address is still there, so many looks in a row must say the same: a route may be gone for a moment only."""
PEERS_MAX = 4
"""So many peers are asked about: 10 us each."""

LOOPBACK = ("127.0.0.1", "::1")
_log = logging.getLogger("transport.mesh.address_watcher")


class AddressWatcher:
    """Looks which address this host has, from the transport's thread.

    Args:
        sockets: in use now.
        peers: the addresses of the other ranks, as they are known now.
        others: our further addresses, which have sockets of their own.
        on_move: to go on from sockets to others, which are its own from then on. The number counts the moves.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        sockets: Sockets,
        peers: Callable[[], Sequence[str]],
        others: Callable[[], Sequence[str]] = lambda: (),
        on_move: Callable[[Sockets, Sockets, int], None],
    ) -> None:
        self._settings = settings
        self._sockets = sockets
        self._peers, self._others = peers, others
        self._on_move = on_move
        self._number = 0
        self._next_s = 0.0
        self._by_route = False
        self._found, self._looks = "", 0

    def tick(self, now_s: float) -> float:
        """Look if it is time to; returns when to be called next."""
        if self._settings.listen:
            return math.inf
        if now_s >= self._next_s:
            self._next_s = now_s + LOOK_S
            address = self._sockets.compute.getsockname()[0]
            found = self._other_than(address)
            self._looks = self._looks + 1 if found == self._found else 1
            self._found = found
            if found and (self._looks >= LOOKS or not is_ours(address)):
                self._move(address, found)
        return self._next_s

    def _move(self, old: str, new: str) -> None:
        advertise = self._settings.advertise or new
        try:
            sockets = reopen_sockets(self._sockets, self._settings, address=new, advertise=advertise)
        except ConfigurationError as error:  # an address that is not ready yet, or has gone again
            _log.info("cannot go on from %s yet: %s", new, error)
            return
        self._number += 1
        _log.warning("the address of this host has changed from %s to %s; going on from there", old, new)
        try:
            self._on_move(self._sockets, sockets, self._number)
        except TransportError as error:  # the engine has just ended, or was moved more often than it can be
            _log.warning("cannot go on from %s: %s", new, error)
            return
        self._sockets = sockets

    def _other_than(self, address: str) -> str:
        """Where to go on from; "" while the address is right, or there is no other."""
        if self._settings.interfaces:
            try:
                found = address_of_interface(self._settings.interfaces[0])
            except ConfigurationError:
                return ""
            return "" if found == address else found
        elsewhere = [peer for peer in self._peers() if peer != self._sockets.advertise]
        leading: list[str] = []
        for peer in elsewhere[:PEERS_MAX] or self._peers()[:1]:
            found = address_towards(peer)
            if found == address:
                self._by_route = True
                return ""
            if found:
                leading.append(found)
        if not elsewhere and not leading and not is_ours(address):
            return LOOPBACK[":" in address]  # all ranks are here, and need no network
        stays = not self._by_route or (leading and leading[0] in self._others())  # a cut link, which may come back
        if not leading or (stays and is_ours(address)):
            return ""
        return leading[0]

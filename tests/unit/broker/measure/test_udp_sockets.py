"""UDP sockets are looked at in slices; those that were seen sending come first, and only so many are shown."""

from __future__ import annotations

from collections.abc import Iterator

from broker.enforce.socket_marks import CLASS_OF_PRIORITY
from broker.events.log import open_log
from broker.measure.port_classes import PortClasses
from broker.measure.sockets import UDP_SENT_S, UDP_SHOWN_MAX, UdpWatch
from broker.measure.tcp_diag import SockDiagError, UdpSocket
from broker.policy.toml import load

MATCHING = PortClasses(
    load('version = 1\n[[interface]]\nname = "eth0"\n[class.storage]\nmatch = [{ port = 22000 }]\n'), CLASS_OF_PRIORITY
)


def udp(inode: int, port: int = 40_000, waiting_bytes: int = 0) -> UdpSocket:
    return UdpSocket(("0.0.0.0", port), ("0.0.0.0", 0), 0, inode, 0, 0, waiting_bytes)


class Kernel:
    def __init__(self) -> None:
        self.sockets: list[UdpSocket] = []
        self.refuses = False
        self.watch = UdpWatch(log=open_log(), pages=self._pages)
        self._now_s = 0.0

    def _pages(self) -> Iterator[list[UdpSocket]]:
        if self.refuses:
            raise SockDiagError(2, "no udp_diag")
        for start in range(0, len(self.sockets), 50):
            yield self.sockets[start : start + 50]

    def run(self, for_s: float = 10.0) -> tuple[tuple[UdpSocket, str, bool], ...]:
        for _ in range(round(10 * for_s)):
            self._now_s += 0.1
            self.watch.look(matching=MATCHING, now_s=self._now_s)
        return self.watch.shown


def test_who_was_seen_sending_comes_first_and_is_remembered_for_a_while() -> None:
    kernel = Kernel()
    kernel.sockets = [*(udp(inode) for inode in range(1, 5_000)), udp(6_000, 22_000), udp(7_000, waiting_bytes=2_000)]
    shown = kernel.run()
    assert len(shown) == UDP_SHOWN_MAX
    assert [(one.inode, name, waits) for one, name, waits in shown[:2]] == [
        (7_000, "other", True), (6_000, "storage", False),
    ]  # fmt: skip
    kernel.sockets[-1] = udp(7_000)
    assert kernel.run(UDP_SENT_S / 2)[0][2] is True
    assert all(waits is False for _, _, waits in kernel.run(2 * UDP_SENT_S))


def test_a_kernel_that_has_no_such_list_shows_nothing_and_is_asked_again() -> None:
    kernel = Kernel()
    kernel.sockets, kernel.refuses = [udp(1)], True
    assert kernel.run() == ()
    kernel.refuses = False
    assert kernel.run(70.0)[0][0].inode == 1

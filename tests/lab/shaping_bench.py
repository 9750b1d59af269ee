"""Two network namespaces and a veth between them, for the tests of the kernel side: no shaping outside our own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from patience import LIMIT_S

from tools.lab.kernel import entered

INTERFACE = "v0"
SENDER = {socket.AF_INET: "10.211.0.1", socket.AF_INET6: "fd21::1"}
RECEIVER = {socket.AF_INET: "10.211.0.2", socket.AF_INET6: "fd21::2"}
FAMILIES = (socket.AF_INET, socket.AF_INET6)
PAYLOAD_BYTES = 1000


def tool(*words: str) -> str:
    """Run a command and give what it printed."""
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


@dataclass(frozen=True)
class Bench:
    """The two namespaces by name. Only the sender's interface is shaped."""

    sender: str
    receiver: str

    def tc(self, *words: str) -> str:
        """Run tc in the sender's namespace."""
        return tool("tc", "-n", self.sender, *words)

    def root(self) -> str:
        """The sender's root qdisc, as tc writes it."""
        return next(line for line in self.tc("qdisc", "show", "dev", INTERFACE).splitlines() if " root " in line)

    @contextlib.contextmanager
    def sink(self, family: socket.AddressFamily, port: int = 0) -> Iterator[socket.socket]:
        """A UDP socket at the receiver that holds all that a test sends before it looks."""
        with entered(self.receiver), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, 33, 32 * 2**20)  # SO_RCVBUFFORCE
            sock.bind((RECEIVER[family], port))
            sock.settimeout(LIMIT_S)
            yield sock

    def socket(self, family: socket.AddressFamily) -> socket.socket:
        """A UDP socket at the sender whose buffer holds all that a test sends at once."""
        with entered(self.sender):
            sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, 32, 8 * 2**20)  # SO_SNDBUFFORCE
        return sock


@contextlib.contextmanager
def make_bench() -> Iterator[Bench]:
    """Make it, and take it away whatever the test does."""
    name = f"hqs{os.getpid():x}{uuid.uuid4().hex[:4]}"
    bench = Bench(f"{name}a", f"{name}b")
    try:
        for namespace in (bench.sender, bench.receiver):
            tool("ip", "netns", "add", namespace)
        tool(
            "ip",
            "link",
            "add",
            INTERFACE,
            "netns",
            bench.sender,
            "type",
            "veth",
            "peer",
            INTERFACE,
            "netns",
            bench.receiver,
        )
        for namespace, addresses in ((bench.sender, SENDER), (bench.receiver, RECEIVER)):
            tool("ip", "-n", namespace, "link", "set", "lo", "up")
            tool("ip", "-n", namespace, "addr", "add", f"{addresses[socket.AF_INET]}/24", "dev", INTERFACE)
            tool("ip", "-n", namespace, "addr", "add", f"{addresses[socket.AF_INET6]}/64", "dev", INTERFACE, "nodad")
            tool("ip", "-n", namespace, "link", "set", INTERFACE, "up")
        for first, second, addresses in (
            (bench.sender, bench.receiver, RECEIVER),
            (bench.receiver, bench.sender, SENDER),
        ):
            # Neighbours are known from the start: resolution is traffic, too, and would be counted.
            link = tool("ip", "-n", second, "-o", "link", "show", "dev", INTERFACE)
            mac = link.split("link/ether ")[1].split()[0]
            for address in addresses.values():
                tool(
                    "ip", "-n", first, "neigh", "replace", address, "lladdr", mac, "dev", INTERFACE, "nud", "permanent"
                )
        yield bench
    finally:
        for namespace in (bench.sender, bench.receiver):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=LIMIT_S, check=False)

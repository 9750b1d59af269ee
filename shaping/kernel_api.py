"""What a kernel must offer: the seam that the real one (`kernel.py`) and the tests' (`fake_kernel.py`) both fill.

One contract test runs against both. Every method is synchronous, acts on the current network namespace, and is called
from one thread. Errors: `PrivilegeError` without CAP_NET_ADMIN, `KernelRejectedError` with the kernel's own words,
`ReadBackError` when what is there afterwards is not what was asked, `ConfigurationError` for an interface that is not
there.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from shaping.model.names import MARK_MINOR
from shaping.model.observations import Capabilities, DeviceSegments, PriorQdisc, Redirection, TreeCounters
from shaping.model.shapes import Rule
from shaping.model.tree import Operation, Tree


class Kernel(Protocol):
    """Traffic control of one network namespace."""

    def capabilities(self) -> Capabilities:
        """Probe what is there, without leaving anything behind. Cached after the first call."""

    def interfaces(self) -> tuple[str, ...]:
        """Names of all interfaces of the namespace."""

    def numbers(self) -> dict[str, int]:
        """The number of each of them: a new name does not change it, and no later interface gets it."""

    def root(self, interface: str) -> PriorQdisc:
        """The root qdisc of an interface, whoever made it."""

    def observe(self, interface: str) -> Tree | None:
        """The tree of ours at the root, or None when the root is not ours."""

    def apply(self, interface: str, operations: Sequence[Operation]) -> None:
        """Do the operations in their order, and read back every object that they touched."""

    def delete_root(self, interface: str) -> None:
        """Remove our root with all below it; the kernel's default comes back. Harmless when ours is not there."""

    def restore_root(self, interface: str, prior: PriorQdisc) -> tuple[str, ...]:
        """Make `prior` the root again as far as its options can be given back; returns what could not."""

    def counters(self, interface: str) -> TreeCounters:
        """What the tree of ours has counted. Cheap enough for ten times a second."""

    def segments(self, interface: str) -> DeviceSegments:
        """How many segments the device takes in one piece, and by default."""

    def set_segments(self, interface: str, limit: int) -> None:
        """Make the device take at most so many, from living connections too, and read it back."""

    def ifbs(self) -> tuple[str, ...]:
        """The IFBs of ours; `interfaces` and `numbers` leave them out."""

    def make_ifb(self, device: str) -> None:
        """Make an IFB, down. Harmless where it is there; a link of this name that is no IFB is refused."""

    def start_ifb(self, device: str) -> None:
        """Set an IFB up, without IPv6 addresses of its own."""

    def delete_ifb(self, device: str) -> None:
        """Delete an IFB with all that waits in it. Harmless where it is not there."""

    def running_number(self, device: str) -> int | None:
        """The number of a device that is up; None of one that is down or gone. Cheap enough for every tick."""

    def redirection(self, interface: str) -> Redirection | None:
        """What hangs at the ingress of an interface, whoever made it."""

    def redirect(self, interface: str, device: str) -> None:
        """Lead what arrives to a device, where nothing hangs at the ingress or what is ours there is not whole."""

    def stop_redirecting(self, interface: str) -> None:
        """Take what is ours away from the ingress of an interface. Harmless where nothing is."""

    def remove_empty_hook(self, interface: str) -> None:
        """Delete an ingress qdisc at which no filter hangs, whoever made it. Harmless where there is none."""

    def classify_forwarded(self, rules: Sequence[tuple[Rule, int]]) -> None:
        """Make exactly these rules, the first that matches, give what the host forwards the class of that minor, before
        its addresses are translated; none removes what does it. Where it fails none is in force. It lasts until
        `close`."""

    def close(self) -> None:
        """Release sockets. Nothing in the kernel changes, but that what is forwarded is not classified any more."""


class Classifier(Protocol):
    """Rules on cgroups and users: whoever makes a socket decides its class."""

    def apply(self, rules: Sequence[Rule], *, minors: Mapping[str, int] = MARK_MINOR) -> tuple[str, ...]:
        """Make exactly these rules be in force, `minors` being the marks; returns sentences on those that are not."""

    def remember(self, sock: socket.socket, rule: Rule) -> bool:
        """Let a listener that was there before a rule classify what it accepts; False where there is no way to."""

    def clear(self) -> int:
        """Remove all that is ours in this namespace, whoever made it; returns from how many cgroups."""

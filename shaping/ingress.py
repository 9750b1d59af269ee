"""Shape what arrives at interfaces, each on an IFB of its own; `Shaper.ingress`.

Order, because a redirection whose IFB is down or gone loses all that arrives: the journal, the IFB, its tree, the IFB
up, and only then the redirection. Back the other way: first the redirection, and what waits has left before the IFB
goes. What is at the interface's ingress decides what `attach` does:

    nothing                                 journal it, build
    our redirection, or an empty ingress    adopt: change what differs in the IFB's tree, keep its queues; make whole
    qdisc that the journal knows            what a crash left half done
    anything else, also a clsact qdisc      refuse: it is somebody's

The watchdog removes redirections when the daemon is dead or hangs: with nobody to look after the IFB, and every ceiling
opened anyway, they would be nothing but a danger. The next `attach` finds the IFB and makes the redirection again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hive_qos.errors import ConfigurationError, HiveError, ShapingError
from shaping.failsafe import opened
from shaping.journal import Journal
from shaping.kernel_api import Kernel
from shaping.model.names import device_of, number_behind
from shaping.model.observations import Capabilities, IngressAttachment, InterfaceCounters, Redirection
from shaping.model.shapes import IngressShape, InterfaceShape
from shaping.model.tree import Operation, Tree
from shaping.plan.counters import counters_of
from shaping.plan.desired_tree import desired_tree
from shaping.plan.diff import StructureError, diff

DRAIN_BITS_PER_S = 100_000_000_000
DRAIN_S = 0.15
"""What waits in an IFB that is removed leaves at once, 40 MiB at the very most; so long is waited for that, a quarter
of the time that the watchdog gives a tick."""
LOOK_S = 0.01  # a fifteenth of that: who waits less sleeps less


@dataclass(frozen=True)
class _Held:
    """An attached ingress: the interface's number, its IFB, that one's number, and the tree as last applied."""

    interface_number: int
    device: str
    number: int
    tree: Tree


class Ingress:
    """The ingress of all interfaces that have been attached here. For one thread."""

    def __init__(self, kernel: Kernel, journal: Journal, *, capabilities: Callable[[], Capabilities]) -> None:
        self._kernel, self._journal, self._capabilities = kernel, journal, capabilities
        self._held: dict[str, _Held] = {}

    def attach(self, shape: IngressShape) -> IngressAttachment:
        """Shape what arrives at an interface, attached or not, on an IFB: make one, or adopt ours that is there.

        Raises:
            ConfigurationError: no such interface; somebody else has something at its ingress.
            ShapingError: the kernel has no IFB, mirred or u32, or refused; everything arrives as before.
            ValueError: a shape that cannot be; nothing was touched.
        """
        capabilities = self._capabilities()
        if not capabilities.htb:
            raise ShapingError("this kernel has no HTB (CONFIG_NET_SCH_HTB); nothing can be shaped here")
        if not capabilities.u32:
            raise ShapingError("this kernel has no u32 classifier; what arrives cannot be led to an IFB")
        interface = shape.interface
        journalled = self._journal.read_ingress(interface)
        device = journalled or device_of(self._number(interface))
        wanted = desired_tree(_on_device(shape, device), capabilities)
        hook = self._kernel.redirection(interface)
        if hook is not None and not _is_ours(hook, journalled=journalled is not None):
            raise ConfigurationError(
                "interface.ingress",
                interface,
                f"somebody has a qdisc ({hook.kind}) with {hook.others} filters at its ingress; remove it, or set "
                'ingress = "off"',
            )
        if journalled is None:
            self._journal.write_ingress(interface, device)
        try:
            adopted, operations = self._raise(device, interface, wanted, hook)
        except BaseException as error:
            try:
                for note in self.detach(interface):
                    error.add_note(note)
            except (HiveError, OSError) as another:
                error.add_note(f"and then: {another}")
            raise
        return IngressAttachment(interface, device, adopted, operations)

    def apply(self, shape: IngressShape) -> tuple[Operation, ...]:
        """Bring an attached ingress to `shape`, losing no packet, as `Shaper.apply`.

        Raises:
            ConfigurationError: not attached.
            ShapingError: the kernel side failed.
        """
        held = self._known(shape.interface)
        wanted = desired_tree(_on_device(shape, held.device), self._capabilities())
        try:
            operations = diff(held.tree, wanted)
            self._kernel.apply(held.device, operations)
        except HiveError:
            if self.check(shape.interface):  # what is there then is where the next call starts from
                observed = self._kernel.observe(held.device)
                if observed is not None:
                    self._held[shape.interface] = replace(held, tree=observed)
            raise
        self._held[shape.interface] = replace(held, tree=wanted)
        return operations

    def check(self, interface: str) -> bool:
        """Whether what arrives still finds its IFB; where not, it arrives unshaped from here on, and nothing is lost.

        Two microseconds: for every tick, and for every event of a link. False means that the ingress is not attached
        any more; attach it again.
        """
        held = self._held.get(interface)
        if held is None:
            return False
        if self._kernel.running_number(held.device) == held.number:
            return True
        for name in _called(self._kernel.numbers(), held.interface_number):
            self._kernel.stop_redirecting(name)
        del self._held[interface]
        return False

    def verify(self, interface: str) -> bool:
        """Whether IFB, redirection and tree are as they were left. If not, attach again.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
        """
        held = self._known(interface)
        if not self.check(interface):
            return False
        hook = self._kernel.redirection(interface)
        redirected = hook is not None and hook.to_indexes == (held.number,) and len(hook.preferences) == 2
        return redirected and self._kernel.observe(held.device) == held.tree

    def counters(self, interface: str) -> InterfaceCounters:
        """Read the IFB's classes; errors as of `Shaper.counters`."""
        held = self._known(interface)
        found = self._kernel.counters(held.device)
        return counters_of(interface, found, tree=held.tree, direction="ingress")

    def detach(self, interface: str) -> tuple[str, ...]:
        """Stop redirecting, let the IFB drain, delete it; sentences on what could not be done.

        Also for what a former process left. Harmless where nothing of ours is.
        What we hold is taken by its number: it may be called otherwise by now. So is what no journal tells of.
        """
        held = self._held.pop(interface, None)
        notes: tuple[str, ...] = ()
        journalled = None
        try:
            journalled = self._journal.read_ingress(interface)
        except (ShapingError, OSError) as error:
            notes = (f"{interface}: {error}",)
        numbers = self._kernel.numbers()
        if held is not None:
            device, hooked = held.device, _called(numbers, held.interface_number)
        elif journalled in self._kernel.ifbs():
            device, hooked = journalled, _called(numbers, number_behind(journalled)) | numbers.keys() & {interface}
        elif interface in numbers:
            device, hooked = journalled or device_of(numbers[interface]), {interface}
        else:  # it may be another namespace's, or come back
            return notes
        for name in sorted(hooked):
            self._kernel.stop_redirecting(name)
            if journalled is not None:
                self._kernel.remove_empty_hook(name)
        self._remove(device)
        if journalled is not None:
            self._journal.forget_ingress(interface)
        return notes

    def release(self, interface: str) -> None:
        """Know an interface's ingress no more, and leave it as it is."""
        self._held.pop(interface, None)

    def clear(self, refused: list[HiveError | OSError]) -> tuple[str, ...]:
        """Remove redirections and IFBs of ours that no journal knows; what fails goes to `refused`."""
        notes = []
        for interface in self._kernel.interfaces():
            try:
                hook = self._kernel.redirection(interface)
                if hook is not None and hook.preferences:
                    self._kernel.stop_redirecting(interface)
                    notes.append(f"{interface}: what arrives is not shaped any more")
            except (HiveError, OSError) as error:
                refused.append(error)
        for device in self._kernel.ifbs():
            try:
                self._kernel.delete_ifb(device)
                notes.append(f"{device}: removed")
            except (HiveError, OSError) as error:
                refused.append(error)
        return tuple(notes)

    def _raise(
        self, device: str, interface: str, wanted: Tree, hook: Redirection | None
    ) -> tuple[bool, tuple[Operation, ...]]:
        """IFB, tree, up, redirection; returns whether a tree was adopted, and what was done to it."""
        interface_number = self._number(interface)
        self._kernel.make_ifb(device)
        observed = self._kernel.observe(device)
        try:
            operations = diff(observed, wanted)
        except StructureError:  # of another version: what waits there is at most 50 ms of traffic
            self._kernel.stop_redirecting(interface)
            self._remove(device)
            self._kernel.make_ifb(device)
            observed, operations = None, diff(None, wanted)
        self._kernel.apply(device, operations)
        self._kernel.start_ifb(device)
        number = self._kernel.running_number(device)
        if number is None:
            raise ShapingError(f"{device} does not start")
        if hook is not None and hook.to_indexes not in ((), (number,)):
            self._kernel.stop_redirecting(interface)
        self._kernel.redirect(interface, device)
        self._held[interface] = _Held(interface_number, device, number, wanted)
        return observed is not None, operations

    def _remove(self, device: str) -> None:
        if device not in self._kernel.ifbs():
            return
        with contextlib.suppress(HiveError):  # a courtesy, which must not keep the IFB here
            self._drain(device)
        self._kernel.delete_ifb(device)

    def _drain(self, device: str) -> None:
        tree = self._kernel.observe(device)
        if tree is None or self._kernel.running_number(device) is None:
            return
        self._kernel.apply(device, diff(tree, opened(tree, DRAIN_BITS_PER_S)))
        until_s = time.monotonic() + DRAIN_S
        while self._waits(device) and time.monotonic() < until_s:
            time.sleep(LOOK_S)

    def _waits(self, device: str) -> bool:
        return any(found.backlog_packets for found in self._kernel.counters(device).by_minor.values())

    def _number(self, interface: str) -> int:
        numbers = self._kernel.numbers()
        if interface not in numbers:
            raise ConfigurationError(
                "interface.name", interface, f"no such interface; there are {', '.join(sorted(numbers))}"
            )
        return numbers[interface]

    def _known(self, interface: str) -> _Held:
        held = self._held.get(interface)
        if held is None:
            raise ConfigurationError("interface.ingress", interface, "not attached; attach it first")
        return held


def _called(numbers: Mapping[str, int], number: int) -> set[str]:
    """The name of an interface now, none where it has gone."""
    return {name for name, found in numbers.items() if found == number}


def _on_device(shape: IngressShape, device: str) -> InterfaceShape:
    return InterfaceShape(device, shape.capacity_bits_per_s, shape.classes, shape.rules, direction="ingress")


def _is_ours(hook: Redirection, *, journalled: bool) -> bool:
    if hook.kind != "ingress" or hook.others:
        return False
    return bool(hook.preferences) or journalled

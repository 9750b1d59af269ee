"""What arrives, where our own kernel has to hold it back: an IFB behind an interface, while somebody without a broker
sends storage to us.

After any failure, inbound packets arrive as before, an alarm names the problem, and shaping is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.enforce.inbound_rules import InboundRules
from broker.enforce.samples import samples_of
from broker.enforce.shapes import classes_of, rules_of
from broker.events.log import Log
from broker.measure.flow_table import PassedSocket
from broker.model.values import Alarm, Allocation, ClassSample, InterfaceAllocation
from broker.policy.types import Policy
from hive_qos.errors import HiveError
from shaping.ingress import Ingress
from shaping.model.names import is_ours
from shaping.model.shapes import IngressShape, Rule
from shaping.netlink.link_events import LinkChanges

RETRY_S = 5.0
"""After the kernel refused something: what it refuses now it mostly refuses in a second, too."""

LOST_AGAIN_S = 1.0
"""An IFB that somebody takes away is made again at the next decision, but so long after it was made at the earliest:
unshaped for less than the 2 s within which a host has to be right again, whoever deletes it over and over."""

VERIFY_S = 5.0
"""Between two looks whether the IFB is as written: netlink tells of devices, not of classes that somebody changed."""


@dataclass
class _Ingress:
    shape: IngressShape
    attached: bool = False
    attached_at_s: float = float("-inf")
    not_before_s: float = float("-inf")
    verified_at_s: float = 0.0
    alarm: Alarm | None = None


class IngressTrees:
    """The IFBs of one daemon. For the loop's thread.

    Args:
        receivers: classifies what arrives at passed sockets.
    """

    def __init__(self, ingress: Ingress, *, receivers: InboundRules, log: Log, clock: Callable[[], float]) -> None:
        self._ingress, self._inbound_rules, self._log, self._clock = ingress, receivers, log, clock
        self._held: dict[str, _Ingress] = {}

    @property
    def names(self) -> frozenset[str]:
        """The interfaces whose inbound traffic is shaped here now."""
        return frozenset(name for name, entry in self._held.items() if entry.attached)

    def clear(self, interfaces: Iterable[str]) -> None:
        """Take away what a former daemon may have left. Before anything is attached."""
        for name in interfaces:
            self._detach(name)

    def read(self, interface: str) -> tuple[ClassSample, ...] | None:
        """The class counters of an interface's IFB; none where there is none, None where they cannot be read now."""
        entry = self._held.get(interface)
        if entry is None or not entry.attached:
            return ()
        try:
            counters = self._ingress.counters(interface)
        except (HiveError, OSError):  # the next check of the IFB reports the problem
            return None
        return samples_of(counters.classes)

    def apply(
        self, allocation: Allocation, *, policy: Policy, passed: Iterable[PassedSocket], present: frozenset[str]
    ) -> None:
        """Bring every inbound tree to its allocation; `present` are the interfaces that are there and ours. Never
        raises for kernel errors.

        What waits in an IFB may take its time to leave (`shaping.ingress.DRAIN_S`), and the watchdog gives a
        tick 0.6 s: so of several one is given back at each tick, and one that fails leaves the rest to the next.
        """
        wanted = {entry.name: entry for entry in allocation.ingress if entry.in_kernel and entry.name in present}
        for name in sorted(self._held.keys() - wanted.keys())[:1]:
            del self._held[name]
            self._detach(name)
        if not wanted:
            return
        passed = tuple(passed)
        for entry in wanted.values():
            rules = (*self._inbound_rules.rules(entry.name, passed), *rules_of(policy))
            if not self._bring(inbound_shape_of(entry, rules=rules)):
                return

    def check(self) -> None:
        """At every tick and change of links: a redirection that leads nowhere would lose all that arrives. Never raises
        for what the kernel does."""
        for name, entry in self._held.items():
            if not entry.attached:
                continue
            try:
                leads_there = self._ingress.check(name)
            except (HiveError, OSError) as problem:  # the next look may find out
                self._warn(entry, f"what arrives may not find its IFB any more: {problem}")
                continue
            if leads_there:
                entry.alarm = None
            else:
                self._fail(
                    entry,
                    "what arrives does not find its IFB any more; it arrives unshaped",
                    not_before_s=entry.attached_at_s + LOST_AGAIN_S,
                )

    def reopened(self) -> None:
        """The watchdog has opened everything: our redirections are gone."""
        for entry in self._held.values():
            entry.attached, entry.not_before_s = False, float("-inf")

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong now."""
        return tuple(entry.alarm for entry in self._held.values() if entry.alarm is not None)

    def note(self, changes: LinkChanges) -> None:
        """An event of an IFB of ours is looked into at once: until the next tick, everything could be lost."""
        if changes.lost or any(map(is_ours, changes.names)):
            self.check()

    def close(self) -> None:
        """Let everything arrive as before."""
        for name in list(self._held):
            del self._held[name]
            self._detach(name)

    def _bring(self, shape: IngressShape) -> bool:
        """Whether it could be, or need not be tried now."""
        now_s = self._clock()
        entry = self._held.setdefault(shape.interface, _Ingress(shape))
        if now_s < entry.not_before_s:
            return True
        try:
            if entry.attached and now_s - entry.verified_at_s >= VERIFY_S:
                entry.attached, entry.verified_at_s = self._ingress.verify(shape.interface), now_s
            if not entry.attached:
                made = self._ingress.attach(shape)
                self._log.info("ingress-shaped", interface=shape.interface, device=made.device, adopted=made.adopted)
                entry.attached_at_s = entry.verified_at_s = now_s
            elif entry.shape != shape:
                self._ingress.apply(shape)
            else:
                return True
        except (HiveError, OSError, ValueError) as problem:
            self._fail(entry, f"what arrives cannot be shaped here: {problem}", not_before_s=now_s + RETRY_S)
            return False
        entry.shape, entry.attached, entry.alarm = shape, True, None
        return True

    def _fail(self, entry: _Ingress, text: str, *, not_before_s: float) -> None:
        self._warn(entry, text)
        entry.attached, entry.not_before_s = False, not_before_s
        self._detach(entry.shape.interface)

    def _warn(self, entry: _Ingress, text: str) -> None:
        name = entry.shape.interface
        if entry.alarm is None:
            self._log.error("ingress-failed", interface=name, error=text)
        entry.alarm = Alarm("ingress-failed", name, text)

    def _detach(self, interface: str) -> None:
        try:
            for note in self._ingress.detach(interface):
                self._log.warning("ingress-note", interface=interface, note=note)
        except (HiveError, OSError) as problem:
            self._log.error("ingress-release-failed", interface=interface, error=str(problem))


def inbound_shape_of(allocation: InterfaceAllocation, *, rules: tuple[Rule, ...]) -> IngressShape:
    """The shape of what arrives: the allocation, made to fit what the kernel side can keep."""
    capacity, classes = classes_of(allocation)
    return IngressShape(allocation.name, capacity, classes, rules)

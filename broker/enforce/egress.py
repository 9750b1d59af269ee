"""The shaped interfaces as the daemon holds them: attached at start, read and changed each tick, put back at the end.

At start the operator has to repair every failure. From then on none ends the daemon: an interface keeps the last tree
that the kernel took, an alarm names the problem, and it is tried again, a second later and then every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.enforce.samples import samples_of
from broker.events.log import Log
from broker.model.values import Alarm, ClassSample, DestinationSample
from hive_qos.errors import HiveError
from shaping.model.names import HELD_NAME
from shaping.model.observations import ClassCounters, SegmentState
from shaping.model.shapes import InterfaceShape
from shaping.plan.diff import StructureError
from shaping.shaper import Shaper

RETRY_S = 1.0
CLASSIFY_S = 0.5
"""How often we look for cgroups that have come since, or were removed and made again, as systemd does for each start of
a service; one stat for each rule. Their sockets are classified from then on, and those of the gap are looked for."""
VERIFY_S = 5.0
"""How often we look whether our tree still stands; somebody else's `tc qdisc del` is found within that time."""

DIRECT_OVER_S = 60.0
"""After the last packet that passed unshaped: long enough for who looks at a page of alarms."""


@dataclass
class _Interface:
    shape: InterfaceShape
    attached: bool = True
    in_force: bool = True  # what the kernel has is what we wrote last, as far as we know
    samples: tuple[ClassSample, ...] = ()
    leaves: Mapping[int, ClassCounters] = field(default_factory=dict)
    destinations: tuple[DestinationSample, ...] = ()
    read_at_s: float | None = None
    verified_at_s: float = 0.0
    not_before_s: float = 0.0
    direct_packets: int | None = None  # None: not read since it was attached
    direct_seen_s: float = float("-inf")
    alarm: Alarm | None = None
    direct_alarm: Alarm | None = None


class EgressTrees:
    """All shaped interfaces of one daemon.

    Args:
        take_over: replace a root qdisc that somebody configured; `detach` puts it back.
    """

    def __init__(self, shaper: Shaper, *, log: Log, clock: Callable[[], float], take_over: bool = False) -> None:
        self._shaper, self._log, self._clock = shaper, log, clock
        self.take_over = take_over
        self._interfaces: dict[str, _Interface] = {}
        self._classified_at_s = float("-inf")
        self._classify_notes: tuple[str, ...] = ()
        self.applied = 0

    @property
    def names(self) -> frozenset[str]:
        """The interfaces that we hold."""
        return frozenset(self._interfaces)

    def mark_minor(self, target: str) -> int:
        """What a socket of this class, or of its bulk part, is marked with (`Shaper.mark_minor`)."""
        return self._shaper.mark_minor(target)

    def attach(self, shape: InterfaceShape) -> None:
        """Take an interface over, or adopt what a former daemon left there.

        Raises:
            ConfigurationError, ShapingError: as `Shaper.attach`; the interface is as before.
        """
        attachment = self._shaper.attach(shape, replace_foreign=self.take_over)
        self._interfaces[shape.interface] = _Interface(shape=shape, verified_at_s=self._clock())
        self._log.info(
            "interface-shaped",
            interface=shape.interface,
            adopted=attachment.adopted,
            prior=attachment.prior.kind,
            operations=len(attachment.operations),
        )
        for note in attachment.notes:
            self._log.warning("interface-note", interface=shape.interface, note=note)

    def change(self, shape: InterfaceShape) -> None:
        """Bring an attached interface to `shape`, as `apply`, but raise where the kernel rejects it.

        Raises:
            HiveError, ValueError: it stays as it was.
        """
        entry = self._interfaces[shape.interface]
        if entry.attached and entry.shape != shape:
            self._write(entry, shape)

    def detach(self, interface: str) -> str | None:
        """Put back what was there before, on an interface of ours or of a former daemon's. Never raises.

        Returns:
            What went wrong, None when nothing did.
        """
        self._interfaces.pop(interface, None)
        try:  # also where somebody replaced our root: rules, segments and the journal are still ours
            for note in self._shaper.detach(interface):
                self._log.warning("interface-note", interface=interface, note=note)
        except Exception as problem:  # noqa: BLE001 - the other interfaces have to be given back all the same
            self._log.error("interface-release-failed", interface=interface, error=str(problem))
            return f"{interface}: {problem}"
        self._log.info("interface-released", interface=interface)
        return None

    def release(self, interface: str) -> None:
        """Hold an interface no more, and leave it as it is: it has another name now."""
        self._interfaces.pop(interface, None)
        self._shaper.release(interface)

    def close(self) -> tuple[str, ...]:
        """Detach everything; returns what went wrong."""
        problems = [self.detach(name) for name in list(self._interfaces)]
        return tuple(problem for problem in problems if problem is not None)

    def read(self, interface: str, *, fresh_s: float) -> tuple[tuple[ClassSample, ...], float | None]:
        """The class counters and their age in seconds (None: never read). Counters younger than `fresh_s` will do."""
        entry, now_s = self._interfaces[interface], self._clock()
        due = entry.read_at_s is None or now_s - entry.read_at_s >= fresh_s
        if due and entry.attached:
            try:
                counters = self._shaper.counters(interface)
            except (HiveError, OSError) as problem:
                self._lost(entry, "counters-unreadable", str(problem))
            else:
                entry.samples = samples_of(counters.classes)
                entry.leaves = counters.jobs
                entry.destinations = tuple(
                    DestinationSample(address, HELD_NAME, counted.sent_bytes, counted.backlog_bytes)
                    for address, counted in sorted(counters.destinations.items())
                )
                entry.read_at_s = now_s
                self._watch_direct(entry, counters.direct_packets)
        return entry.samples, None if entry.read_at_s is None else max(0.0, self._clock() - entry.read_at_s)

    def leaves(self, interface: str) -> Mapping[int, ClassCounters]:
        """The counters of the jobs' leaves by slot, as `read` found them last."""
        return self._interfaces[interface].leaves

    def destinations(self, interface: str) -> tuple[DestinationSample, ...]:
        """Of the last `read`: the addresses that have a leaf of their own."""
        return self._interfaces[interface].destinations

    def apply(self, shape: InterfaceShape) -> None:
        """Bring an interface to `shape`. Never raises for what the kernel does."""
        entry, now_s = self._interfaces[shape.interface], self._clock()
        if now_s < entry.not_before_s:
            return
        try:
            if not entry.attached:
                self._shaper.attach(shape, replace_foreign=self.take_over)
                self._log.info("interface-reshaped", interface=shape.interface)
                entry.verified_at_s, entry.direct_packets = now_s, None
            elif entry.shape != shape or not entry.in_force:
                self._write(entry, shape)
            elif now_s - entry.verified_at_s < VERIFY_S:
                return
            elif self._shaper.verify(shape.interface):
                shape, entry.verified_at_s = entry.shape, now_s
            else:
                self._log.warning("tree-changed", interface=shape.interface)
                entry.in_force = False  # until it is whole again: `verify` starts from what somebody made of it
                self._shaper.apply(shape)
                entry.verified_at_s = now_s
        except (HiveError, OSError, ValueError) as problem:  # ValueError: a shape that cannot be
            self._lost(entry, "apply-failed", str(problem))
            if isinstance(problem, StructureError):
                entry.attached = False  # no change leads to what is wanted: it is built anew
            return
        entry.shape, entry.attached, entry.in_force = shape, True, True  # attached and repaired trees are in force, too
        if entry.alarm is not None:
            self._log.info("interface-recovered", interface=shape.interface)
            entry.alarm = None

    def reopened(self) -> None:
        """The watchdog has opened the ceilings: write the next decision even where it equals the last."""
        for entry in self._interfaces.values():
            entry.in_force, entry.not_before_s = False, 0.0

    def open(self) -> None:
        """Open all ceilings. Never raises for what the kernel does: an alarm names it. `apply` puts them back."""
        for name, entry in self._interfaces.items():
            entry.in_force = False
            if not entry.attached:
                continue
            try:
                self._shaper.open(name, entry.shape.line_bits_per_s)
            except (HiveError, OSError) as problem:
                self._lost(entry, "apply-failed", str(problem))

    def segments(self, interface: str) -> SegmentState | None:
        """What came of an interface's `gso_max_segs`; None while we do not hold it."""
        entry = self._interfaces.get(interface)
        return self._shaper.segments(interface) if entry is not None and entry.attached else None

    def classify(self, *, at_once: bool = False) -> bool:
        """Every `CLASSIFY_S`, or at once: keep rules on cgroups and users in force; log what is not, when that changes.

        Returns:
            Whether it was time.
        """
        now_s = self._clock()
        if not at_once and now_s - self._classified_at_s < CLASSIFY_S:
            return False
        self._classified_at_s = now_s
        try:
            notes = self._shaper.classify()
        except (HiveError, OSError, ValueError) as problem:
            notes = (str(problem),)
        for note in set(notes) - set(self._classify_notes):
            self._log.warning("rule-not-applied", note=note)
        self._classify_notes = notes
        return True

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong now."""
        entries = self._interfaces.values()
        return tuple(alarm for entry in entries for alarm in (entry.alarm, entry.direct_alarm) if alarm is not None)

    def _write(self, entry: _Interface, shape: InterfaceShape) -> None:
        """Write to the kernel, after a look at what it has where that is not known.

        Of a write that fails a part may be in force: then nothing stands, and the next tick looks and writes.
        """
        if not entry.in_force:
            self._shaper.verify(entry.shape.interface)
        entry.in_force = False
        self._shaper.apply(shape)
        entry.shape, entry.in_force = shape, True
        self.applied += 1

    def _lost(self, entry: _Interface, code: str, text: str) -> None:
        now_s = self._clock()
        entry.not_before_s = now_s + RETRY_S
        name = entry.shape.interface
        if entry.alarm is None or entry.alarm.code != code:
            self._log.error("interface-failed", interface=name, code=code, error=text)
        entry.alarm = Alarm(code=code, subject=name, text=text)
        try:
            entry.attached = self._shaper.observe(name) is not None and name in self._shaper.interfaces
        except (HiveError, OSError):  # not even that: the interface is gone
            entry.attached = False

    def _watch_direct(self, entry: _Interface, direct_packets: int) -> None:
        """Packets pass unshaped while a tree is built, which its first count has; after that they are somebody's doing.

        The alarm ends `DIRECT_OVER_S` after the last of them.
        """
        now_s = self._clock()
        if entry.direct_packets is not None and direct_packets > entry.direct_packets:
            entry.direct_seen_s = now_s
            passed = direct_packets - entry.direct_packets
            text = f"{passed} packets passed unshaped (a class that traffic points to is missing)"
            if entry.direct_alarm is None:
                self._log.error("packets-unshaped", interface=entry.shape.interface, error=text)
            entry.direct_alarm = Alarm(code="unshaped-packets", subject=entry.shape.interface, text=text)
        elif now_s - entry.direct_seen_s >= DIRECT_OVER_S:
            entry.direct_alarm = None
        entry.direct_packets = direct_packets

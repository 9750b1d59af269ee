"""Which interfaces policy names, and which of them are there: attach what comes, give back what is named no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.enforce.egress import EgressTrees
from broker.enforce.shapes import rules_of, shape_of
from broker.events.log import Log
from broker.law.capacity.outbound import line_rate
from broker.measure.interfaces import Links
from broker.model.reasons import Because
from broker.model.status_values import SegmentInfo
from broker.model.values import Alarm, Allocation, JobKey, SegmentAllocation
from broker.policy.types import Policy
from hive_qos.errors import ConfigurationError, HiveError
from shaping.journal import Journal
from shaping.kernel_api import Kernel
from shaping.model.shapes import InterfaceShape, Rule
from shaping.netlink.link_events import LinkChanges

LOOK_S = 1.0
"""How often we look for an interface that policy names and that was not there."""

ClassCgroups = tuple[tuple[str, str], ...]
"""The cgroups (class, path) into which `hive-qos run` puts programs."""


class ShapedInterfaces:
    """The interfaces of one policy against those of the network namespace.

    Args:
        slots: which leaf each job of compute has now.
    """

    def __init__(
        self,
        egress_trees: EgressTrees,
        *,
        kernel: Kernel,
        journal: Journal,
        links: Links,
        log: Log,
        clock: Callable[[], float],
        slots: Callable[[], Mapping[JobKey, int]] = dict,
    ) -> None:
        self._egress_trees, self._kernel, self._journal, self._links = egress_trees, kernel, journal, links
        self._slots = slots
        self._log, self._clock = log, clock
        self._missing: dict[str, Alarm | None] = {}  # with what went wrong when it appeared
        self._looked_s = 0.0
        self._behind = False  # links have changed, and could not be looked at
        self._chosen: dict[str, SegmentAllocation] = {}
        self._carriers: dict[str, bool | None] = {}  # of what we hold, as it was after the last event
        self._numbers: dict[str, int] = {}  # of what we hold, from when it was attached
        self._ruled: tuple[Policy, ClassCgroups] | None = None  # what `_rules` were made from
        self._rules: tuple[Rule, ...] = ()

    def alarms(self) -> tuple[Alarm, ...]:
        """What went wrong with interfaces that came later."""
        return tuple(alarm for alarm in self._missing.values() if alarm is not None)

    def segments(self) -> Mapping[str, SegmentInfo]:
        """The limit of segments of each interface that we hold, and why."""
        found = {}
        for name in self._egress_trees.names & self._chosen.keys():
            state = self._egress_trees.segments(name)
            if state is not None:
                reason = self._chosen[name].reason if state.note is None else Because.GSO_NOT_IN_FORCE(note=state.note)
                found[name] = SegmentInfo(state.limit, reason)
        return found

    def give_back_strays(self, policy: Policy) -> None:
        """Interfaces that a former daemon shaped and that policy does not name any more: nobody else would."""
        wanted = _names(policy)
        journalled = set(self._journal.interfaces())
        for name in self._kernel.interfaces():
            try:
                stray = name not in wanted and (name in journalled or self._kernel.observe(name) is not None)
            except HiveError as problem:
                self._log.warning("interface-unreadable", interface=name, error=str(problem))
                continue
            if stray:
                self._log.warning("stale-shaping-found", interface=name)
                self._egress_trees.detach(name)

    def has_one(self, policy: Policy) -> bool:
        """Whether any of the interfaces that policy names is there."""
        return not _names(policy).isdisjoint(self._kernel.interfaces())

    def require_one(self, policy: Policy) -> None:
        """Be sure that there is something to shape, before anything is touched.

        Raises:
            ConfigurationError: not one of the interfaces that policy names is there.
        """
        if not self.has_one(policy):
            names = ", ".join(entry.name for entry in policy.interfaces)
            raise ConfigurationError("interface.name", names, "no such interface in this network namespace")

    def attach_all(self, allocation: Allocation, *, policy: Policy, class_cgroups: ClassCgroups) -> None:
        """Attach what policy names and is there. For the rest `decide` raises an alarm; it is attached when it comes.

        Raises:
            HiveError, OSError, ValueError: one that is there cannot be shaped.
        """
        present = self._kernel.numbers()
        for shape in self._shapes(allocation, policy, class_cgroups):
            if shape.interface in self._egress_trees.names:
                self._egress_trees.change(shape)
            elif shape.interface in present:
                self._attach(shape, present)
        self._note_missing(policy)

    def apply(self, allocation: Allocation, *, policy: Policy, class_cgroups: ClassCgroups) -> None:
        """Bring every interface that we hold to its allocation, and attach what has appeared since."""
        if self._behind and self._clock() - self._looked_s >= LOOK_S:
            self.follow(policy)
        shapes = self._shapes(allocation, policy, class_cgroups)
        for shape in shapes:
            if shape.interface in self._egress_trees.names:
                self._egress_trees.apply(shape)
        if self._missing and self._clock() - self._looked_s >= LOOK_S:
            self._attach_missing(shapes)
            self._note_missing(policy)

    def concerned(self, changes: LinkChanges, policy: Policy) -> bool:
        """Whether events are about an interface that we hold or wait for."""
        return changes.lost or not (
            changes.numbers.isdisjoint(self._numbers.values()) and changes.names.isdisjoint(_names(policy))
        )

    def follow(self, policy: Policy) -> None:
        """Look at the links again: hold no more what is gone, follow what was renamed, wait for nothing.

        A tree of ours goes with a renamed interface. Under a name of the policy it is adopted by the next `apply`,
        under another one the interface is given back. Where the kernel does not list them, a later `apply` looks again.
        """
        self._links.forget()
        self._behind, self._looked_s = True, self._clock()
        try:
            numbers = self._kernel.numbers()
        except (HiveError, OSError) as problem:
            self._log.warning("interfaces-unreadable", error=str(problem))
            return
        self._behind = False
        names = {number: name for name, number in numbers.items()}
        moved = {}
        for name in self._egress_trees.names:
            number = self._numbers.get(name)
            if number is None or numbers.get(name) == number:
                continue
            if number in names:
                moved[name] = names[number]
            else:
                self._log.warning("interface-removed", interface=name)
                self._egress_trees.detach(name)
        if moved:
            self._rename(moved, policy)
        self._note_missing(policy)
        self._note_carriers()
        self._looked_s = float("-inf")

    def _rename(self, new_names: Mapping[str, str], policy: Policy) -> None:
        for name, new in new_names.items():
            self._log.warning("interface-renamed", interface=name, new_name=new)
            self._egress_trees.release(name)
        try:
            self._journal.rename(new_names)
        except (OSError, ValueError) as problem:
            self._log.error("journal-failed", error=str(problem))
        for name in set(new_names.values()) - _names(policy):
            self._egress_trees.detach(name)

    def keep(self, policy: Policy) -> None:
        """Give back what we hold and the policy does not name."""
        for name in self._egress_trees.names - _names(policy):
            self._egress_trees.detach(name)
        self._note_missing(policy)

    def _attach_missing(self, shapes: list[InterfaceShape]) -> None:
        """Attach what has appeared since. What goes wrong with that is the alarm, and is tried again."""
        self._looked_s = self._clock()
        try:
            present = self._kernel.numbers()
        except (HiveError, OSError) as problem:
            self._log.warning("interfaces-unreadable", error=str(problem))
            return
        for shape in shapes:
            if shape.interface in self._missing and shape.interface in present:
                try:
                    self._attach(shape, present)
                except (HiveError, OSError, ValueError) as problem:
                    text = f"it is there, but cannot be shaped: {problem}"
                    self._missing[shape.interface] = Alarm("attach-failed", shape.interface, text)

    def _attach(self, shape: InterfaceShape, numbers: Mapping[str, int]) -> None:
        """Attach one. `numbers` is from before: if another one has the name by then, the next `follow` finds out."""
        self._egress_trees.attach(shape)
        self._numbers[shape.interface] = numbers[shape.interface]

    def _note_missing(self, policy: Policy) -> None:
        held = self._egress_trees.names
        missing = _names(policy) - held
        self._numbers = {name: number for name, number in self._numbers.items() if name in held}
        for name in missing - set(self._missing):
            self._log.error("interface-missing", interface=name)
        self._missing = {name: self._missing.get(name) for name in sorted(missing)}
        self._looked_s = self._clock()

    def _note_carriers(self) -> None:
        now_s = self._clock()
        found = {name: self._links.look(name, now_s=now_s).carrier for name in sorted(self._egress_trees.names)}
        for name, carrier in found.items():
            if carrier is False and self._carriers.get(name) is not False:
                self._log.warning("carrier-lost", interface=name)
            elif carrier and self._carriers.get(name) is False:
                self._log.info("carrier-restored", interface=name)
        self._carriers = found

    def _shapes(self, allocation: Allocation, policy: Policy, class_cgroups: ClassCgroups) -> list[InterfaceShape]:
        if self._ruled is None or self._ruled[0] is not policy or self._ruled[1] != class_cgroups:
            self._ruled, self._rules = (policy, class_cgroups), rules_of(policy, class_cgroups=class_cgroups)
        now_s = self._clock()
        lines = {
            entry.name: line_rate(entry, link_bits_per_s=self._links.look(entry.name, now_s=now_s).link_bits_per_s)
            for entry in policy.interfaces
        }
        shapes = []
        chosen = {}
        slots = self._slots()
        for entry in allocation.interfaces:
            if entry.segments is not None:
                chosen[entry.name] = entry.segments
            limit = None if entry.segments is None else entry.segments.gso_max_segs
            line = lines.get(entry.name)
            shapes.append(shape_of(entry, rules=self._rules, slots=slots, gso_max_segs=limit, line_bits_per_s=line))
        self._chosen = chosen
        return shapes


def _names(policy: Policy) -> set[str]:
    return {entry.name for entry in policy.interfaces}

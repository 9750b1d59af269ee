"""Rules that concern a network namespace as a whole: those on cgroups and users, and those on what it forwards.

Rules on ports and DSCP of what leaves here are filters of each interface's tree (shaping.plan.desired_tree), and not
here.
"""

from __future__ import annotations

from collections.abc import Mapping

from hive_qos.errors import ShapingError
from shaping.kernel_api import Classifier, Kernel
from shaping.model.shapes import Rule
from shaping.plan.packet_filters import check_rules


class Classification:
    """The rules of all interfaces, and which of them are in force."""

    def __init__(self, kernel: Kernel, classifier: Classifier | None) -> None:
        """Nothing is touched yet.

        Args:
            kernel: classifies what is forwarded.
            classifier: enforces rules on cgroups and users; None leaves them out, and says so.
        """
        self._kernel = kernel
        self._classifier = classifier
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._forwarded: tuple[tuple[Rule, ...], Mapping[str, int]] = ((), {})
        self._forwarded_notes: tuple[str, ...] = ()

    def ask(self, interface: str, rules: tuple[Rule, ...]) -> bool:
        """Note an interface's rules, for the next `enforce`; whether they are others than before."""
        before = self._rules.get(interface)
        self._rules[interface] = rules
        return before != rules

    def forget(self, interface: str) -> bool:
        """Note that an interface has none any more; whether it had been asked for."""
        return self._rules.pop(interface, None) is not None

    def enforce(self, minors: Mapping[str, int]) -> tuple[str, ...]:
        """Bring the kernel to the rules noted; cheap when nothing changed.

        Args:
            minors: of each target, what its packets' priority names.

        Returns:
            Sentences on rules that are not in force, and why.

        Raises:
            ShapingError: the rules could not even be tried.
        """
        rules = tuple(dict.fromkeys(rule for rules in self._rules.values() for rule in rules))
        return (*self._of_forwarded(rules, minors), *self._of_sockets(rules, minors))

    def clear(self) -> tuple[str, ...]:
        """Remove the socket programs of whoever attached them; sentences on what was removed.

        Raises:
            ShapingError: some stay.
        """
        places = self._classifier.clear() if self._classifier is not None else 0
        return (f"socket programs of {places} cgroups: removed",) if places else ()

    def _of_forwarded(self, rules: tuple[Rule, ...], minors: Mapping[str, int]) -> tuple[str, ...]:
        """Classify forwarded packets before the egress filters, which see addresses after translation (NAT).

        Only where an address is looked for; then by all that packets say, for the first rule wins. What was refused is
        tried again when the rules change.
        """
        addresses = any(rule.address is not None for rule in rules)
        of_packets = tuple(rule for rule in rules if rule.cgroup is None and rule.uid is None) if addresses else ()
        if (of_packets, minors) == self._forwarded:
            return self._forwarded_notes
        self._forwarded, self._forwarded_notes = (of_packets, minors), ()
        try:
            check_rules(of_packets)
            self._kernel.classify_forwarded([(rule, minors[rule.target]) for rule in of_packets])
        except ValueError as error:  # too many together, as between two interfaces' change of rules
            self._forwarded_notes = (
                f"rules on addresses do not find what leaves this host by another address (NAT): {error}",
            )
        except ShapingError as error:
            self._forwarded_notes = (
                "rules on addresses do not find what leaves this host by another address (NAT), which needs nftables "
                f"and Linux 5.12: {error}",
            )
        return self._forwarded_notes

    def _of_sockets(self, rules: tuple[Rule, ...], minors: Mapping[str, int]) -> tuple[str, ...]:
        of_sockets = [rule for rule in rules if rule.cgroup is not None or rule.uid is not None]
        if self._classifier is not None:
            try:
                return self._classifier.apply(of_sockets, minors=minors)
            except ShapingError as error:
                return (f"rules on cgroups and users are not in force: {error}",) if of_sockets else ()
            except (OSError, ValueError) as error:
                raise ShapingError(f"rules on cgroups and users cannot be enforced: {error}") from error
        if of_sockets:
            return ("rules on cgroups and users are not in force: this shaper has no socket classifier",)
        return ()

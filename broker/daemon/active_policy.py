"""The policy in force: taken up at the start, replaced at a reload, the former one where the new one cannot hold."""

from __future__ import annotations

from collections.abc import Callable

from broker.daemon.composition import Components
from broker.daemon.config_store import ConfigStore
from broker.enforce.device_stack import misplaced
from broker.policy.types import Policy
from broker.process.log import Log
from broker.process.rights import Authority
from hive_qos.errors import HiveError


class ActivePolicy:
    """For the loop's thread; `authority` may be read in any.

    `policy` is what every decision is made by, `authority` who may do what under it.

    Args:
        patience: asks the watchdog for patience: many interfaces take long.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        configurations: ConfigStore,
        parts: Components,
        *,
        patience: Callable[[], None],
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._configurations, self._components = configurations, parts
        self._patience, self._log, self._clock = patience, log, clock
        self.policy = configurations.first
        self.authority = Authority.of(self.policy)

    def begin(self) -> None:
        """Take up the policy to start with, or the last good one where that one cannot be.

        Raises:
            HiveError, OSError, ValueError: neither can be.
        """
        try:
            self._take_over_interfaces()
        except (HiveError, OSError, ValueError) as problem:
            instead = self._configurations.instead(self.policy, problem)
            if instead is None:
                raise
            self.policy, self.authority = instead, Authority.of(instead)
            self._take_over_interfaces()

    def put(self, policy: Policy, *, whatever: bool = False) -> str:
        """As `reloads.Force`."""
        self._patience()
        old, shaped_interfaces = self.policy, self._components.shaped_interfaces
        if (policy.daemon, policy.peers) != (old.daemon, old.peers):
            note = "changes of [daemon] and [peers] need a restart; files that [peers] names are read again without one"
            self._log.warning("restart-needed", note=note)
        try:
            self._attach_all(policy)
        except (HiveError, OSError, ValueError) as problem:
            if not whatever:
                shaped_interfaces.keep(old)
                raise
            self._log.error("configuration-incomplete", error=str(problem))  # the ticks try again
        shaped_interfaces.keep(policy)
        self._components.peer_link.renew(now_s=self._clock(), at_once=True)
        self.policy, self.authority = policy, Authority.of(policy)
        return "; ".join(one.text for one in self._components.peer_link.alarms() if one.code == "certificate-refused")

    def _take_over_interfaces(self) -> None:
        policy, shaped_interfaces = self.policy, self._components.shaped_interfaces
        shaped_interfaces.require_one(policy)
        shaped_interfaces.give_back_strays(policy)
        self._components.ingress_trees.clear(entry.name for entry in policy.interfaces)
        self._components.own_cgroups.make()
        self._attach_all(policy)
        shaped_interfaces.keep(policy)

    def _attach_all(self, policy: Policy) -> None:
        """Attach what policy names and is there, and bring what we hold already to it."""
        self._components.deciding.attach_all(policy)
        for one in misplaced(entry.name for entry in policy.interfaces):
            self._log.warning("interface-note", interface=one.interface, note=f"{one.text}; {one.advice}")

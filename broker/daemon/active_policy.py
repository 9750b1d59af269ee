"""The policy in force: applied at the start, replaced at a reload, the former one where the new one cannot hold.

    start              the store's first policy; the last good one where that cannot be applied
    SIGHUP, reload     the file's policy, or an answer with the reason and the former one
    reload on trial    the same, until `confirm`; without it in time the former one comes back

`config_store` has the text that holds. This applies a policy to the interfaces and reports the outcome to the store.
"""

from __future__ import annotations

import time

from broker.api.latest_snapshot import LatestSnapshot
from broker.api.requests import PendingCommands, PolicyAnswer, PolicyRequests
from broker.daemon.composition import Components, Environment
from broker.daemon.config_store import ConfigStore
from broker.enforce.device_stack import misplaced
from broker.policy.types import Policy
from broker.process.rights import Authority
from hive_qos.errors import ConfigurationError, HiveError


class ActivePolicy:
    """For the loop's thread; `authority` may be read in any.

    `policy` is what every decision is made by, `authority` who may do what under it.

    Args:
        commands, requests: what signals and HTTP ask for.
        latest_snapshot: is made anew after a change, before whoever asked for it is answered.
    """

    def __init__(
        self,
        given: Environment,
        parts: Components,
        configurations: ConfigStore,
        *,
        commands: PendingCommands,
        requests: PolicyRequests,
        latest_snapshot: LatestSnapshot,
    ) -> None:
        self._environment, self._components, self._configurations = given, parts, configurations
        self._commands, self._requests, self._latest_snapshot = commands, requests, latest_snapshot
        self._log = given.log
        self.policy = configurations.first
        self.authority = Authority.of(self.policy)

    def begin(self) -> None:
        """Apply the policy to start with, or the last good one where that one cannot be applied.

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

    def look(self) -> None:
        """Do what signals and requests ask for, and end a trial that nobody confirmed. For every round of the loop."""
        if self._commands.reload:
            self._commands.reload = False
            self.reload()
        while (request := self._requests.take()) is not None:
            self._components.beat(busy=True)
            answer = self.reload(trial_s=request.trial_s) if request.what == "reload" else self._confirm()
            request.answers.put(answer)
        former = self._configurations.overdue()
        if former is not None:
            self._replace(former, partly=True)
            self._latest_snapshot.invalidate()

    def reload(self, *, trial_s: float | None = None) -> PolicyAnswer:
        """Take the file's configuration, or give the reason why not."""
        self._components.beat(busy=True)  # a busy disk makes long what is synchronised
        self._environment.notifier.reloading(monotonic_us=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        try:
            policy = self._configurations.next(trial_s=trial_s)
            refused = self._replace(policy)
        except (HiveError, OSError, ValueError) as problem:
            mistaken = getattr(problem, "code", "") == ConfigurationError.code
            answer = PolicyAnswer(422 if mistaken else 409, self._configurations.refused(problem))
        else:
            taken = self._configurations.taken(trial_s=trial_s)
            answer = PolicyAnswer(200, f"{taken}; but {refused}" if refused else taken)
            names = ",".join(sorted(entry.name for entry in policy.interfaces))
            self._log.info("configuration-reloaded", interfaces=names, note=answer.text)
        self._latest_snapshot.invalidate()
        self._environment.notifier.ready(self._components.summary())
        return answer

    def _confirm(self) -> PolicyAnswer:
        try:
            confirmed = self._configurations.confirm()
        except ConfigurationError as problem:
            return PolicyAnswer(409, str(problem))
        finally:
            self._latest_snapshot.invalidate()
        return PolicyAnswer(200, "confirmed") if confirmed else PolicyAnswer(409, "nothing is on trial")

    def _replace(self, policy: Policy, *, partly: bool = False) -> str:
        """Put another policy in force without losing a packet.

        Args:
            partly: also where a part of it cannot be applied now; the ticks try again.

        Returns:
            What of it could not be taken, "" where all was.

        Raises:
            HiveError, OSError, ValueError: it cannot be applied, and the former one holds.
        """
        self._components.beat(busy=True)  # many interfaces take long
        old, shaped_interfaces = self.policy, self._components.shaped_interfaces
        if (policy.daemon, policy.peers) != (old.daemon, old.peers):
            note = "changes of [daemon] and [peers] need a restart; files that [peers] names are read again without one"
            self._log.warning("restart-needed", note=note)
        try:
            self._attach_all(policy)
        except (HiveError, OSError, ValueError) as problem:
            if not partly:
                shaped_interfaces.keep(old)
                raise
            self._log.error("configuration-incomplete", error=str(problem))
        shaped_interfaces.keep(policy)
        self._components.peer_link.renew(now_s=self._environment.clock(), at_once=True)
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

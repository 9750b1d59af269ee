"""What signals and requests want of the configuration, done in the loop's thread: reload, confirm, and back in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from broker.api.requests import PendingCommands, PolicyAnswer, PolicyRequests
from broker.daemon.config_store import ConfigStore
from broker.policy.types import Policy
from broker.process.log import Log
from broker.process.notify import Notifier
from hive_qos.errors import ConfigurationError, HiveError


class Force(Protocol):
    """Makes a policy hold, losing no packet. `whatever`: also when something of it cannot be attached now.

    Raises:
        HiveError, OSError, ValueError: it cannot be, and the former one holds.
    """

    def __call__(self, policy: Policy, *, whatever: bool = False) -> str:
        """Make it hold; returns what beside it could not be taken, "" where all was."""


class Reloader:
    """Between the configurations and the daemon.

    Args:
        force: the daemon's way to make a policy hold.
        done: called after each of these, taken or not, before anybody is answered: who then looks sees what holds now.
        shaping: one line on what is shaped now, for the supervisor.
        patience: asks the watchdog for patience: files are synchronised, which a busy disk makes long.
    """

    def __init__(
        self,
        configurations: ConfigStore,
        *,
        wishes: PendingCommands,
        control: PolicyRequests,
        force: Force,
        done: Callable[[], None],
        shaping: Callable[[], str],
        patience: Callable[[], None],
        notifier: Notifier,
        log: Log,
    ) -> None:
        self._configurations, self._commands, self._control = configurations, wishes, control
        self._force, self._done = force, done
        self._shaping, self._patience, self._notifier, self._log = shaping, patience, notifier, log

    def heed(self) -> None:
        """Do what is wanted, and end a trial that nobody confirmed."""
        if self._commands.reload:
            self._commands.reload = False
            self.reload()
        while (request := self._control.take()) is not None:
            self._patience()
            answer = self.reload(trial_s=request.trial_s) if request.what == "reload" else self._confirm()
            request.answers.put(answer)
        former = self._configurations.overdue()
        if former is not None:
            self._force(former, whatever=True)
            self._done()

    def _confirm(self) -> PolicyAnswer:
        try:
            confirmed = self._configurations.confirm()
        except ConfigurationError as problem:
            return PolicyAnswer(409, str(problem))
        finally:
            self._done()
        return PolicyAnswer(200, "confirmed") if confirmed else PolicyAnswer(409, "nothing is on trial")

    def reload(self, *, trial_s: float | None = None) -> PolicyAnswer:
        """Take the file's configuration, or say why not."""
        self._patience()
        self._notifier.reloading(monotonic_us=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        try:
            policy = self._configurations.next(trial_s=trial_s)
            refused = self._force(policy)
        except (HiveError, OSError, ValueError) as problem:
            mistaken = getattr(problem, "code", "") == ConfigurationError.code
            answer = PolicyAnswer(422 if mistaken else 409, self._configurations.refused(problem))
        else:
            taken = self._configurations.taken(trial_s=trial_s)
            answer = PolicyAnswer(200, f"{taken}; but {refused}" if refused else taken)
            names = ",".join(sorted(entry.name for entry in policy.interfaces))
            self._log.info("configuration-reloaded", interfaces=names, note=answer.text)
        self._done()
        self._notifier.ready(self._shaping())
        return answer

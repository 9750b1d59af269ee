"""The policy in force: applied at the start, replaced at a reload, the former one where the new one cannot hold.

    start              the store's first policy; the last good one where that cannot be applied
    SIGHUP, reload     the file's policy, or an answer with the reason and the former one
    reload on trial    the same, until `confirm`; without it in time, or by `rollback`, the former one comes back
    candidate          a reload, or one on trial, of what `hive-qos apply` laid beside the file
    set, unset         settings over the file, until their time is over
    pause              nobody is limited for a while; `resume` and every change of policy end it

`config_store` has the text that holds. This applies a policy to the interfaces and reports the outcome to the store.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from broker.api.latest_snapshot import LatestSnapshot
from broker.api.questions import PauseQuestion, Reload, Set, Unset
from broker.api.requests import PendingCommands, PolicyAnswer, PolicyRequest, PolicyRequests
from broker.daemon.composition import Components, Environment
from broker.enforce.device_stack import misplaced
from broker.policy.settings import PAUSE_S_MAX, SETTING_S_MAX, Setting, over, read_settings
from broker.policy.types import Policy
from broker.process.rights import Authority
from hive_qos.errors import ConfigurationError, HiveError

PAUSE_S = 600.0
"""Long enough to look for a fault, and short enough to be forgotten without harm."""


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
        *,
        commands: PendingCommands,
        requests: PolicyRequests,
        latest_snapshot: LatestSnapshot,
    ) -> None:
        self._environment, self._components, self._configurations = given, parts, given.configurations
        self._commands, self._requests, self._latest_snapshot = commands, requests, latest_snapshot
        self._log = given.log
        self.policy = self._configurations.first
        self.authority = Authority.of(self.policy)
        self._before_trial: tuple[Setting, ...] = ()  # that do not fit what is on trial

    def begin(self) -> None:
        """Apply the policy to start with, or the last good one where that one cannot be applied.

        Raises:
            HiveError, OSError, ValueError: neither can be.
        """
        self._components.settings.load()
        self.policy, fit, misfit = self._with_settings(self.policy)
        self._leave_out(fit, misfit)
        shaped_interfaces, former = self._components.shaped_interfaces, self._configurations.former()
        try:
            # One that was in force waits for its interfaces, which may come minutes after the boot, as ppp0 does. A new
            # one may have their names wrong; but where the former has none either, nothing tells that from a boot.
            waits = self._configurations.has_been_good or (former and not shaped_interfaces.has_one(former))
            if not waits:
                shaped_interfaces.require_one(self.policy)
            self._take_over_interfaces()
        except (HiveError, OSError, ValueError) as problem:
            instead = self._configurations.instead(self.policy, problem)
            if instead is None:
                raise
            self.policy, fit, misfit = self._with_settings(instead)
            self._leave_out(fit, misfit)
            self.authority = Authority.of(self.policy)
            self._take_over_interfaces()

    def look(self) -> None:
        """Do what signals and requests ask for, and end a trial that nobody confirmed. For every round of the loop."""
        if self._commands.reload:
            self._commands.reload = False
            self.reload()
        while (request := self._requests.take()) is not None:
            self._components.beat(busy=True)
            try:
                answer = self._do(request)
            except (HiveError, OSError, ValueError) as problem:
                answer = PolicyAnswer(422 if _mistaken(problem) else 409, str(problem))
            self._latest_snapshot.invalidate()
            request.answers.put(answer)
        former = self._configurations.overdue()
        if former is not None:
            self._go_back(former)
        if self._components.settings.due:
            self._end_settings()
        if self._components.pause.due:
            self._resume()

    def _do(self, request: PolicyRequest) -> PolicyAnswer:
        match request.asked:
            case Reload(trial_s=trial_s, candidate=candidate):
                return self.reload(trial_s=None if trial_s is UNSET else trial_s, candidate=candidate is not UNSET)
            case Set() as asked:
                return self._set(asked)
            case Unset() as asked:
                return self._unset(asked)
            case PauseQuestion(for_s=for_s):
                return self._pause(PAUSE_S if for_s is UNSET else _within(for_s, PAUSE_S_MAX))
        if request.what == "confirm":
            return self._confirm()
        if request.what == "rollback":
            return self._rollback()
        if not self._components.pause.active:
            return PolicyAnswer(409, "nothing is paused")
        self._resume()
        return PolicyAnswer(200, "limits are in force again")

    def reload(self, *, trial_s: float | None = None, candidate: bool = False) -> PolicyAnswer:
        """Take the file's configuration, or the candidate's, or give the reason why not."""
        self._components.beat(busy=True)  # a busy disk makes long what is synchronised
        self._environment.notifier.reloading(monotonic_us=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        try:
            found = self._configurations.next(trial_s=trial_s, candidate=candidate)
            policy, fit, misfit = self._with_settings(found, reloading=True)
            refused = self._replace(policy)
        except (HiveError, OSError, ValueError) as problem:
            answer = PolicyAnswer(422 if _mistaken(problem) else 409, self._configurations.refused(problem))
        else:
            taken = self._configurations.taken(trial_s=trial_s)
            on_trial = self._configurations.trial_left_s is not None
            dropped = self._components.settings.lasting() if misfit else ()
            self._before_trial = self._before_trial or dropped if on_trial else ()
            refused = "; ".join(filter(None, (refused, self._leave_out(fit, misfit))))
            answer = PolicyAnswer(200, taken, refused)
            names = ",".join(sorted(entry.name for entry in policy.interfaces))
            self._log.info(
                "configuration-reloaded", interfaces=names, note="; but ".join(filter(None, (taken, refused)))
            )
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
        self._before_trial = ()
        return PolicyAnswer(200, "confirmed") if confirmed else PolicyAnswer(409, "nothing is on trial")

    def _rollback(self) -> PolicyAnswer:
        """End the trial now. Where it has ended unconfirmed and the file says what is in force, forget it."""
        former = self._configurations.give_up()
        if former is not None:
            self._go_back(former)
        settled = self._configurations.settle()
        if former is None and not settled:
            return PolicyAnswer(409, "nothing is on trial")
        return PolicyAnswer(200, "the former configuration is in force")

    def _go_back(self, former: Policy) -> None:
        if self._before_trial:
            self._components.settings.replace(self._before_trial)
            self._before_trial = ()
        policy, fit, misfit = self._with_settings(former)
        self._leave_out(fit, misfit)
        self._replace(policy, partly=True)
        self._latest_snapshot.invalidate()

    # --- settings over the file, and pauses -----------------------------------------------------------------------

    def _set(self, asked: Set) -> PolicyAnswer:
        store = self._components.settings
        until_s = None if asked.for_s is UNSET else store.until_s(_within(asked.for_s, SETTING_S_MAX))
        new = read_settings(asked.kind, asked.name, asked.texts, until_s=until_s)
        return self._put_over(over(new, store.lasting()), f"{_and(f'{one.key} {one.value}' for one in new)} in force")

    def _unset(self, asked: Unset) -> PolicyAnswer:
        """Of one thing, or of one key of it; of all where nothing is named."""
        wanted, former = (asked.kind, asked.name), self._components.settings.lasting()
        if wanted == ("", "") and asked.texts:
            raise ConfigurationError("key", ", ".join(asked.texts), "is of a thing: name its kind and name, too")
        gone = [
            one for one in former
            if wanted == ("", "") or ((one.kind, one.name) == wanted and one.key in (asked.texts or (one.key,)))
        ]  # fmt: skip
        if not gone:
            return PolicyAnswer(409, "nothing of the kind is set; see `hive-qos set --list`")
        left = tuple(one for one in former if one not in gone)
        return self._put_over(left, f"{_and(f'{one.kind} {one.name} {one.key}' for one in gone)} as the file says")

    def _put_over(self, settings: tuple[Setting, ...], done: str) -> PolicyAnswer:
        """Put settings in force, or raise what is wrong with them; the former ones hold then."""
        policy = self._configurations.with_settings(settings)
        notes = (self._replace(policy), self._components.settings.replace(settings))
        self._log.info("settings-changed", note=done)
        return PolicyAnswer(200, done, "; ".join(filter(None, notes)))

    def _end_settings(self) -> None:
        """The time of some is over."""
        self._log.info("settings-changed", note="the time of a setting is over")
        policy, fit, misfit = self._with_settings(self._configurations.with_settings(()))
        self._leave_out(fit, misfit)
        self._replace(policy, partly=True)
        self._latest_snapshot.invalidate()

    def _with_settings(
        self, policy: Policy, *, reloading: bool = False
    ) -> tuple[Policy, tuple[Setting, ...], str]:  # fmt: skip
        """A configuration with the settings over it, those that fit, and what is wrong with all of them together."""
        lasting = self._components.settings.lasting()
        if not lasting:
            return policy, (), ""
        try:
            return self._configurations.with_settings(lasting, reloading=reloading), lasting, ""
        except HiveError as problem:
            misfit = str(problem)
        fit: set[Setting] = set()
        for one in (*lasting, *lasting):  # twice: one may need another that comes later, as a guarantee its ceiling
            together = tuple(other for other in lasting if other in fit or other == one)
            with contextlib.suppress(HiveError):
                policy = self._configurations.with_settings(together, reloading=reloading)
                fit.add(one)
        return policy, tuple(one for one in lasting if one in fit), misfit

    def _leave_out(self, fit: tuple[Setting, ...], misfit: str) -> str:
        """Keep the settings that fit, once a configuration is in force that others do not; what to say of it."""
        store = self._components.settings
        gone = _and(f"{one.kind} {one.name} {one.key}={one.value}" for one in store.lasting() if one not in fit)
        said = f"left out, as it does not fit any more: {gone} ({misfit})" if misfit else ""
        if said:
            self._log.error("settings-left-out", error=said)
        if said or fit != store.current or store.alarms():
            store.replace(fit, left_out=said)
        return said

    def _pause(self, for_s: float) -> PolicyAnswer:
        pause = self._components.pause
        if not pause.active:
            self._components.egress_trees.open()
            self._components.ingress_trees.close()
        pause.begin(for_s)
        self._log.warning("shaping-paused", for_s=for_s)
        return PolicyAnswer(200, f"nobody is limited for {for_s:g} s; `hive-qos resume` ends it")

    def _resume(self) -> None:
        """The next tick writes all that was decided meanwhile."""
        self._components.pause.end()
        self._components.egress_trees.reopened()
        self._log.info("shaping-resumed")
        self._latest_snapshot.invalidate()

    def _replace(self, policy: Policy, *, partly: bool = False) -> str:
        """Put another policy in force without losing a packet.

        Args:
            partly: also where a part of it cannot be applied now; the ticks try again.

        Returns:
            What of it could not be taken, and that a pause is over; "" where there is nothing to say.

        Raises:
            HiveError, OSError, ValueError: it cannot be applied, and the former one holds.
        """
        self._components.beat(busy=True)  # many interfaces take long
        paused = self._components.pause.active
        old, shaped_interfaces = self.policy, self._components.shaped_interfaces
        notes = []
        if (policy.daemon, policy.peers) != (old.daemon, old.peers):  # the socket and the connections are as they were
            notes.append("changes of [daemon] and [peers] wait for a restart")
            self._log.warning("restart-needed", note=notes[0])
            policy = msgspec.structs.replace(policy, daemon=old.daemon, peers=old.peers)
        try:
            if {one.name for one in policy.interfaces} != {one.name for one in old.interfaces}:
                shaped_interfaces.require_one(policy)
            self._attach_all(policy)
        except (HiveError, OSError, ValueError) as problem:
            if not partly:
                shaped_interfaces.keep(old)
                if paused:  # it goes on: what was attached before the one that failed is limited again
                    self._components.egress_trees.open()
                raise
            self._log.error("configuration-incomplete", error=str(problem))
        shaped_interfaces.keep(policy)
        if paused:
            self._resume()
        self._components.peer_link.renew(now_s=self._environment.clock(), at_once=True)
        self.policy, self.authority = policy, Authority.of(policy)
        notes += [one.text for one in self._components.peer_link.alarms() if one.code == "certificate-refused"]
        return "; ".join((*notes, *(["the pause is over"] if paused else [])))

    def _take_over_interfaces(self) -> None:
        policy, shaped_interfaces = self.policy, self._components.shaped_interfaces
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


def _mistaken(problem: Exception) -> bool:
    return getattr(problem, "code", "") == ConfigurationError.code


def _within(for_s: float, most_s: float) -> float:
    if not 1.0 <= for_s <= most_s:
        raise ConfigurationError("for_s", for_s, f"1 to {most_s:g} seconds")
    return for_s


def _and(parts: Iterable[str]) -> str:
    return ", ".join(parts)

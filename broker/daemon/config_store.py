"""Choose the configuration in force: the file's, or the last good one where that cannot work or was not confirmed.

    start               the file; the last good one where the file is bad, cannot be applied, or was on trial last time
    reload              the file: kept as the good one once it is in force. A bad one changes nothing
    reload on trial     the same, but the good one stays the good one until `confirm`; without it in time it comes back
    candidate           as a reload, from beside the file, which it replaces once it is good (`config_file`)

Reading and remembering only: `active_policy` puts a policy in force, and reports here what came of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker.daemon.config_file import FILE_BYTES_MAX, Candidate
from broker.events.log import Log
from broker.model.values import Alarm
from broker.policy.settings import Setting
from broker.policy.types import TRIAL_S_MAX, TRIAL_S_MIN, DaemonPolicy, Policy
from hive_qos.errors import ConfigurationError, HiveError
from hive_qos.files import is_trusted, write_whole

KEPT_NAME = "configuration.json"
_KEPT_VERSION = 1
_KEPT_BYTES_MAX = 8 * FILE_BYTES_MAX
"""Two texts of at most a mebibyte each, as JSON."""
_FILE = "broker.toml"


@dataclass(frozen=True)
class Source:
    """Where configurations come from.

    Args:
        read: the text of the file; raises HiveError.
        parse: a text as a policy, with what the command line overrides, and with settings over it where they are
            given; raises HiveError for a bad one.
        state_dir: the state directory of the command line, None where that names none.
        file: where the text is read from, for people and for `hive-qos apply`.
    """

    read: Callable[[], str]
    parse: Callable[..., Policy]
    state_dir: str | None = None
    file: str | None = None


@dataclass(frozen=True)
class Kept:
    """What is kept on disk (`configuration.json` in the state directory): whole texts, as they were in `broker.toml`.

    Args:
        good: the text in force when a start or a reload had worked, or was confirmed.
        refused: a text that is on trial, or was not confirmed in time; None where there is none. It is written before
            the trial begins, so that a daemon that is killed during it starts with the good one.
    """

    good: str | None = None
    refused: str | None = None


class ConfigStore:
    """The configurations of one daemon, from its start on. `first` is the policy to start with.

    Raises:
        HiveError: the file is bad, and no good one is kept.
    """

    def __init__(self, source: Source, *, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._log, self._clock = source, log, clock
        self._candidate = Candidate(source.file)
        self._next_is_candidate = self._trial_is_candidate = False
        self._text = ""
        self._alarm: Alarm | None = None
        self._until_s: float | None = None
        self._trial_s = 0.0
        self.first = self._first()

    # --- start ---------------------------------------------------------------------------------------------------

    def _first(self) -> Policy:
        text, policy, problem = "", None, None
        try:
            text = self._source.read()
            policy = self._source.parse(text)
        except HiveError as error:
            problem = error
        named = self._source.state_dir or state_dir_in(text)
        self._state_dir = policy.daemon.state_dir if policy is not None else named
        self._kept = read_kept(self._state_dir)
        if policy is not None and text != self._kept.refused:
            self._text = text
            return policy
        good = self._good()
        if good is not None:
            self._text = self._kept.good or ""
            why = (
                str(problem)
                if problem is not None
                else "it was on trial and never confirmed (hive-qos reload takes it)"
            )
            self._hold_former("configuration-rejected", why)
            return good
        if policy is None:
            assert problem is not None  # no policy without one
            raise problem
        self._text = text
        return policy

    def instead(self, policy: Policy, problem: Exception) -> Policy | None:
        """The last good policy, when the one to start with cannot be applied; None where there is no other."""
        good = self._good()
        if good is None or self._kept.good == self._text or good.daemon != policy.daemon:
            return None
        self._text = self._kept.good or ""
        self._hold_former("configuration-rejected", str(problem))
        return good

    def former(self) -> Policy | None:
        """The last good policy, where that is another one than the one to start with."""
        return None if self._text == self._kept.good else self._good()

    @property
    def has_been_good(self) -> bool:
        """Whether the one to start with was in force before this start."""
        return self._text == self._kept.good

    def started(self) -> None:
        """What was started with is in force: it is the last good one now. What a killed trial left is over."""
        self._candidate.discard()
        if self._text != self._kept.good:
            self._keep(Kept(good=self._text))

    def with_settings(self, settings: Sequence[Setting], *, reloading: bool = False) -> Policy:
        """The configuration in force, or the one that `next` gave last, with settings over it.

        Raises:
            HiveError: the settings do not fit into it.
        """
        text = self._next_text if reloading else self._text
        return self._source.parse(text, settings=settings) if settings else self._source.parse(text)

    # --- reload --------------------------------------------------------------------------------------------------

    def next(self, *, trial_s: float | None = None, candidate: bool = False) -> Policy:
        """The file's policy, to be put in force; say `taken` or `refused` afterwards.

        Args:
            trial_s: for how long it is on trial; None means that it is good as soon as it is in force.
            candidate: that of the candidate beside the file.

        Raises:
            HiveError: the file is bad, or a trial cannot be remembered.
        """
        self._next_is_candidate = candidate
        self._next_text = self._candidate.read() if candidate else self._source.read()
        policy = self._source.parse(self._next_text)
        if trial_s is not None:
            if not TRIAL_S_MIN <= trial_s <= TRIAL_S_MAX:
                raise ConfigurationError("confirm", trial_s, f"{TRIAL_S_MIN:g} to {TRIAL_S_MAX:g} seconds")
            if self._good() is None:
                raise ConfigurationError(
                    "confirm", trial_s, "not possible: no former configuration is kept to go back to"
                )
            remembered = candidate or self._next_text == self._kept.good  # the file is another one: nothing takes it
            if not remembered and not self._keep(replace(self._kept, refused=self._next_text)):
                raise ConfigurationError("confirm", trial_s, "not possible: the state directory cannot be written")
        return policy

    def taken(self, *, trial_s: float | None = None) -> str:
        """The next one is in force; returns what of that is worth saying."""
        unchanged = self._text == self._next_text
        self._text, self._alarm, self._until_s = self._next_text, None, None
        self._trial_is_candidate = self._next_is_candidate
        if trial_s is None or self._text == self._kept.good:
            try:
                self._install()
            except OSError as problem:
                self._candidate.discard()
                return f"in force, but {self.file} cannot be written: {problem.strerror}; a restart takes what it says"
            if self._keep(Kept(good=self._text)):
                if trial_s is None:
                    return "taken"
                return f"{'unchanged' if unchanged else 'taken, it is the confirmed one'}, nothing to confirm"
            return f"in force, but not kept in {self._state_dir} (see the log): free some space and reload again"
        self._until_s, self._trial_s = self._clock() + trial_s, trial_s
        return f"taken on trial: without `hive-qos apply --confirm` within {trial_s:g} s the former one comes back"

    def refused(self, problem: Exception) -> str:
        """The next one is not in force, the former one holds; returns the words for it."""
        text = f"not taken, the former one holds: {problem}"
        if self._next_is_candidate:  # the file says what is in force
            self._candidate.discard()
            self._log.error("configuration-rejected", error=_one_line(text))
            return text
        self._alarm = Alarm(code="configuration-rejected", subject=_FILE, text=_one_line(text))
        self._log.error("configuration-rejected", error=self._alarm.text)
        if self._until_s is not None and self._kept.refused != self._text:
            # What is still on trial is not good either, if we start again now.
            self._keep(replace(self._kept, refused=self._text))
        return text

    def confirm(self) -> bool:
        """What is on trial is good; False when nothing is.

        Raises:
            ConfigurationError: that cannot be remembered; the trial goes on.
        """
        if self._until_s is None:
            return False
        try:
            self._install()
        except OSError as problem:
            why = f"not possible: {self.file} cannot be written: {problem.strerror}"
            raise ConfigurationError("confirm", "now", why) from problem
        if not self._keep(Kept(good=self._text)) and not self._trial_is_candidate:  # its file says it
            raise ConfigurationError("confirm", "now", "not possible: the state directory cannot be written")
        self._until_s = None
        self._log.info("configuration-confirmed")
        return True

    def overdue(self) -> Policy | None:
        """The good policy, once the trial is over without a word: it is to be put in force. None otherwise."""
        if self._until_s is None or self._clock() < self._until_s:
            return None
        return self._go_back(f"not confirmed within {self._trial_s:g} s")

    def give_up(self) -> Policy | None:
        """End the trial now; the good policy, to be put in force, None where nothing is on trial."""
        return None if self._until_s is None else self._go_back("the trial was given up")

    def settle(self) -> bool:
        """Forget that a trial ended unconfirmed, once the file says what is in force; whether one was forgotten."""
        if self._until_s is not None or self._alarm is None or self._alarm.code != "configuration-rolled-back":
            return False
        if self._file_agrees() and self._keep(Kept(good=self._text)):
            self._alarm = None
        return self._alarm is None

    def _install(self) -> None:
        """Replace the file by a candidate that is good; one that was on trial before this reload is over.

        Raises:
            OSError: it cannot be written.
        """
        if self._trial_is_candidate:
            self._candidate.install(self._text)
        else:
            self._candidate.discard()

    def _file_agrees(self) -> bool:
        """Whether the file says what is in force."""
        try:
            return self._source.read() == self._text
        except HiveError:
            return False

    def _go_back(self, why: str) -> Policy | None:
        self._until_s = None
        self._candidate.discard()
        good = self._good()
        if good is None:  # nothing good was ever kept: the state directory could not be written at the start
            self._log.error("rollback-impossible")
            return None
        self._text = self._kept.good or ""
        if self._file_agrees():
            self._log.warning("configuration-trial-ended", note=why)
        else:
            self._hold_former("configuration-rolled-back", why)
        return good

    @property
    def file(self) -> str | None:
        """The file that is read, None where it is none."""
        return self._source.file

    @property
    def trial_left_s(self) -> float | None:
        """How long the trial goes on, None where nothing is on trial."""
        return None if self._until_s is None else max(0.0, self._until_s - self._clock())

    def alarms(self) -> tuple[Alarm, ...]:
        """Whether the configuration needs attention."""
        if self._until_s is not None:
            text = (
                f"on trial: without `hive-qos apply --confirm` the former one comes back in {self.trial_left_s:.0f} s"
            )
            return (Alarm(code="configuration-unconfirmed", subject=_FILE, text=text),)
        return () if self._alarm is None else (self._alarm,)

    # --- small parts ---------------------------------------------------------------------------------------------

    def _good(self) -> Policy | None:
        if self._kept.good is None:
            return None
        try:
            return self._source.parse(self._kept.good)
        except HiveError as problem:  # of an earlier version of ours
            self._log.error("last-good-unusable", error=str(problem))
            return None

    def _hold_former(self, code: str, why: str) -> None:
        text = _one_line(f"the last good one is in force, not the file's: {why}")
        self._alarm = Alarm(code=code, subject=_FILE, text=text)
        self._log.error("configuration-fallback", error=text)

    def _keep(self, kept: Kept) -> bool:
        try:
            write_kept(self._state_dir, kept)
        except OSError as problem:
            self._log.error("last-good-not-saved", error=str(problem))
            return False
        self._kept = kept
        return True


def state_dir_in(text: str) -> str:
    """The state directory that a configuration with a mistake names; the default's where it cannot be told."""
    with contextlib.suppress(ValueError, RecursionError):  # no TOML, or numbers too long
        named = tomllib.loads(text).get("daemon")
        if isinstance(named, dict) and isinstance(named.get("state_dir"), str):
            return str(named["state_dir"])
    return DaemonPolicy().state_dir


def _one_line(text: str) -> str:
    """For alarms and the log, which escape line breaks: several mistakes come one to a line."""
    return "; ".join(text.splitlines())


def read_kept(state_directory: str) -> Kept:
    """What is kept there; nothing where the file is not there, damaged, or could be somebody else's.

    It is trusted as `broker.toml` is: the directory and the file have to be root's or our own.
    """
    path = Path(state_directory) / KEPT_NAME
    try:
        if not all(is_trusted(os.lstat(place)) for place in (state_directory, path)):
            return Kept()
        with open(path, encoding="utf-8", opener=_without_links) as file:
            entry = json.loads(file.read(_KEPT_BYTES_MAX))
        good, refused = entry["good"], entry["refused"]
    except (OSError, ValueError, KeyError, TypeError):
        return Kept()
    if entry.get("version") != _KEPT_VERSION or not all(
        text is None or isinstance(text, str) for text in (good, refused)
    ):
        return Kept()
    return Kept(good=good, refused=refused)


def write_kept(state_directory: str, kept: Kept) -> None:
    """Replace what is kept.

    Raises:
        OSError: it cannot be written; what was kept stays.
    """
    entry = {"version": _KEPT_VERSION, "good": kept.good, "refused": kept.refused}
    write_whole(Path(state_directory) / KEPT_NAME, json.dumps(entry, indent=1))


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)

"""Which configuration holds: the transcript of what an operator does, and what a daemon makes of it, killed or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.daemon.config_file import candidate_place
from broker.daemon.config_store import KEPT_NAME, ConfigStore, Kept, Source, read_kept, write_kept
from broker.events.log import open_log
from broker.policy.settings import Setting
from broker.policy.toml import load
from broker.policy.types import TRIAL_S_MAX, TRIAL_S_MIN, Policy
from hive_qos.errors import ConfigurationError, HiveError

BAD = "version = 1\n"
TRIAL_S = 60.0


def text(mbit: int) -> str:
    return f'version = 1\n[[interface]]\nname = "eth0"\negress = "{mbit} Mbit/s"\n'


def rate(policy: Policy | None) -> int:
    assert policy is not None
    return (policy.interfaces[0].egress_bits_per_s or 0) // 1_000_000


@dataclass
class Host:
    """A state directory, a file, a clock."""

    state: Path
    file: str = text(10)
    now_s: float = 0.0
    daemons: list[ConfigStore] = field(default_factory=list)

    def start(self) -> ConfigStore:
        """A daemon starts, whether the last one was stopped or killed; what it starts with works."""
        source = Source(read=lambda: self.file, parse=self.parse, state_dir=str(self.state))
        self.daemons.append(ConfigStore(source, log=open_log(), clock=lambda: self.now_s))
        return self.daemons[-1]

    def parse(self, text: str, settings: Sequence[Setting] = ()) -> Policy:
        policy = load(text, settings=settings)
        return replace(policy, daemon=replace(policy.daemon, state_dir=str(self.state)))

    def started_with(self) -> int:
        daemon = self.start()
        found = rate(daemon.first)
        daemon.started()
        return found

    def codes(self) -> list[str]:
        return [alarm.code for alarm in self.daemons[-1].alarms()]

    def reload(self, mbit: int, *, trial_s: float | None = None) -> str:
        self.file = text(mbit)
        assert rate(self.daemons[-1].next(trial_s=trial_s)) == mbit
        return self.daemons[-1].taken(trial_s=trial_s)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "state").mkdir(mode=0o700)
    return Host(tmp_path / "state")


def test_a_file_that_turns_out_bad_at_a_start_does_not_end_what_worked(host: Host) -> None:
    assert host.started_with() == 10
    host.file = BAD
    assert host.started_with() == 10
    assert host.codes() == ["configuration-rejected"]
    host.file = text(20)
    assert host.started_with() == 20
    assert host.codes() == []


def test_several_mistakes_are_one_line_in_the_alarm_at_a_reload_and_at_a_start(host: Host) -> None:
    host.started_with()
    host.file = BAD + "daemom = 1\n"
    with pytest.raises(HiveError) as mistakes:
        host.daemons[-1].next()
    assert "\n" in host.daemons[-1].refused(mistakes.value), "a terminal shows them one to a line"
    assert "\n" not in host.daemons[-1].alarms()[0].text
    assert host.started_with() == 10
    (alarm,) = host.daemons[-1].alarms()
    assert "\n" not in alarm.text
    assert "daemom" in alarm.text
    assert "interface" in alarm.text


def test_a_bad_file_with_nothing_good_behind_it_is_the_error_that_it_is(host: Host) -> None:
    host.file = BAD
    with pytest.raises(HiveError, match="interface"):
        host.start()


def test_what_cannot_be_taken_up_at_a_start_gives_way_to_the_last_good_one(host: Host) -> None:
    host.started_with()
    host.file = text(20)
    daemon = host.start()
    assert rate(daemon.instead(daemon.first, ConfigurationError("interface.name", "eth0", "no such interface"))) == 10
    daemon.started()
    assert host.codes() == ["configuration-rejected"]
    assert read_kept(str(host.state)).good == text(10)


def test_the_last_good_one_that_cannot_be_taken_up_has_nothing_behind_it(host: Host) -> None:
    host.started_with()
    daemon = host.start()
    assert daemon.instead(daemon.first, OSError("no")) is None


def test_a_trial_that_is_confirmed_is_the_last_good_one(host: Host) -> None:
    host.started_with()
    host.reload(20, trial_s=TRIAL_S)
    assert host.codes() == ["configuration-unconfirmed"]
    assert host.daemons[-1].confirm()
    host.now_s += 2 * TRIAL_S
    assert host.daemons[-1].overdue() is None
    assert host.codes() == []
    assert not host.daemons[-1].confirm()
    assert host.started_with() == 20


def test_a_trial_without_a_word_goes_back_once_and_the_next_start_does_not_take_it_up(host: Host) -> None:
    host.started_with()
    host.reload(20, trial_s=TRIAL_S)
    host.now_s += TRIAL_S - 0.1
    assert host.daemons[-1].overdue() is None
    host.now_s += 0.2
    assert rate(host.daemons[-1].overdue()) == 10
    assert host.daemons[-1].overdue() is None
    assert host.codes() == ["configuration-rolled-back"]
    assert not host.daemons[-1].confirm()
    assert host.started_with() == 10
    assert host.codes() == ["configuration-rejected"]
    host.reload(20)  # said again, and plainly
    assert host.codes() == []
    assert host.started_with() == 20


def test_a_daemon_that_is_killed_in_a_trial_starts_with_the_confirmed_one(host: Host) -> None:
    host.started_with()
    host.reload(20, trial_s=TRIAL_S)
    assert host.started_with() == 10
    assert host.started_with() == 10
    host.file = text(30)  # another text is another try
    assert host.started_with() == 30


def test_a_trial_upon_a_trial_goes_back_to_the_confirmed_one(host: Host) -> None:
    host.started_with()
    host.reload(20, trial_s=TRIAL_S)
    host.now_s += TRIAL_S / 2
    host.reload(30, trial_s=TRIAL_S)
    host.now_s += TRIAL_S * 0.75
    assert host.daemons[-1].overdue() is None
    host.now_s += TRIAL_S * 0.5
    assert rate(host.daemons[-1].overdue()) == 10


def test_a_trial_of_what_is_confirmed_already_says_that_there_is_nothing_to_confirm(host: Host) -> None:
    host.started_with()
    assert host.reload(10, trial_s=TRIAL_S) == "unchanged, nothing to confirm"
    assert not host.daemons[-1].confirm()
    assert host.reload(10) == "taken"
    assert "on trial" in host.reload(20, trial_s=TRIAL_S)
    assert host.reload(10, trial_s=TRIAL_S) == "taken, it is the confirmed one, nothing to confirm"
    assert not host.daemons[-1].confirm()


def test_a_trial_that_outlives_a_refused_one_is_not_taken_up_by_the_next_start(host: Host) -> None:
    host.started_with()
    host.reload(20, trial_s=TRIAL_S)
    host.file = text(30)
    host.daemons[-1].next(trial_s=TRIAL_S)
    host.daemons[-1].refused(HiveError("the kernel would not"))
    host.file = text(20)
    assert host.started_with() == 10


def test_a_bad_file_in_a_trial_leaves_the_trial_as_it_is(host: Host) -> None:
    host.started_with()
    host.reload(20, trial_s=TRIAL_S)
    host.file = BAD
    with pytest.raises(HiveError) as problem:
        host.daemons[-1].next()
    host.daemons[-1].refused(problem.value)
    host.now_s += TRIAL_S + 1
    assert rate(host.daemons[-1].overdue()) == 10


@pytest.mark.parametrize("trial_s", [0.0, -1.0, TRIAL_S_MIN / 2, TRIAL_S_MAX * 2, float("nan"), float("inf")])
def test_a_trial_has_a_length_that_somebody_can_answer_in(host: Host, trial_s: float) -> None:
    host.started_with()
    with pytest.raises(ConfigurationError, match="seconds"):
        host.daemons[-1].next(trial_s=trial_s)


def test_a_trial_that_could_not_be_remembered_is_not_begun(host: Host) -> None:
    host.started_with()
    host.file = text(20)
    (host.state / ".configuration.json.new").mkdir()  # in the way of what would be written
    with pytest.raises(ConfigurationError, match="cannot be written"):
        host.daemons[-1].next(trial_s=TRIAL_S)
    assert host.started_with() == 20  # nothing was on trial


def test_a_number_that_is_too_long_is_a_bad_file_like_another(host: Host) -> None:
    host.started_with()
    host.file = "version = " + "1" * 5000
    assert host.started_with() == 10


def test_a_bad_file_is_asked_where_the_state_is_kept(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    write_kept(str(tmp_path / "s"), Kept(good=text(10)))
    bad = f'[daemon]\nstate_dir = "{tmp_path}/s"\n'
    found = ConfigStore(Source(read=lambda: bad, parse=load), log=open_log()).first
    assert rate(found) == 10


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"version": 2, "good": "x", "refused": null}',
                                    '{"version": 1, "good": 5, "refused": null}'])  # fmt: skip
def test_a_damaged_memory_is_no_memory(host: Host, damage: str) -> None:
    (host.state / KEPT_NAME).write_text(damage)
    assert read_kept(str(host.state)) == Kept()
    assert host.started_with() == 10


@pytest.mark.parametrize("where", [".", KEPT_NAME])
def test_what_others_could_have_written_is_not_believed(host: Host, where: str) -> None:
    host.started_with()
    assert read_kept(str(host.state)) == Kept(good=text(10))
    os.chmod(host.state / where, 0o777)
    assert read_kept(str(host.state)) == Kept()


def test_nobody_else_reads_what_is_kept(host: Host) -> None:
    host.started_with()
    assert (host.state / KEPT_NAME).stat().st_mode & 0o777 == 0o600


def test_a_trial_that_is_given_up_goes_back_at_once_and_is_forgotten_when_the_file_is_back(host: Host) -> None:
    assert host.started_with() == 10
    store = host.daemons[-1]
    assert store.give_up() is None
    assert not store.settle()
    host.reload(20, trial_s=TRIAL_S)
    assert store.trial_left_s == TRIAL_S
    assert rate(store.give_up()) == 10
    assert store.trial_left_s is None
    assert not store.settle()  # the file says otherwise
    assert host.codes() == ["configuration-rolled-back"]
    host.file = text(10)
    assert store.settle()
    assert host.codes() == []
    assert host.started_with() == 10
    assert host.codes() == []


class Offered:
    """A daemon whose configuration is a real file, and `hive-qos apply` beside it."""

    def __init__(self, folder: Path) -> None:
        (folder / "state").mkdir(mode=0o700)
        self.folder, self.file, self.now_s = folder, folder / "broker.toml", 0.0
        self.file.write_text(text(10))
        self.file.chmod(0o640)

    def start(self) -> int:
        source = Source(
            read=lambda: self.file.read_text(),
            parse=Host(self.folder / "state").parse,
            state_dir=str(self.folder / "state"),
            file=str(self.file),
        )
        self.store = ConfigStore(source, log=open_log(), clock=lambda: self.now_s)
        self.store.started()
        return rate(self.store.first)

    def offer(self, text_: str, *, trial_s: float | None = TRIAL_S) -> str:
        candidate_place(self.file).write_text(text_)
        try:
            self.store.next(trial_s=trial_s, candidate=True)
        except HiveError as problem:
            return self.store.refused(problem)
        return self.store.taken(trial_s=trial_s)

    def inode(self) -> int:
        return self.file.stat().st_ino

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def offered(tmp_path: Path) -> Offered:
    found = Offered(tmp_path)
    assert found.start() == 10
    return found


def test_a_candidate_becomes_the_file_when_it_is_confirmed_and_not_before(offered: Offered) -> None:
    assert "on trial" in offered.offer(text(20))
    assert offered.file.read_text() == text(10)
    candidate = candidate_place(offered.file).stat().st_ino
    assert offered.store.confirm()
    assert (offered.file.read_text(), offered.inode()) == (text(20), candidate)
    assert offered.files() == ["broker.toml", "state"]
    assert offered.start() == 20
    assert offered.store.alarms() == ()


def test_a_candidate_that_nobody_confirms_was_never_in_the_file_and_a_later_reload_does_not_take_it(
    offered: Offered,
) -> None:
    offered.offer(text(20))
    offered.now_s += TRIAL_S
    assert rate(offered.store.overdue()) == 10
    assert offered.store.alarms() == ()
    assert offered.files() == ["broker.toml", "state"]
    assert rate(offered.store.next()) == 10
    assert offered.store.taken() == "taken"


def test_a_daemon_that_is_killed_in_the_trial_of_a_candidate_starts_with_the_file_and_nothing_to_say(
    offered: Offered,
) -> None:
    offered.offer(text(20))
    assert offered.start() == 10
    assert offered.store.alarms() == ()
    assert offered.files() == ["broker.toml", "state"]


def test_a_candidate_without_a_trial_is_the_file_at_once(offered: Offered) -> None:
    assert offered.offer(text(20), trial_s=None) == "taken"
    assert offered.file.read_text() == text(20)
    assert offered.start() == 20


def test_a_candidate_that_is_refused_leaves_the_file_and_no_alarm(offered: Offered) -> None:
    assert "not taken" in offered.offer(BAD)
    assert offered.store.alarms() == ()
    assert (offered.file.read_text(), offered.files()) == (text(10), ["broker.toml", "state"])


def test_a_reload_in_the_trial_of_a_candidate_takes_the_file_for_good(offered: Offered) -> None:
    offered.offer(text(20))
    assert rate(offered.store.next()) == 10
    assert offered.store.taken() == "taken"
    assert offered.store.trial_left_s is None
    assert offered.files() == ["broker.toml", "state"]


def test_a_second_candidate_that_is_refused_leaves_the_first_one_on_trial(offered: Offered) -> None:
    offered.offer(text(20))
    assert "not taken" in offered.offer(BAD)
    assert offered.store.confirm()
    assert offered.file.read_text() == text(20)
    assert offered.file.stat().st_mode & 0o777 == 0o640


def test_a_confirmed_candidate_that_cannot_become_the_file_stays_on_trial(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered.offer(text(20))
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise OSError(30, "Read-only file system")

        patched.setattr(Path, "replace", fail)
        with pytest.raises(ConfigurationError, match="Read-only"):
            offered.store.confirm()
    assert offered.store.trial_left_s == TRIAL_S
    assert offered.store.confirm()
    assert offered.file.read_text() == text(20)


def test_a_candidate_is_refused_where_the_broker_could_not_make_it_the_file(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "may not write in" in offered.offer(text(20))
    assert offered.file.read_text() == text(10)


def test_settings_are_put_over_the_configuration_in_force_and_never_kept_with_it(host: Host) -> None:
    host.started_with()
    setting = Setting("class", "storage", "weight", "3")
    store = host.daemons[-1]
    assert store.with_settings((setting,)).class_policy("storage").weight == 3
    assert store.with_settings(()).class_policy("storage").weight == 2
    host.file = text(20)
    store.next()
    both = store.with_settings((setting,), reloading=True)
    assert (rate(both), both.class_policy("storage").weight) == (20, 3)
    assert read_kept(str(host.state)).good == text(10)

"""A program's own limit: what is set, when, whose it is, and what is put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.adapters.follower import AWAY_S, READ_PART, READ_S, Follower
from broker.adapters.limiter import Limiter, read_record, records
from broker.adapters.program import Backlog, ProgramError, Settings, StorageAdapter
from broker.client.mailbox import Allowance
from broker.policy.types import StorageProgram

PROGRAM = StorageProgram(name="photos", kind="syncthing", url="http://127.0.0.1:8384")
MBIT = 1_000_000


class Program(StorageAdapter):
    """A program in memory. `fails` makes the next call do so; `cut` makes writes take effect and fail."""

    limits = True
    limit_keys: tuple[str, ...] = ("rate",)

    def __init__(self, own: int = 0) -> None:
        self.rate, self.run, self.fails, self.cut = own, "first", False, False
        self.writes: list[int] = []

    def read(self) -> Backlog:
        return Backlog()

    def settings(self) -> tuple[str, Settings]:
        self._fail()
        return self.run, {"rate": self.rate}

    def limited(self, found: Settings, rate_bits_per_s: int) -> Settings | None:
        return {"rate": min(rate_bits_per_s, found["rate"] or rate_bits_per_s)}

    def write(self, settings: Settings) -> None:
        self._fail()
        self.rate = settings["rate"]
        self.writes.append(self.rate)
        if self.cut:
            raise ProgramError("unreachable", "cut off")

    def rate_bits_per_s(self, settings: Settings) -> int | None:
        return settings["rate"] or None

    def _fail(self) -> None:
        if self.fails:
            raise ProgramError("unreachable", "gone")


class Bench:
    def __init__(self, directory: Path, own: int = 0) -> None:
        self.directory, self.program, self.now_s = directory, Program(own), 0.0
        self.limiter = Limiter(PROGRAM, self.program, directory)

    def killed(self) -> None:
        """The adapter dies without a word, and another one starts."""
        self.limiter = Limiter(PROGRAM, self.program, self.directory)

    def follow(self, ceiling: int, *, guarantee: int = 0, after_s: float = 20.0) -> int:
        self.now_s += after_s
        self.limiter.follow(ceiling_bits_per_s=ceiling, guarantee_bits_per_s=guarantee, now_s=self.now_s)
        return self.program.rate


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_limit_is_a_tenth_above_the_ceiling_and_never_below_the_guarantee(bench: Bench) -> None:
    assert bench.follow(10 * MBIT) == 11 * MBIT
    assert bench.follow(10 * MBIT, guarantee=15 * MBIT) == 15 * MBIT


def test_the_operators_own_lower_limit_is_not_raised(tmp_path: Path) -> None:
    assert Bench(tmp_path, own=3 * MBIT).follow(10 * MBIT) == 3 * MBIT


def test_it_is_written_for_changes_of_over_a_tenth_and_not_within_two_seconds(bench: Bench) -> None:
    bench.follow(10 * MBIT)
    assert bench.follow(10 * MBIT + 900_000) == 11 * MBIT
    assert bench.follow(20 * MBIT) == 22 * MBIT
    assert bench.follow(40 * MBIT, after_s=1.9) == 22 * MBIT
    assert bench.follow(40 * MBIT, after_s=0.2) == 44 * MBIT
    assert len(bench.program.writes) == 3


@pytest.mark.parametrize("own", [0, 50 * MBIT])
def test_what_was_found_is_put_back(tmp_path: Path, own: int) -> None:
    bench = Bench(tmp_path, own)
    bench.follow(10 * MBIT)
    assert bench.limiter.restore() == "its own limit is back"
    assert bench.program.rate == own
    assert records(tmp_path) == []
    assert bench.limiter.restore() is None


def test_an_adapter_that_was_killed_puts_back_what_the_first_one_found(bench: Bench) -> None:
    bench.follow(10 * MBIT)
    bench.killed()
    bench.follow(30 * MBIT)
    bench.killed()
    bench.limiter.restore()
    assert bench.program.rate == 0


@pytest.mark.parametrize("reached", [False, True], ids=["before the write", "after it"])
def test_a_write_that_was_cut_off_is_ours_not_the_operators(bench: Bench, reached: bool) -> None:
    bench.follow(10 * MBIT)
    bench.program.cut = True
    with pytest.raises(ProgramError):
        bench.follow(30 * MBIT)
    if not reached:
        bench.program.rate = 11 * MBIT
    bench.program.cut = False
    bench.killed()
    assert bench.follow(30 * MBIT) == 33 * MBIT
    bench.limiter.restore()
    assert bench.program.rate == 0


def test_a_first_write_that_failed_is_made_again(bench: Bench) -> None:
    bench.program.cut = True
    with pytest.raises(ProgramError):
        bench.follow(10 * MBIT)
    bench.program.rate, bench.program.cut = 0, False
    assert bench.follow(10 * MBIT) == 11 * MBIT


@pytest.mark.parametrize("theirs", [2 * MBIT, 500 * MBIT, 0], ids=["lower", "higher", "none, as at first"])
def test_a_change_by_hand_wins_and_stays_at_the_end_and_after_a_crash(bench: Bench, theirs: int) -> None:
    bench.follow(10 * MBIT)
    bench.program.rate = theirs
    assert bench.follow(10 * MBIT) == theirs
    assert "by hand" in bench.limiter.note
    bench.killed()
    assert bench.follow(30 * MBIT) == theirs
    assert bench.limiter.restore() is not None
    assert bench.program.rate == theirs


def test_a_program_that_restarted_with_its_own_limit_gets_ours_again(bench: Bench) -> None:
    bench.follow(10 * MBIT)
    bench.program.rate, bench.program.run = 0, "second"
    assert bench.follow(10 * MBIT) == 11 * MBIT
    bench.program.rate, bench.program.run = 7 * MBIT, "third"  # configured otherwise meanwhile
    assert bench.follow(10 * MBIT) == 7 * MBIT
    bench.program.rate = 5 * MBIT
    bench.follow(10 * MBIT)
    bench.limiter.restore()
    assert bench.program.rate == 5 * MBIT


def test_where_runs_have_one_name_the_limit_of_before_us_is_a_restart_and_another_one_a_change_by_hand(
    bench: Bench,
) -> None:
    bench.program.runs_alike = True
    bench.follow(10 * MBIT)
    bench.program.rate = 0
    assert bench.follow(20 * MBIT) == 22 * MBIT
    assert bench.limiter.note == ""
    bench.program.rate = 2 * MBIT
    assert bench.follow(20 * MBIT) == 2 * MBIT
    assert "by hand" in bench.limiter.note
    assert bench.follow(30 * MBIT) == 2 * MBIT, "it stays by hand, though it is what is found now"


class Photos(Program):
    """One with a limit of what it receives, which is the operator's alone, and a switch that we turn on."""

    limit_keys = ("rate", "in_lan")

    def __init__(self) -> None:
        super().__init__()
        self.in_lan, self.receives = False, 0

    def settings(self) -> tuple[str, Settings]:
        return self.run, {"rate": self.rate, "in_lan": self.in_lan, "receives": self.receives}

    def limited(self, found: Settings, rate_bits_per_s: int) -> Settings | None:
        if found["receives"] and not found["in_lan"]:
            return None
        return {**found, "rate": rate_bits_per_s, "in_lan": True}

    def write(self, settings: Settings) -> None:
        self.in_lan = bool(settings["in_lan"])
        super().write(settings)


@pytest.fixture
def photos(bench: Bench) -> Photos:
    bench.program = program = Photos()
    bench.killed()
    bench.follow(10 * MBIT)
    assert (program.rate, program.in_lan) == (11 * MBIT, True)
    return program


@pytest.mark.parametrize("run", ["first", "second"])
def test_another_setting_that_the_operator_changes_is_no_change_of_its_limit(
    bench: Bench, photos: Photos, run: str
) -> None:
    photos.receives, photos.run = 2 * MBIT, run
    bench.follow(20 * MBIT)
    assert (photos.rate, photos.in_lan) == (0, False), "with that limit, ours would hold what he wanted to spare"
    assert "spares the local network" in bench.limiter.note
    photos.receives = 0
    bench.follow(20 * MBIT)
    assert (photos.rate, photos.in_lan, bench.limiter.note) == (22 * MBIT, True, "")
    bench.limiter.restore()
    assert (photos.rate, photos.in_lan) == (0, False)


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("run", ["first", "second"])
def test_of_a_change_by_hand_what_still_is_ours_is_put_back(bench: Bench, photos: Photos, seen: bool, run: str) -> None:
    photos.rate, photos.run = 5 * MBIT, run
    if seen and run == "first":
        bench.follow(20 * MBIT)
        assert "by hand" in bench.limiter.note
        bench.killed()
    bench.limiter.restore()
    assert (photos.rate, photos.in_lan) == (5 * MBIT, False)


@pytest.mark.parametrize("in_lan", [False, True])
def test_a_change_by_hand_wins_also_when_the_program_has_restarted_since(bench: Bench, in_lan: bool) -> None:
    bench.program = program = Photos()
    program.in_lan = in_lan
    bench.killed()
    bench.follow(10 * MBIT)
    program.rate = 5 * MBIT
    for run in ("first", "second", "second", "third"):
        program.run = run
        bench.follow(20 * MBIT)
        assert (program.rate, program.in_lan) == (5 * MBIT, True), run
        assert "by hand" in bench.limiter.note
    program.rate = 0
    assert bench.follow(20 * MBIT) == 0
    bench.limiter.restore()
    assert (program.rate, program.in_lan) == (0, in_lan)


def test_a_program_that_restarts_with_the_limit_that_is_wanted_has_not_been_changed_by_hand(bench: Bench) -> None:
    bench.follow(10 * MBIT)
    bench.program.rate, bench.program.run = 22 * MBIT, "second"
    for _ in range(3):
        assert bench.follow(20 * MBIT) == 22 * MBIT
        assert bench.limiter.note == ""
    assert bench.follow(10 * MBIT) == 11 * MBIT


def test_what_cannot_be_kept_is_not_set(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "there")

    monkeypatch.setattr("broker.adapters.limiter.write_whole", full)
    with pytest.raises(OSError, match="No space"):
        bench.follow(10 * MBIT)
    assert bench.program.writes == []


def test_a_program_that_is_gone_keeps_its_record_for_the_next_try(bench: Bench) -> None:
    bench.follow(10 * MBIT)
    bench.program.fails = True
    with pytest.raises(ProgramError):
        bench.limiter.restore()
    bench.program.fails = False
    bench.limiter.restore()
    assert bench.program.rate == 0


def test_two_programs_of_one_name_do_not_share_a_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.follow(10 * MBIT)
    other = Program(own=4 * MBIT)
    elsewhere = StorageProgram(name="photos", kind="syncthing", url="http://127.0.0.1:8385")
    Limiter(elsewhere, other, tmp_path).follow(ceiling_bits_per_s=MBIT, guarantee_bits_per_s=0, now_s=0.0)
    assert {record.found["rate"] for record in records(tmp_path)} == {0, 4 * MBIT}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"program": 1}', "\x00"])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "photos.json"
    path.write_text(text)
    assert read_record(path) is None


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Busy(Program):
    """It takes long to fail to say its backlog, as with a database that is large."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(own=90 * MBIT)
        self.clock, self.reads = clock, 0

    def read(self) -> Backlog:
        self.reads += 1
        self.clock.now_s += 5.0
        raise ProgramError("unreachable", "no answer within 5 s")


class Declared:
    """A session with a broker: what it allows."""

    def __init__(self) -> None:
        self.allowance: Allowance | None = None
        self.need = self.program = lambda **_: None


class Log:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowed(ceiling: int) -> Allowance:
    return Allowance(ceiling_bits_per_s=ceiling, guarantee_bits_per_s=0)


def test_a_program_that_does_not_take_its_limit_declares_nothing_until_it_answers(tmp_path: Path, clock: Clock) -> None:
    program, session = Program(), Declared()
    declared: list[int] = []
    session.need = lambda **said: declared.append(said["backlog_bytes"])
    session.allowance = allowed(10 * MBIT)
    follower = Follower(PROGRAM, program, Limiter(PROGRAM, program, tmp_path), session, log=Log(), clock=clock)
    for fails, declares in ((False, 1), (True, 0), (False, 1)):  # the third when it is read again
        declared.clear()
        program.fails = fails
        clock.now_s += READ_S / 2
        session.allowance = allowed(20 * MBIT if fails else 10 * MBIT)  # so that it looks at the program
        follower.round()
        assert len(declared) == declares


def test_where_a_program_does_not_tell_its_backlog_its_limit_follows_and_goes_all_the_same(
    tmp_path: Path, clock: Clock
) -> None:
    program, session = Busy(clock), Declared()
    follower = Follower(PROGRAM, program, Limiter(PROGRAM, program, tmp_path), session, log=Log(), clock=clock)

    def rounds(seconds: float) -> int:
        until_s = clock.now_s + seconds
        while clock.now_s < until_s:
            clock.now_s += 2.0
            follower.round()
        return program.rate

    session.allowance = allowed(10 * MBIT)
    assert rounds(20.0) == 11 * MBIT
    session.allowance = allowed(40 * MBIT)
    assert rounds(20.0) == 44 * MBIT
    session.allowance = None
    assert rounds(AWAY_S + 20.0) == 90 * MBIT
    before = program.reads
    rounds(1000.0)
    assert program.reads - before <= 1000.0 / max(READ_S, 5.0 / READ_PART) + 1

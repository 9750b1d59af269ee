"""The broker's benchmark: figures of the scenarios beside the three of training, on records whose figures are plain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from hive_qos.errors import HiveError
from tools.brokerbench import report, scenes, syncthing, variants
from tools.brokerbench.figures import changing as changing_figures
from tools.brokerbench.figures import failing as failing_figures
from tools.brokerbench.figures.blocks import Figures
from tools.brokerbench.programs import ending
from tools.brokerbench.run import Run
from tools.brokerbench.scenarios import faults
from tools.brokerbench.scenarios.inbound import conditions
from tools.brokerbench.settings import Settings
from tools.measure import fixed_inbound
from tools.measure.records import Writer

MBIT = 1_000_000
HEAD: dict[str, Any] = {"scenarios": [], "settings": {}}


def sample(t_s: float, counted: float) -> dict[str, Any]:
    cpu = {"busy_s": t_s, "total_s": 2 * t_s, "steal_s": 0.0}
    return {"t_s": t_s, "host": "r", "interfaces": {"x": [counted, 0, counted, 0]}, "cpu": cpu}


def step(rank: int, number: int, begin_s: float, end_s: float) -> dict[str, Any]:
    row = {"rank": rank, "step": number, "start_s": begin_s, "end_s": end_s, "step_s": end_s - begin_s}
    return {**row, "reduce_s": end_s - begin_s, "cpu_s": 0.0}


def changing(condition: str, ticks: list[tuple[float, int]], *, delay_s: float = 0.01) -> dict[str, Any]:
    """Twenty seconds each at 100, 30 and 70 Mbit/s; what crosses is 90 % of 30 Mbit/s all the time."""
    parts = [
        {"rate_bits_per_s": rate * MBIT, "begin_s": 20.0 * place, "end_s": 20.0 * (place + 1)}
        for place, rate in enumerate((100, 30, 70))
    ]
    decided = [{"t_s": t_s, "capacity_bits_per_s": capacity * MBIT} for t_s, capacity in ticks]
    return {
        "scenario": "capacity",
        "condition": condition,
        "round": 0,
        "parts": parts,
        "crossed": ["r", "x", 0],
        "decisions": {"a": decided} if decided else {},
        "steps": {"training": [step(0, 0, 30.0, 31.0), step(0, 1, 59.5, 60.5)]},
        "samples": {"r": [sample(float(t_s), 0.9 * 30 * MBIT / 8 * t_s) for t_s in range(61)]},
        "sink": [],
        "echoes": [[t_s / 10, 0.3 if 200 <= t_s < 225 else delay_s] for t_s in range(600)],
    }


def every_tick(*held: tuple[float, int]) -> list[tuple[float, int]]:
    """What was decided ten times a second, from values that hold from a time on."""
    return [(t / 10, [value for since_s, value in held if since_s <= t / 10][-1]) for t in range(600)]


def test_a_drain_is_not_yet_following() -> None:
    # 0.9 s after the fall it drains at half of a rate that is too high still, until 0.7 s later; right after 2.5 s
    ticks = every_tick((0, 97), (20.9, 20), (21.6, 40), (22.5, 28), (43.0, 66))
    found = changing_figures.capacity([changing("brokered", ticks)])["brokered"]
    assert found["fall_s"] == {"median": pytest.approx(2.5), "high": pytest.approx(2.5), "missed": 0}
    assert found["rise_s"]["median"] == pytest.approx(3.0)


def test_delay_and_use_count_once_settled_and_whoever_does_not_decide_does_not_follow() -> None:
    found = changing_figures.capacity([changing("none", [])])["none"]
    assert found["fall_s"] is None
    assert found["delay_s"] == 0.01  # the queue of the first 2.5 s after the fall has been drained
    assert (found["parts"]["fall"]["whole"]["delay_s"], found["whole"]["delay_s"]) == (0.3, 0.3)
    assert found["whole"]["used"] == pytest.approx(0.27)
    assert found["parts"]["rise"]["whole"]["delay_s"] == 0.01
    assert found["parts"]["fall"]["used"] == pytest.approx(0.9)
    assert found["used"] == pytest.approx(0.27)
    assert found["parts"]["fall"]["step_s"] == 1.0
    assert found["parts"]["rise"]["step_s"] is None  # it ended after the part


def test_a_round_that_never_follows_misses_the_goal() -> None:
    records = [
        changing("brokered", every_tick((0, 97), (21.0, 28), (43.0, 66))),
        changing("brokered", every_tick((0, 97))),
    ]
    for record in records:
        record["kind"] = "block"
    found = report.compute(HEAD, records)
    goals = {goal["name"]: goal for goal in found["goals"]}
    assert found["scenarios"]["capacity"]["brokered"]["fall_s"]["missed"] == 1
    assert goals["capacity: a fall is followed, s"]["passed"] is False
    assert found["scenarios"]["capacity"]["brokered"]["rise_s"]["missed"] == 1, "it had nothing to rise from"


def inbound(condition: str, step_s: float, ticks: list[tuple[float, int]]) -> dict[str, Any]:
    """As `changing`, with a step in each settled second, storage's sink, and what the receiver takes its way in for."""
    record = changing(condition, [])
    record["scenario"], record["kind"] = "inbound", "block"
    rows = [(t_s, {"capacity_bits_per_s": 97 * MBIT, "inbound_bits_per_s": rate * MBIT}) for t_s, rate in ticks]
    record["decisions"] = {"b": [{"t_s": t_s, **row} for t_s, row in rows]} if rows else {}
    starts = (10.0, 12.0, 30.0, 32.0, 50.0, 52.0)
    record["steps"] = {"training": [step(0, n, at_s, at_s + step_s) for n, at_s in enumerate(starts)]}
    record["sink"] = [[float(t_s), 1448_000 * t_s] for t_s in range(61)]
    return record


def test_the_way_in_is_followed_by_the_receiver_and_steps_are_compared_part_by_part() -> None:
    followed = every_tick((0, 95), (21.0, 28), (43.0, 66))
    records = [inbound("idle", 0.5, []), inbound("brokered", 0.6, followed), inbound("brokered, IFB", 0.9, followed)]
    report_ = report.compute(HEAD, records)
    found = report_["scenarios"]["inbound"]
    assert found["idle"]["fall_s"] is None
    assert (found["brokered"]["fall_s"]["median"], found["brokered"]["rise_s"]["median"]) == (
        pytest.approx(1.0),
        pytest.approx(3.0),
    )
    assert [part["of_idle"] for part in found["brokered, IFB"]["parts"].values()] == 3 * [pytest.approx(1.8)]
    assert found["brokered"]["parts"]["fall"]["storage_bits_per_s"] == pytest.approx(8 * 1514_000)
    assert found["brokered"]["parts"]["fall"]["whole"]["storage_bits_per_s"] == pytest.approx(8 * 1514_000)
    goals = {goal["name"]: goal for goal in report_["goals"]}
    assert len(goals) == 7, "what is done at the receiver alone has none"
    assert all(name.startswith("inbound: ") for name in goals)
    steps = [goals[f"inbound: step of idle, median, {part}"] for part in ("start", "fall", "rise")]
    assert [(goal["value"], goal["passed"]) for goal in steps] == 3 * [(pytest.approx(1.2), False)]


def start(number: int, flooded_s: float, *, last_s: float, stored_bytes_per_s: float) -> dict[str, Any]:
    """14 s of steps of 0.5 s, then 14 s of longer ones while storage floods; training sends 5 MB/s all the time."""
    times = [(0.5 * n, 0.5 * (n + 1)) for n in range(28)]
    times += [(14.0 + flooded_s * n, 14.0 + flooded_s * (n + 1)) for n in range(int(14.0 / flooded_s) - 1)]
    times.append((28.0 - last_s, 28.0))
    return {
        "kind": "block",
        "scenario": "fresh",
        "condition": "brokered",
        "round": number,
        "rate_bits_per_s": 100 * MBIT,
        "end_s": 28.0,
        "counters": {"compute": ["r", "x", 0], "storage": None},
        "decisions": {},
        "steps": {"training": [step(0, n, begin_s, end_s) for n, (begin_s, end_s) in enumerate(times)]},
        "samples": {"r": [sample(t_s / 10, 5e5 * t_s) for t_s in range(281)]},
        "sink": [[t_s / 10, stored_bytes_per_s * max(0.0, t_s / 10 - 14.0)] for t_s in range(281)],
    }


def test_every_fresh_start_is_judged_by_itself() -> None:
    good = start(0, 0.5, last_s=0.5, stored_bytes_per_s=0.9 * 7.125e6 * 1448 / 1514)
    bad = start(1, 0.7, last_s=2.0, stored_bytes_per_s=0.5 * 7.125e6 * 1448 / 1514)
    found = report.compute(HEAD, [good, bad])
    one, other = found["scenarios"]["fresh"].values()
    assert (one["of_idle"], one["p95"], one["steps"]) == (1.0, 1.0, 28)
    assert one["storage_of_left"] == pytest.approx(0.9, rel=0.01), "of 97 Mbit/s less 40"
    assert (other["of_idle"], other["storage_of_left"]) == (pytest.approx(1.4), pytest.approx(0.5, rel=0.01))
    assert other["p95"] > 1.4
    goals = {goal["name"]: (goal["value"], goal["passed"]) for goal in found["goals"]}
    assert goals["fresh: starts"] == (2, False)
    assert goals["fresh, each of 2 starts: step of idle, median"] == (pytest.approx(1.4), False), "the worst one's"
    assert goals["fresh, each of 2 starts: storage of what is left"][1] is False


def test_a_start_in_whose_flood_no_step_ends_misses_every_bound() -> None:
    hangs = start(0, 0.5, last_s=0.5, stored_bytes_per_s=5e6)
    hangs["steps"]["training"] = hangs["steps"]["training"][:28]
    goals = {goal["name"]: goal["passed"] for goal in report.compute(HEAD, [hangs])["goals"]}
    assert goals["fresh, each of 1 starts: step of idle, median"] is False


def test_a_round_of_the_way_in_has_each_of_the_chosen_variants_once() -> None:
    chosen = Settings(variants=("none", "priority", "brokered"))
    assert conditions(chosen) == ("idle", "none", "brokered", "priority, IFB", "brokered, IFB")
    scene = scenes.inbound(Settings(), name="inbound")
    assert variants.brokers_of(scene, "brokered") == ("a", "b", "s", "t")
    assert variants.brokers_of(scene, "brokered, IFB") == ("a", "b")
    assert [variants.is_ours(name) for name in conditions(chosen)] == [False, False, True, False, True]


def test_an_administrators_tree_for_what_arrives_stays_at_92_percent_of_the_link() -> None:
    tree = fixed_inbound.tree(rate_bits_per_s=100 * MBIT, storage_share=0.2, borrowing=False, port=8731)
    (root,) = (command for command in tree.commands("x") if "1:1" in command and "class" in command and "1:" in command)
    assert root[root.index("ceil") + 1] == "92000000bit"


def test_a_scenario_that_takes_too_long_leaves_those_after_it_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("tools.brokerbench.run.time.monotonic", lambda: now_s)
    settings = Settings(scenario_seconds_max=60.0)
    run = Run(settings, Writer(tmp_path), say=print, show=print)
    for _ in range(2):
        run.begin()
        now_s += 59.0
        assert run.in_time
        now_s += 200.0
        assert not run.in_time
    run.writer.close()


def test_what_makes_the_load_lasts_longer_than_the_longest_scenario() -> None:
    """One ended in the fourth round of five, 15 minutes after it had begun."""
    settings = Settings()
    assert settings.scenario_seconds_max + 2 * settings.block_seconds_max < ending.SECONDS_MAX


def test_where_a_stage_of_faults_fails_each_of_its_faults_that_has_not_ended_is_a_failure_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Falling:
        """A stage that is there for the first fault, and breaks down with it."""

        def __init__(self, scene: scenes.Scene, *_: object, **__: object) -> None:
            if scene.name.endswith("-in"):
                raise HiveError("no namespaces")

        def __enter__(self) -> Falling:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def block(run: Run, _stage: Falling, _host: str, name: str, *_: object) -> None:
        if name == "link down and up":
            raise RuntimeError("a bug")
        run.write("block", "faults", condition=name)

    monkeypatch.setattr(faults, "Stage", Falling)
    monkeypatch.setattr(faults, "_block", block)
    run = Run(Settings(), Writer(tmp_path), say=print, show=print)
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(run.writer, "write", written.append)
    run.begin()
    with pytest.raises(RuntimeError, match="a bug"):
        faults.measure(run)
    monkeypatch.setattr(faults, "_block", lambda *_: None)
    faults.measure(run)
    assert [(row["kind"], row.get("what")) for row in written] == [
        ("block", None),
        *[("failure", name) for name in ("link down and up", "link down and up, no broker", "disk full")],
        *[("failure", name) for name in ("second broker", "clock set back")],
        *[("failure", name) for name in ("ingress device deleted", "ingress device deleted, no broker")],
        ("failure", "all on the way in"),
    ]
    run.writer.close()


class Hosts(dict[str, Any]):
    """One host, whose link has whatever rate."""

    links: ClassVar = {"up": SimpleNamespace(set_rate=lambda rate_bits_per_s: None)}


class Entered:
    """What a block of faults touches of a stage, written down; the broker never says that it holds storage back."""

    def __init__(self, *, enters: bool = True) -> None:
        self.done: list[str] = []
        self.enters = enters
        self.scene, self.lab = (
            SimpleNamespace(bottleneck="up", rate_bits_per_s=MBIT),
            Hosts(a=SimpleNamespace(name="a")),
        )
        self.brokers = SimpleNamespace(seats={}, status=lambda host: None, kill=lambda host: self.done.append("kill"))

    def enter(self, condition: str) -> None:
        self.done.append("enter")
        if not self.enters:
            raise HiveError("no sessions")

    def leave(self, condition: str) -> None:
        self.done.append("leave")

    def train(self, seconds: float) -> None:
        pass

    def forget(self) -> None:
        pass

    def rest(self) -> None:
        pass

    def seen(self) -> dict[str, Any]:
        return {}


def killed_in_a_hold(directory: Path, monkeypatch: pytest.MonkeyPatch, stage: Entered) -> dict[str, Any]:
    """What a block writes down."""
    run = Run(Settings(), Writer(directory), say=print, show=print)
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(run.writer, "write", written.append)
    monkeypatch.setattr(faults, "HOLD_WITHIN_S", 0.0)
    with run.guarded("faults", "killed in a hold"):
        faults._block(run, stage, "a", "killed in a hold", "brokered", faults._Faults.killed)  # type: ignore[arg-type]
    run.writer.close()
    (row,) = written
    return row


def test_a_broker_that_holds_nothing_back_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Entered()
    row = killed_in_a_hold(tmp_path, monkeypatch, stage)
    assert (row["kind"], row["condition"]) == ("not-tried", "killed in a hold")
    assert stage.done == ["enter", "leave"]


def test_a_stage_that_was_not_entered_to_the_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Entered(enters=False)
    row = killed_in_a_hold(tmp_path, monkeypatch, stage)
    assert row["kind"] == "failure"
    assert "no sessions" in row["error"]
    assert stage.done == ["enter", "leave"]


def test_a_folder_that_syncthing_cannot_read_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncthing, "HASHING_S_MAX", -1.0)
    stand_in = SimpleNamespace(folder=tmp_path, ask=lambda *_: {"state": "error"})
    with pytest.raises(TimeoutError, match="it is error"):
        syncthing.Syncthing.add(stand_in, "new", 2**20)  # type: ignore[arg-type]  # has what is asked here


def two_jobs(small_steps: int, large_steps: int) -> dict[str, Any]:
    """A minute in which one job does steps of 1 MB and the other of 2 MB, all of equal length, without a pause."""
    steps = {}
    for job, count in (("small", small_steps), ("large", large_steps)):
        length_s = 60.0 / count
        steps[job] = [step(0, n, 10 + n * length_s, 10 + (n + 1) * length_s) for n in range(count)]
    return {
        "scenario": "jobs",
        "condition": "brokered",
        "round": 0,
        "rate_bits_per_s": 100 * MBIT,
        "begin_s": 10.0,
        "end_s": 70.0,
        "payload_bytes": {"small": 10**6, "large": 2 * 10**6},
        "counters": {"compute": ["r", "x", 2], "storage": ["r", "x", 2]},
        "decisions": {},
        "steps": steps,
        "samples": {"r": [sample(float(t_s), 19.4 * MBIT / 8 * t_s) for t_s in range(80)]},
        "sink": [],
    }


def test_jobs_are_compared_by_bytes_and_not_by_steps() -> None:
    found = changing_figures.jobs([two_jobs(200, 100)])["brokered"]
    assert found["got_bits_per_s"]["small"] == pytest.approx(200 * 8e6 / 60)
    assert found["fairness"]["median"] == pytest.approx(1.0)
    assert found["fairness"]["low_10_s"] == pytest.approx(1.0)
    assert changing_figures.jobs([two_jobs(100, 150)])["brokered"]["fairness"]["low"] == pytest.approx(0.8)


def test_a_guarantee_is_kept_when_a_fifth_of_the_shaped_rate_came() -> None:
    found = changing_figures.jobs([two_jobs(10, 10)])["brokered"]
    assert found["kept"]["storage"] == pytest.approx(1.0)  # 19.4 of 97 Mbit/s
    assert found["kept"]["training"] == pytest.approx(1 / 3)


def test_a_guarantee_is_judged_in_the_worst_of_its_windows() -> None:
    block = two_jobs(10, 10)
    block["end_s"] = 90.0  # 80 s, the last 20 of them without a byte: in the worst 60 s two thirds came
    block["samples"]["r"] = [sample(float(t_s), 19.4 * MBIT / 8 * min(t_s, 70)) for t_s in range(100)]
    assert changing_figures.jobs([block])["brokered"]["kept"]["storage"] == pytest.approx(2 / 3)


def test_the_daemons_cost_is_over_the_time_that_it_was_watched() -> None:
    record = {
        "condition": "1000 flows",
        "daemon": [[100.0, 1.0, 50_000_000], [110.0, 1.1, 60_000_000], [120.0, 1.5, 40_000_000]],
        "flows": 1003,
    }
    found: dict[str, Figures] = dict(failing_figures.flows([record]))
    assert found["1000 flows"]["cores"] == pytest.approx(0.025)
    assert found["1000 flows"]["resident_bytes"] == 60_000_000


def test_who_starves_is_told_from_the_fault_on() -> None:
    record = {
        "condition": "killed in a hold",
        "begin_s": 0.0,
        "end_s": 10.0,
        "found": {"at_s": 4.0, "right_s": 0.7, "sessions_s": 1.1},
        "counters": {"compute": ["r", "x", 2], "storage": None},
        "samples": {"r": [sample(t / 10, min(t, 45) + max(0, t - 60)) for t in range(101)]},  # nothing from 4.5 to 6.0
        "sink": [[t / 10, t] for t in range(101)],
        "echoes": [[t / 10, 0.001] for t in range(100) if not 0 < t < 30],  # the silence was before the fault
        "steps": {"training": [step(0, 0, 1.0, 2.0), step(0, 1, 3.5, 6.2), step(0, 2, 6.2, 6.5)]},
    }
    found = failing_figures.faults([record])["killed in a hold"]
    assert found["training_gap_s"] == pytest.approx(1.6)
    assert found["storage_gap_s"] == pytest.approx(0.1)
    assert found["people_gap_s"] == pytest.approx(0.1, abs=0.01)
    assert found["step_s"] == pytest.approx(2.7)
    assert found["right_s"] == 0.7


def held(falls: list[tuple[float, int]]) -> dict[str, Any]:
    """Five bursts of 0.5 s, one each second; a destination's class has 60 Mbit/s until told otherwise."""
    changes = [[0.0, 0x320, 0, 60 * MBIT], [0.0, 0x30, 0, 60 * MBIT]]
    for t_s, minor in falls:
        changes += [[t_s, minor, 0, 2 * MBIT], [t_s + 0.6, minor, 0, 60 * MBIT]]
    return {
        "begin_s": 1.0,
        "end_s": 6.0,
        "receiver_rank": 1,
        "quiet_echoes": [[0.1, 0.010], [0.2, 0.012], [0.3, 0.010]],
        "classes": sorted(changes),
        "steps": {"training": [step(rank, n, n + 1.0, n + 1.5) for n in range(5) for rank in (0, 1)]},
    }


def test_a_hold_takes_from_the_announcement_to_the_kernel_less_the_way() -> None:
    found = failing_figures.holds([held([(1.008, 0x320), (2.020, 0x320), (3.7, 0x320), (4.01, 0x30)])])["brokered"]
    assert (found["announced"], found["held"]) == (5, 2)  # one came when its burst was over, one was no destination's
    assert found["latency_s"]["low"] == pytest.approx(0.003)
    assert found["latency_s"]["high"] == pytest.approx(0.015)
    assert found["made"] == pytest.approx(0.4)


@pytest.mark.parametrize(("made", "passed"), [(99, True), (98, False), (0, False)])
def test_of_a_hundred_holds_that_are_asked_for_one_may_be_missed(made: int, passed: bool) -> None:
    record = held([(n + 1.008, 0x320) for n in range(made)]) | {"scenario": "hold", "kind": "block", "end_s": 101.0}
    record["steps"] = {"training": [step(1, n, n + 1.0, n + 1.5) for n in range(100)]}
    goals = {goal["name"]: goal for goal in report.compute(HEAD, [record])["goals"]}
    assert goals["hold: made, of those asked for"]["passed"] is passed


def test_holds_from_before_brokers_knew_each_other_count_beside_the_others() -> None:
    record = held([(3.01, 0x320), (4.01, 0x320), (5.01, 0x320)]) | {"first_s": 1.0, "begin_s": 3.0}
    found = failing_figures.holds([record])["brokered"]
    assert (found["made"], found["whole"]["made"]) == (1.0, pytest.approx(0.6))


def test_without_a_hold_there_is_no_latency() -> None:
    assert failing_figures.holds([held([])])["brokered"]["latency_s"] is None

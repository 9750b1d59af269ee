"""`hive-qos explain-collective`: what it shows for networks that are given, and for what a rank measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.cli.app import app

RUN = CliRunner()


def explained(*options: str) -> dict[str, Any]:
    result = RUN.invoke(app, ["explain-collective", *options, "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.output)
    return document


def test_a_slow_link_makes_the_weighted_algorithm_the_best():
    (collective,) = explained("all_reduce", "--bandwidth", "100,100,100,25 Mbit/s")["collectives"]
    assert collective["algorithm"] == "weighted"
    times = {one["algorithm"]: one["predicted_s"] for one in collective["candidates"]}
    assert times["direct"] / times["weighted"] == pytest.approx(1.5, rel=0.01)


def test_the_table_marks_what_is_taken_and_says_why():
    output = RUN.invoke(app, ["explain-collective", "--bytes", "16 MiB", "--sites", "2,2"]).output
    assert "all_reduce of 16 MiB: shortest predicted time, bound by link of site" in output
    assert "> two_level     1.38 s" in output
    assert "(sites 0,0,1,1)" in output


def test_compression_that_saves_no_time_is_taken_and_said_to():
    (slow,) = explained("--compression", "int8", "--bandwidth", "1 Gbit/s")["collectives"]
    assert slow["candidates"][0]["predicted_s"] < slow["uncompressed_s"] / 3
    (fast,) = explained("--compression", "int8", "--bandwidth", "40 Gbit/s")["collectives"]
    assert fast["predicted_s"] > fast["uncompressed_s"]
    assert fast["reason"].endswith("compression saves no time here")
    output = RUN.invoke(app, ["explain-collective", "--compression", "int8", "--bandwidth", "40 Gbit/s"]).output
    assert "as int8" in output
    assert "uncompressed" in output
    assert max(map(len, output.splitlines())) <= 80


def test_an_algorithm_can_be_forced():
    (collective,) = explained("all_gather", "--bytes", "64 KiB", "--algorithm", "doubling")["collectives"]
    assert (collective["algorithm"], collective["reason"]) == ("doubling", "forced")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["gossip"], "one of all_reduce, broadcast"),
        (["--bandwidth", "1,2 Gbit/s"], "one rate, or 4"),
        (["--bandwidth", "fast"], "not a rate"),
        (["--sites", "2,x"], "numbers of ranks as 2,2; 4 in all"),
        (["--sites", "2,3"], "4 in all"),
        (["--ranks", "0"], "1 to 1024"),
        (["--bytes", "much"], "not a size"),
        (["--compression", "int7"], "bfloat16, int8 or int4"),
        (["broadcast", "--compression", "int8"], "broadcast is never compressed"),
        (["--bytes", "99999 GiB"], "at most 128 GiB"),
        (["--algorithm", "fastest"], "--algorithm = 'fastest': one of direct, weighted"),
        (["--from", __file__], "not the JSON of Group.explain()"),
    ],
)
def test_what_cannot_be_is_named(options, reason):
    result = RUN.invoke(app, ["explain-collective", *options])
    assert result.exit_code == 3
    assert reason in result.output


def test_a_snapshot_shows_measured_beside_predicted_times(tmp_path: Path):
    document = explained("--bytes", "1 MiB")
    document["collectives"][0] |= {"measured_s": 0.123, "count": 7}
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps(document))
    output = RUN.invoke(app, ["explain-collective", "--from", str(path)]).output
    assert "all_reduce of 1 MiB, 7 times" in output
    assert "123 ms" in output


def test_a_snapshot_shows_each_shape_once_as_chosen_last_with_what_each_algorithm_took(tmp_path: Path):
    slow, equal = "100,100,100,25 Mbit/s", "100 Mbit/s"
    (before,) = explained("--bandwidth", equal)["collectives"]
    (after,) = explained("--bandwidth", slow)["collectives"]
    before |= {"measured_s": 23.4, "count": 2, "network_number": 1}
    after |= {"measured_s": 12.3, "count": 5, "network_number": 2}
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"collectives": [after, before]}))
    output = RUN.invoke(app, ["explain-collective", "--from", str(path)]).output
    assert output.count("all_reduce of 64 MiB, 7 times") == 1
    assert "> weighted     21.5 s    12.3 s" in output
    assert "  direct       32.2 s    23.4 s" in output


@pytest.mark.parametrize(
    "text",
    [
        '{"collectives": [1]}',
        '{"collectives": [{}]}',
        '{"collectives": [{"candidates": [{"algorithm": 3}]}]}',
        "[" * 200_000,
    ],
    ids=["number", "empty", "candidates", "deep"],
)
def test_a_snapshot_of_something_else_is_an_error(tmp_path, text):
    path = tmp_path / "snapshot.json"
    path.write_text(text)
    result = RUN.invoke(app, ["explain-collective", "--from", str(path)])
    assert (result.exit_code, "not the JSON of Group.explain()" in result.output) == (3, True)


@pytest.mark.parametrize(
    "document",
    [
        {"rank": 0, "groups": [{"name": "default", "called": 7}]},
        {"rank": 0, "groups": 5},
        {"rank": "\x1b[31m", "groups": [{"group": "default", "collectives": []}]},
        {"rank": 0, "groups": [{"group": "default", "collectives": [{"operation": "x"}]}]},
        {},
    ],
    ids=["of a former version", "no list", "no number", "no choice", "empty"],
)
def test_a_rank_that_tells_no_plans_is_an_error(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.inspection.jobs.members", lambda: [(Path("/run/0"), {"job": "llm"})])
    monkeypatch.setattr("transport.inspection.jobs.ask", lambda _path, _want: document)
    done = RUN.invoke(app, ["explain-collective", "--job", "llm"])
    assert "it tells no plans" in done.output
    assert "\x1b" not in done.output
    assert done.exit_code not in (0, 1)

"""`hive-qos why`: what limits whom, from the document of a host where training's burst meets storage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from situations import held, idle, sharing
from status_documents import status
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.show.explanation import Explanation, explanations, find, known

RUN = CliRunner()


def why(document: dict[str, Any], name: str) -> list[Explanation]:
    subject = find(document, name)
    assert subject is not None
    return explanations(document, subject)


def evidence(one: Explanation) -> str:
    return "\n".join(f"{fact.about}: {fact.text}" for fact in one.evidence)


@pytest.mark.parametrize("name", ["llm", "python3", "4711"])
def test_a_job_is_found_by_its_name_by_its_program_and_by_its_process(name: str) -> None:
    (one,) = why(status(sharing()), name)
    assert (one.kind, one.name, one.interface, one.traffic_class) == ("job", "llm", "eth0", "compute")
    assert one.limited_by == "link"
    assert one.sentence.startswith("llm is limited by the link at eth0, since ")
    assert one.sentence.endswith("(3 min): it is full, storage sends 5.3 Mbit/s and other sends 5.2 Mbit/s.")
    text = evidence(one)
    assert "job: sends 37.6 Mbit/s, 31.1 Mbit/s on average over 60 s, may send 48.5 Mbit/s" in text
    assert "class compute: borrows 4.23 Mbit/s from storage" in text
    assert "eth0: sends at most 48.5 Mbit/s: the configured rate, less headroom" in text
    assert "class storage: sends 5.3 Mbit/s, promised 9.7 Mbit/s" in text
    assert "peer 10.0.0.2: round trip 10 ms" in text
    assert "this host: 99 % of all processors are in use" in text
    assert any("[class.compute]" in text for text in one.advice)


def test_a_class_says_since_when_and_for_what_part_of_the_time() -> None:
    (one,) = why(status(sharing()), "storage")
    assert (one.kind, one.limited_by) == ("class", "burst")
    assert "(3 min, 41 % of the time): makes room for step 29 of job llm" in one.sentence
    assert "lends 4.23 Mbit/s to compute" in evidence(one)


def test_a_hold_names_the_broker_that_asks() -> None:
    (one,) = why(status(held()), "storage")
    assert one.limited_by == "hold"
    assert "towards 10.91.0.1, as trainer-1-broker asks" in one.sentence


def test_a_program_without_a_job_is_limited_by_what_limits_its_class() -> None:
    (one,) = why(status(sharing()), "rsync")
    assert (one.kind, one.limited_by) == ("program", "burst")
    assert "peer 10.0.0.9: round trip 10 ms; no packet lost; 3 connections" in evidence(one)


@pytest.mark.parametrize(
    ("application_limited", "processors", "code"),
    [(True, 0.2, "itself"), (False, 0.2, "peer"), (True, 0.99, "processor")],
)
def test_where_nothing_waits_the_connections_of_a_program_tell_what_limits_it(
    application_limited: bool, processors: float, code: str
) -> None:
    document = status(sharing())
    document["load"]["processors_used"] = processors
    for entry in document["interfaces"][0]["classes"]:
        entry["limited_by"] = {"code": "itself", "text": "nothing waits"}
    for flow in document["flows"]:
        flow["application_limited"] = application_limited
    (one,) = why(document, "rsync")
    assert one.limited_by == code


def test_who_does_nothing_is_said_to_do_nothing() -> None:
    (one,) = why(status(idle()), "storage")
    assert one.sentence == "storage sends nothing through eth0."


def test_an_unknown_name_gets_the_names_that_are_known() -> None:
    document = status(sharing())
    assert find(document, "lmm") is None
    assert known(document) == (
        "jobs: llm; classes: control, compute, storage, other; programs: python3, syncthing, rsync"
    )


def test_the_command_prints_text_or_json_and_refuses_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    document = status(sharing())
    document["jobs"][0]["job"] = "evil\x1b[31m"
    monkeypatch.setattr("broker.client.status", lambda path: document, raising=False)
    shown = RUN.invoke(app, ["why", "evil\x1b[31m"])
    assert shown.exit_code == 0
    assert "evil\\x1b[31m is limited by the link" in " ".join(shown.stdout.split())
    assert "\x1b" not in shown.stdout
    (one,) = json.loads(RUN.invoke(app, ["why", "storage", "--json"]).stdout)
    assert one["limited_by"] == "burst"
    assert one["figures"]["interface"]["capacity_bits_per_s"] == 48_500_000
    unknown = RUN.invoke(app, ["why", "ev\x1b[2Jil"])
    assert unknown.exit_code == 2
    assert "Known are jobs" in " ".join(unknown.stderr.split())
    assert "\x1b" not in unknown.stderr

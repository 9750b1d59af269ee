"""Dashboard and alert rules ask only for what `/metrics` has, and name alarms and documents that exist."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.api.documents.metrics import METRICS
from broker.cli.alarm_advice import ALARM_ADVICE

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "monitoring/alerts.yml").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "monitoring/grafana.json").read_text(encoding="utf-8"))
TRANSIENT = {"configuration-unconfirmed", "announcements-unused"}
"""Nobody is called for these: an operator tries something, or a job pays for it by itself."""
OF_PROMETHEUS = {"instance", "job"}


def queries() -> Iterator[str]:
    """Every query of the dashboard, its variables included, and of the rules."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one)
    yield from re.findall(r"expr: (?:>-\s+)?(.+)", RULES)


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_every_metric_and_label_of_a_query_is_one_that_the_broker_shows(query: str) -> None:
    asked = re.findall(r"hive_qos_(\w+)(?:\{([^}]*)\})?", query)
    assert asked or "up{" in query
    for name, matchers in asked:
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", matchers)))
        assert name in METRICS
        assert labels <= {*METRICS[name].labels, *OF_PROMETHEUS}
    counted = [name for name, _ in asked if METRICS[name].kind == "counter"]
    assert len(re.findall(r"\b(?:rate|increase|resets)\(hive_qos", query)) == len(counted)


def test_grouping_labels_are_labels_of_the_metric() -> None:
    for query in queries():
        known = {label for name in re.findall(r"hive_qos_(\w+)", query) for label in METRICS[name].labels}
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert set(group.split(", ")) <= known, query


def test_every_alarm_has_one_rule() -> None:
    named = [set(codes.split("|")) for codes in re.findall(r'hive_qos_alarm\{code=~"([^"]+)"', RULES)]
    (rest,) = (set(codes.split("|")) for codes in re.findall(r'hive_qos_alarm\{code!~"([^"]+)"', RULES))
    each = Counter(code for codes in named for code in codes)
    assert set(each.values()) == {1}
    assert rest == set(each) | TRANSIENT
    assert rest <= ALARM_ADVICE.keys()


def test_every_rule_has_a_severity_a_summary_and_a_runbook_that_exists() -> None:
    rules = RULES.split("- alert: ")[1:]
    assert len(rules) >= 8
    for rule in rules:
        assert re.search(r"labels: \{ severity: (critical|warning|info) \}", rule), rule
        assert "summary: " in rule
        (runbook,) = re.findall(r"runbook_url: (\S+)", rule)
        assert (ROOT / runbook).is_file()


def test_panels_do_not_overlap_and_say_which_data_they_want() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        taken.update((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))
        assert panel["datasource"]["uid"] == "${datasource}"
        assert at["x"] + at["w"] <= 24
    assert set(taken.values()) == {1}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])

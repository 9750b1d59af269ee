"""The Helm chart as far as it can be judged without Helm; `make test-chart` renders it with Helm's own engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from broker.cli.pods_command import DEFAULT_ALLOWED
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES
from hive_qos import __version__

CHART = Path(__file__).parents[3] / "packaging" / "helm" / "hive-qos"


def read(name: str) -> Any:
    return yaml.safe_load((CHART / name).read_text())


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_chart_is_of_this_version() -> None:
    chart = read("Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_default_values_are_those_that_the_schema_describes() -> None:
    values = read("values.yaml")
    jsonschema_rs.validator_for(SCHEMA).validate(values)
    assert set(SCHEMA["properties"]) - {"global"} == set(values)


def test_the_default_configuration_is_one_that_the_broker_takes() -> None:
    assert load(read("values.yaml")["config"]).interfaces


def test_pods_may_choose_the_same_classes_by_default_in_the_chart_and_on_the_command_line() -> None:
    assert ",".join(read("values.yaml")["pods"]["allowedClasses"]) == DEFAULT_ALLOWED
    assert SCHEMA["properties"]["pods"]["properties"]["allowedClasses"]["items"]["enum"] == list(CLASS_NAMES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": "egress = 3"},
        {"imag": {}},
        {"image": {"repository": "with a space"}},
        {"pods": {"allowedClasses": []}},
        {"pods": {"allowedClasses": ["turbo"]}},
        {"runPath": "run/hive-qos"},
        {"serviceMonitor": {"port": 0}},
    ],
)
def test_a_value_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(SCHEMA, {**read("values.yaml"), **wrong})

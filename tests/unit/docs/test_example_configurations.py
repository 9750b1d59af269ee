"""The examples of configurations are ones: the reader, the schema and the planner of the kernel side take each."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
from documents import ROOT

from broker.cli.changing.init_command import SCHEMA
from broker.enforce.preview import Found, shapes_under, start
from broker.measure.schedules import schedules_at
from broker.model.values import InterfaceSample
from broker.policy.schema import schema
from broker.policy.toml import load
from shaping.model.observations import Capabilities, PriorQdisc
from shaping.plan.desired_tree import desired_tree

FOLDER = ROOT / "examples" / "config"
EXAMPLES = sorted(FOLDER.glob("*.toml"))
HOURS = (0, 4 * 3600, 10 * 3600, 20 * 3600)
"""Of a Thursday, 1970-01-01: with and without the schedules."""


def test_there_is_an_example_for_each_kind_of_host() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names == {"desktop-by-day", "gpu-box-at-night", "nas", "two-uplinks", "vpn"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_by_the_schema_that_it_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix("#:schema ")
    assert (path.parent / named).resolve() == SCHEMA.resolve()
    found = jsonschema_rs.Draft202012Validator(schema()).iter_errors(tomllib.loads(text))
    assert [error.message for error in found] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_built_in_the_kernel_at_every_hour(path: Path) -> None:
    policy, offered = load(path.read_text(encoding="utf-8")), Capabilities(fq_codel=True)
    samples = [InterfaceSample(entry.name, link_bits_per_s=10**9) for entry in policy.interfaces]
    bare = {entry.name: Found(root=PriorQdisc("default", 0)) for entry in policy.interfaces}
    for utc_s in HOURS:
        shapes = shapes_under(policy, samples, schedules_at(utc_s, policy.schedules))
        for plan in start(shapes, found=bare, capabilities=offered):
            assert plan.action == "build"
            assert len(plan.operations) > 40
        for shape in shapes.values():
            desired_tree(shape, offered)
            assert sum(one.rate_bits_per_s for one in shape.classes) <= shape.capacity_bits_per_s


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_why(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("#") for line in lines) >= 4
    assert max(map(len, lines)) <= 120

"""The JSON Schema of `broker.toml`: made from the reader's own keys, and of one mind with it where it can be."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import jsonschema_rs
import pytest
from documents import ROOT, current_pages, fences_of

from broker.policy import toml
from broker.policy.schema import VALUES, schema
from broker.policy.toml import ConfigurationErrors, load

FILE = ROOT / "broker" / "policy" / "broker.schema.json"
VALIDATOR = jsonschema_rs.Draft202012Validator(schema())
HEAD = 'version = 1\n[[interface]]\nname = "eth0"\n'
SCHEDULE = '[[schedule]]\nname = "n"\nfrom = "20:00"\nto = "08:00"\ntimezone = "UTC"\n[schedule.class.other]\n'
FENCES = [
    pytest.param(fence.text, id=fence.where)
    for page in current_pages()
    for fence in fences_of(page)
    if fence.language == "toml" and "version = 1" in fence.text and "[[interface]]" in fence.text
]
WRONG = [
    "",
    "version = 1\ninterface = []",
    'version = 2\n[[interface]]\nname = "eth0"',
    'version = 1\n[[interface]]\nname = "an interface"',
    HEAD + 'egress = "40 Mbps"',
    HEAD + 'ingress = "some"',
    HEAD + "egress = 40",
    HEAD + 'speed = "1 Gbit/s"',
    HEAD + "[class.stroage]",
    HEAD + '[class.storage]\nguarante = "1 %"',
    HEAD + '[class.storage]\nguarantee = "20"',
    HEAD + "[class.storage]\nweight = 0",
    HEAD + "[class.storage]\npriority = 8",
    HEAD + "[class.storage]\nmatch = [{ port = 0 }]",
    HEAD + "[class.storage]\nmatch = [{ port = 1, uid = 2 }]",
    HEAD + "[class.storage]\nmatch = [873]",
    HEAD + '[daemon]\ntick = "soon"',
    HEAD + '[daemon]\nstate_dir = "here"',
    HEAD + "[probe]\ntargets = []",
    HEAD + '[peers]\nca = "/ca"',
    HEAD + "[job.x]\nweight = 0",
    HEAD + SCHEDULE.replace("20:00", "25:00") + "weight = 1",
    HEAD + SCHEDULE.replace("name =", "nam =") + "weight = 1",
    HEAD + SCHEDULE + "guarantee_window = '60 s'",
]


def test_the_installed_schema_is_the_readers() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == schema(), "run `python -m tools.docs_tables`"


def test_the_schema_knows_a_value_for_every_key_that_the_reader_knows() -> None:
    for section, keys in toml.KEYS.items():
        if section:
            missing = set(keys) - set(VALUES[section]) - {"match", "class"}
            assert not missing, f"[{section}] {missing}: say in broker/policy/schema.py what they may be"


@pytest.mark.parametrize("text", FENCES)
def test_every_configuration_of_the_documents_is_valid(text: str) -> None:
    assert errors(text) == []


def test_the_file_that_is_installed_as_a_start_is_valid() -> None:
    assert errors((ROOT / "systemd" / "broker.toml").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_in_a_single_value_is_one_for_the_reader_and_for_the_schema(text: str) -> None:
    assert errors(text) != []
    with pytest.raises(ConfigurationErrors):
        load(text)


def errors(text: str) -> list[Any]:
    return [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))]

"""Lines of keys in TOML texts: the places that `tomllib` does not give."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.policy.locate import line_in, line_of, lines_of

ROOT = Path(__file__).parents[4]

TEXT = '''# [[interface]] in a comment
version = 1

[[interface]]
name = "a # [x]"
egress = """
[class.storage]
"""
[[interface]]
name = 'b' # tail
[class . storage]
match = [ # first
  { port = 1 },
  {cgroup="]}", x.y = 2},

  { address = [
    1, 2] },
]
[job."nightly-*.x"]
weight = 2
[[schedule]]
"name" = "x"
[schedule.class.storage]
ceiling = "20 %"
[[schedule]]
[schedule.class.other]
weight = 1'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("version", 2),
        ("interface[0].name", 5),
        ("interface[0].egress", 6),
        ("interface[1].name", 10),
        ("class.storage", 11),
        ("class.storage.match", 12),
        ("class.storage.match[0].port", 13),
        ("class.storage.match[1].cgroup", 14),
        ("class.storage.match[1].x.y", 14),
        ("class.storage.match[2].address[1]", 17),
        ("job.nightly-*.x.weight", 20),
        ("schedule[0].name", 22),
        ("schedule[0].class.storage.ceiling", 24),
        ("schedule[1].class.other.weight", 27),
    ],
)
def test_each_key_has_the_line_on_which_it_stands(key: str, line: int) -> None:
    tomllib.loads(TEXT)
    assert line_of(key, lines_of(TEXT)) == line


def test_a_key_that_is_not_there_has_the_line_of_what_is_around_it() -> None:
    lines = lines_of(TEXT)
    assert line_of("interface[1].egress", lines) == 9
    assert line_of("class.storage.match[7].port", lines) == 12
    assert line_of("class.*.match", lines) == 12
    assert line_of("daemon.tick", lines) is None
    assert line_of("", lines) is None


def test_the_words_of_tomllib_have_a_line_where_the_text_is_no_toml() -> None:
    with pytest.raises(tomllib.TOMLDecodeError) as problem:
        tomllib.loads("version = 1\n[[interface]\n")
    assert line_in(str(problem.value)) == 2
    assert line_in("nothing of the kind") is None


def leaves(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Each key whose value is no section: as errors write it, and its last name alone."""
    for name, entry in value.items():
        key = f"{above}.{name}" if above else name
        if isinstance(entry, dict):
            yield from leaves(entry, key)
        elif isinstance(entry, list) and entry and all(isinstance(one, dict) for one in entry):
            for number, one in enumerate(entry):
                yield from leaves(one, f"{key}[{number}]")
        else:
            yield key, name


@pytest.mark.parametrize("file", ["systemd/broker.toml", "pyproject.toml"])
def test_every_key_that_tomllib_finds_has_a_line_with_its_name(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    lines, source = lines_of(text), text.splitlines()
    for key, name in leaves(tomllib.loads(text)):
        line = line_of(key, lines)
        assert line is not None, key
        assert name in source[line - 1], key

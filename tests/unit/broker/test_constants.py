"""Every constant of the broker and of the kernel side says, beside it, why it has this value or where that is from."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORD = re.compile(r"[^\W\d]{2,}")
WORDS_MIN = 2
"""Of an explanation: a source has a name and a place, a reason more."""

DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma:)[^#]*|#\s*-{3}.*")
"""What tools read, and headings."""


def constants(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """The statement's place and the names of whatever a module sets to a number once and for all."""
    for place, statement in enumerate(tree.body):
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            names = [part.id for part in parts if isinstance(part, ast.Name) and part.id.lstrip("_").isupper()]
            if names and any(type(node.value) in (int, float) for node in ast.walk(statement.value)
                             if isinstance(node, ast.Constant)):  # fmt: skip
                yield place, names


def comments(text: str) -> dict[int, str]:
    """Comments for people, by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = ((token.start[0], DIRECTIVE.sub("", token.string)) for token in tokens if token.type == tokenize.COMMENT)
    return {line: comment for line, comment in found if comment}


def says_something(text: str) -> bool:
    """Whether these are words enough for an explanation."""
    return len(WORD.findall(text)) >= WORDS_MIN


def is_explained(tree: ast.Module, place: int, said: dict[int, str]) -> bool:
    """By a comment in it or above its group, or by the text that ends its group: statements without an empty line
    between."""
    first = tree.body[place]
    if says_something(" ".join(said.get(line, "") for line in range(first.lineno, (first.end_lineno or 0) + 1))):
        return True
    above = place
    while above and tree.body[above - 1].end_lineno == tree.body[above].lineno - 1:
        above -= 1
    if says_something(said.get(tree.body[above].lineno - 1, "")):
        return True
    for before, after in zip(tree.body[place:], tree.body[place + 1 :], strict=False):
        if after.lineno != (before.end_lineno or 0) + 1:
            break
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            return says_something(after.value.value)
    return False


def silent(text: str) -> list[str]:
    """The constants of a module that nothing is said of."""
    tree, said = ast.parse(text), comments(text)
    return [name for place, names in constants(tree) if not is_explained(tree, place, said) for name in names]


@pytest.mark.parametrize(
    "path",
    [path for package in ("broker", "shaping") for path in sorted((ROOT / package).rglob("*.py"))],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_every_constant_says_why_it_has_its_value(path: Path) -> None:
    assert silent(path.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A_S = 5.0\n", ["A_S"]),
        ("A_S = 5.0  # noqa: E501\n", ["A_S"]),
        ("A_S = 5.0  # seconds\n", ["A_S"]),
        ('NAMES = {"#1 of many": 5.0}\n', ["NAMES"]),
        ('A_S = 5.0\n"""Seconds."""\n', ["A_S"]),
        ("# --- constants ---\nA_S = 5.0\n", ["A_S"]),
        ('A_S = 5.0\n\nB_S = 6.0\n"""What a queue of ours holds."""\n', ["A_S"]),
        ("# Bounds of the issue.\nA_S = 5.0\n\nB_S = 6.0\n", ["B_S"]),
        ('A_S = 5.0\nB_S = 6.0\n"""What a queue of ours holds."""\n', []),
        ("A_S = 5.0  # RFC 9002, kGranularity\n", []),
        ("# linux/pkt_sched.h\nA = 5\nB = 6\n", []),
        ('NAME = "eth0"\n', []),
    ],
)
def test_what_says_nothing_of_a_value_is_told_from_what_does(text: str, found: list[str]) -> None:
    assert silent(text) == found

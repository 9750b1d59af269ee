"""Every constant of the broker says what it is for, beside it or in the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTATION = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))


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


def is_explained(tree: ast.Module, place: int, names: list[str], lines: list[str]) -> bool:
    """By a comment, or by the text that ends its group: what follows without an empty line between."""
    first = tree.body[place]
    if "#" in "".join(lines[first.lineno - 1 : first.end_lineno]):
        return True
    above = first.lineno - 2
    while lines[above].startswith(("_", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")) and " = " in lines[above]:
        above -= 1
    if lines[above].startswith("#") and "---" not in lines[above]:
        return True
    for before, after in zip(tree.body[place:], tree.body[place + 1 :], strict=False):
        if after.lineno != (before.end_lineno or 0) + 1:
            break
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            return True
    return all(re.search(rf"\b{name}\b", DOCUMENTATION) for name in names)


@pytest.mark.parametrize("path", sorted((ROOT / "broker").rglob("*.py")), ids=lambda path: path.stem)
def test_every_constant_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    silent = [names for place, names in constants(tree) if not is_explained(tree, place, names, lines)]
    assert silent == []

"""What the broker is installed from, as root, is pinned and hashed, and agrees with what the package asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PINNED = {
    match[1]: (match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", match[3])))
    for match in re.finditer(
        r"^([a-z0-9-]+)==(\S+)((?: ; [^\\\n]+)?(?: \\\n    --hash=\S+)*)",
        (ROOT / "requirements.lock").read_text(),
        re.MULTILINE,
    )
}


def test_all_that_the_package_asks_for_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [Requirement(text) for text in (*project["project"]["dependencies"], *project["build-system"]["requires"])]
    assert [str(one) for one in asked if not one.specifier.contains(PINNED.get(one.name, ("none", 0))[0])] == []


def test_everything_that_is_pinned_has_a_hash_and_nothing_comes_from_elsewhere() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert len([line for line in lines if "==" in line]) == len(PINNED) > 10
    assert [name for name, (_, hashes) in PINNED.items() if not hashes] == []
    assert [line for line in lines if "://" in line or line.startswith("-")] == []

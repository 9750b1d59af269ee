"""Every link inside the documents leads somewhere: to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from documents import DOCS, ROOT, anchors_of, links_of, name_of, pages

PAGES = [pytest.param(page, id=name_of(page)) for page in pages()]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    broken = []
    for line, target in links_of(page):
        if re.match(r"^[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (fragment and file.suffix == ".md" and fragment not in anchors_of(file)):
            broken.append(f"line {line}: {target}")
    assert broken == []


@pytest.mark.parametrize("page", [one for one in PAGES if one.id.startswith("docs/")])
def test_a_page_of_the_site_links_to_pages_of_the_site_only(page: Path) -> None:
    """The site is built from docs/ alone: what lies beside it cannot be reached from there."""
    outside = [
        target
        for _, target in links_of(page)
        if not re.match(r"^([a-z]+:|#)", target)
        and not (page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_every_page_stands_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
    there = [page for page in pages() if page.is_relative_to(DOCS)]
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in there)


def test_every_page_that_code_or_a_unit_names_is_there() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = [ROOT / path for path in tracked if path.endswith((".py", ".rs", ".toml", ".service", ".conf", ".sh"))]
    named = {
        (name_of(source), page)
        for source in sources
        if source.is_file()
        for page in re.findall(r"\bdocs/[\w/-]+\.md", source.read_text(encoding="utf-8"))
    }
    assert sorted(f"{source}: {page}" for source, page in named if not (ROOT / page).is_file()) == []

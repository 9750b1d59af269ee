"""The documents are short enough to be read: sentences, cells of tables, the README, and all of them together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, current_pages, name_of, sentences_of, tables_of

SENTENCE_WORDS_MAX = 25
CELL_CHARACTERS_MAX = 160
"""Two lines of a table beside one or two other columns."""
TOLERATED: dict[str, int] = {}
"""Sentences beyond the limit that a page still has. The numbers only ever get smaller."""
README_LINES_MAX = 120
README_COLUMNS_MAX = 80
WORDS_MAX = 29_000
"""Of every page at the root and below docs/ but the log, without tables made from the code. Borders of tables count."""

PAGES = [pytest.param(page, id=name_of(page)) for page in current_pages()]


@pytest.mark.parametrize("page", PAGES)
def test_a_sentence_has_at_most_25_words(page: Path) -> None:
    long = [
        f"line {line}: {len(sentence.split())} words: {sentence}"
        for line, sentence in sentences_of(page)
        if len(sentence.split()) > SENTENCE_WORDS_MAX
    ]
    tolerated = TOLERATED.get(name_of(page), 0)
    assert len(long) == tolerated, "\n".join([f"{len(long)} sentences, {tolerated} are tolerated", *long])


@pytest.mark.parametrize("page", PAGES)
def test_a_cell_of_a_table_has_at_most_two_lines(page: Path) -> None:
    long = [
        f"line {table.line} and on: {len(cell)} characters: {cell}"
        for table in tables_of(page)
        for row in table.rows
        for cell in row
        if len(cell) > CELL_CHARACTERS_MAX
    ]
    assert long == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_table_has_a_cell_for_each_title(page: Path) -> None:
    uneven = [
        f"line {table.line} and on: {row}"
        for table in tables_of(page)
        for row in table.rows
        if len(row) != len(table.titles)
    ]
    assert uneven == []


def test_the_readme_fits_on_two_screens() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES_MAX
    assert [line for line in lines if len(line) > README_COLUMNS_MAX and not line.startswith(("|", "[", "!["))] == []


def test_the_documents_stay_within_their_budget_of_words() -> None:
    generated = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)
    counted = {
        name_of(page): len(generated.sub("", page.read_text(encoding="utf-8")).split()) for page in current_pages()
    }
    assert sum(counted.values()) <= WORDS_MAX, sorted(counted.items(), key=lambda one: -one[1])

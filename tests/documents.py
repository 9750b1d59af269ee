"""Reads the documents as tests need them: fences, tables, sentences, links. Standard library only.

A page is a Markdown file at the root or below docs/. Pages of docs/log/ record past experiments: most rules leave them
out.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHELLS = ("console", "bash", "sh")


@dataclass(frozen=True)
class Fence:
    """One fenced block.

    Attributes:
        page: path of its page, relative to the repository.
        line: of the opening fence, from 1.
        language: as written behind the fence; "" where nothing stands there.
        text: what is inside, with a newline at the end.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        heading: text of the nearest heading above it.
        line: of the row of titles, from 1.
        titles: text of the columns' titles.
        rows: text of the cells, row by row.
    """

    page: str
    heading: str
    line: int
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def pages(*folders: str) -> list[Path]:
    """The named pages or folders below docs/, or every page at the root and below docs/."""
    if not folders:
        return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    found: list[Path] = []
    for name in folders:
        path = ROOT / name if name == "README.md" else DOCS / name
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def current_pages() -> list[Path]:
    """What the rules of style hold for: everything but the log of experiments."""
    return [page for page in pages() if DOCS / "log" not in page.parents]


def name_of(page: Path) -> str:
    """How tests name a page: its path below the repository."""
    return page.relative_to(ROOT).as_posix()


def fences_of(page: Path) -> list[Fence]:
    """Every fenced block of a page, in order. A fence inside a list item loses the item's indentation."""
    found: list[Fence] = []
    opened: tuple[int, str, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r"^( *)(`{3,})(.*)$", line)
        if opened is None and match:
            opened, inside = (number, match[1], match[2], match[3].strip()), []
        elif opened is not None and match and match[2] == opened[2] and not match[3].strip():
            found.append(Fence(name_of(page), opened[0], opened[3].split(" ")[0], "".join(inside)))
            opened = None
        elif opened is not None:
            inside.append(line.removeprefix(opened[1]) + "\n")
    if opened is not None:
        raise ValueError(f"{name_of(page)}:{opened[0]}: the fence is never closed")
    return found


def _outside_fences(page: Path) -> list[tuple[int, str]]:
    """Numbered lines that are in no fence; a fence leaves one empty line behind, which ends a paragraph."""
    lines: list[tuple[int, str]] = []
    inside = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r"^ *(`{3,})", line)
        if match:
            inside = "" if inside == match[1] else inside or match[1]
            lines.append((number, ""))
        elif not inside:
            lines.append((number, line))
    return lines


def plain(markdown: str) -> str:
    """What a reader sees of a line: no emphasis, no targets of links, code without its backquotes."""
    text = re.sub(r"<!--.*?-->", "", markdown)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"\1", text)
    return text.replace("`", "").strip()


def _cells(line: str) -> tuple[str, ...]:
    """The cells of a row; a `\\|` is no border."""
    row = line.strip().removeprefix("|").removesuffix("|")
    return tuple(plain(cell.replace(r"\|", "|")) for cell in re.split(r"(?<!\\)\|", row))


def tables_of(page: Path) -> list[Table]:
    """Every table of a page, in order."""
    found: list[Table] = []
    heading, block = "", []
    for number, line in [*_outside_fences(page), (0, "")]:
        if line.lstrip().startswith("|"):
            block.append((number, line))
            continue
        if len(block) > 2:
            rows = tuple(_cells(row) for _, row in block[2:])
            found.append(Table(name_of(page), heading, block[0][0], _cells(block[0][1]), rows))
        block = []
        if match := re.match(r"^#+ (.*)$", line):
            heading = plain(match[1])
    return found


def table_below(page: Path, heading: str) -> Table:
    """The first table below a heading.

    Raises:
        AssertionError: there is none.
    """
    found = [table for table in tables_of(page) if table.heading == heading]
    assert found, f"{name_of(page)} has no table below the heading {heading!r}"
    return found[0]


def sentences_of(page: Path) -> list[tuple[int, str]]:
    """Every sentence of the prose with the line on which its paragraph or list item begins.

    Tables, fences, headings and images are no prose. What stands in backquotes is one word.
    """
    paragraphs: list[tuple[int, str]] = []
    begun: int | None = None
    for number, line in _outside_fences(page):
        text = line.strip()
        if not text or text.startswith(("|", "#", "![", "<!--", "[^", "---")) or re.match(r"^\[[^\]]+\]: ", text):
            begun = None
            continue
        item = re.match(r"^(?:[-*]|\d+\.|!!!|\?\?\?|>) +(.*)$", text)
        if begun is None or item:
            paragraphs.append((number, item[1] if item else text))
            begun = number
        else:
            paragraphs[-1] = (paragraphs[-1][0], f"{paragraphs[-1][1]} {text}")
    found: list[tuple[int, str]] = []
    for number, paragraph in paragraphs:
        words = plain(re.sub(r"`[^`]*`", "CODE", paragraph))
        for sentence in re.split(r"(?<=[.!?])[\"')]*\s+(?=[A-Z0-9\"'(]|hive-qos )", words):
            if sentence.strip():
                found.append((number, sentence.strip()))
    return found


def commands_of(fence: Fence) -> list[list[str]]:
    """The words of every command of a shell fence: without prompts, comments, output, environment and `sudo`.

    In a `console` fence only lines that begin with `$ ` or `# ` are commands, and what they go on with.
    """
    lines: list[str] = []
    document_end = ""
    for line in fence.text.splitlines():
        if document_end:
            document_end = "" if line.strip() == document_end else document_end
            continue
        if lines and lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1] + line.strip()
        elif fence.language == "console":
            if line.startswith(("$ ", "# ")):
                lines.append(line[2:])
        else:
            lines.append(line)
        if lines and (match := re.search(r"<<-?'?(\w+)'?", lines[-1])):
            document_end = match[1]
            lines[-1] = lines[-1][: match.start()]
    commands: list[list[str]] = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split, lexer.commenters = True, "#"
        commands.append([])
        for word in lexer:
            if set(word) <= set(";&|"):
                commands.append([])
            else:
                commands[-1].append(word)
    return [bare for command in commands if (bare := _without_preamble(command))]


def _without_preamble(command: list[str]) -> list[str]:
    while command and (command[0] == "sudo" or re.match(r"^[A-Z_]+=", command[0])):
        command = command[1:]
    return command


def anchors_of(page: Path) -> set[str]:
    """The fragments by which links reach the headings of a page, as GitHub and mkdocs make them."""
    found: set[str] = set()
    for _, line in _outside_fences(page):
        if match := re.match(r"^#+ (.*)$", line):
            kept = re.sub(r"[^\w\- ]", "", plain(match[1]).lower())
            found.add(re.sub(r" +", "-", kept.strip()))
    return found


def links_of(page: Path) -> list[tuple[int, str]]:
    """Target of every link and image of a page, with its line."""
    found: list[tuple[int, str]] = []
    for number, line in _outside_fences(page):
        bare = re.sub(r"`[^`]*`", "", line)
        found += [(number, match[1]) for match in re.finditer(r"\]\(([^)\s]+)\)", bare)]
        if match := re.match(r"^\[[^\]]+\]: (\S+)", bare):
            found.append((number, match[1]))
    return found

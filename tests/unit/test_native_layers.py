"""Who imports whom in the native engine: rooms know only those below them, and no two files know each other."""

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "native/src"
# Each knows only those after it. Rooms of one row do not know each other.
LAYERS = (
    ("lib", "testing"),
    ("python",),
    ("collective",),
    ("session",),
    ("matching",),
    ("borrowed_buffers", "shared_memory"),
    ("quic",),
    ("events",),
    ("congestion",),
    ("udp", "wire"),
    ("settings",),
    ("runtime",),
)
FLOORS = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)*::(?:\w+|\{)")


def paths(text: str) -> Iterator[list[str]]:
    """Paths that a file names, each as its words, without those of its tests and its comments."""
    text = re.sub(r"//.*", "", re.split(r"#\[cfg\(test\)\]\nmod tests \{", text)[0])
    for found in PATH.finditer(text):
        words = found[0].removesuffix("::{").split("::")
        if not found[0].endswith("{"):
            yield words
            continue
        end, depth = found.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        for name in re.findall(r"\w+", text[found.end() : end]):
            yield [*words, name]


def imports(source: Path) -> dict[str, set[str]]:
    """Which files each file of a crate names, by their paths without the ending."""
    files = {file.relative_to(source).with_suffix("").as_posix(): file for file in source.rglob("*.rs")}
    known: dict[str, set[str]] = {}
    for name, file in files.items():
        if name.endswith("_tests"):
            continue
        known[name] = set()
        for words in paths(file.read_text()):
            at = name.split("/") if name != "lib" else []
            for step, word in enumerate(words):
                if word == "crate":
                    at = []
                elif word == "super":
                    at = at[:-1]
                elif word != "self":
                    at = at + words[step:]
                    break
            while at and "/".join(at) not in files:
                at = at[:-1]
            if at and at != name.split("/"):
                known[name].add("/".join(at))
    return known


def arrows_up(known: dict[str, set[str]]) -> list[str]:
    """Imports of a room from one that is not below it."""
    rooms = {(file.split("/")[0], other.split("/")[0]) for file, others in known.items() for other in others}
    return sorted(f"{room} imports {other}" for room, other in rooms if room != other and FLOORS[room] >= FLOORS[other])


def test_every_room_has_its_layer_and_knows_only_those_below() -> None:
    known = imports(SOURCE)
    assert {file.split("/")[0] for file in known} <= FLOORS.keys()
    assert arrows_up(known) == []


def test_no_files_know_each_other_in_a_circle() -> None:
    TopologicalSorter(imports(SOURCE)).prepare()


def test_an_arrow_up_and_a_circle_are_found(tmp_path: Path) -> None:
    (tmp_path / "udp").mkdir()
    (tmp_path / "udp.rs").write_text("mod socket;\nmod send;\n")
    (tmp_path / "udp/socket.rs").write_text(
        "use super::send::Sender;\nuse crate::{\n    quic::{driver, tls::Identity},\n};\n"
    )
    (tmp_path / "udp/send.rs").write_text("fn send() -> super::socket::Socket {}\n// crate::python\n")
    (tmp_path / "quic.rs").write_text("#[cfg(test)]\nmod tests {\n    use crate::session;\n}\n")
    (tmp_path / "session.rs").write_text("use crate::quic::tls;\n")
    known = imports(tmp_path)
    assert known["udp/socket"] == {"udp/send", "quic"}
    assert known["session"] == {"quic"}
    assert known["quic"] == set()
    assert arrows_up(known) == ["udp imports quic"]
    with pytest.raises(CycleError):
        TopologicalSorter(known).prepare()

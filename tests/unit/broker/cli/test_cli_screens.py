"""Whole screens of `hive-qos status` at 80 columns, from what the daemon decided and measured to what a person reads.

`screens/NAME.txt` is the screen of the situation of that name.
"""

from __future__ import annotations

import io
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from situations import MBIT, SITUATIONS, connection, idle, sharing
from status_documents import status

from broker.api.documents.class_averages import AveragesSnapshot
from broker.api.documents.window_average import Average
from broker.cli.show.screen import rate
from broker.cli.show.status_table import fitted, render
from broker.measure.socket_owners import SocketOwner


def screen(value: dict[str, Any], *, colours: bool = False, width: int = 80, height: int | None = None) -> str:
    """What is printed into a pipe; onto a terminal where it has a height."""
    written = io.StringIO()
    console = Console(
        width=width, height=height, file=written, highlight=False, force_terminal=colours or height is not None,
        no_color=not colours,
    )  # fmt: skip
    console.print(fitted(value, console) if height is not None else render(value))
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_screen_reads_as_it_was_designed(name: str) -> None:
    path = Path(__file__).parent / "screens" / f"{name}.txt"
    assert screen(status(SITUATIONS[name]())) == path.read_text()
    assert max(map(len, path.read_text().splitlines())) <= 80


@pytest.mark.parametrize("name", SITUATIONS)
def test_colours_add_nothing_that_words_do_not_say(name: str) -> None:
    value = status(SITUATIONS[name]())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen(value, colours=True))
    assert [line.rstrip() for line in plain.splitlines()] == screen(value).splitlines()


def test_ten_thousand_connections_of_many_programs_are_the_busiest_and_a_number() -> None:
    tcp = [connection(f"10.0.{number}.9", number) for number in range(1, 251)]
    rates: dict[Hashable, Average] = {
        one.question: Average(1000 * MBIT // (9 + number), 2.0) for number, one in enumerate(tcp, 1)
    }
    many = replace(
        sharing(),
        tcp=tuple((one, "storage") for one in tcp),
        tcp_connections=10_000,
        origins={one.inode: SocketOwner(one.inode, "rsync") for one in tcp},
        figures=AveragesSnapshot(sent=rates),
    )
    value = status(many)
    assert (len(value["programs"]), value["programs_total"]) == (100, 251)
    text = screen(value)
    assert "rsync 1           storage   100 Mbit/s" in text, "the busiest first"
    assert "and 241 more, 10,000 TCP connections in all: hive-qos top" in text
    assert len(text.splitlines()) < 40


def test_a_reason_and_a_name_of_any_length_are_wrapped_and_not_cut() -> None:
    value = status(sharing())
    value["jobs"][0]["job"] = "nightly-llama-70b-pretraining-with-a-name-that-is-longer-than-40-columns"
    words = "because " * 40
    value["interfaces"][0]["classes"][2]["limited_by"] = {"code": "link", "text": words}
    value["peers"] = [{"address": "10.0.0.9", "peer": "store-1", "state": f"refused: {words}", "rtt_s": None}]
    text = screen(value)
    assert value["jobs"][0]["job"] in text
    assert text.count("because") == 80
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def many_jobs() -> dict[str, Any]:
    """Two classes with jobs, many programs, and a second interface that does nothing."""
    value = status(sharing())
    (job,) = value["jobs"]
    value["jobs"] = [job | {"job": f"llm-{number}"} for number in range(30)]
    value["programs"] = [row | {"pid": number} for row in value["programs"] for number in range(6)]
    value["programs_total"] = 700
    idle_link = status(idle())["interfaces"][0]
    value["interfaces"].append(idle_link | {"name": "eth1"})
    return value


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (100, 30), (40, 60)])
def test_a_terminal_gets_a_screen_that_fits_and_says_what_is_left_out(width: int, height: int) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen(many_jobs(), width=width, height=height)).splitlines()
    assert len(shown) < height
    assert max(map(len, shown)) <= width
    text = " ".join(" ".join(shown).split())
    assert "more jobs: hive-qos status --json" in text
    assert "hive-qos top" in text
    for name in ("control", "compute", "storage", "other", "eth0", "eth1", "llm-0", "37.6 Mbit/s"):
        assert name in text


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_narrow_screen_keeps_who_sends_how_much_and_what_is_promised(name: str) -> None:
    value = status(SITUATIONS[name]())
    shown = screen(value, width=40).splitlines()
    assert max(map(len, shown)) <= 40
    title = next(line for line in shown if line.startswith("class"))
    assert title.split() == ["class", "sends", "promised"]
    (storage,) = (one for one in value["interfaces"][0]["classes"] if one["name"] == "storage")
    sends = "idle" if name == "idle" else rate(storage["throughput_bits_per_s"])
    narrow = next(line for line in shown if line.startswith("storage"))
    assert narrow.split() == ["storage", *sends.split(), *rate(storage["guarantee_bits_per_s"]).split()]

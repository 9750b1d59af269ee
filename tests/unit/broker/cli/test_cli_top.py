"""`hive-qos top`: the busiest first, in the order that is asked for, and what is not shown is counted."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from situations import sharing
from status_documents import status
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.show.top_table import View, render, rows_of
from broker.measure.flow_table import PassedSocket

RUN = CliRunner()


def shown(document: dict[str, Any], view: View, *, width: int = 80, height: int | None = None) -> list[str]:
    written = io.StringIO()
    console = Console(
        file=written, width=width, height=height, highlight=False, no_color=True, force_terminal=height is not None
    )
    console.print(render(document, view, console))
    return [line.replace("\x1b[1m", "").replace("\x1b[0m", "").rstrip() for line in written.getvalue().splitlines()]


def test_programs_stand_by_their_rates_with_what_limits_them() -> None:
    head, title, *rows = shown(status(sharing()), View())
    assert head == "trainer-1: sends 48.3 Mbit/s, by sends and receives, no alarms"
    assert title.split() == ["program", "class", "sends", "receives", "limited", "by", "peer"]
    assert rows[0].split() == ["python3", "4711", "compute", "36", "Mbit/s", "31", "Mbit/s", "link", "10.0.0.2"]
    assert rows[2] == "rsync 4820        storage   5.1 Mbit/s   90 kbit/s      burst  10.0.0.9, 3 conn…"


def test_connections_stand_each_for_itself_with_their_round_trips() -> None:
    _, _, first, *rows = shown(status(sharing()), View(connections=True))
    assert first.split() == ["python3", "4711", "compute", "36", "Mbit/s", "31", "Mbit/s", "10", "ms", "10.0.0.2:4"]
    assert len([line for line in rows if line.startswith("rsync 4820")]) == 3


@pytest.mark.parametrize("key", ["sends", "receives", "both"])
def test_rows_are_sorted_by_what_is_asked_for(key: str) -> None:
    document = status(sharing())
    programs = document["programs"]
    for place, one in enumerate(programs):
        one["throughput_bits_per_s"], one["received_bits_per_s"] = 1000 * place, 10**6 // (1 + place)
    names = [one["command"] for one in rows_of(document, View(sort=key))]
    given = [one["command"] for one in programs]
    assert names == (given[::-1] if key == "sends" else given)


def test_ten_thousand_connections_fit_a_terminal_and_are_counted() -> None:
    document = status(sharing())
    document["programs"] = [document["programs"][2] | {"pid": number} for number in range(100)]
    document |= {"programs_total": 4000, "tcp_connections": 10_000}
    lines = shown(document, View(), height=24)
    assert len(lines) < 24
    assert lines[-1].startswith("and 3,980 more; the broker follows 3 of 10,000 TCP") or lines[-2].startswith(
        "and 3,98"
    )
    assert len(shown(document, View(shown=5))) == 9
    assert max(map(len, shown(document, View(), width=40))) <= 40


def test_a_registered_socket_that_reports_no_connection_has_the_rest_of_its_class() -> None:
    now = sharing()
    passed = PassedSocket("f-1", "s-2", "quiet", "control", "gradient", "udp", "10.0.0.1:4000", 77, 1000, 5)
    (link,) = now.decision.allocation.interfaces
    classes = tuple(
        replace(one, throughput_bits_per_s=3_000_000) if one.name == "control" else one for one in link.classes
    )
    allocation = replace(now.decision.allocation, interfaces=(replace(link, classes=classes),))
    now = replace(now, passed=(passed,), decision=replace(now.decision, allocation=allocation))
    row = next(one for one in status(now)["programs"] if one["class"] == "control")
    assert (row["pid"], row["throughput_bits_per_s"], row["rate_source"]) == (77, 3_000_000, "rest-of-class")


def test_an_idle_socket_is_not_blamed_for_what_its_class_sends() -> None:
    now = sharing()
    ((udp, name, _),) = now.udp
    assert "syncthing" in {one["command"] for one in status(now)["programs"]}
    idle = replace(now, udp=((udp, name, False),))
    assert "syncthing" not in {one["command"] for one in status(idle)["programs"] if one["protocol"] == "udp"}


def test_the_command_prints_one_table_into_a_pipe_and_json_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    document = status(sharing())
    document["programs"][0]["command"] = "evil\x1b[31m"
    monkeypatch.setattr("broker.client.status", lambda path: document, raising=False)
    table = RUN.invoke(app, ["top", "-n", "1"])
    assert table.exit_code == 0
    assert "evil\\x1b[31m" in table.stdout
    assert "and 2 more" in table.stdout
    found = json.loads(RUN.invoke(app, ["top", "--json", "-n", "2", "--sort", "sends"]).stdout)
    assert [len(found[key]) for key in ("programs", "connections")] == [2, 2]
    assert found["programs_total"] == 3

"""Collectives follow the links while they run: a link that falls carries less, and what is urgent does not wait."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S

from tools.lab import Lab

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parents[1] / "planning_rank.py"
RATE_BITS_PER_S = 40_000_000
SLOWEST = 2
"""The rank whose link falls."""


@contextmanager
def ranks(
    lab: Lab, folder: Path, does: str, *, size: int, elements: int, delay_s: float = 0.001
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A rank in each host, h0 and on, behind one router that is so far away."""
    lab.router("router")
    for rank in range(size):
        lab.host(f"h{rank}")
        lab.link(f"h{rank}", "router", name=f"l{rank}", rate_bits_per_s=RATE_BITS_PER_S, delay_s=delay_s)
    lab.up()
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "MASTER_ADDR": lab["h0"].address}
    options = ["--does", does, "--size", str(size), "--folder", str(folder), "--elements", str(elements)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        lab[f"h{rank}"].popen([sys.executable, str(PROGRAM), "--rank", str(rank), *options], env=environment, **pipes)
        for rank in range(size)
    ]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def told(rank: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The next line of a rank."""
    assert rank.stdout is not None
    line = rank.stdout.readline()
    if not line:
        pytest.fail(rank.communicate(timeout=LIMIT_S)[1].decode())
    found: dict[str, Any] = json.loads(line)
    return found


def stop(started: list[subprocess.Popen[bytes]]) -> None:
    """End their rounds."""
    for one in started:
        assert one.stdin is not None
        one.stdin.close()
        one.stdin = None


def ended(started: list[subprocess.Popen[bytes]]) -> None:
    for one in started:
        _, err = one.communicate(timeout=LIMIT_S)
        assert one.returncode == 0, err.decode()


@pytest.mark.timeout(180)
def test_the_plan_follows_a_link_that_falls_and_is_the_same_on_all_ranks(
    lab_factory: Callable[..., Lab], tmp_path: Path
) -> None:
    """A round of 3 MB is 0.8 s: longer than the 0.4 s of a window in which a link is measured, so that every rank has
    some in which it always had something left to send. Who has none counts as fast. Results are looked at in each.

    An agreement runs beside the rounds, so a rank may tell its result a round before another one does.
    """
    size = 3
    agreed: dict[int, dict[str, Any]] = {}
    lab = lab_factory("plans")
    with ranks(lab, tmp_path, "rounds", size=size, elements=750_000) as started:

        def until(holds: Callable[[dict[str, Any]], bool]) -> float:
            """Seconds until it does, of the tables of all ranks."""
            began_s = time.monotonic()
            while True:
                tables = [told(one)["network"] for one in started]
                for table in tables:
                    assert table == agreed.setdefault(table["number"], table)
                if all(map(holds, tables)):
                    return time.monotonic() - began_s
                assert time.monotonic() < began_s + LIMIT_S, tables[0]

        until(lambda table: all(0.5 < one / RATE_BITS_PER_S < 1.2 for one in table["up_bits_per_s"]))
        lab.links[f"l{SLOWEST}"].set_rate(RATE_BITS_PER_S // 4)
        took_s = until(
            lambda table: (
                table["up_bits_per_s"][SLOWEST] < 0.4 * RATE_BITS_PER_S
                and min(table["up_bits_per_s"][:SLOWEST]) > 0.5 * RATE_BITS_PER_S
            )
        )
        print(f"the plan followed within {took_s:.1f} s")
        stop(started)
        ended(started)


@pytest.mark.timeout(120)
def test_two_ranks_far_apart_exchange_64_kib_and_tell_what_their_way_carries(
    lab_factory: Callable[..., Lab], tmp_path: Path
) -> None:
    """40 ms there and back. A round of 4 MB is 0.8 s; here, too, a rank may tell a result before the other one does."""
    agreed: dict[int, dict[str, Any]] = {}
    with ranks(lab_factory("pair"), tmp_path, "rounds", size=2, elements=1_000_000, delay_s=0.01) as started:
        began_s = time.monotonic()
        while True:
            documents = [told(one) for one in started]
            tables = [one["network"] for one in documents]
            for table in tables:
                assert table == agreed.setdefault(table["number"], table)
            taken = {one["network_number"]: one for one in documents[0]["collectives"] if one["bytes"] == 64 * 1024}
            # What waited before counts in the window in which it leaves: 1.2 was told for half a minute.
            measured = all(0.5 < one / RATE_BITS_PER_S < 1.3 for one in tables[0]["up_bits_per_s"])
            if measured and tables[0]["number"] in taken:
                break
            assert time.monotonic() < began_s + LIMIT_S, tables[0]
        assert 15_000 < tables[0]["latency_us"][0][1] < 40_000
        assert taken[tables[0]["number"]]["algorithm"] == "exchange", (tables[0], taken)
        stop(started)
        ended(started)


@pytest.mark.timeout(120)
def test_an_urgent_collective_ends_while_a_large_one_that_began_before_goes_on(
    lab_factory: Callable[..., Lab], tmp_path: Path
) -> None:
    """The large one takes 3 s, and the small one waits for none of that."""
    lab = lab_factory("overtake")
    with ranks(lab, tmp_path, "overtake", size=2, elements=4_000_000) as started:
        found = [told(one) for one in started]
        ended(started)
    print(found)
    for one in found:
        assert one["large_done"] < 0.6
        assert one["urgent_s"] < one["large_s"] / 4

"""A host's address changes in the middle of collectives: every result is right, and nobody sees more than a pause."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.lab import Host, Lab

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("moving_rank.py")
RATE_BITS_PER_S = 100_000_000
WITHOUT_S = 0.3
"""Between the old address and the new one the host has none."""
LIMIT_S = 60.0


@dataclass
class Running:
    """A rank's program, and what it said."""

    process: subprocess.Popen[bytes]

    def rounds(self, count: int) -> None:
        """Wait until so many more rounds are done; fails with the program's words where it ends instead."""
        assert self.process.stdout is not None
        for _ in range(count):
            line = self.process.stdout.readline()
            assert line.strip().isdigit(), line.decode() + self.words()

    def end(self) -> dict[str, Any]:
        """Stop it: what it measured."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, err.decode()
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def words(self) -> str:
        self.process.kill()
        return self.process.communicate()[1].decode()


@contextmanager
def two_ranks(lab: Lab, tmp_path: Path, engines: tuple[str, str], moving: int) -> Iterator[tuple[Running, Running]]:
    """Rank `moving` in host a, the other one in host b; both have done a few rounds."""
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = []
    for host, rank in (("a", moving), ("b", 1 - moving)):
        options = ["--rank", str(rank), "--folder", str(tmp_path), "--engine", engines[rank]]
        argv = [sys.executable, str(PROGRAM), *options]
        started.append(Running(lab[host].popen(argv, env=environment, **pipes)))
    try:
        for one in started:
            one.rounds(5)
        yield started[0], started[1]
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()


def ip(host: Host, *orders: str) -> None:
    for order in orders:
        host.run(["ip", *order.split()])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("engines", [("native", "native"), ("aioquic", "aioquic"), ("native", "aioquic")], ids="-".join)
@pytest.mark.parametrize("moving", [0, 1], ids=["the side that dialled moves", "the side that was dialled moves"])
def test_an_address_that_is_replaced_is_a_pause(
    lab_factory: Callable[..., Lab],
    tmp_path: Path,
    engines: tuple[str, str],
    moving: int,
    record_property: Callable[..., None],
) -> None:
    lab = lab_factory("moving")
    lab.host("a")
    lab.host("b")
    lab.router("r")
    for name in ("a", "b"):
        lab.link(name, "r", rate_bits_per_s=RATE_BITS_PER_S, delay_s=0.002)
    lab.up()
    a, b, r = lab["a"], lab["b"], lab["r"]
    old = a.address
    new = old.rpartition(".")[0] + ".77"
    with two_ranks(lab, tmp_path, engines, moving) as (mover, other):
        ip(a, f"address del {old}/24 dev {a.interface}")
        time.sleep(WITHOUT_S)
        ip(
            a,
            f"address add {new}/24 dev {a.interface}",
            f"route replace {b.address.rpartition('.')[0]}.0/24 via {r.address_on('a')}",
        )
        for one in (mover, other):
            one.rounds(10)
        found = mover.end()
        seen = other.end()
    record_property("pause_s", max(found["slowest_s"], seen["slowest_s"]))
    print(moving, engines, {side: round(one["slowest_s"], 3) for side, one in (("mover", found), ("other", seen))})
    assert {remote[0] for remote in seen["after"].values()} == {new}

"""A rank at home, behind a router that nobody can dial through: it trains, and bulk reaches it as well."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from address_translation import masquerade
from patience import LIMIT_S

from tools.lab import Lab

ROOT = Path(__file__).parents[3]
RANK = """
import sys
import numpy as np
from transport import FileRendezvous, Group, Priority, Settings

rank, folder, address, engine = int(sys.argv[1]), *sys.argv[2:5]
settings = Settings(listen=address, broker="off", engine=engine, job_secret=b"secret of the test")
with Group.connect(FileRendezvous(folder), rank=rank, world_size=2, settings=settings) as group:
    sums = np.full(100_000, rank + 1, np.float32)
    group.allreduce(sums).wait()
    assert (sums == 3).all()
    there, back = np.arange(2**20, dtype=np.float32), np.empty(2**20, np.float32)
    if rank == 1:
        group.send(there, 0, 7, priority=Priority.BULK).wait(30.0)
        group.recv(back, 0, 8).wait(30.0)
    else:
        group.recv(back, 1, 7).wait(30.0)
        group.send(there, 1, 8, priority=Priority.BULK).wait(30.0)
    assert (there == back).all()
    group.barrier().wait()
print("done")
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("engines", [("native", "native"), ("aioquic", "native")], ids=str)
@pytest.mark.parametrize("home", [0, 1])
def test_a_rank_behind_nat_trains_and_sends_and_gets_bulk(
    lab_factory: Callable[..., Lab], tmp_path: Path, engines: tuple[str, str], home: int
) -> None:
    lab = lab_factory("nat")
    lab.host("home")
    lab.host("office")
    lab.router("router")
    for host in ("home", "office"):
        lab.link(host, "router", rate_bits_per_s=100_000_000, delay_s=0.002)
    lab.up()
    lab["office"].run(["ip", "route", "add", "unreachable", f"{lab['home'].address}/32"])
    hosts = ("home", "office") if home == 0 else ("office", "home")
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with masquerade(lab["router"]):
        ranks = [
            lab[host].popen(
                [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meet"), lab[host].address, engine],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank, (host, engine) in enumerate(zip(hosts, engines, strict=True))
        ]
        try:
            for one in ranks:
                out, err = one.communicate(timeout=LIMIT_S)
                assert out == b"done\n", err.decode()
        finally:
            for one in ranks:
                one.kill()
                one.communicate()

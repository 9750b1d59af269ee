"""Ranks at home, behind routers that nobody can dial through: they train, and bulk reaches them as well. Two of them
meet through a third rank, which both can dial."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from address_translation import masquerade
from moving_ranks import running
from patience import LIMIT_S

from tools.lab import Lab

ROOT = Path(__file__).parents[3]
RANK = """
import sys
import numpy as np
from transport import FileRendezvous, Group, Priority, Settings

rank, size, first, second = map(int, sys.argv[1:5])
folder, address, engine = sys.argv[5:]
settings = Settings(listen=address, broker="off", engine=engine, job_secret=b"secret of the test")
meet = FileRendezvous(folder)
with Group.connect(meet, rank=rank, world_size=size, settings=settings, connect_timeout_s=30.0) as group:
    sums = np.full(100_000, rank + 1, np.float32)
    group.allreduce(sums).wait()
    assert (sums == size * (size + 1) // 2).all()
    if rank in (first, second):
        other = first + second - rank
        there, back = np.arange(2**20, dtype=np.float32), np.empty(2**20, np.float32)
        works = group.send(there, other, 7, priority=Priority.BULK), group.recv(back, other, 7)
        for work in works:
            work.wait(30.0)
        assert (there == back).all()
    group.barrier().wait()
print("done")
"""
NATIVE, BOTH = ("native", "native", "native"), ("aioquic", "native", "aioquic")


def train(
    lab: Lab, hosts: Sequence[str], engines: Sequence[str], folder: Path, *, bulk_between: tuple[str, str]
) -> None:
    """A rank in each host; all end well."""
    between = [str(hosts.index(host)) for host in bulk_between]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    ranks = [
        lab[host].popen(
            [sys.executable, "-c", RANK, str(rank), str(len(hosts)), *between, str(folder), lab[host].address, engine],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, (host, engine) in enumerate(zip(hosts, engines, strict=False))
    ]
    try:
        for one in ranks:
            out, err = one.communicate(timeout=LIMIT_S)
            assert out == b"done\n", err.decode()
    finally:
        for one in ranks:
            one.kill()
            one.communicate()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("engines", "home"), [(BOTH, 0), (NATIVE, 1)], ids=str)
def test_a_rank_behind_nat_trains_and_sends_and_gets_bulk(
    lab_factory: Callable[..., Lab], tmp_path: Path, engines: tuple[str, ...], home: int
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
    with masquerade(lab["router"]):
        train(lab, hosts, engines, tmp_path / "meet", bulk_between=("home", "office"))


@pytest.fixture
def homes(lab_factory: Callable[..., Lab]) -> Iterator[Lab]:
    """Hosts `office`, `home1` and `home2`, the latter behind `router1` and `router2`."""
    lab = lab_factory("homes")
    lab.router("internet")
    lab.host("office")
    lab.link("office", "internet", rate_bits_per_s=100_000_000)
    for number in (1, 2):
        lab.host(f"home{number}")
        lab.router(f"router{number}")
        lab.link(f"home{number}", f"router{number}", rate_bits_per_s=100_000_000)
        lab.link(f"router{number}", "internet", rate_bits_per_s=100_000_000, delay_s=0.005)
    lab.up()
    with ExitStack() as stack:
        for number in (1, 2):
            home = lab[f"home{number}"]
            home.run(["ip", "-6", "address", "flush", "dev", home.interface])
            lab["internet"].run(["ip", "route", "replace", "unreachable", f"{home.address}/32"])
            stack.enter_context(masquerade(lab[f"router{number}"], guarded=True))
        yield lab


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("engines", "office"), [(NATIVE, 0), (NATIVE, 1), (BOTH, 2)], ids=str)
def test_ranks_behind_two_routers_meet_through_one_that_both_can_dial(
    homes: Lab, tmp_path: Path, engines: tuple[str, ...], office: int
) -> None:
    hosts = ["home1", "home2"]
    hosts.insert(office, "office")
    train(homes, hosts, engines, tmp_path / "meet", bulk_between=("home1", "home2"))


@pytest.mark.timeout(120)
def test_they_go_on_where_a_router_gets_another_address(homes: Lab, tmp_path: Path) -> None:
    """As lines at home do each night: what is known of outer addresses is void, and the rank behind it sees nothing."""
    router, internet = homes["router1"], homes["internet"].address_on("router1")
    where = {"MASTER_ADDR": homes["office"].address}
    old = router.address_on("internet")
    new, device = f"{old.rpartition('.')[0]}.77", router.interface_on("internet")
    with running(homes, tmp_path, [(host, "native") for host in ("home1", "office", "home2")], where=where) as programs:
        routes = json.loads(router.run(["ip", "-json", "route", "show", "via", internet]).stdout)
        router.run(["ip", "address", "del", f"{old}/24", "dev", device])
        router.run(["ip", "address", "add", f"{new}/24", "dev", device])
        for route in routes:
            router.run(["ip", "route", "replace", route["dst"], "via", internet])
        for one in programs:
            one.rounds(10)
        found = [one.end() for one in programs]
    print(f"the slowest round took {max(one['slowest_s'] for one in found):.2f} s")
    assert new in {remote[0] for remote in found[2]["after"].values()}

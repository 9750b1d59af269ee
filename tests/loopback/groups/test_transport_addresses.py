"""Ranks on this machine with several addresses, of which the likely one may lead nowhere."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from patience import LIMIT_S

from transport import Group, MemoryRendezvous, Priority, Settings
from transport.bootstrap.connect import Factories
from transport.mesh import sockets
from transport.mesh.paths import LOCATIONS_MAX
from transport.mesh.sockets import Sockets, address_towards, locations_of, open_all_sockets, open_sockets, outer_address
from transport.runtime import Runtime

LOCAL = Settings(broker="off", job_secret=b"secret of the test")


@pytest.fixture
def nobody() -> Iterator[socket.socket]:
    """A socket that nobody reads."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


def at(address: str) -> Sockets:
    return replace(open_sockets(Settings(listen=address)), interface=address)


def silent(address: str, nobody: socket.socket) -> Sockets:
    """Of a rank that tells a port which it does not serve."""

    class Elsewhere(Sockets):
        @property
        def compute_port(self) -> int:
            return int(nobody.getsockname()[1])

    pair = at(address)
    return Elsewhere(pair.compute, pair.bulk, address, address)


@pytest.mark.parametrize("reachable", ["127.0.0.2", "::1"])
def test_ranks_meet_at_the_address_that_answers(reachable: str, nobody: socket.socket) -> None:
    rendezvous = MemoryRendezvous()
    pairs = {
        0: [silent("127.0.0.3", nobody), silent("::1", nobody)],  # nobody can dial it: it has to find the other
        1: [at(reachable)] if reachable == "::1" else [silent("127.0.0.1", nobody), at(reachable)],
    }

    def run(rank: int) -> str:
        runtime = Runtime.connect(
            rendezvous,
            rank=rank,
            world_size=2,
            name="w",
            timeout_s=LIMIT_S,
            settings=LOCAL,
            factories=Factories(open_sockets=lambda _settings, _hint: pairs[rank]),
        )
        with Group(runtime, name="w", ranks=(0, 1), timeout_s=LIMIT_S, parent=True) as group:
            tensor = np.full(100_000, rank + 1, np.float32)
            group.allreduce(tensor).wait()
            assert (tensor == 3).all()
            address = runtime._endpoint.peers.address(1 - rank)
            if rank == 0:
                group.send(tensor, 1, priority=Priority.BULK).wait()
            else:
                group.recv(tensor, 0).wait()
            return address

    with ThreadPoolExecutor(2) as pool:
        reached = list(pool.map(run, range(2)))
    assert reached[0] == reachable


def test_a_rank_publishes_every_address_of_its_interfaces_and_none_twice() -> None:
    pairs = open_all_sockets(Settings(), hint="127.0.0.1")
    try:
        told = [one.address for one in locations_of(pairs)]
        own = {str(one.address) for addresses in psutil.net_if_addrs().values() for one in addresses}
        assert told[0] == "127.0.0.1"
        assert set(told) <= own
        assert len(set(told)) == len(told) <= LOCATIONS_MAX
    finally:
        for pair in pairs:
            pair.close()


@pytest.mark.parametrize("settings", [Settings(listen="127.0.0.1"), Settings(advertise="127.0.0.1")], ids=str)
def test_an_address_that_the_user_chose_is_the_only_one(settings: Settings) -> None:
    (pair,) = open_all_sockets(settings, hint="127.0.0.1")
    pair.close()


def test_a_name_with_addresses_of_both_families_is_reached_over_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 9, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 9)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert address_towards("both") == "127.0.0.1"
    found[1] = (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("255.255.255.255", 9))  # not without SO_BROADCAST
    assert address_towards("both") == "::1"


def test_without_a_default_route_the_outer_address_is_that_of_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "address_towards", lambda _: "")
    known = {
        "a": [SimpleNamespace(family=socket.AF_INET, address="10.0.0.1")],
        "b": [SimpleNamespace(family=socket.AF_INET6, address="fd00::1")],
        "c": [SimpleNamespace(family=socket.AF_INET, address="169.254.0.1")],
        "d": [SimpleNamespace(family=socket.AF_INET, address="10.0.0.4")],
        "lo": [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")],
    }
    states = {name: SimpleNamespace(isup=name != "a") for name in known}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: known)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert outer_address() == "10.0.0.4"
    del known["d"]
    assert outer_address() == "fd00::1"
    del known["b"]
    assert outer_address() == ""

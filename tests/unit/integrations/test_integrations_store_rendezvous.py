"""torch's store as a meeting place, and which of a host's addresses the others are told."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from patience import LIMIT_S
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store

from hive_qos.errors import TimedOutError, TransportError
from integrations.torch_backend import store_rendezvous
from integrations.torch_backend.store_rendezvous import StoreRendezvous, own_address, settings_for
from transport.mesh import sockets


def test_bytes_come_back_as_they_were_set_even_those_that_are_no_text() -> None:
    meeting = StoreRendezvous(PrefixStore("0", HashStore()), rank=0, world_size=1)
    value = bytes(range(256))
    meeting.set("rank/1", value)
    assert meeting.get("rank/1", 1.0) == value


def test_a_get_sees_a_key_that_is_set_later_and_leaves_the_store_usable_meanwhile() -> None:
    meeting = StoreRendezvous(HashStore(), rank=0, world_size=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meeting.get, "late", LIMIT_S)
        meeting.set("other", b"1")
        assert meeting.get("other", LIMIT_S) == b"1"
        meeting.set("late", b"2")
        assert waiting.result() == b"2"


def test_a_key_that_never_comes_times_out_and_is_named() -> None:
    with pytest.raises(TimedOutError, match="rank/1"):
        StoreRendezvous(HashStore(), rank=0, world_size=2).get("rank/1", 0.02)


def test_a_store_that_is_gone_is_a_transport_error() -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer")

        def set(self, key: str, value: bytes) -> None:
            raise dist.DistNetworkError("Broken pipe")

    meeting = StoreRendezvous(Gone(), rank=0, world_size=2)  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="Connection reset"):
        meeting.get("x", 1.0)
    with pytest.raises(TransportError, match="Broken pipe"):
        meeting.set("x", b"")
    with pytest.raises(TransportError, match="Broken pipe"):
        StoreRendezvous(Gone(), rank=1, world_size=2)  # type: ignore[arg-type]


def ranks_of(store: Store) -> tuple[StoreRendezvous, StoreRendezvous]:
    return StoreRendezvous(store, rank=0, world_size=2), StoreRendezvous(store, rank=1, world_size=2)


def test_a_second_run_reads_nothing_that_the_first_one_left() -> None:
    store = HashStore()
    for value in (b"first", b"second"):
        zero, one = ranks_of(store)
        with pytest.raises(TimedOutError):
            zero.get("1", 0.02)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(zero.get, "1", LIMIT_S)
            one.set("1", value)
            assert waiting.result() == value


def test_a_rank_that_restarts_while_rank_0_waits_is_the_one_that_rank_0_meets() -> None:
    store = HashStore()
    zero, dead = ranks_of(store)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.get, "1", LIMIT_S)
        dead.set("replied", b"")
        StoreRendezvous(store, rank=1, world_size=2).set("1", b"alive")
        assert waiting.result() == b"alive"


def test_a_rank_waits_for_the_rank_0_that_comes_after_a_dead_one() -> None:
    store = HashStore()
    dead, one = ranks_of(store)
    dead.set("run", b"dead")
    with pytest.raises(TimedOutError):
        one.get("run", 0.02)
    alive = StoreRendezvous(store, rank=0, world_size=2)
    alive.set("run", b"alive")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(alive.get, "1", LIMIT_S)
        assert one.get("run", LIMIT_S) == b"alive"
        one.set("1", b"")
        waiting.result()


def route_by(monkeypatch: pytest.MonkeyPatch, routes: Mapping[str, str]) -> None:
    """Have this host's address on the way to each of these, and no way to others."""
    for module in (sockets, store_rendezvous):
        monkeypatch.setattr(module, "address_towards", lambda target: routes.get(target, ""))


EIGHT_HERE = {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("routes", "environment", "world_size", "expected"),
    [
        ({"10.0.0.1": "10.0.0.2"}, {"MASTER_ADDR": "10.0.0.1"}, 2, "10.0.0.2"),
        ({"127.0.0.1": "127.0.0.1"}, {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}, 2, "127.0.0.1"),
        (
            {"10.0.0.1": "10.0.0.2"},
            {"MASTER_ADDR": "10.0.0.1", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"},
            2,
            "10.0.0.2",
        ),
        ({"127.0.0.1": "127.0.0.1"}, {"MASTER_ADDR": "127.0.0.1"}, 2, "127.0.0.1"),
        (
            {"127.0.1.1": "127.0.1.1", "192.0.2.1": "10.0.0.9"},
            {"MASTER_ADDR": "127.0.1.1", "LOCAL_WORLD_SIZE": "1"},
            2,
            "10.0.0.9",
        ),
        ({"192.0.2.1": "10.0.0.9"}, {}, 2, "10.0.0.9"),
        ({"192.0.2.1": "10.0.0.9"}, {"LOCAL_WORLD_SIZE": "2"}, 2, "127.0.0.1"),
        ({"fd00::1": "fd00::2"}, {"MASTER_ADDR": "fd00::1"}, 2, "fd00::2"),
        (
            {"127.0.0.1": "127.0.0.1", "192.0.2.1": "10.0.0.9"},
            {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"},
            None,
            "10.0.0.9",
        ),
    ],
    ids=[
        "lan",
        "all-here",
        "replicas-of-torchft",
        "spawned",
        "debian-hostname",
        "no-host",
        "no-host-all-here",
        "ipv6",
        "others-may-come",
    ],
)
def test_the_advertised_address_is_the_one_that_leads_to_the_store(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    routes: dict[str, str],
    environment: dict[str, str],
    world_size: int | None,
    expected: str,
) -> None:
    route_by(monkeypatch, routes)
    store = PrefixStore("0", FileStore(str(tmp_path / "store"), 2))
    assert own_address(store, world_size=world_size, environment=environment) == expected


def test_a_store_in_memory_means_loopback() -> None:
    assert own_address(PrefixStore("0", HashStore()), world_size=2, environment={}) == "127.0.0.1"


def test_a_store_in_memory_says_nothing_of_ranks_that_may_come_from_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    route_by(monkeypatch, {"192.0.2.1": "10.0.0.9"})
    assert own_address(PrefixStore("0", HashStore()), world_size=None, environment={}) == "10.0.0.9"


@pytest.mark.parametrize(
    ("environment", "listen"),
    [
        ({"LOCAL_WORLD_SIZE": "1"}, ""),
        ({}, ""),
        ({"LOCAL_WORLD_SIZE": "2"}, "127.0.0.1"),
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}, ""),
        ({"LOCAL_WORLD_SIZE": "1", "HIVE_LISTEN": "10.0.0.7"}, "10.0.0.7"),
        ({"LOCAL_WORLD_SIZE": "2", "HIVE_INTERFACE": "eth1"}, ""),
    ],
    ids=["several-hosts", "unknown", "one-host", "two-of-a-larger-job", "chosen", "chosen-interface"],
)
def test_ranks_of_several_hosts_listen_at_all_their_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], listen: str
) -> None:
    for name in ("HIVE_LISTEN", "HIVE_INTERFACE", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    route_by(monkeypatch, {"192.0.2.1": "10.0.0.9"})
    store = PrefixStore("0", FileStore(str(tmp_path / "store"), 2))
    assert settings_for(store, world_size=2).listen == listen
    all_here = environment.get("LOCAL_WORLD_SIZE") == "2" and "WORLD_SIZE" not in environment
    assert StoreRendezvous(store, rank=0, world_size=2).host == ("127.0.0.1" if all_here else "10.0.0.9")

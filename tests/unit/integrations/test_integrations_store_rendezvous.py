"""torch's store as a meeting place, and which of a host's addresses the others are told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore

from hive_qos.errors import TimedOutError, TransportError
from integrations.torch_backend import store_rendezvous
from integrations.torch_backend.store_rendezvous import StoreRendezvous, generation_of, own_address


def test_bytes_come_back_as_they_were_set_even_those_that_are_no_text() -> None:
    store = HashStore()
    value = bytes(range(256))
    StoreRendezvous(PrefixStore("0", store), prefix="g/").set("rank/1", value)
    assert StoreRendezvous(PrefixStore("0", store), prefix="g/").get("rank/1", 1.0) == value


def test_a_get_sees_a_key_that_is_set_later_and_leaves_the_store_usable_meanwhile() -> None:
    store = HashStore()
    meeting = StoreRendezvous(store, prefix="g/")
    found: list[bytes] = []
    waiter = threading.Thread(target=lambda: found.append(meeting.get("late", 30.0)))
    waiter.start()
    meeting.set("other", b"1")
    assert meeting.get("other", 30.0) == b"1"
    meeting.set("late", b"2")
    waiter.join(30)
    assert found == [b"2"]


def test_a_key_that_never_comes_times_out_and_is_named() -> None:
    with pytest.raises(TimedOutError, match="rank/1"):
        StoreRendezvous(HashStore(), prefix="g/").get("rank/1", 0.02)


def test_a_store_that_is_gone_is_a_transport_error() -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer")

        def set(self, key: str, value: bytes) -> None:
            raise dist.DistNetworkError("Broken pipe")

    meeting = StoreRendezvous(Gone(), prefix="g/")  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="Connection reset"):
        meeting.get("x", 1.0)
    with pytest.raises(TransportError, match="Broken pipe"):
        meeting.set("x", b"")


def test_ranks_that_connect_equally_often_meet_under_the_same_new_keys() -> None:
    store = HashStore()
    for expected in (1, 2, 3):
        assert [generation_of(store, rank=rank) for rank in range(3)] == [expected] * 3


@pytest.mark.parametrize(
    ("routes", "environment", "world_size", "expected"),
    [
        ({"10.0.0.1": "10.0.0.2"}, {"MASTER_ADDR": "10.0.0.1"}, 2, "10.0.0.2"),
        ({"127.0.0.1": "127.0.0.1"}, {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}, 2, "127.0.0.1"),
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
    ids=["lan", "all-here", "spawned", "debian-hostname", "no-host", "no-host-all-here", "ipv6", "others-may-come"],
)
def test_the_advertised_address_is_the_one_that_leads_to_the_store(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    routes: dict[str, str],
    environment: dict[str, str],
    world_size: int | None,
    expected: str,
) -> None:
    monkeypatch.setattr(store_rendezvous, "_route", lambda target, family: routes.get(target, ""))
    store = PrefixStore("0", FileStore(str(tmp_path / "store"), 2))
    assert own_address(store, world_size=world_size, environment=environment) == expected


def test_a_store_in_memory_means_loopback() -> None:
    assert own_address(PrefixStore("0", HashStore()), world_size=2, environment={}) == "127.0.0.1"


def test_a_store_in_memory_says_nothing_of_ranks_that_may_come_from_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_rendezvous, "_route", lambda target, family: {"192.0.2.1": "10.0.0.9"}.get(target, ""))
    assert own_address(PrefixStore("0", HashStore()), world_size=None, environment={}) == "10.0.0.9"

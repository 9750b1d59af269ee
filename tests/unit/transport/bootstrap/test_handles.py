"""What ranks that meet without a store tell each other: a handle that was changed, reused or mixed up is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from memory_engine import MemoryNetwork

from hive_qos.errors import MisuseError, PeerError
from transport import Listener, Settings
from transport.bootstrap.handles import read_handle

OPEN = Settings(broker="off", job="j")
SECRET = replace(OPEN, job_secret=b"secret of the test")


def listening(settings: Settings = SECRET) -> Listener:
    return Listener(settings, factories=MemoryNetwork().factories())


def test_a_handle_says_where_its_rank_listens_and_the_list_says_which_rank_that_is() -> None:
    for settings in (OPEN, SECRET):
        info = read_handle(listening(settings).handle, rank=5, settings=settings)
        assert (info.rank, info.node, info.locations[0].address) == (5, "rank-5", "127.0.0.1")
        assert len(info.pin) == 32


@pytest.mark.parametrize(
    "change", [{"pin": "11" * 32}, {"mac": "00" * 32}, {"mac": ""}, {"node": "rank-1"}, {"rank": 1}]
)
def test_a_handle_that_was_changed_is_refused_where_there_is_a_secret(change: dict[str, object]) -> None:
    prefix, nonce, entry = listening().handle.split(":", 2)
    forged = f"{prefix}:{nonce}:{json.dumps(json.loads(entry) | change)}"
    other_nonce = f"{prefix}:{'00' * 16}:{entry}"
    for handle in (forged, other_nonce):
        with pytest.raises(PeerError, match="rank 2: its handle is not signed with this job's HIVE_JOB_SECRET"):
            read_handle(handle, rank=2, settings=SECRET)


def test_a_handle_of_another_job_or_secret_or_without_one_is_refused() -> None:
    for settings in (OPEN, replace(SECRET, job="k"), replace(SECRET, job_secret=b"another of the test")):
        with pytest.raises(PeerError, match="HIVE_JOB_SECRET"):
            read_handle(listening(settings).handle, rank=0, settings=SECRET)


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "x",
        "hive",
        "hive:00:{}",
        "gloo:0:-1:0:",
        f"hive:{'0' * 32}:",
        f"hive:{'g' * 32}:{{}}",
        f"hive:{'0' * 32}:[]",
    ],
)
def test_a_malformed_handle_is_named(handle: str) -> None:
    with pytest.raises(PeerError, match="rank 1: its handle is malformed"):
        read_handle(handle, rank=1, settings=OPEN)


def test_a_huge_handle_is_refused_before_it_is_read() -> None:
    with pytest.raises(PeerError, match="malformed"):
        read_handle(f"hive:{'0' * 32}:{'[' * 70_000}", rank=1, settings=OPEN)


def test_a_list_with_one_handle_twice_or_without_our_own_is_refused_and_the_listener_is_as_before() -> None:
    here, there = listening(), listening()
    with pytest.raises(MisuseError, match="handles 0 and 2 are the same"):
        here.connect([there.handle, here.handle, there.handle])
    for lacking in ([there.handle], []):
        with pytest.raises(MisuseError, match=r"none of the \d handles is this process' own"):
            here.connect(lacking)
    with here.connect([here.handle]) as group:
        assert (group.rank, group.size) == (0, 1)


def test_a_listener_is_good_for_one_attempt() -> None:
    used, closed = listening(), listening()
    used.connect([used.handle]).close()
    closed.close()
    closed.close()
    for listener in (used, closed):
        with pytest.raises(MisuseError, match="used or closed"):
            listener.check([listener.handle])

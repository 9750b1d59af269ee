"""Ranks, as threads, that connect through a torch store which holds what earlier runs left in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from hive_qos.errors import ConfigurationError, PeerError, TimedOutError
from integrations.torch_backend.store_rendezvous import StoreRendezvous
from transport import Group, Settings
from transport.engine import NATIVE_MODULE

LOCAL = Settings(listen="127.0.0.1", broker="off", engine="aioquic", job_secret=b"secret of the test")
MISTAKEN = replace(LOCAL, engine="native")
SIZE = 3


@pytest.fixture(params=["hash", "file", "tcp"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Another client of one store."""
    if request.param == "file":
        return lambda: FileStore(str(tmp_path / "store"), SIZE)
    served = HashStore() if request.param == "hash" else TCPStore("127.0.0.1", 0, SIZE, True, wait_for_workers=False)
    return lambda: served if isinstance(served, HashStore) else TCPStore("127.0.0.1", served.port, SIZE, False)


def connected(open_store: Callable[[], Store], settings: dict[int, Settings], *, timeout_s: float = 600.0) -> list[Any]:
    """What becomes of those ranks of three that come; the time is far beyond what a test may take."""

    def one(rank: int) -> Any:
        try:
            return Group.connect(
                StoreRendezvous(PrefixStore("0/", open_store()), rank=rank, world_size=SIZE),
                rank=rank,
                world_size=SIZE,
                settings=settings[rank],
                connect_timeout_s=timeout_s,
                timeout_s=LIMIT_S,
            )
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(SIZE) as pool:
        results = list(pool.map(one, settings))
        list(pool.map(lambda result: result.close(), [result for result in results if isinstance(result, Group)]))
    return results


def test_all_connect_however_often_some_of_them_have_tried_before(open_store: Callable[[], Store]) -> None:
    for came in ([0], [1, 2], [0, 2], [0, 1, 2]):
        results = connected(open_store, dict.fromkeys(came, LOCAL), timeout_s=LIMIT_S if len(came) == SIZE else 0.2)
        missing = next((rank for rank in range(SIZE) if rank not in came), None)
        for result in results:
            assert isinstance(result, Group if missing is None else TimedOutError), results
        if missing is not None:
            assert f"nothing from rank {missing}" in str(results[0])


def test_a_group_that_has_ended_leaves_its_port_and_forked_children_make_their_own() -> None:
    script = Path(__file__).parent / "programs" / "ended_stores.py"
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        ports = [str(sock.getsockname()[1]) for sock in sockets]
    local = {"HIVE_BROKER": "off", "HIVE_LISTEN": "127.0.0.1", "HIVE_JOB_SECRET": "secret of the test"}
    environment = os.environ | local | {"PYTHONPATH": str(Path(__file__).parents[3])}
    ran = subprocess.run(
        [sys.executable, str(script), *ports], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("mistaken", [0, 2])
def test_a_rank_that_cannot_go_on_is_heard_at_once_also_where_another_is_missing(
    mistaken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, NATIVE_MODULE, None)
    store = HashStore()
    connected(lambda: store, {0: LOCAL, 2: LOCAL}, timeout_s=0.2)
    came = {0: LOCAL, 2: LOCAL, mistaken: MISTAKEN}
    results = dict(zip(came, connected(lambda: store, came), strict=True))
    assert isinstance(results.pop(mistaken), ConfigurationError)
    for result in results.values():
        assert isinstance(result, PeerError)
        assert f"rank {mistaken}: it gave up connecting: [configuration] HIVE_ENGINE" in str(result)

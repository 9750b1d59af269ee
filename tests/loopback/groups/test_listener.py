"""Ranks that meet by handles, over real engines and sockets: those of the list connect, and nobody else."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cases import need
from patience import LIMIT_S

from hive_qos.errors import CancelledError, ConnectionLostError, PeerError, TimedOutError
from transport import Group, Listener, Settings
from transport.identity import ca_init, ca_issue

LOCAL = Settings(listen="127.0.0.1", broker="off", engine="aioquic", job_secret=b"secret of the test")


def connect(listeners: list[Listener], handles: list[str], *, limit_s: float = LIMIT_S) -> list[Any]:
    """What came of each listener that was given these handles."""

    def one(listener: Listener) -> Any:
        try:
            return listener.connect(handles, connect_timeout_s=limit_s, timeout_s=60.0)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(len(listeners)) as pool:
        return list(pool.map(one, listeners))


def sums(groups: list[Group]) -> list[float]:
    tensors = [np.full(10, float(group.rank + 1), np.float32) for group in groups]
    works = [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    for work in works:
        work.wait()
    return [float(tensor[0]) for tensor in tensors]


@pytest.mark.parametrize("engine", ["aioquic", "native"])
def test_ranks_stand_in_the_order_of_the_list_and_form_the_next_group_without_the_one_that_left(engine: str) -> None:
    need(engine)
    settings = dataclasses.replace(LOCAL, engine=engine)
    first = [Listener(settings) for _ in range(3)]
    groups = connect(first, [first[place].handle for place in (2, 0, 1)])
    assert [group.rank for group in groups] == [1, 2, 0]
    assert sums(groups) == [6.0] * 3
    again = [Listener(settings) for _ in range(2)]
    handles = [one.handle for one in again]
    pair = connect(again, handles)
    pending = groups[0].allreduce(np.ones(10, np.float32))
    groups[1].close()
    with pytest.raises(ConnectionLostError, match="rank 2"):
        pending.wait()
    assert sums(pair) == [3.0] * 2
    for group in (*groups, *pair):
        group.close()


def test_ranks_meet_with_certificates_of_a_ca(tmp_path: Path) -> None:
    ca_init(tmp_path / "ca")
    node, other = (ca_issue(tmp_path / "ca", host, out=tmp_path) for host in ("host-1", "host-2"))
    ca = str(tmp_path / "ca" / "ca.crt")
    listeners = [
        Listener(dataclasses.replace(LOCAL, ca=ca, certificate=str(files.certificate), key=str(files.key)))
        for files in (node, node, other)
    ]
    groups = connect(listeners, [one.handle for one in listeners])
    assert sums(groups) == [6.0] * 3
    for group in groups:
        group.close()


def test_who_does_not_answer_is_named_at_the_deadline() -> None:
    here, there = Listener(LOCAL), Listener(LOCAL)
    (error,) = connect([here], [here.handle, there.handle], limit_s=0.5)
    assert isinstance(error, TimedOutError)
    assert "nothing from rank 1 at 127.0.0.1" in str(error)
    assert "Let UDP pass between the hosts" in str(error)
    there.close()


def test_a_handle_of_an_earlier_listener_is_refused_by_who_is_still_connected_there() -> None:
    old = [Listener(LOCAL) for _ in range(2)]
    stale = [one.handle for one in old]
    groups = connect(old, stale)
    new = Listener(LOCAL)
    (error,) = connect([new], [new.handle, stale[1]])
    assert isinstance(error, PeerError)
    assert "rank-1" in str(error)
    assert "is the handle its newest" in str(error)
    assert sums(groups) == [3.0] * 2
    for group in groups:
        group.close()


def test_ranks_with_different_lists_do_not_form_a_group() -> None:
    listeners = [Listener(LOCAL) for _ in range(2)]
    handles = [one.handle for one in listeners]

    def one(place: int) -> Any:
        try:
            return listeners[place].connect(handles[:: 1 - 2 * place], connect_timeout_s=5.0)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(2) as pool:
        for error in pool.map(one, range(2)):
            assert isinstance(error, PeerError | TimedOutError)


def test_closing_a_listener_ends_its_attempt() -> None:
    here, there = Listener(LOCAL), Listener(LOCAL)
    timer = threading.Timer(0.2, here.close, ["the job has other plans"])
    timer.start()
    (error,) = connect([here], [here.handle, there.handle])
    assert isinstance(error, CancelledError)
    assert "the job has other plans" in str(error)
    timer.join()
    there.close()

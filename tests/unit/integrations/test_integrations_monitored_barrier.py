"""The monitored barrier: a word that came too late for its call does not pass for the next one's."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from typing import Any

import pytest
import torch

import transport
from hive_qos.errors import PeerError, TimedOutError, TransportError
from integrations.torch_backend import monitored_barrier
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.world import World


class Mail:
    """A group of two that exchanges words in memory; each receive that finds nothing times out after `patience_s`."""

    patience_s = 0.05
    size = 2
    ranks = (0, 1)
    name = "m"

    def __init__(self, rank: int, boxes: dict[tuple[int, int], queue.SimpleQueue[int]]) -> None:
        self.rank = rank
        self._boxes = boxes

    def send(self, tensor: torch.Tensor, peer: int, tag: int, **_options: Any) -> transport.Work:
        self._boxes[self.rank, peer].put(int(tensor))
        work = transport.Work("send")
        work.finish()
        return work

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, **_options: Any) -> transport.Work:
        work = transport.Work("receive")
        try:
            tensor.fill_(self._boxes[peer, self.rank].get(timeout=self.patience_s))
            work.finish()
        except queue.Empty:
            work.finish(error=TimedOutError("receive", timeout_s=self.patience_s))
        return work


@pytest.fixture
def members() -> list[Collectives]:
    boxes: dict[tuple[int, int], queue.SimpleQueue[int]] = defaultdict(queue.SimpleQueue)
    made = []
    for rank in range(2):
        world = World(Mail(rank, boxes), ranks=(0, 1))  # type: ignore[arg-type]
        made.append(Collectives(world, world.group, timeout_s=5))
    return made


def at(collectives: Collectives) -> None:
    monitored_barrier.barrier(collectives, timeout_s=1.0, wait_all_ranks=False)


def test_words_of_a_barrier_that_failed_do_not_pass_for_the_next_ones(
    members: list[Collectives], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TimedOutError, match="Rank 1 failed to pass"):
        at(members[0])
    with pytest.raises(TransportError, match="successfully reached"):
        at(members[1])  # late
    with pytest.raises(TimedOutError, match="Rank 1 failed to pass"):
        at(members[0])  # the late word waits here, and is not for this call
    with pytest.raises(TransportError, match="successfully reached"):
        at(members[1])
    monkeypatch.setattr(Mail, "patience_s", 30)  # now both come
    late = threading.Thread(target=at, args=(members[1],))
    late.start()
    at(members[0])
    late.join(30)
    assert not late.is_alive()


def test_who_came_learns_from_rank_0_that_another_one_did_not(
    members: list[Collectives], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TimedOutError, match="Rank 1 failed to pass"):
        at(members[0])
    monkeypatch.setattr(Mail, "patience_s", 60)
    with pytest.raises(TransportError, match="it has given up"):
        at(members[1])


def test_ranks_that_have_not_called_it_equally_often_learn_it(members: list[Collectives]) -> None:
    members[1].next_monitored_barrier()
    with pytest.raises(TransportError, match="successfully reached"):
        at(members[1])
    with pytest.raises(PeerError, match="at its monitored barrier 2, this rank at 1"):
        at(members[0])

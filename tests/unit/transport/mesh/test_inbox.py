"""A receive whose connection was lost waits for the next one, or ends where there is no engine any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hive_qos.errors import ConnectionLostError, MisuseError, TransportError
from transport.engine.base import Engine, OperationFailed, Received
from transport.mesh.inbox import Inbox, Receiving
from transport.mesh.peers import PeerTable
from transport.wire.header import Kind, MatchKey

LOST = ConnectionLostError("b", "the engine failed")


class OneRank:
    """The peers as an inbox sees them: rank 1, which is not gone."""

    def __init__(self) -> None:
        self.peers = {1: SimpleNamespace(name="b")}

    def error(self, _rank: int) -> None:
        return None


class Posts:
    """An engine that takes posts until it ends."""

    def __init__(self) -> None:
        self.posted = 0
        self.over = False

    def post(self, *_of: Any) -> int:
        if self.over:
            raise MisuseError("this engine is closed")
        self.posted += 1
        return self.posted


@pytest.mark.parametrize("over", [False, True])
def test_a_receive_is_posted_again_or_ends_with_the_loss(over: bool) -> None:
    inbox, engine = Inbox(cast(PeerTable, OneRank())), Posts()
    ends: list[tuple[Received | None, TransportError | None]] = []
    key = MatchKey(Kind.POINT_TO_POINT, "g")
    receiving = Receiving(1, key, None, lambda *end: ends.append(end), posted_s=0.0)
    inbox.post(cast(Engine, engine), receiving)
    engine.over = over
    inbox.failed(cast(Engine, engine), OperationFailed(receiving.operation, LOST), closing=False)
    assert engine.posted == (1 if over else 2)
    assert ends == ([(None, LOST)] if over else [])

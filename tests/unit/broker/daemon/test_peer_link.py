"""What other brokers are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from broker.daemon.peer_link import PeerLink
from broker.daemon.peer_opening import PeerOpening
from broker.law.decision import Decision
from broker.law.state import State
from broker.model.leases import HoldOutcome, Lease
from broker.model.reasons import Because
from broker.model.values import Allocation
from broker.peers.channel import PeerChannel
from broker.peers.own_certificate import OwnCertificate
from broker.peers.peer_status import PeerStatus

HERE = Lease("near", "10.0.0.2", 3, "storage", 5_000_000, 100_000_000, 0.1, 0.9)
ELSEWHERE = Lease("far", "10.9.0.2", 8, "storage", 5_000_000, 100_000_000, 0.1, 0.9)
KEPT = HoldOutcome(
    "near", "10.0.0.2", 3, True, 5_000_000, Because.HELD_FOR_PEER(peer="near", rate_bits_per_s=5_000_000)
)


class Channel:
    """One that is open, with two leases."""

    def __init__(self) -> None:
        self.answers: list[HoldOutcome] = []

    def look(self) -> PeerChannel:
        return cast("PeerChannel", self)

    def leases(self) -> tuple[Lease, ...]:
        return (HERE, ELSEWHERE)

    def status(self) -> tuple[PeerStatus, ...]:
        return ()

    def want(self, holds: Sequence[object], *, reach: object) -> None:
        pass

    def answer(self, verdicts: Sequence[HoldOutcome]) -> None:
        self.answers = list(verdicts)


@pytest.mark.parametrize("paused", [False, True])
def test_a_hold_towards_no_shaped_interface_is_refused_so_that_the_asker_shapes_by_itself(paused: bool) -> None:
    channel, peer_link = Channel(), PeerLink()
    peer_link.meet(cast("PeerOpening", channel), cast("OwnCertificate", None), now_s=0.0)
    leases = peer_link.leases(interface_of=lambda address: "a" if address == HERE.address else None)
    assert leases == {"a": (HERE,)}
    decision = Decision(State(), Allocation(()), verdicts=(KEPT,))
    (peer_link.hold_nobody if paused else peer_link.answer)(decision)
    assert [(one.address, one.number, one.granted) for one in channel.answers] == [
        ("10.0.0.2", 3, not paused),
        ("10.9.0.2", 8, False),
    ]

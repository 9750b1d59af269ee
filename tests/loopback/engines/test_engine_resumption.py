"""A peer that is dialled again resumes its TLS session; that never gives it a trust which it has not now."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from engine_support import ConnectionDown, ConnectionUp, Node, engines, over, pair, pytest_generate_tests
from patience import wait_until

from hive_qos.errors import PeerError
from transport.engine.base import SendDone
from transport.identity.credentials import Trust
from transport.identity.verify import verify_peer
from transport.wire.error_codes import WireCode

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")


def meet(a: Node, b: Node) -> None:
    """Node a dials, a message is exchanged, and a says goodbye."""
    a.dial(b)
    up = a.take(ConnectionUp)
    assert b.take(ConnectionUp).peer == "a"
    assert up.peer == "b"
    post = b.post("a", None)
    send = a.send(up.connection, b"hello again")
    b.outcome(post)
    assert isinstance(a.outcome(send), SendDone)
    a.engine.disconnect(up.connection, wire_code=0, reason="until later")
    for node in (a, b):
        node.take(ConnectionDown)


def resumed(node: Node) -> int:
    core: Any = node.engine._core  # type: ignore[attr-defined]
    return int(core.resumed)


def knows_nobody(node: Node) -> Trust:
    return Trust(pins={bytes(32): "somebody", node.identity.pin: node.name})


@over(NATIVE)
def test_the_second_connection_resumes_the_session_of_the_first() -> None:
    with pair() as (a, b):
        meet(a, b)
        assert resumed(b) == 0
        for times in (1, 2, 3):
            meet(a, b)
            assert resumed(b) == times


def test_peers_of_any_engine_can_be_dialled_again() -> None:
    with pair() as (a, b):
        for _ in range(3):
            meet(a, b)


@over(NATIVE)
@pytest.mark.parametrize("judge", [0, 1], ids=["the side that dials", "the side that is dialled"])
def test_sessions_end_with_the_trust_that_they_began_in(judge: int) -> None:
    with pair() as both:
        a, b = both
        meet(a, b)
        trust = Trust(pins={a.identity.pin: "a", b.identity.pin: "b"})
        both[judge].engine.set_trust(both[judge].endpoint, trust)
        meet(a, b)
        assert resumed(b) == 0
        meet(a, b)
        assert resumed(b) == 1


@over(NATIVE)
@pytest.mark.parametrize("judge", [0, 1], ids=["the side that dials", "the side that is dialled"])
def test_who_is_not_trusted_any_more_is_refused_with_a_session_too(judge: int) -> None:
    with pair() as both:
        a, b = both
        meet(a, b)
        judging: Any = both[judge].engine
        judging._endpoints[both[judge].endpoint].trust = knows_nobody(both[judge])  # and the session stays
        a.dial(b)
        down = a.take(ConnectionDown)
        assert isinstance(down.error, PeerError)
        assert down.error.wire_code == WireCode.CERTIFICATE_UNTRUSTED
        wait_until(lambda: resumed(b) == 1)


@over(NATIVE)
@pytest.mark.parametrize("judge", [0, 1], ids=["the side that dials", "the side that is dialled"])
def test_a_certificate_that_has_expired_meanwhile_is_refused(judge: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as both:
        a, b = both
        meet(a, b)

        def later(chain: Any, trust: Trust, *, now: datetime.datetime, expected_peer: str | None) -> Any:
            if trust is both[judge].trust:
                now += datetime.timedelta(days=36_500)
            return verify_peer(chain, trust, now=now, expected_peer=expected_peer)

        judging: Any = both[judge].engine
        trust = both[judge].trust = Trust(pins={a.identity.pin: "a", b.identity.pin: "b"})
        judging._endpoints[both[judge].endpoint].trust = trust
        monkeypatch.setattr("transport.engine.admission.verify_peer", later)
        a.dial(b)
        down = a.take(ConnectionDown)
        assert isinstance(down.error, PeerError)
        assert down.error.wire_code == WireCode.CERTIFICATE_EXPIRED
        wait_until(lambda: resumed(b) == 1)

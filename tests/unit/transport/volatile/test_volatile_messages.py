"""What members tell each other comes back as it was sent; anything else is refused, with who sent it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive_qos.errors import PeerError
from transport.volatile.protocol.commit import Contributors, Frozen, Wish
from transport.volatile.protocol.messages import (
    Arrived,
    Ask,
    AskReady,
    Connect,
    Connected,
    Look,
    Mail,
    Pause,
    Ready,
    Unfit,
    decode,
    encode,
)
from transport.volatile.protocol.view import DIGEST_BYTES, Member

A, B = Member("a", 1), Member("b", 2**61)
DIGEST = b"d" * DIGEST_BYTES
WISH = Wish(frozenset({A}), frozenset({B}), 3, 4, pause=True)


@pytest.mark.parametrize(
    "message",
    [
        Look(),
        Connect(3),
        Connected(3),
        Arrived(1, 2, 3, 4, made_up=False),
        Arrived(1, 2, 3, 4, made_up=True),
        Unfit(1, 2),
        Ready(4, DIGEST),
        AskReady(),
        Pause("too slow"),
        Ask(-1, None, 7),
        Ask(5, 0, 8),
        Contributors(1, 2, (A, B), turn=True),
        Frozen(1, 2, DIGEST),
        Frozen(1, 2, DIGEST, DIGEST, (A, B), frozenset({B}), WISH, between_steps=True),
    ],
)
def test_a_message_comes_back_as_it_was(message: Mail) -> None:
    assert decode(encode(message), sender="a") == message


@given(st.binary(max_size=200))
def test_bytes_of_anybody_are_a_message_or_refused(data: bytes) -> None:
    try:
        decode(data, sender="worker-7")
    except PeerError as error:
        assert "worker-7" in str(error)  # noqa: PT017 - the other outcome is a message


def test_a_message_with_a_field_of_another_kind_is_refused() -> None:
    data = encode(Ready(4, DIGEST)).replace(b"\x04", b"\x63", 1)
    with pytest.raises(PeerError):
        decode(data, sender="a")

"""One send or receive, the parts that its message has on the wire, and what a head may say (docs/reference/wire.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hive_qos.errors import HiveError, PeerError
from transport.engine.base import Buffer, Received
from transport.mesh.endpoint import Ticket, tag_of
from transport.tensors import DIMENSIONS_MAX, TensorView
from transport.wire.dtypes import ITEM_BYTES, item_bytes
from transport.wire.header import Header, Kind, MatchKey
from transport.work import Work

GROUP_SUFFIX = "|p2p"
HEAD, BODY, ASK = 0, 1, 2
"""The parts, as `bucket` of their headers."""
RECEIVE_BYTES_MAX = 2**40
"""Longest message that is believed (1 TiB, as on the wire). What is taken for one is `Settings.receive_bytes_max`."""
VOID = {"void": True}
"""The head of a message that will not come."""


@dataclass(eq=False)
class P2POp:
    """One send or receive that has not ended, with rank `peer` of the endpoint, or None with whoever comes first.

    `tickets` are its parts under way. `void` tells the receiver of a send that it will not come, `refuse` the sender of
    a message whose head was taken that its body is not wanted; each None while there is nobody to tell. `place` is its
    place among the receives from any rank. `has_begun`: a receive has the head of its message.
    """

    work: Work
    group: str
    tag: int
    timeout_s: float
    deadline_s: float
    peer: int | None = None
    place: int = 0
    payload: TensorView | None = None
    into: TensorView | None = None
    tickets: list[Ticket] = field(default_factory=list)
    error: HiveError | None = None
    result: object = None
    body_posted: bool = False
    has_begun: bool = False
    void: Callable[[], None] | None = None
    refuse: Callable[[HiveError], None] | None = None
    ended: bool = False

    def key(self, sender: int, number: int, part: int) -> MatchKey:
        """What a part of message `number` from a rank is matched by."""
        return MatchKey(
            kind=Kind.POINT_TO_POINT,
            group=self.group + GROUP_SUFFIX,
            step=number,
            bucket=part,
            tag=tag_of(sender, self.tag),
        )

    def header(self, sender: int, number: int, part: int, content: TensorView | Buffer) -> Header:
        """The header of a part with a tensor, or with bytes that are none."""
        view = content if isinstance(content, TensorView) else None
        return Header(
            kind=Kind.POINT_TO_POINT,
            group=self.group + GROUP_SUFFIX,
            step=number,
            bucket=part,
            tag=tag_of(sender, self.tag),
            dtype=view.dtype if view else "",
            shape=view.shape if view else (),
            length=content.data.nbytes if isinstance(content, TensorView) else content.nbytes,
        )

    def mismatch(self, peer: str, dtype: str, shape: tuple[int, ...]) -> PeerError:
        """The error where a peer's message does not fit the target."""
        taken = f"{self.into.dtype}{list(self.into.shape)}" if self.into else "nothing"
        sent = f"{dtype}{list(shape)}"
        return PeerError(peer, f"{self.work.what}: it sent {sent} where {taken} is taken")


def describe(fields: Mapping[str, object]) -> Buffer:
    """The content of a head that carries no tensor."""
    return memoryview(json.dumps(fields).encode())


def described(received: Received) -> tuple[str, tuple[int, ...]] | None:
    """The dtype and shape that a head announces, within bounds; None for a void message.

    Raises:
        ValueError: malformed or beyond a limit.
    """
    if received.header.dtype:
        return received.header.dtype, received.header.shape
    try:
        fields = json.loads(bytes(received.payload))
    except RecursionError as error:
        raise ValueError("its head is malformed: nested beyond reason") from error
    if not isinstance(fields, dict):
        raise ValueError("its head is malformed")
    if fields.get("void") is True:
        return None
    dtype, shape = fields.get("dtype"), fields.get("shape")
    if (
        not isinstance(dtype, str)
        or dtype not in ITEM_BYTES
        or not isinstance(shape, list)
        or len(shape) > DIMENSIONS_MAX
    ):
        raise ValueError("its head names no dtype and shape that are known")
    if not all(type(length) is int and 0 <= length <= RECEIVE_BYTES_MAX for length in shape):
        raise ValueError("its head has an impossible shape")
    if math.prod(shape) * item_bytes(dtype) > RECEIVE_BYTES_MAX:
        raise ValueError(f"it announces more than {RECEIVE_BYTES_MAX} bytes")
    return dtype, tuple(shape)

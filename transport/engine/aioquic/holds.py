"""Collectives that have not begun here, and take so much of the store that their sender was asked to hold them back.

The rules and reasons are those of `native/src/matching/holds.rs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.wire.header import Kind

if TYPE_CHECKING:
    from transport.engine.aioquic.matching import ReceiveStream
    from transport.engine.aioquic.receive_streams import Incoming


class Held:
    """Of one peer, by connection, group and step."""

    def __init__(self) -> None:
        self._held: set[tuple[Incoming, str, int]] = set()

    def hold(self, stream: ReceiveStream) -> None:
        """Ask for an operation that has not begun, over the connection that has brought a message of it."""
        message, channel = stream.message, stream.channel
        if channel is None or message.kind is not Kind.COLLECTIVE:
            return
        held = (channel, message.group, message.step)
        if held not in self._held and channel.hold(message.group, message.step, waits=True):
            self._held.add(held)

    def release(self, group: str, last: int) -> None:
        """A group's operations to this one have begun here, or are over."""
        for held in [one for one in self._held if one[1] == group and one[2] <= last]:
            self._held.remove(held)
            channel, _, step = held
            channel.hold(group, step, waits=False)

    def forget(self, channel: Incoming) -> None:
        """A connection has ended, and with it what was said there."""
        self._held = {one for one in self._held if one[0] is not channel}

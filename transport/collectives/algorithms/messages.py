"""Messages of values: as they are, or encoded where the problem names a codec.

Whoever sends one message to several ranks encodes it once, and where it goes on with the values itself, it adopts what
they decode to: so all ranks hold the same bits. The residual of error feedback is a buffer like the tensor's: a rank
contributes to some elements and owns the others, so it encodes each element once in a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transport.collectives.codecs import Codec, encoded_bytes
from transport.collectives.problem import Problem
from transport.collectives.schedule import Builder, Region

RESIDUAL = 1
"""Buffer number of the residual, beside the tensor's, 0."""


class Messages:
    """Sends and receives values of a builder's schedule."""

    def __init__(self, builder: Builder, problem: Problem) -> None:
        self._builder = builder
        self._problem = problem

    def place(self, nbytes: int) -> Region | None:
        """Scratch for so many bytes of values, encoded; None where they are not."""
        if self._problem.codec is Codec.NONE:
            return None
        return self._builder.scratch(self._problem.message_bytes(nbytes // self._problem.item_bytes))

    def send(
        self,
        peers: Sequence[int],
        part: int,
        values: Region,
        after: Iterable[int] = (),
        *,
        of: Region,
        adopts: bool = False,
    ) -> tuple[int, ...]:
        """Send values to some ranks.

        Args:
            of: the elements of the tensor that they are of.
            adopts: let the values become what the others decode.

        Returns:
            The steps after which the values may be overwritten, and read where they are adopted.
        """
        place = self.place(values.nbytes)
        if place is None:
            return tuple(self._builder.send(peer, part, values, after) for peer in peers)
        codec = self._problem.codec
        residual = of._replace(buffer=RESIDUAL) if self._problem.feeds_back else None
        step = self._builder.encode(place, values, residual, after, codec=codec)
        for peer in peers:
            self._builder.send(peer, part, place, (step,), codec=codec)
        return (self._builder.decode(values, place, (step,), codec=codec) if adopts else step,)

    def receive(
        self, peer: int, part: int, target: Region, after: Iterable[int] = (), *, place: Region | None = None
    ) -> int:
        """Receive values; the step that puts them into `target`.

        Args:
            after: until when `target` and `place` are in use.
            place: as `place` gives it, at least as long; None: a new one.
        """
        place = place or self.place(target.nbytes)
        if place is None:
            return self._builder.receive(peer, part, target, after)
        codec, elems = self._problem.codec, target.nbytes // self._problem.item_bytes
        place = place._replace(stop=place.start + encoded_bytes(elems, codec))
        arrived = self._builder.receive(peer, part, place, after, codec=codec)
        return self._builder.decode(target, place, (arrived,), codec=codec)

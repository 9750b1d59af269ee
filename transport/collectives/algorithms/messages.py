"""Messages of values: as they are, or encoded where the problem names a codec.

Whoever sends one message to several ranks encodes it once, and where it goes on with the values itself, it adopts what
they decode to: so all ranks hold the same bits. Whoever passes a message on, passes it on as it came. The residual of
error feedback is a buffer like the tensor's: a rank encodes each element once in a call, for it contributes to some and
owns the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transport.collectives.codecs import Codec, encoded_bytes
from transport.collectives.problem import Problem
from transport.collectives.schedule import Builder, Region


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
        of: Region | None = None,
        adopts: Region | None = None,
        finish: bool = False,
    ) -> tuple[int, ...]:
        """Send values to some ranks.

        Args:
            of: the elements of the tensor that they are of, where what encoding leaves out is kept.
            adopts: where this rank has what the others decode; only where values are encoded.
            finish: whether they are a result.

        Returns:
            The steps after which the values may be overwritten, and those adopted be read.
        """
        place = self.place(values.nbytes)
        if place is None:
            return tuple(self._builder.send(peer, part, values, after) for peer in peers)
        codec = self._problem.codec
        residual = None
        if self._problem.feeds_back and of is not None:
            residual = of._replace(buffer=of.buffer + self._problem.first_residual)
        step = self._builder.encode(place, values, residual, after, codec=codec, finish=finish)
        for peer in peers:
            self._builder.send(peer, part, place, (step,), codec=codec)
        return (step if adopts is None else self._builder.decode(adopts, place, (step,), codec=codec),)

    def receive(
        self,
        peer: int,
        part: int,
        target: Region,
        after: Iterable[int] = (),
        *,
        place: Region | None = None,
        pass_on: Sequence[int] = (),
    ) -> int:
        """Receive values; the step that puts them into `target`.

        Args:
            after: until when `target` and `place` are in use.
            place: as `place` gives it, at least as long; None: a new one.
            pass_on: ranks to which the message goes on.
        """
        place = place or self.place(target.nbytes)
        if place is None:
            arrived = self._builder.receive(peer, part, target, after)
            for other in pass_on:
                self._builder.send(other, part, target, (arrived,))
            return arrived
        codec, elems = self._problem.codec, target.nbytes // self._problem.item_bytes
        place = place._replace(stop=place.start + encoded_bytes(elems, codec))
        arrived = self._builder.receive(peer, part, place, after, codec=codec)
        for other in pass_on:
            self._builder.send(other, part, place, (arrived,), codec=codec)
        return self._builder.decode(target, place, (arrived,), codec=codec)

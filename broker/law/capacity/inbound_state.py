"""What the decision remembers about the capacity of one interface's way in: who saw a queue there, what came, and the
estimate."""

from __future__ import annotations

from msgspec import Struct

Series = tuple[tuple[float, float], ...]
"""(when, seconds), oldest first."""


class SourceState(Struct, frozen=True):
    """One series of times that packets take towards us.

    Fields: `key` of the series, `sender` whose packets they are; `at_s` and `value_s` of the last sample; `least_s`
    (start, least) of the last parts of the window over which the baseline is taken, oldest first; `uid` whose programs
    tell of it, None where our kernel measured it.
    """

    key: str
    sender: str
    at_s: float
    value_s: float
    least_s: tuple[tuple[float, float], ...]
    uid: int | None = None


class SenderDelayState(Struct, frozen=True):
    """What one sender's packets waited lately, over their baseline: (when, seconds), oldest first; `told` by programs
    of ours, `measured` by TCP or his broker."""

    sender: str
    reported: Series = ()
    measured: Series = ()

    @property
    def both(self) -> tuple[Series, Series]:
        """Told and measured."""
        return self.reported, self.measured


class InboundCapacityState(Struct, frozen=True):
    """The capacity of one way in.

    Fields: `base_bits_per_s` what operator or driver say, `rate_bits_per_s` the estimate; `received_bytes` the counter,
    `came` (when, bits) of the last two seconds, counted from zero, oldest first; `ignore_before_s` what was heard
    before tells of a rate or a drain that is over; `changed_s` when the estimate was changed last, `changed_by` what
    changed it, `excess_s` how long packets waited then, `senders_seen` how many senders said so; `drain_until_s` until
    when storage is held to half, so that the queue goes away; `busy_s` for how long storage has used all that it might;
    `step` of the next raise, `settled_bits_per_s` the last rate that was no untried raise, `untried_s` when
    the first raise since then was, `failed_bits_per_s` where the last one ended; `episode_rate_bits_per_s`,
    `episode_excess_s` (the least) and `episode_moves` (lower ones) since a queue was first seen, `ignore_delay_until_s`
    until when no delay is believed; `heard_s` when it was last known whether a queue stands, or nothing came.
    """

    base_bits_per_s: int
    rate_bits_per_s: int
    received_bytes: int | None = None
    came: tuple[tuple[float, float], ...] = ()
    sources: tuple[SourceState, ...] = ()
    sender_delays: tuple[SenderDelayState, ...] = ()
    ignore_before_s: float = 0.0
    changed_s: float = 0.0
    changed_by: str = ""
    excess_s: float = 0.0
    senders_seen: int = 0
    drain_until_s: float = 0.0
    busy_s: float = 0.0
    step: float = 0.0
    settled_bits_per_s: int = 0
    untried_s: float = 0.0
    failed_bits_per_s: int = 0
    episode_rate_bits_per_s: int = 0
    episode_excess_s: float = 0.0
    episode_moves: int = 0
    ignore_delay_until_s: float = 0.0
    heard_s: float = 0.0

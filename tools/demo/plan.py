"""Which block follows which: the order of phases and halves, as plain values.

A block is the steps that begin within some seconds under one condition. Every phase of a round is a full-rate block and
then a half-rate block of the same condition, with no pause between: the link loses half its rate while training and
storage go on. The order of phases rotates from round to round, so that a machine that slows down over time harms none.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Block:
    """Training for `seconds` under one condition.

    `kind` is `warm-up` or `phase`; `half` is `full` or `half`; `condition` is one of `settings.CONDITIONS`.
    """

    kind: str
    condition: str
    half: str
    round: int
    seconds: float


def make_plan(settings: Settings) -> tuple[Block, ...]:
    """List the blocks of a run in order: warm-up, then the rounds."""
    blocks = [Block(kind="warm-up", condition="idle", half="full", round=0, seconds=settings.warm_up_s)]
    for turn in range(settings.rounds):
        shift = turn % len(settings.phases)
        for condition in settings.phases[shift:] + settings.phases[:shift]:
            for half in ("full", "half"):
                blocks.append(Block(kind="phase", condition=condition, half=half, round=turn, seconds=settings.half_s))
    return tuple(block for block in blocks if block.seconds > 0)

"""Which block follows which: the order of phases, halves and check blocks, as plain values.

A block is a run of steps under one condition. Every phase of a round is a full-rate block and then a half-rate block
of the same condition, with no pause between: the link loses half its rate while training and storage go on.
The order of phases rotates from round to round, so that a machine that slows down over time harms none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Block:
    """Steps `first_step` to `first_step + steps - 1`, all under one condition.

    `kind` is `warm-up`, `phase` or `check`; `half` is `full` or `half`; `condition` is `idle`, `flooded`, `static`,
    `brokered` or `other-link`.
    """

    kind: str
    condition: str
    half: str
    round: int
    steps: int
    settling_steps: int


def make_plan(settings: Settings) -> tuple[Block, ...]:
    """List the blocks of a run in order: warm-up, the check with the other link, then the rounds.

    Idle and other-link blocks of the check alternate, and which comes first alternates too (ABBA), which cancels drift.
    """
    blocks = [_block(settings, "warm-up", "idle", "full", 0, settings.warm_up_steps)]
    for turn in range(settings.check_rounds):
        pair = ("idle", "other-link") if turn % 2 == 0 else ("other-link", "idle")
        blocks += [_block(settings, "check", condition, "full", turn, settings.check_steps) for condition in pair]
    for turn in range(settings.rounds):
        shift = turn % len(settings.phases)
        for condition in settings.phases[shift:] + settings.phases[:shift]:
            for half in ("full", "half"):
                blocks.append(_block(settings, "phase", condition, half, turn, settings.steps_per_half))
    return tuple(block for block in blocks if block.steps > 0)


def _block(settings: Settings, kind: str, condition: str, half: str, turn: int, steps: int) -> Block:
    settling = min(settings.settling_steps, max(0, steps - 1))
    return Block(kind=kind, condition=condition, half=half, round=turn, steps=steps, settling_steps=settling)

"""What storage declares: how much it has to send, by when, and whether data is at risk meanwhile.

demand     bytes left by time left of each need that has a deadline; one without wants all that it can get, and so
           does one whose deadline has passed. Programs that declare nothing count with what they use.
deadline   `broker.law.sharing.deadlines` says whether it will be kept, and raises what storage is promised.
at risk    while objects have too few copies storage lends nothing: its HTB rate is its guarantee (HTB serves a
           class' own rate before it lends anything, so this goes before every priority), bursts or not. Never
           more than the guarantee, and not for ever: `RISK_S_MAX` at once of each user, which come back at
           `RISK_REFILL` of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from broker.law.state import RiskState
from broker.model.reasons import Because, Reason
from broker.model.values import Alarm, Need

NEEDS_MAX = 256
"""One of each session at most; a daemon has no more sessions."""
REMAINING_S_MIN = 0.1
"""What is due now is wanted within a tick."""
RISK_S_MAX, RISK_REFILL, RISK_S_AGAIN = 600.0, 0.2, 60.0
"""Ten minutes at a fifth of a gigabit are 15 GB a host, then one minute in five: data that needs longer needs a larger
guarantee. Once spent, a minute has to come back first, so that rates do not flutter."""


class Declared(Struct, frozen=True):
    """What storage declares at one interface now, all programs together.

    Fields: `bits_per_s` needed for all deadlines; `unlimited` whether a need has none, or a missed one; `ahead` the
    needs whose deadline is; `overdue_s` by how much the worst is late, 0 where
    none is; `replicas` at risk that count, `refused` those whose user's time is spent; `left_s` for how long they may;
    `any` whether anything is declared.
    """

    bits_per_s: int = 0
    unlimited: bool = False
    ahead: tuple[Need, ...] = ()
    overdue_s: float = 0.0
    replicas: int = 0
    refused: int = 0
    left_s: float = 0.0
    any: bool = False

    def wants_bits_per_s(self, ceiling_bits_per_s: int) -> int | None:
        """The demand that was declared; None where nothing was."""
        if not self.any:
            return None
        return ceiling_bits_per_s if self.unlimited else self.bits_per_s

    def at_risk(self, guarantee_bits_per_s: int) -> Reason | None:
        """Why storage keeps its guarantee at every moment, where it does."""
        return (
            Because.REPLICAS_AT_RISK(
                replicas=self.replicas, guarantee_bits_per_s=guarantee_bits_per_s, left_s=self.left_s
            )
            if self.replicas
            else None
        )


def follow(
    risks: Sequence[RiskState], needs: Sequence[Need], *, now_s: float
) -> tuple[tuple[RiskState, ...], Declared]:
    """Take in what is declared at a tick.

    Args:
        risks: each user's time so far.
        needs: as measured; order means nothing.
        now_s: the tick's time.
    """
    if not risks and not needs:
        return (), Declared()
    current = sorted((need for need in needs if need.backlog_bytes > 0), key=lambda need: (need.uid, need.session))
    current = current[:NEEDS_MAX]
    at_risk: dict[int, int] = {}
    for need in current:
        if need.replicas_at_risk > 0:
            at_risk[need.uid] = at_risk.get(need.uid, 0) + need.replicas_at_risk
    known = {risk.uid: risk for risk in risks}
    after = [
        _spend(known.get(uid) or RiskState(uid, RISK_S_MAX, now_s), now_s=now_s, active=uid in at_risk)
        for uid in sorted(known.keys() | at_risk.keys())
    ]
    counting = [risk for risk in after if risk.uid in at_risk and not risk.spent]
    ahead = [need for need in current if need.remaining_s is not None and need.remaining_s > 0]
    late = [-need.remaining_s for need in current if need.remaining_s is not None and need.remaining_s <= 0]
    declared = Declared(
        bits_per_s=sum(needed_bits_per_s(need) for need in ahead),
        unlimited=len(ahead) < len(current),
        ahead=tuple(ahead),
        overdue_s=max(late, default=0.0),
        replicas=sum(at_risk[risk.uid] for risk in counting),
        refused=sum(at_risk[risk.uid] for risk in after if risk.uid in at_risk and risk.spent),
        left_s=max((risk.left_s for risk in counting), default=0.0),
        any=bool(current),
    )
    return tuple(risk for risk in after if risk.left_s < RISK_S_MAX or risk.uid in at_risk), declared


def alarms(name: str, declared: Declared) -> tuple[Alarm, ...]:
    """What was not kept, at an interface."""
    found = []
    if declared.overdue_s > 0:
        text = f"storage has not sent what was due {declared.overdue_s:.3g} s ago"
        found.append(Alarm("deadline-missed", f"{name}/storage", text))
    if declared.refused:
        text = (
            f"{declared.refused} objects have too few copies, and the time in which storage goes before training's "
            "bursts is spent; it has its guarantee over its window"
        )
        found.append(Alarm("risk-time-spent", f"{name}/storage", text))
    return tuple(found)


def needed_bits_per_s(need: Need) -> int:
    """The rate that its deadline needs."""
    return int(need.backlog_bytes * 8 / max(need.remaining_s or 0.0, REMAINING_S_MIN))


def _spend(risk: RiskState, *, now_s: float, active: bool) -> RiskState:
    """A user's time after another tick: it runs while his data is at risk and counts, else it comes back."""
    elapsed_s = max(0.0, now_s - risk.as_of_s)
    if active and not risk.spent:
        left_s = risk.left_s - elapsed_s
        return RiskState(risk.uid, max(0.0, left_s), now_s, spent=left_s <= 0)
    left_s = min(RISK_S_MAX, risk.left_s + RISK_REFILL * elapsed_s)
    return RiskState(risk.uid, left_s, now_s, spent=risk.spent and left_s < RISK_S_AGAIN)

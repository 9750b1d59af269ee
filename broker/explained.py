"""How much of what training sends from here is what it has announced; the rest is guessed at (`broker.observed`).

One program of a host announces and another one beside it does not, or somebody announces a byte for an hour. So an
announcement speaks for as much as it is believed, and not for the host:

    in force    what class compute has sent since a burst began <= 1.25 * what this burst, and those that began after
                it, are credited with; a quarter for headers and what is sent twice
    explained   while bursts in force are credited with as much as is worth a hold (`broker.bursts.start_s`), and for
                `AFTER_S` from then on, because counters show a burst's last packets up to a tick after its end
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.bursts import UNKNOWN, start_s
from broker.model import InterfaceSample
from broker.state import BurstState

WIRE = 1.25
AFTER_S = 0.3


def in_force(sample: InterfaceSample, credited: Sequence[BurstState]) -> tuple[BurstState, ...]:
    """The bursts whose credit is not used up; also those of which that cannot be known.

    Args:
        sample: what was measured.
        credited: how far bursts are believed.
    """
    credit_bytes, found = 0, []
    for entry in sorted(credited, key=lambda entry: (-entry.started_s, entry.uid, entry.job, entry.step)):
        credit_bytes += entry.credited_bytes
        since_bytes = _sent_since(entry, sample)
        if entry.credited_bytes > 0 and (since_bytes is None or since_bytes <= WIRE * credit_bytes):
            found.append(entry)
    return tuple(found)


def explained(sample: InterfaceSample, standing: Sequence[BurstState], *, capacity_bits_per_s: int) -> bool:
    """Whether bursts account for what training sends.

    Args:
        sample: what was measured.
        standing: those in force.
        capacity_bits_per_s: of the slower way.
    """
    late = {(burst.uid, burst.job, burst.step) for burst in sample.bursts if burst.remaining_s <= 0}
    credit_bytes = sum(
        entry.credited_bytes
        for entry in standing
        if _sent_since(entry, sample) is not None and (entry.uid, entry.job, entry.step) not in late
    )
    return start_s(credit_bytes, capacity_bits_per_s=capacity_bits_per_s) > 0


def _sent_since(burst: BurstState, sample: InterfaceSample) -> int | None:
    """What class compute has sent since a burst began; None where that cannot be known."""
    sent_bytes = next((entry.sent_bytes for entry in sample.classes if entry.name == "compute"), UNKNOWN)
    if UNKNOWN in (sent_bytes, burst.sent_bytes_before) or sent_bytes < burst.sent_bytes_before:
        return None
    return sent_bytes - burst.sent_bytes_before

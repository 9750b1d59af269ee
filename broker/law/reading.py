"""Compare two successive readings of an interface's class counters: bytes sent between them, and the backlog."""

from __future__ import annotations

from msgspec.structs import replace

from broker.law.capacity.outbound import Counters
from broker.law.sharing import demand, guarantee, storage_needs
from broker.law.sharing.plan import ClassNeeds
from broker.law.sharing.promises import LENDER
from broker.law.state import ClassState, InterfaceState
from broker.model.reasons import Reason
from broker.model.values import ClassSample, InterfaceSample
from broker.policy.types import CLASS_NAMES, ClassPolicy

COUNTERS_STALE_S = 0.5
"""Five ticks without counters: throughput and backlog are not known any more."""


class Reading:
    """Everything is None where it cannot be known."""

    def __init__(self, *, now_s: float, state: InterfaceState, sample: InterfaceSample | None) -> None:
        self.now_s = now_s
        self.before = {entry.name: entry for entry in state.classes}
        self.present = sample is not None
        age_s = sample.counters_age_s if sample is not None else None
        self.read_s = None if age_s is None else now_s - age_s
        self.fresh = age_s is not None and age_s < COUNTERS_STALE_S
        new = self.read_s is not None and (state.counters_s is None or self.read_s > state.counters_s)
        self.counters_s = self.read_s if new else state.counters_s
        earlier_s = state.counters_s
        self.elapsed_s = self.read_s - earlier_s if new and self.read_s is not None and earlier_s is not None else None
        self.received_bytes = sample.received_bytes if sample is not None else None
        self.received_before = state.received_bytes
        self.samples: dict[str, ClassSample] = {}
        if sample is not None and self.fresh:
            self.samples = {entry.name: entry for entry in sample.classes}
        self.held_back_bytes = 0

    def set_held_back(self, held_bytes: int) -> None:
        """Subtract from the lender's backlog what waits for another broker's hold: our link does not cause it."""
        entry = self.samples.get(LENDER)
        if entry is not None and held_bytes:
            self.held_back_bytes = min(held_bytes, entry.backlog_bytes)
            self.samples[LENDER] = replace(entry, backlog_bytes=entry.backlog_bytes - self.held_back_bytes)

    def _before(self, name: str) -> ClassState:
        return self.before.get(name) or ClassState(name)

    def sent_bytes(self, name: str) -> int:
        """The counter of a class, the last known one where there is none."""
        found = self.samples.get(name)
        return found.sent_bytes if found else self._before(name).sent_bytes

    def counters(self) -> Counters | None:
        """All classes' counters since the last tick; None where they are not fresh, or began anew."""
        if self.elapsed_s is None or not self.fresh:
            return None
        classes = tuple(self.samples.get(name) or ClassSample(name, 0) for name in CLASS_NAMES)
        sent, dropped = [], []
        for entry in classes:
            before = self._before(entry.name)
            rate = demand.rate_of(before, entry, elapsed_s=self.elapsed_s) if entry.name in self.samples else 0.0
            if rate is None:
                return None
            sent.append(rate * self.elapsed_s)
            dropped.append(max(0, entry.dropped_packets - before.dropped_packets) if entry.name in self.samples else 0)
        received: float | None = None
        if self.received_bytes is not None and self.received_before is not None:
            received = max(0, self.received_bytes - self.received_before) * 8.0
        return Counters(classes, tuple(sent), tuple(dropped), self.elapsed_s, received)

    def observed(self, entry: ClassPolicy, guarantee_bits_per_s: int) -> ClassState:
        """Add a class' counters: its use and, of the lender, what it is owed."""
        before, sample = self._before(entry.name), self.samples.get(entry.name)
        if sample is None:
            return before
        rate = demand.rate_of(before, sample, elapsed_s=self.elapsed_s)
        observed = demand.observe(before, sample, elapsed_s=self.elapsed_s, now_s=self.now_s)
        if rate is None or self.elapsed_s is None or entry.name != LENDER:
            return observed
        account = guarantee.account(
            observed.account, received_bits=rate * self.elapsed_s, guarantee_bits_per_s=guarantee_bits_per_s,
            window_s=entry.guarantee_window_s, elapsed_s=self.elapsed_s, waiting=_waits(sample), now_s=self.now_s,
        )  # fmt: skip
        return replace(observed, account=account)

    def needs(
        self, entry: ClassPolicy, guarantee_bits_per_s: int, ceiling_bits_per_s: int, floor_bits_per_s: int, *,
        limit: Reason | None, announced: list[tuple[int, float]], declared: storage_needs.Declared | None,
    ) -> tuple[ClassState, ClassNeeds]:  # fmt: skip
        """Add a class' counters and compute what it needs."""
        sample, observed = self.samples.get(entry.name), self.observed(entry, guarantee_bits_per_s)
        wants = demand.demand_bits_per_s(
            observed, backlog_bytes=sample.backlog_bytes if sample else None, ceiling_bits_per_s=ceiling_bits_per_s,
            floor_bits_per_s=floor_bits_per_s, announced=announced,
            declared_bits_per_s=declared.wants_bits_per_s(ceiling_bits_per_s) if declared else None,
        )  # fmt: skip
        owed_per_s = guarantee.owed_bits(observed.account) / entry.guarantee_window_s
        return observed, ClassNeeds(
            policy=entry,
            demand_bits_per_s=wants,
            waiting=sample is not None and _waits(sample),
            sending=(observed.throughput_bits_per_s or 0.0) >= demand.SENDING_BITS_PER_S,
            repay_bits_per_s=guarantee.repay_rate_bits_per_s(
                observed.account, guarantee_bits_per_s=guarantee_bits_per_s, window_s=entry.guarantee_window_s
            ),
            received_bits_per_s=max(0, int(guarantee_bits_per_s - owed_per_s)),
            limit=limit,
            at_risk=declared.at_risk(guarantee_bits_per_s) if declared else None,
        )


def _waits(sample: ClassSample) -> bool:
    return sample.backlog_bytes >= demand.BACKLOG_BYTES_MIN

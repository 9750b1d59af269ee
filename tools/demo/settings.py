"""Everything about a demonstration that can be chosen, with defaults that end within five minutes on 2 cores."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from hive_qos.errors import ConfigurationError

ENGINES = ("auto", "native", "aioquic")
CONDITIONS = ("idle", "flooded", "static", "brokered", "other-link")

TRIAL_BATCH = 32
"""What is timed to choose a batch: enough that what a step costs whatever its batch does not count."""

BATCH_MIN, BATCH_MAX = 4, 128
"""Below, the loss of a step is mostly noise; above, memory is spent on a processor faster than there are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Args:
        rate_bits_per_s: every link's rate; host a's is halved in the second half of each phase. At 40 Mbit/s the CPU
            was the limit on 2 cores: the same rsync over another link changed the step by 12 %. At 20 it was 0.6 %.
        delay_s: propagation between the training hosts, each way.
        buffer_s: queue of each link, in time at the full rate.
        rounds: how often the phases take turns (their order rotates).
        half_s: seconds of each half of a phase. Longer than `guarantee_window_s`, so that each half can be judged.
        warm_up_s: seconds of training before the first phase, counted nowhere.
        storage_guarantee: storage's guarantee in the broker's configuration, as a part of the link. At half rate
            training at full speed leaves 0.12 of the link: both sides can keep a tenth.
        guarantee_window_s: over which storage's guarantee is an average.
        backend: of torch.distributed.
        engine: of the backend hive; auto is native where it is built, else aioquic. The report names it.
        width, layers, heads, context: the transformer and the bytes of a text.
        batch: texts of a step on each host; 0 for as many as compute in about `compute_s`, chosen once, before the
            first step. The report names it.
        compute_s: what computing takes of a step then, both hosts at once. Gradients take 0.3 s to cross the link: the
            step is mostly communication on a quick processor and on a slow one. While both hosts compute, two cores are
            full, and what rsync takes of them lengthens the step, whatever its link: by a tenth of this time.
        learning_rate: of AdamW.
        corpus_bytes: how much of the standard library's source is read.
        user: who trains and who copies; an ordinary user.
        run_seconds_max: the watchdog; a run that is not done by then is ended and reported as failed.
        phases: conditions in the order of the first round. `other-link` sends storage over a link of its own: what
            that changes of a step is what storage costs the processors.
    """

    rate_bits_per_s: int = 20_000_000
    delay_s: float = 0.003
    buffer_s: float = 0.1
    rounds: int = 2
    half_s: float = 12.0
    warm_up_s: float = 4.0
    storage_guarantee: float = 0.1
    guarantee_window_s: float = 10.0
    backend: str = "hive"
    engine: str = "auto"
    width: int = 80
    layers: int = 2
    heads: int = 4
    context: int = 128
    batch: int = 0
    compute_s: float = 0.04
    learning_rate: float = 2e-3
    corpus_bytes: int = 4_000_000
    user: str = "nobody"
    run_seconds_max: float = 600.0
    phases: tuple[str, ...] = ("idle", "flooded", "static", "brokered")

    def __post_init__(self) -> None:
        for name in ("rounds", "layers", "heads", "context", "width"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "has to be at least 1")
        for name in ("delay_s", "warm_up_s", "batch"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(name, getattr(self, name), "cannot be below 0, nor without end")
        if not 0 < self.run_seconds_max < math.inf:
            raise ConfigurationError("run_seconds_max", self.run_seconds_max, "the watchdog has to be above 0")
        for name in ("half_s", "compute_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(name, getattr(self, name), "has to be above 0, and not without end")
        if self.width % self.heads:
            raise ConfigurationError("width", self.width, "has to be a multiple of heads")
        if self.engine not in ENGINES:
            raise ConfigurationError("engine", self.engine, f"there are {', '.join(ENGINES)}")
        for phase in self.phases:
            if phase not in CONDITIONS:
                raise ConfigurationError("phases", phase, f"there are {', '.join(CONDITIONS)}")

    def as_record(self) -> dict[str, object]:
        """Give the values for `events.jsonl` and the report."""
        return {**dataclasses.asdict(self), "phases": list(self.phases)}


def batch_for(*, compute_s: float, trial_s: float) -> int:
    """Choose how many texts compute in `compute_s`, where `TRIAL_BATCH` of them took `trial_s`.

    Computing grows with the texts; between `BATCH_MIN` and `BATCH_MAX` always.
    """
    return min(max(round(TRIAL_BATCH * compute_s / trial_s), BATCH_MIN), BATCH_MAX)

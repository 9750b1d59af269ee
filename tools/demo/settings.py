"""Everything about a demonstration that can be chosen, with defaults that end within 12 minutes on 2 cores."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from hive_qos.errors import ConfigurationError

ENGINES = ("auto", "native", "aioquic")

TRIAL_BATCH = 32
"""What is timed to choose a batch: enough that what a step costs whatever its batch does not count."""

BATCH_MIN, BATCH_MAX = 4, 128
"""Below, the loss of a step is mostly noise; above, memory is spent on a processor faster than there are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Args:
        rate_bits_per_s: every link's rate; host a's is halved in the second half of each phase. At 40 Mbit/s the same
            rsync over another link changed the step by 12 % on 2 cores: the CPU was the limit. At 20 it was 0.6 %.
        delay_s: propagation between the training hosts, each way.
        buffer_s: queue of each link, in time at the full rate.
        rounds: how often the four phases take turns (their order rotates).
        steps_per_half: steps of one half of one phase in one round, settling ones included.
        settling_steps: steps at the start of each half that no figure counts.
        half_seconds_max: a half that lasts longer ends early (its steps are then fewer, and the report says how many).
        warm_up_steps: steps before the first phase, counted nowhere.
        check_rounds, check_steps: idle and other-link blocks of the CPU check, and the steps of each. It ends sooner
            where what it finds is known well enough.
        storage_alone_s: how long storage has the link to itself in its check.
        rsyncs: parallel rsync processes.
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
    """

    rate_bits_per_s: int = 20_000_000
    delay_s: float = 0.003
    buffer_s: float = 0.1
    rounds: int = 3
    steps_per_half: int = 14
    settling_steps: int = 2
    half_seconds_max: float = 60.0
    warm_up_steps: int = 12
    check_rounds: int = 20
    check_steps: int = 12
    storage_alone_s: float = 8.0
    rsyncs: int = 1
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
    run_seconds_max: float = 840.0
    phases: tuple[str, ...] = ("idle", "flooded", "static", "brokered")

    def __post_init__(self) -> None:
        for name in ("rounds", "steps_per_half", "rsyncs", "layers", "heads", "context", "width"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "has to be at least 1")
        for name in ("delay_s", "warm_up_steps", "check_rounds", "check_steps", "storage_alone_s", "batch"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(name, getattr(self, name), "cannot be below 0, nor without end")
        if not 0 < self.run_seconds_max < math.inf:
            raise ConfigurationError("run_seconds_max", self.run_seconds_max, "the watchdog has to be above 0")
        if not 0 < self.compute_s < math.inf:
            raise ConfigurationError("compute_s", self.compute_s, "has to be above 0, and not without end")
        if not 0 <= self.settling_steps < self.steps_per_half:
            raise ConfigurationError("settling_steps", self.settling_steps, "has to leave steps to count")
        if self.width % self.heads:
            raise ConfigurationError("width", self.width, "has to be a multiple of heads")
        if self.engine not in ENGINES:
            raise ConfigurationError("engine", self.engine, f"there are {', '.join(ENGINES)}")
        for phase in self.phases:
            if phase not in ("idle", "flooded", "static", "brokered"):
                raise ConfigurationError("phases", phase, "there are idle, flooded, static and brokered")

    def as_record(self) -> dict[str, object]:
        """Give the values for `events.jsonl` and the report."""
        return {**dataclasses.asdict(self), "phases": list(self.phases)}


def batch_for(*, compute_s: float, trial_s: float) -> int:
    """Choose how many texts compute in `compute_s`, where `TRIAL_BATCH` of them took `trial_s`.

    Computing grows with the texts; between `BATCH_MIN` and `BATCH_MAX` always.
    """
    return min(max(round(TRIAL_BATCH * compute_s / trial_s), BATCH_MIN), BATCH_MAX)

"""Fresh: daemons and job have just started; a little later storage floods the receiver for the first time.

What brokers have learned by then they learned of training alone on the link. Each round starts everything anew, and is
judged by itself: who trains after a reboot meets one start, not the median of many.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from tools.brokerbench import scenes
from tools.brokerbench.run import Run
from tools.brokerbench.scenarios.shares import JOB, counters_of
from tools.brokerbench.stage import Job, Stage

SCENARIO = "fresh"
CONDITION = "brokered"
QUIET_S = FLOOD_S = 14.0
COMPUTE_S, PAYLOAD_BYTES = 0.2, 4_000_000
"""A step takes 0.54 s on an idle link, 0.34 of it for its all_reduce."""
STEP_S, GOLDEN = 0.54, 0.618
"""The flood begins at another moment of the step in each round: the golden ratio spreads any number of them evenly."""


def measure(run: Run) -> None:
    """Do all starts."""
    for number in range(run.settings.fresh_rounds):
        if not run.in_time:
            run.write("failure", SCENARIO, what=CONDITION, error="no time was left")
            return
        with run.guarded(SCENARIO, f"start {number + 1}"):
            _start(run, number)


def _start(run: Run, number: int) -> None:
    job = Job(name=JOB, compute_s=COMPUTE_S, payload_bytes=PAYLOAD_BYTES, scalar=True)
    scene = scenes.receiver(run.settings, name=SCENARIO)

    def brokers_first(stage: Stage, stack: ExitStack) -> None:
        stack.callback(stage.brokers.stop)
        stage.brokers.start()

    with Stage(scene, run.settings, jobs=[job], on_step=run.shows_steps(SCENARIO), prepare=brokers_first) as stage:
        stage.brokers.wait_for_sessions(scenes.TRAINERS)
        stage.train(QUIET_S + STEP_S * (GOLDEN * number % 1))
        stage.start_storage()
        stage.train(FLOOD_S)
        end_s = time.monotonic()
        stage.wait(0.2)  # the last samples
        seen = stage.seen()
        stage.stop_storage()
        stage.brokers.stop()
        run.write(
            "block",
            SCENARIO,
            condition=CONDITION,
            round=number,
            rate_bits_per_s=scene.rate_bits_per_s,
            end_s=end_s,
            counters=counters_of(scene),
            decisions=run.keep_decisions(stage, tag=f"{SCENARIO}-{number}"),
            **seen,
        )
    run.say(f"{SCENARIO}: start {number + 1}: {len(seen['steps'][JOB]) // 2} steps")

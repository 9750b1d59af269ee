"""Hold: how long it takes from a burst's announcement at the receiver until the sender's kernel holds storage back.

Steps are irregular, so that no burst can be foreseen and each has to be announced. The flooder is 5 ms away; what the
way takes is measured by echoes while nothing else is on the link, and taken off.
"""

from __future__ import annotations

import time

from tools.brokerbench import scenes
from tools.brokerbench.run import Run
from tools.brokerbench.scenarios.shares import JOB, payload_bytes
from tools.brokerbench.stage import Job, Stage

SCENARIO = "hold"
DELAY_S = 0.005
FLOODER = "s"
QUIET_S, SETTLING_S = 2.0, 12.0
"""Echoes alone; then storage and training until brokers know each other and credit has been earned."""

STEP_S = 0.45
"""Of a step, roughly: for how many seconds a number of holds takes."""


def measure(run: Run) -> None:
    """One block with our own."""
    settings = run.settings
    scene = scenes.receiver(settings, name=SCENARIO, times=1, delay_s=DELAY_S)
    size = payload_bytes(settings, scene.rate_bits_per_s)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=size, irregular=True)

    with Stage(
        scene,
        settings,
        jobs=[job],
        on_step=run.shows_steps(SCENARIO),
        watch=("b", scene.lab[FLOODER].address),
        watch_classes=FLOODER,
    ) as stage:
        stage.forget()
        stage.wait(QUIET_S)
        quiet = stage.seen()["echoes"]
        stage.enter("brokered")
        first_s = time.monotonic()
        stage.train(SETTLING_S)
        cpu_begin, begin_s = stage.cpu_seconds(), time.monotonic()
        stage.train(settings.hold_requests * STEP_S)
        end_s = time.monotonic()
        cpu_end = stage.cpu_seconds()
        stage.rest()
        seen = stage.seen()
        stage.leave("brokered")
        run.write(
            "block",
            SCENARIO,
            condition="brokered",
            first_s=first_s,
            begin_s=begin_s,
            end_s=end_s,
            cpu_s={"begin": cpu_begin, "end": cpu_end},
            quiet_echoes=quiet,
            receiver_rank=scenes.TRAINERS.index("b"),
            decisions=run.keep_decisions(stage, tag=SCENARIO),
            **seen,
        )

"""Jobs: two training jobs and storage on the sender's link, all of which want more than there is.

Both jobs count alike, and one reduces twice as much a step as the other: what they get should be equal all the same.
They compute little, so that each wants more than its half all the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tools.brokerbench import scenes
from tools.brokerbench.run import Run, turned
from tools.brokerbench.scenarios.shares import counters_of, payload_bytes
from tools.brokerbench.stage import Job, Stage

SCENARIO = "jobs"
COMPUTE_S = 0.02
SETTLING_S = 3.0
"""At the start of a block, counted nowhere."""


def measure(run: Run) -> None:
    """Do all rounds."""
    settings = run.settings
    scene = scenes.sender(settings, name=SCENARIO)
    size = payload_bytes(settings, scene.rate_bits_per_s)
    jobs = [
        Job(name="small", compute_s=COMPUTE_S, payload_bytes=size // 2 // 4 * 4),
        Job(name="large", compute_s=COMPUTE_S, payload_bytes=size),
    ]

    def on_step(name: str, record: Mapping[str, Any]) -> None:
        run.show(f"{SCENARIO}: {name}: step {record['step']:4d}  {record['step_s']:.2f} s")

    with Stage(scene, settings, jobs=jobs, on_step=on_step) as stage:
        for number in range(settings.jobs_rounds):
            for condition in turned(settings.variants, number):
                if not run.in_time:
                    run.write("failure", SCENARIO, what=condition, error="no time was left")
                    return
                _block(run, stage, condition, number, {job.name: job.payload_bytes for job in jobs})


def _block(run: Run, stage: Stage, condition: str, number: int, payloads: Mapping[str, int]) -> None:
    stage.enter(condition)
    stage.train(SETTLING_S)
    stage.forget()
    begin_s, begin_cpu_s = time.monotonic(), stage.cpu_seconds()
    stage.train(run.settings.jobs_s)
    end_s, end_cpu_s = time.monotonic(), stage.cpu_seconds()
    stage.rest()
    seen = stage.seen()
    stage.leave(condition)
    run.write(
        "block",
        SCENARIO,
        condition=condition,
        round=number,
        rate_bits_per_s=stage.scene.rate_bits_per_s,
        begin_s=begin_s,
        end_s=end_s,
        payload_bytes=payloads,
        counters=counters_of(stage.scene),
        cpu_s={"begin": begin_cpu_s, "end": end_cpu_s},
        decisions=run.keep_decisions(stage, tag=f"{SCENARIO}-{condition}-{number}"),
        **seen,
    )
    steps = {job: len(rows) // 2 for job, rows in seen["steps"].items()}
    run.say(f"{SCENARIO}: round {number + 1}: {condition:9} steps {steps}")

"""Capacity: a link falls to a third of its rate and rises again, with training, storage and people on it, untold.

The link is the sender's own, as seen from the router: the host's device still takes what its configuration says. People
are ICMP echoes over the same link, there and back; nobody classified them, so that they are `other`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tools.brokerbench import scenes
from tools.brokerbench.run import Run, turned
from tools.brokerbench.scenarios.shares import JOB, payload_bytes
from tools.brokerbench.stage import Job, Stage

SCENARIO = "capacity"


def measure(run: Run) -> None:
    """Do all rounds."""
    settings = run.settings
    scene = scenes.sender(settings, name=SCENARIO)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))

    with Stage(
        scene, settings, jobs=[job], on_step=run.shows_steps(SCENARIO), watch=("a", scene.target_address)
    ) as stage:
        for number in range(settings.capacity_rounds):
            for condition in turned(settings.variants, number):
                if not run.in_time:
                    run.write("failure", SCENARIO, what=condition, error="no time was left")
                    return
                crossed = (scene.sampled[0], stage.lab["r"].interface_on("a"), scenes.RECEIVED)
                block(run, stage, SCENARIO, condition, number, crossed=crossed)


def block(run: Run, stage: Stage, scenario: str, condition: str, number: int, *, crossed: Sequence[object]) -> None:
    """One condition in one round: the scene's bottleneck has one rate after the other.

    Args:
        crossed: the counter of what crosses it: node, interface, column.
    """
    settings, scene = run.settings, stage.scene
    link = stage.lab.links[scene.bottleneck]
    stage.enter(condition)
    stage.forget()
    begin_cpu_s = stage.cpu_seconds()
    parts = []
    for rate, seconds in zip(settings.capacity_rates, settings.capacity_parts_s, strict=True):
        if link.rate_bits_per_s != rate:
            link.set_rate(rate)
        begin_s = time.monotonic()
        stage.train(seconds)
        parts.append({"rate_bits_per_s": rate, "begin_s": begin_s, "end_s": time.monotonic()})
    end_cpu_s = stage.cpu_seconds()
    link.set_rate(scene.rate_bits_per_s)
    stage.rest()
    seen = stage.seen()
    stage.leave(condition)
    run.write(
        "block",
        scenario,
        condition=condition,
        round=number,
        parts=parts,
        crossed=list(crossed),
        cpu_s={"begin": begin_cpu_s, "end": end_cpu_s},
        decisions=run.keep_decisions(stage, tag=f"{scenario}-{condition}-{number}"),
        **seen,
    )
    run.say(f"{scenario}: round {number + 1}: {condition:9} {len(seen['steps'][JOB]) // 2} steps")

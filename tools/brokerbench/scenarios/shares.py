"""Sender, receiver and remote: training and storage share a bottleneck, and each variant takes its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.brokerbench import scenes
from tools.brokerbench.run import Run, turned
from tools.brokerbench.scenes import Scene
from tools.brokerbench.settings import IDLE, Settings
from tools.brokerbench.stage import Job, Stage

SCENES: Mapping[str, Callable[[Settings], Scene]] = {
    "sender": scenes.sender,
    "receiver": scenes.receiver,
    "remote": scenes.remote,
}
HEADERS_SHARE = 0.05
"""Of QUIC, UDP, IP and Ethernet on full packets, and acknowledgements: what a payload takes besides itself."""

JOB = "training"


def payload_bytes(settings: Settings, rate_bits_per_s: int) -> int:
    """What two ranks all_reduce in `communication_s` over an idle link: each sends as much as the tensor has."""
    return int(settings.communication_s * rate_bits_per_s / 8 * (1 - HEADERS_SHARE)) // 4 * 4


def measure(run: Run, scenario: str) -> None:
    """Do all rounds of one scenario."""
    settings = run.settings
    scene = SCENES[scenario](settings)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))

    with Stage(scene, settings, jobs=[job], on_step=run.shows_steps(scenario)) as stage:
        for number in range(settings.rounds):
            for condition in turned(settings.conditions, number):
                if not run.in_time:
                    run.write("failure", scenario, what=condition, error="no time was left")
                    return
                _block(run, stage, scenario, condition, number)


def _block(run: Run, stage: Stage, scenario: str, condition: str, number: int) -> None:
    settings, crew = run.settings, stage.crews[JOB]
    if condition != IDLE:
        crew.run(until=crew.next_step + settings.calm_steps, seconds_max=settings.block_seconds_max, flows_on=False)
    stage.enter(condition)
    stage.forget()
    first, begin_cpu_s = crew.next_step, stage.cpu_seconds()
    until = crew.run(until=first + settings.steps, seconds_max=settings.block_seconds_max, flows_on=False)
    end_cpu_s = stage.cpu_seconds()
    stage.wait(0.3)  # the last samples
    seen = stage.seen()
    stage.leave(condition)
    run.write(
        "block",
        scenario,
        condition=condition,
        round=number,
        rate_bits_per_s=stage.scene.rate_bits_per_s,
        first_counted=first + settings.settling_steps,
        cpu_s={"begin": begin_cpu_s, "end": end_cpu_s},
        counters=counters_of(stage.scene),
        decisions=run.keep_decisions(stage, tag=f"{scenario}-{condition}-{number}"),
        **seen,
    )
    seconds = sorted(step["step_s"] for step in seen["steps"][JOB] if step["rank"] == 0)
    run.say(
        f"{scenario}: round {number + 1}: {condition:9} {until - first:3d} steps, "
        f"median {seconds[len(seconds) // 2]:.3f} s, longest {seconds[-1]:.3f} s"
    )


def counters_of(scene: Scene) -> dict[str, list[object] | None]:
    """Which counter is which: node, interface, column; None where the sink counts."""
    return {
        "compute": [scene.compute.node, scene.compute.interface, scene.compute.column],
        "storage": [scene.storage.node, scene.storage.interface, scene.storage.column] if scene.storage else None,
    }

"""Way in: the link of a host falls to a third and rises again while two others store to it and training goes on.

Nobody is told. The queue stands in front of the link, where no sender's own shaper is, so that only the receiver can
find what it carries. Two ways to do something about it take turns with each other and with doing nothing: the receiver
asks the brokers of the senders; or they have none, and what arrives is shaped on an IFB, by us or by a fixed tree.
"""

from __future__ import annotations

from tools.brokerbench import scenes
from tools.brokerbench.run import Run, turned
from tools.brokerbench.scenarios import changing
from tools.brokerbench.scenarios.shares import JOB, payload_bytes
from tools.brokerbench.settings import IDLE, Settings
from tools.brokerbench.stage import Job, Stage
from tools.brokerbench.variants import HERE

SCENARIO = "inbound"
AT_SENDERS = ("none", "static", "quiet", "brokered")
AT_RECEIVER = ("static", "priority", "brokered")
"""Priority at the senders is left out: neither of them sees the queue, whatever it puts first (receiver)."""
CALM_S = 2.0
"""Training alone before each block: as long as a flood stands its windows grow at the cost of training's."""


def measure(run: Run) -> None:
    """Do all rounds."""
    settings = run.settings
    scene = scenes.inbound(settings, name=SCENARIO)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))

    with Stage(
        scene, settings, jobs=[job], on_step=run.shows_steps(SCENARIO), watch=("b", scene.lab["r"].address_on("b"))
    ) as stage:
        crossed = ("b", stage.lab["b"].interface, scenes.RECEIVED)
        for number in range(settings.capacity_rounds):
            for condition in turned(conditions(settings), number):
                if not run.in_time:
                    run.write("failure", SCENARIO, what=condition, error="no time was left")
                    return
                stage.train(CALM_S)
                stage.rest()
                changing.block(run, stage, SCENARIO, condition, number, crossed=crossed)


def conditions(settings: Settings) -> tuple[str, ...]:
    """Of a round: training alone, then with storage."""
    chosen = settings.variants
    return (
        IDLE,
        *(name for name in AT_SENDERS if name in chosen),
        *(f"{name}{HERE}" for name in AT_RECEIVER if name in chosen),
    )

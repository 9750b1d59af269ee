"""`report.json` from the raw records, and nothing else: what `run` writes is what `report` computes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.demo.checks import check_figures, goal_figures
from tools.demo.figures import cores_used, counters_of, loss_figures, phase_figures
from tools.demo.records import NAMES, Records, read

FILE = "report.json"
PLOT = "plot.png"

DEFINITIONS = {
    "step_s": "seconds of a step on rank 0, the host whose link is flooded",
    "steps": "every step of the phase, those right after a change of conditions too",
    "storage_bits_per_s": "storage's bits on the wire, Ethernet headers included, counted in the router",
    "storage_bits_per_s_min": "the same of the round that was worst for storage",
    "storage_share_of_leftover": (
        "storage's wire bytes / (shaped capacity - training's wire bytes), over the same intervals; shaped capacity is "
        "97 % of the link's real rate of that half, whatever a broker or an administrator takes it for"
    ),
    "storage_share_of_link_leftover": "the same against the whole real rate of the link",
    "cpu_share": "busy share of all the machine's cores, other programs included",
    "cores_used": "CPU seconds of each program over the seconds of a condition's blocks",
    "half": "the link of host a has half its rate, and nobody was told",
}


def compute(records: Records) -> dict[str, Any]:
    """Compute the whole report.

    Raises:
        ValueError: the records have no settings: nothing was run.
    """
    settings, topology = records.last("settings").get("settings"), records.last("topology").get("counters")
    if settings is None or topology is None:
        raise ValueError("there is no run in these records")
    counters = counters_of(records.counters, topology)
    phases = phase_figures(records.steps, counters, settings)
    loss = loss_figures(records.steps)
    training = {key: value for key, value in records.last("ready").items() if key not in ("event", "t_s")}
    hashes = {entry["rank"]: entry["weights_sha256"] for entry in records.all("weights")}
    identical = len(hashes) == 2 and len(set(hashes.values())) == 1
    ended = records.last("end")
    return {
        "schema": 1,
        "complete": bool(ended.get("complete", False)),
        "error": ended.get("error"),
        "phases": phases,
        "loss": loss,
        "weights_identical": identical,
        "weights_sha256": hashes,
        "checks": check_figures(phases, weights_identical=identical),
        "goals": goal_figures(
            phases,
            loss=loss,
            rate_bits_per_s=settings["rate_bits_per_s"],
            storage_guarantee=settings.get("storage_guarantee", 0),
        ),
        "training": training,
        "cores_used": cores_used(records.steps, records.events),
        "broker_resident_bytes_max": max((e["resident_bytes"] for e in records.all("broker-memory")), default=None),
        "settings": {**settings, "batch": training.get("batch", settings["batch"])},
        "versions": records.last("settings").get("versions", {}),
        "definitions": DEFINITIONS,
    }


def write(directory: Path) -> dict[str, Any]:
    """Compute the report of a run and write it beside its records."""
    report = compute(read(directory))
    (directory / FILE).write_text(json.dumps(report, indent=2) + "\n")
    return report


def clear(directory: Path) -> None:
    """Remove what an earlier run left here: a run that fails early must not show that one's figures as its own.

    Raises:
        OSError: `directory` cannot be made or written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in (FILE, PLOT, *(f"{records}.jsonl" for records in NAMES)):
        (directory / name).unlink(missing_ok=True)


def passed(report: dict[str, Any], *, strict: bool) -> bool:
    """Whether the run came to its end and every check holds; with `strict`, whether every goal is reached, too."""
    judged = (*report["checks"], *(report["goals"] if strict else ()))
    return bool(report["complete"]) and all(entry["passed"] for entry in judged)

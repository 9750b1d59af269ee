"""The collectives' benchmark on its real parts: every operation and a training, hive beside Gloo, on one host."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.collectivesbench import report, training
from tools.collectivesbench.budget import Budget
from tools.collectivesbench.contenders import competing
from tools.collectivesbench.networks import one_host
from tools.collectivesbench.settings import ALL, KIB, Settings, Sweep
from tools.collectivesbench.sweep import Run, joined, sweep
from tools.measure.records import HEAD, Writer, read

pytestmark = pytest.mark.long

SIZES = (KIB, 256 * KIB)
SETTINGS = Settings(
    repetitions=1, worlds=(2,), sweeps={"host": (Sweep(operations=ALL, payload_bytes=SIZES),)}, steps_max=8
)


def run_into(directory: Path, said: list[str]) -> tuple[Run, Writer]:
    writer = Writer(directory)
    writer.write({"kind": HEAD})
    return Run(SETTINGS, directory, writer, said.append, variants={}), writer


def test_every_operation_is_measured_beside_gloo_s_and_its_result_is_right(tmp_path: Path) -> None:
    said: list[str] = []
    run, writer = run_into(tmp_path, said)
    sweep(run, Budget(SETTINGS.seconds), scenario="host")
    writer.close()
    found = report.compute(*read(tmp_path))
    assert found["failures"] == [], said
    measured = {(cell["contender"], cell["operation"], cell["bytes"]) for cell in found["cells"]}
    assert measured == {(name, each, size) for name in ("hive", "gloo cubic") for each in ALL for size in SIZES}
    for cell in found["cells"]:
        assert cell["figures"]["cpu_s_per_gb"]["median"] > 0
        assert 0 < cell["figures"]["python_share"]["median"] <= 1


def test_all_contenders_follow_the_same_loss(tmp_path: Path) -> None:
    said: list[str] = []
    run, writer = run_into(tmp_path, said)
    order = {"task": "transformer", "seed": 0, "loss": 0.0, "steps_max": 8, "seconds_max": 60.0}
    with ExitStack() as stack:
        members = joined(run, stack, "training", one_host(2), competing(bbr=False))
        for contender in tuple(members):
            training.train(run, "training", one_host(2), members, contender, order)
    writer.close()
    found = report.compute(*read(tmp_path))
    assert found["failures"] == [], said
    assert [cell["figures"]["steps"]["median"] for cell in found["cells"]] == [8, 8]
    gaps = [cell["figures"]["loss_gap"]["high"] for cell in found["cells"]]
    assert max(gaps) < 1e-3

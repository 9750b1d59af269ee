"""PyTorch's own tests of torch.distributed, from the installed wheel, over the hive backend.

    BACKEND=hive WORLD_SIZE=3 python tests/torch_suite/suite.py [-k PATTERN] [--list]

`make test-torch` runs all three ways and judges them. `BACKEND=gloo` gives the reference. `AS_GLOO=1` runs the tests
that are tied to Gloo by name as well: hive answers to that name then. Tests that need a GPU skip themselves. Ranks are
forked, so that torch is imported once; SPAWN=1 starts them as the suite does. `OUTCOMES=FILE` gets what came of each
test, as JSON: passed, skipped or failed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("BACKEND", "gloo" if os.environ.get("AS_GLOO") else "hive")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HIVE_BROKER", "off")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="torch-suite-")
for name in ("barrier", "init_dir", "test_dir"):
    Path(os.environ["TEMP_DIR"], name).mkdir(exist_ok=True)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29533")

import torch  # noqa: E402 - the suite reads the environment when it is imported
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature in ("plugin", "ddp", "subgroup"):
    DistTestCases.backend_feature[feature].add("hive")

from torch.testing._internal.distributed import distributed_test  # noqa: E402 - its decorators read the features

Base = distributed_test.TestDistBackend
Tests = distributed_test.DistributedTest._DistTestBase


class TestHive(Base, Tests):  # taken from the wheel at run time
    """The suite's tests, each in WORLD_SIZE processes."""

    def setUp(self) -> None:
        super().setUp()
        if os.environ.get("SPAWN"):
            self._spawn_processes()
        else:
            self._start_processes(torch.multiprocessing.get_context("fork").Process)


TestResult: Any = unittest.TextTestResult  # generic to the type checker alone


class Recorded(TestResult):
    """What came of each test, by its name."""

    outcomes: ClassVar[dict[str, str]] = {}

    def record(self, test: Any, outcome: str) -> None:
        self.outcomes[test._testMethodName] = outcome

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self.record(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.record(test, "skipped")

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.record(test, "failed")

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.record(test, "failed")


# unittest would collect the bases as well, without a way to start processes.
del distributed_test.TestDistBackend, distributed_test.DistributedTest, Base, Tests

if os.environ.get("AS_GLOO"):
    from integrations.torch_backend import process_group

    process_group.is_mixed = lambda: False
    plugins = torch.distributed.Backend._plugins
    plugins["GLOO"] = plugins["HIVE"]
    # The profiler's events bear Gloo's name.
    distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

if __name__ == "__main__":
    if "--list" in sys.argv:
        for case in unittest.TestLoader().getTestCaseNames(TestHive):
            print(case)
        raise SystemExit
    if os.environ["BACKEND"] == "hive" or os.environ.get("AS_GLOO"):
        for module in ("integrations.torch_backend.process_group", "transport.engine.aioquic.engine", "torch._dynamo"):
            importlib.import_module(module)  # once here, rather than in every rank
    torch.set_num_threads(1)
    program = unittest.main(testRunner=unittest.TextTestRunner(verbosity=2, resultclass=Recorded), exit=False)
    if "OUTCOMES" in os.environ:
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(Recorded.outcomes))
    raise SystemExit(not program.result.wasSuccessful())

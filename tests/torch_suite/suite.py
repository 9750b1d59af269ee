"""PyTorch's own tests of torch.distributed, from the installed wheel, over the hive backend. Run by hand.

    pip install expecttest
    BACKEND=hive WORLD_SIZE=3 python tests/torch_suite/suite.py [-k PATTERN] [--list]

`BACKEND=gloo` gives the reference. `AS_GLOO=1` runs the tests that are tied to Gloo by name as well: hive answers to
that name then (some of those compare the words of Gloo's errors). Tests that need a GPU skip themselves. Ranks are
forked, so that torch is imported once; SPAWN=1 starts them as the suite does. Takes a few minutes; not part of
`make test`. What passes is in docs/reference/transport.md.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import unittest
from pathlib import Path

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
    unittest.main(verbosity=2)

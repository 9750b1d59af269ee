"""Registering costs `import torch` nothing, breaks nothing, and a failure is told when the backend is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import torch.distributed as dist

import integrations

HEAVY = (
    "transport",
    "numpy.core",
    "aioquic",
    "cbor2",
    "structlog",
    "psutil",
    "integrations.torch_backend.process_group",
)


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_torch_registers_hive_through_the_entry_point_and_imports_nothing_of_ours() -> None:
    out = run(
        "import sys, torch, torch.distributed as dist\n"
        "print(hasattr(dist.Backend, 'HIVE'), dist.Backend.backend_capability.get('hive'))\n"
        f"print(sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    assert out == "True ['cpu', 'cuda']\n[]\n"


def test_registering_twice_changes_nothing() -> None:
    integrations.register_torch_backend()
    first = dist.Backend._plugins["HIVE"]
    integrations.register_torch_backend()
    assert dist.Backend._plugins["HIVE"] is first


def test_import_transport_registers_where_torch_was_told_not_to_load_backends() -> None:
    out = run(
        "import torch, torch.distributed as dist\n"
        "print(hasattr(dist.Backend, 'HIVE'))\n"
        "import transport\n"
        "print(hasattr(dist.Backend, 'HIVE'))",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "False\nTrue\n"


def test_without_torch_it_does_nothing() -> None:
    assert (
        run("import sys, integrations\nintegrations.register_torch_backend()\nprint('torch' in sys.modules)")
        == "False\n"
    )


def test_a_backend_that_cannot_be_loaded_says_so_at_init_process_group_and_import_torch_works() -> None:
    out = run(
        "import sys\n"
        "sys.modules['transport'] = None\n"
        "import torch, torch.distributed as dist\n"
        "try:\n"
        "    dist.init_process_group('hive', store=dist.HashStore(), rank=0, world_size=1)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert "the backend hive cannot be loaded" in out
    assert "transport" in out

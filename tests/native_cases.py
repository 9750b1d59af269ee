"""Which cases of the native engine run here: all, those of every run, or none, where it is not built.

Cases that ask for it are then left out by selection, and a line at the end of the run says so: nobody has to look into
them as into a skip. Where it could have been built and has to be, in CI, they are kept, and `need` fails each of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from transport.engine import NATIVE_MODULE

ALL_NATIVE = os.environ.get("HIVE_TEST_NATIVE") == "1"
"""`make test-native` sets it: all cases over the native engine; without it the most important ones, for time."""
_CARGO = Path(__file__).parents[1] / "tools/cargo.sh"


def built() -> bool:
    """Whether the native engine is here."""
    return importlib.util.find_spec(NATIVE_MODULE) is not None


def has_to_be_built() -> bool:
    """In CI, where this machine's cargo can build it and nobody has said that it is not wanted."""
    return bool(os.environ.get("CI")) and subprocess.run(["bash", str(_CARGO), "able"], check=False).returncode == 0


WITH_NATIVE = ALL_NATIVE or (os.environ.get("HIVE_TEST_NATIVE") != "0" and (built() or has_to_be_built()))
"""Whether there are native cases at all."""


def need(*names: str) -> None:
    """Skip a test where an engine that it needs is not built; where it could be, and in CI has to be, fail it."""
    if "native" in names and not built():
        why = "the native engine is not built here: run tools/setup.sh where cargo is"
        if has_to_be_built():
            pytest.fail(why)
        pytest.skip(why)


def asks_for_native(item: pytest.Item) -> bool:
    """Whether a value that a test of engines or transport is parametrised with names the native engine."""
    parameters = getattr(item, "callspec", None)
    if parameters is None or not item.path.stem.startswith(("test_engine_", "test_transport_")):
        return False
    return any("native" in re.findall(r"\w+", str(value)) for value in parameters.params.values())


def left_out() -> str:
    """What the end of a run says of this; empty where nothing is left out for want of the engine."""
    if WITH_NATIVE:
        return ""
    why = "HIVE_TEST_NATIVE=0" if built() else "it is not built here"
    return f"native engine: its tests were left out: {why}"

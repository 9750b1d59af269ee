"""Which engine a run's cases are over: native, as users have it; and aioquic for what `AIOQUIC_ALWAYS` names.

`HIVE_TEST_ENGINES=all`, which `make test-engines` sets, tries all cases over both. Where native is not built, or with
`HIVE_TEST_ENGINES=aioquic`, all are over aioquic. Cases that ask for native are then left out by selection, and a line
at the end of the run says so: nobody has to look into them as into a skip. Where it could have been built and has to
be, in CI, they are kept, and `need` fails each of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from transport.engine import NATIVE_MODULE

_WISH = os.environ.get("HIVE_TEST_ENGINES", "")
ALL = _WISH == "all"
AIOQUIC_ALWAYS = (
    "test_engine_closing", "test_engine_hostile_frames", "test_engine_hostile_peers", "test_engine_identity",
    "test_engine_messages", "test_engine_native", "test_engine_native_lent", "test_engine_native_process",
    "test_engine_shared_memory", "test_transport_groups",
)  # fmt: skip
"""Modules whose cases over aioquic, and between both engines, every run tries: messages, certificates, closing, groups,
and what hostile peers send. The rest, with what waits for seconds, is `make test-engines`' and `make nightly`'s."""
_LONG = ("test_engine_native_differential", "test_engine_native_minute")
"""Minutes each."""
_OF_ENGINES = ("test_engine_", "test_transport_", "test_collective_")
_CARGO = Path(__file__).parents[1] / "tools/cargo.sh"


def built() -> bool:
    """Whether the native engine is here."""
    return importlib.util.find_spec(NATIVE_MODULE) is not None


def has_to_be_built() -> bool:
    """In CI, where this machine's cargo can build it and nobody has said that it is not wanted."""
    return bool(os.environ.get("CI")) and subprocess.run(["bash", str(_CARGO), "able"], check=False).returncode == 0


WITH_NATIVE = ALL or (_WISH != "aioquic" and (built() or has_to_be_built()))
"""Whether there are native cases at all."""


def need(*names: str) -> None:
    """Skip a test where an engine that it needs is not built; where it could be, and in CI has to be, fail it."""
    if "native" in names and not built():
        why = "the native engine is not built here: run tools/setup.sh where cargo is"
        if has_to_be_built():
            pytest.fail(why)
        pytest.skip(why)


def asks_for(engine: str, item: pytest.Item) -> bool:
    """Whether a value that a test of engines or transport is parametrised with names this engine."""
    parameters = getattr(item, "callspec", None)
    if parameters is None or not item.path.stem.startswith(_OF_ENGINES):
        return False
    return any(engine in re.findall(r"\w+", str(value)) for value in parameters.params.values())


def has_time_for(item: pytest.Item) -> bool:
    """Whether this run tries a case of the engines, rather than leave it to `make test-engines`."""
    if ALL or not WITH_NATIVE:
        return True
    return item.path.stem in AIOQUIC_ALWAYS or not (item.path.stem in _LONG or asks_for("aioquic", item))


def left_out() -> str:
    """What the end of a run says of this; empty where nothing is left out for want of the engine."""
    if WITH_NATIVE:
        return ""
    why = f"HIVE_TEST_ENGINES={_WISH}" if built() else "it is not built here"
    return f"native engine: its tests were left out: {why}"

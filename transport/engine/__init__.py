"""One interface, two QUIC stacks behind it: `aioquic` (pure Python, everywhere), `native` (Rust, where it is built)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from hive_qos.errors import MisuseError
from transport.engine.base import Engine, EngineSettings, Event

NATIVE_MODULE = "hive_qos_native"
NAMES = ("auto", "native", "aioquic")


def create_engine(name: str, settings: EngineSettings, on_events: Callable[[Sequence[Event]], None]) -> Engine:
    """Start the engine called `name`; `auto` takes native where it can be imported and aioquic elsewhere.

    Args:
        name: `auto`, `native` or `aioquic` (HIVE_ENGINE).
        settings: bounds and patience.
        on_events: called with batches of events from the engine's own thread.

    Raises:
        MisuseError: no such engine, or `native` where it is not installed.
    """
    if name not in NAMES:
        raise MisuseError(f"engine {name!r} is not known; write one of {', '.join(NAMES)}")
    if name != "aioquic":
        try:
            importlib.import_module(NATIVE_MODULE)
        except ImportError as error:
            if name == "native":
                raise MisuseError(
                    f"the native engine is not installed ({error}); install a wheel of hive-qos that has it, build it "
                    "with cargo from native/, or set HIVE_ENGINE=aioquic"
                ) from error
        else:
            from transport.engine.native_engine import NativeEngine

            return NativeEngine(settings=settings, on_events=on_events)
    # Imported here so that a host with the native engine never pays for loading the other.
    from transport.engine.aioquic_engine import AioquicEngine

    return AioquicEngine(settings=settings, on_events=on_events)

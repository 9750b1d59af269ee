"""One interface, two QUIC stacks behind it: `aioquic` (pure Python, everywhere), `native` (Rust, where it is built)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from hive_qos.errors import ConfigurationError
from transport.engine.base import Engine, EngineSettings, Event

NATIVE_MODULE = "hive_qos_native"
NAMES = ("auto", "native", "aioquic")
OnEvents = Callable[[Sequence[Event]], None]


def create_engine(name: str, settings: EngineSettings, on_events: OnEvents) -> Engine:
    """Start the engine called `name`; `auto` takes native where it can be imported and aioquic elsewhere.

    Args:
        name: `auto`, `native` or `aioquic` (HIVE_ENGINE).
        settings: bounds and patience.
        on_events: called with batches of events from the engine's own thread.

    Raises:
        ConfigurationError: as `find_engine`.
    """
    return find_engine(name)(settings=settings, on_events=on_events)


def find_engine(name: str) -> type[Engine]:
    """Load the engine called `name` without starting it.

    Raises:
        ConfigurationError: there is no such engine, or it is `native` and not installed here.
    """
    if name not in NAMES:
        raise ConfigurationError("HIVE_ENGINE", name, f"one of {', '.join(NAMES)}")
    if name != "aioquic":
        try:
            importlib.import_module(NATIVE_MODULE)
        except ImportError as error:
            if name == "native":
                reason = (
                    f"it is not installed here ({error}); install hive-qos where cargo is, or a wheel that has it, or "
                    "write aioquic, or auto for whichever there is"
                )
                raise ConfigurationError("HIVE_ENGINE", name, reason) from error
        else:
            from transport.engine.native import NativeEngine

            return NativeEngine
    # Imported here so that a host with the native engine never pays for loading the other.
    from transport.engine.aioquic.engine import AioquicEngine

    return AioquicEngine

"""Log events as OpenTelemetry log records, to a collector over OTLP/HTTP, where the standard variables name one.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_LOGS_ENDPOINT is set; the SDK of `hive-qos[otel]` reads all
others. Whoever logs only appends to a bounded queue: a collector that is slow or away costs records, never time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")
BEFORE_START_MAX: Final = 256
"""Records before the SDK's thread runs; a start logs some ten. The SDK's queue has 2048 (OTEL_BLRP_MAX_QUEUE_SIZE)."""
CLOSE_S_MAX: Final = 2.0
"""For the last records; systemd waits 10 s for the whole stop."""
_SEVERITY: Final = {"debug": 5, "info": 9, "warning": 13, "error": 17}
"""Severity numbers of the OpenTelemetry log data model."""


class Telemetry:
    """For any thread. Making it loads the SDK; `start` begins to send.

    Args:
        host: of the records' resource.

    Raises:
        ImportError: the SDK is not installed.
    """

    def __init__(self, *, host: str) -> None:
        from opentelemetry._logs import SeverityNumber
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
        from opentelemetry.sdk.resources import Resource

        quiet = logging.getLogger("opentelemetry")  # what goes wrong is told once, by `failing`
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        telling = self

        class Exporter(OTLPLogExporter):
            def export(self, batch: Any) -> Any:
                result = super().export(batch)
                telling._exported(result is LogRecordExportResult.SUCCESS)
                return result

        def provider_of_host() -> Any:
            resource = Resource.create({"service.name": "hive-qos", "host.name": host})
            provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_log_record_processor(BatchLogRecordProcessor(Exporter()))
            return provider

        self._make, self._severity = provider_of_host, SeverityNumber
        self._provider: Any = None
        self._logger: Any = None
        self._early: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=BEFORE_START_MAX)
        self._tell: Callable[[bool], None] = lambda _: None
        self._works: bool | None = None

    def take(self, entry: Mapping[str, Any]) -> None:
        """Queue an event: `event`, `level`, and its keys as texts and numbers."""
        record = time.time_ns(), dict(entry)
        if self._logger is None:
            self._early.append(record)
        else:
            self._emit(*record)

    def start(self, *, tell: Callable[[bool], None]) -> None:
        """Begin to send, from a thread with the rights that this one has now.

        Args:
            tell: is called by that thread when the collector cannot be reached, and when it can again.
        """
        self._tell, self._provider = tell, self._make()
        self._logger = self._provider.get_logger("hive-qos.broker")
        while self._early:
            self._emit(*self._early.popleft())

    def close(self) -> None:
        """Send what is queued, in a bounded time, and end."""
        if self._provider is not None:
            ending = threading.Thread(target=self._provider.shutdown, daemon=True)
            ending.start()
            ending.join(CLOSE_S_MAX)

    def _emit(self, at_ns: int, entry: Mapping[str, Any]) -> None:
        level, event = str(entry["level"]), str(entry["event"])
        self._logger.emit(
            timestamp=at_ns,
            observed_timestamp=at_ns,
            severity_number=self._severity(_SEVERITY[level]),
            severity_text=level,
            body=str(entry.get("text") or entry.get("error") or entry.get("note") or event),
            attributes={key: value for key, value in entry.items() if key not in ("level", "event", "timestamp")},
            event_name=f"hive_qos.{event}",
        )

    def _exported(self, well: bool) -> None:
        if well is not self._works and not (well and self._works is None):
            self._tell(well)
        self._works = well


def from_environment(environ: Mapping[str, str], *, host: str) -> Telemetry | None:
    """The telemetry that the environment asks for; None where it asks for none.

    Raises:
        ImportError: the SDK is not installed.
    """
    if not any(environ.get(name) for name in ENDPOINTS) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    return Telemetry(host=host)

"""Headless Chromium, driven over its DevTools protocol by a pipe: no port, no other package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import LIMIT_S, wait_until

from tools.lab.host import Host

PROGRAMS = ("chromium-headless-shell", "chromium")


def program() -> str:
    """The browser of this machine."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert found is not None, (
        "no Chromium: make test-page installs it, as root (apt-get install chromium-headless-shell)"
    )
    return found


class Tab:
    """One page. `problems` are what it wrote to the console, and exceptions."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._number, self._rest = 0, b""
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and give its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + LIMIT_S
        while (answer := self._receive(until_s)).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def go(self, url: str) -> None:
        """Open an address, and wait until it is there."""
        found = self.call("Page.navigate", url=url)
        assert "errorText" not in found, found
        wait_until(lambda: self.value("document.readyState") == "complete" and self.value("location.href") == url)

    def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the window and the colour scheme."""
        phone = width < 500
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """Save the whole page as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _receive(self, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._reader], [], [], max(0.0, until_s - time.monotonic()))[0], "Chromium is silent"
            piece = os.read(self._reader, 1 << 16)
            assert piece, "Chromium is gone"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(json.dumps(parameters["args"])[:500])


@contextmanager
def tab_in(host: Host) -> Iterator[Tab]:
    """A browser in a host of the lab, with one empty page. As root it has no sandbox: it only sees our own page."""
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="hq-page-", ignore_cleanup_errors=True) as profile:
        arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        arguments += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}", "about:blank"]
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        process = host.popen(
            ["bash", "-c", command, program(), *arguments],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Tab(reader, writer)
        finally:
            os.close(writer)
            process.kill()
            process.wait()
            os.close(reader)

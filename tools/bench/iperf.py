"""iperf3 over TCP as a contender: its JSON made into the same raw record as everybody's.

iperf3 gives bytes by interval, and for each side the CPU of its process as a percentage of the whole test. The record
therefore has one sample an interval, with the CPU spread evenly over the bytes.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.bench.place import Place
from tools.bench.side import BenchError

PORT = 5201
INTERVAL_S = 0.1
LISTEN_S_MAX = 5.0


def measure(sender: Place, receiver: Place, *, seconds: float, congestion: str, log: Path) -> dict[str, Any]:
    """One flow of `seconds`; gives both sides' raw records.

    Raises:
        BenchError: iperf3 says why it could not.
    """
    with log.open("ab") as errors:
        server_argv = ["iperf3", "--server", "--one-off", "--json", "--bind", receiver.address, "--port", str(PORT)]
        server = receiver.popen([*server_argv, "--interval", str(INTERVAL_S)], log=errors)
        try:
            _wait_listening(receiver)
            argv = [
                "iperf3",
                "--client",
                receiver.address,
                "--port",
                str(PORT),
                "--json",
                "--interval",
                str(INTERVAL_S),
            ]
            argv += ["--time", str(math.ceil(seconds)), "--congestion", congestion]  # whole seconds only
            client = sender.popen(argv, log=errors)
            try:
                sent = _output(client, seconds)
                received = _output(server, seconds)
            finally:
                client.kill()
                client.wait()
        finally:
            server.kill()
            server.wait()
    return {"sender": side_record(sent, sending=True), "receiver": side_record(received, sending=False)}


def side_record(report: Mapping[str, Any], *, sending: bool) -> dict[str, Any]:
    """One side's samples from its own report.

    Raises:
        BenchError: the report is that of a failure.
    """
    if "error" in report:
        raise BenchError(f"iperf3: {report['error']}")
    utilization = report["end"]["cpu_utilization_percent"]["host_total"] / 100
    begin_s = time.monotonic() - report["intervals"][-1]["sum"]["end"]
    total_bytes = sum(interval["sum"]["bytes"] for interval in report["intervals"])
    test_s = report["intervals"][-1]["sum"]["end"]
    samples, so_far = [(begin_s, 0, 0.0)], 0
    for interval in report["intervals"]:
        so_far += interval["sum"]["bytes"]
        cpu_s = utilization * test_s * so_far / max(1, total_bytes)
        samples.append((begin_s + interval["sum"]["end"], so_far, cpu_s))
    found: dict[str, Any] = {"samples": samples}
    if sending:
        stream = report["end"]["streams"][0]["sender"]
        found["statistics"] = {
            "rtt_s": stream.get("mean_rtt", 0) / 1e6,
            "rtt_s_min": stream.get("min_rtt", 0) / 1e6,
            "retransmits": stream.get("retransmits", 0),
        }
    return found


def _output(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    try:
        text, _ = process.communicate(timeout=seconds + 15)
        report: dict[str, Any] = json.loads(text)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise BenchError(f"iperf3: {error}") from error
    return report


def _wait_listening(place: Place) -> None:
    """Until the server's port is open, as its namespace's table of sockets says (a probe would be its one client)."""
    end_s = time.monotonic() + LISTEN_S_MAX
    argv = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{PORT}"]
    while time.monotonic() < end_s:
        found = place.popen(argv, log=subprocess.DEVNULL)
        out, _ = found.communicate(timeout=LISTEN_S_MAX)
        if str(PORT).encode() in out:
            return
        time.sleep(0.02)
    raise BenchError(f"iperf3 does not listen after {LISTEN_S_MAX:g} s")

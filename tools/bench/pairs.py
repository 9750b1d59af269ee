"""Two sides of one contender that talk to each other, behind one interface: `flow` and `ping`."""

from __future__ import annotations

import abc
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench import iperf
from tools.bench.contenders import Contender
from tools.bench.place import Place, python
from tools.bench.side import BenchError, Side
from transport.identity import ca_init, ca_issue

START_S = 60.0
"""Importing torch twice at once takes 10 to 20 s on 2 cores."""

NAMES = 5
"""With 200 connections each, that is the thousand of the memory scenario."""

SLACK_S = 40.0
"""Beyond the length of a measurement: what was under way at its end still has to arrive over a slow link."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What one side sends to the other.

    Args:
        seconds: no new message after this.
        bytes_max: nor after so many bytes.
        message_bytes: size of a message.
        outstanding: messages under way at once.
        sleep_s: the receiver takes nothing for so long at first.
        lead_s: the sender waits for so long at first.
    """

    seconds: float
    bytes_max: int
    message_bytes: int
    outstanding: int
    sleep_s: float = 0.0
    lead_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pings:
    """Round trips of each size in turn, while `bulk_bytes` flow to the same peer (0 for none)."""

    sizes: tuple[int, ...]
    seconds: float
    bulk_bytes: int = 0
    bulk_message_bytes: int = 32 * 2**20
    bulk_lead_s: float = 0.7
    pause_s: float = 0.002


class Pair(abc.ABC):
    """The sender is the first place, the receiver the second."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender

    @abc.abstractmethod
    def flow(self, flow: Flow) -> dict[str, Any]:
        """Measure one flow; gives the raw records of `sender` and `receiver`."""

    @abc.abstractmethod
    def ping(self, pings: Pings) -> dict[str, Any]:
        """Measure round trips."""

    @abc.abstractmethod
    def close(self) -> None:
        """End both processes."""


class IperfPair(Pair):
    """iperf3: its processes live for one flow."""

    def __init__(self, contender: Contender, first: Place, second: Place, log: Path) -> None:
        super().__init__(contender)
        self._first, self._second, self._log = first, second, log

    def flow(self, flow: Flow) -> dict[str, Any]:
        congestion = self.contender.congestion
        return iperf.measure(
            self._first, self._second, seconds=flow.seconds, congestion=congestion, log=self._log.with_suffix(".log")
        )

    def ping(self, pings: Pings) -> dict[str, Any]:
        raise BenchError("iperf3 measures no round trips")

    def close(self) -> None:
        """Nothing lives between flows."""


class ProgramPair(Pair):
    """Two of our programs."""

    def __init__(self, contender: Contender, first: Side, second: Side) -> None:
        super().__init__(contender)
        self.first, self.second = first, second
        self._numbers = itertools.count()

    def flow(self, flow: Flow) -> dict[str, Any]:
        return self._both("send", "receive", asdict(flow), seconds=flow.seconds + flow.sleep_s + flow.lead_s)

    def ping(self, pings: Pings) -> dict[str, Any]:
        found = self._both("ping", "echo", asdict(pings), seconds=pings.seconds + pings.bulk_lead_s)
        return {name: found["sender"].get(name) for name in ("round_trips_s", "bulk", "lost")}

    def _both(self, do_first: str, do_second: str, order: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        order = {**order, "flow": next(self._numbers)}
        self.second.begin({"do": do_second, **order})
        sent = self.first.ask({"do": do_first, **order}, wait_s=seconds + SLACK_S)
        received = self.second.end(wait_s=SLACK_S)
        return {"sender": sent, "receiver": received}

    def close(self) -> None:
        for side in (self.first, self.second):
            side.close()


@contextmanager
def made(contender: Contender, first: Place, second: Place, *, folder: Path, tag: str) -> Iterator[Pair]:
    """Start a contender's processes and connect them; end them at the end of the block.

    Args:
        folder: where certificates are and logs go.
        tag: of the logs' names.

    Raises:
        BenchError: they do not start or do not connect.
    """
    log = folder / "logs" / f"{tag}-{contender.name.replace(' ', '-')}"
    if contender.kind == "iperf":
        yield IperfPair(contender, first, second, log)
        return
    places = ((first, "a", "b", "0"), (second, "b", "a", "1"))
    pair = ProgramPair(contender, *(_start(contender, *place, folder=folder, log=log) for place in places))
    try:
        _connect(pair)
        yield pair
    finally:
        pair.close()


def identities(folder: Path) -> None:
    """Make a CA and certificates for the sides `a` and `b`, and for the many names of the idle connections."""
    ca_init(folder / "ca")
    for side in ("a", "b"):
        for name in (side, *(f"{side}-{number}" for number in range(NAMES))):
            ca_issue(folder / "ca", name, out=folder)


def free_port(place: Place) -> int:
    """A TCP port that nobody uses at a place now."""
    with place.host.enter() if place.host is not None else nullcontext(), socket.create_server((place.address, 0)) as s:
        port: int = s.getsockname()[1]
        return port


def _start(contender: Contender, place: Place, name: str, other: str, rank: str, *, folder: Path, log: Path) -> Side:
    if contender.kind == "engine":
        argv = python("tools.bench.programs.engine", "--engine", contender.engine, "--congestion", contender.congestion)
        argv += ["--datagram-bytes", str(contender.datagram_bytes), "--name", name, "--other", other]
        argv += ["--address", place.address, "--folder", str(folder)]
    elif contender.kind == "gloo":
        argv = python("tools.bench.programs.gloo", "--rank", rank)
    else:
        argv = python("tools.bench.programs.tcp", "--address", place.address)
    env = {"GLOO_SOCKET_IFNAME": place.interface}
    return Side(place, argv, log=log.with_name(f"{log.name}-{name}.log"), env=env)


def _connect(pair: ProgramPair) -> None:
    """The first dials the second."""
    first, second = pair.first, pair.second
    if pair.contender.kind == "gloo":
        where = {"do": "join", "address": first.place.address, "port": free_port(first.place)}
        for side in (first, second):
            side.begin(where, wait_s=START_S)
        for side in (first, second):
            side.end(wait_s=START_S)
        return
    ports = second.ask({"do": "ports"}, wait_s=START_S)
    second.begin({"do": "accept"})
    first.ask({"do": "connect", "address": second.place.address, **ports}, wait_s=START_S)
    second.end(wait_s=START_S)
    time.sleep(0.2)  # what follows a handshake (tickets, path discovery) is over

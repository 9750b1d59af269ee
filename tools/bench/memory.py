"""5: memory beyond the tensors' own, while much passes, while the receiver sleeps, and of idle connections."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tools.bench import contenders
from tools.bench.flows import measure_of
from tools.bench.pairs import Flow, Pair, ProgramPair
from tools.bench.place import loopback
from tools.bench.programs.engine import CONNECTIONS_PER_ENDPOINT
from tools.bench.settings import MIB
from tools.bench.side import BenchError
from tools.bench.turns import Run

REST_S = 2.0
READINGS_PER_S = 10
"""As often as the broker's reports are made."""


def memory(run: Run) -> None:
    """Fresh processes for every contender: what an earlier scenario left in an allocator is not this one's."""
    settings = run.settings
    common = {"message_bytes": 4 * MIB, "outstanding": 3}
    cases = {
        "receiver asleep": Flow(
            seconds=settings.asleep_s, sleep_s=settings.asleep_s + 0.5, bytes_max=settings.memory_bytes, **common
        ),
        "passing": Flow(seconds=settings.memory_s, bytes_max=settings.memory_bytes, **common),
    }
    for contender in contenders.MEMORY:
        for case, flow in cases.items():
            measure = measure_of(flow, warm_up_s=0.0, rate_bits_per_s=None)
            with ExitStack() as stack:
                pairs = run.pairs(stack, "memory", [contender], loopback("a"), loopback("b"))
                run.turns("memory", case, pairs, measure, repetitions=1, lab=None)
        if contender.kind == "engine":
            with ExitStack() as stack:
                for pair in run.pairs(stack, "memory", [contender], loopback("a"), loopback("b")):
                    with run.guarded("memory", contender):
                        run.write("memory", contender, kind="connections", case="idle", **_idle(run, pair))


def _idle(run: Run, pair: Pair) -> dict[str, Any]:
    """Many connections from the first side to the second, and what both cost when nothing moves."""
    if not isinstance(pair, ProgramPair):
        raise BenchError("it has no connections to be dialled")
    settings = run.settings
    count, seconds_max = settings.idle_connections, settings.idle_connections_s
    sockets = -(-count // CONNECTIONS_PER_ENDPOINT)
    pair.first.ask({"do": "open_many", "name": "a", "count": sockets})
    opened = pair.second.ask({"do": "open_many", "name": "b", "count": sockets})
    where = {"address": pair.second.place.address, "ports": opened["ports"]}
    before = pair.second.ask({"do": "rest", "seconds": 0.0})
    # The second side works in its engine's own thread; it needs no order to be dialled.
    dialled = pair.first.ask(
        {"do": "dial_many", **where, "count": count, "seconds_max": seconds_max}, wait_s=seconds_max + 30
    )
    for side in (pair.first, pair.second):
        side.begin({"do": "rest", "seconds": REST_S})
    rests = [side.end(wait_s=REST_S + 30) for side in (pair.first, pair.second)]
    order = {"do": "read_statistics", "seconds": REST_S, "readings_per_s": READINGS_PER_S}
    read = pair.first.ask(order, wait_s=REST_S + 30)
    return {
        "dialled": dialled,
        "accepted": {"before_bytes": before["bytes"], "after_bytes": rests[1]["bytes"]},
        "statistics_cpu_share": read["cpu_s"] / read["seconds"],
        "idle_cpu_share": [rest["cpu_s"] / rest["seconds"] for rest in rests],
    }

"""Looks at the TCP connections of the host, as often as it is cheap: never more than 1 % of a core.

A look costs what the kernel needs to list the connections and what we need to read them, about 40 µs each: ten
connections are looked at ten times a second, a thousand every four seconds.
"""

from __future__ import annotations

import time

from broker.daemon.flows import FlowTable
from broker.daemon.log import Log
from broker.daemon.netlink import Kernel
from broker.policy import Policy

CPU_SHARE_MAX = 0.01
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 5.0
RETRY_S = 30.0
SOON_PER_COST = 20
"""A look out of turn comes no sooner than 20 times what the last one took: 8 ms with ten connections."""


class TcpWatch:
    """Feeds a flow table. For one thread."""

    def __init__(self, kernel: Kernel, *, log: Log) -> None:
        self._kernel, self._log = kernel, log
        self._due_s = self._soon_s = float("-inf")

    def hasten(self) -> None:
        """Let the next look come early, where a look is cheap: a burst begins or ends."""
        self._due_s = min(self._due_s, self._soon_s)

    def look(self, flows: FlowTable, *, policy: Policy, now_s: float) -> None:
        """Look, when it is time. A kernel that refuses is asked again after `RETRY_S`; delay signals are then fewer."""
        if now_s < self._due_s:
            return
        before_s = time.thread_time()
        try:
            flows.see_tcp(self._kernel.tcp_connections(), policy=policy, now_s=now_s)
        except OSError as problem:
            self._log.warning("sock_diag", error=str(problem), note="TCP connections are not measured")
            self._due_s = self._soon_s = now_s + RETRY_S
            return
        cost_s = time.thread_time() - before_s
        interval_s = min(INTERVAL_S_MAX, max(INTERVAL_S_MIN, cost_s / CPU_SHARE_MAX))
        self._due_s = now_s + interval_s * 0.95  # a tick comes a little early as often as late
        self._soon_s = now_s + SOON_PER_COST * cost_s

"""A broker starts and stops in the middle of traffic: what that costs, and that it costs nothing more.

To replace an interface's root, the kernel puts a qdisc there that drops everything, waits until no processor sends
through the former one (`dev_deactivate` and `synchronize_net` in net/sched/sch_generic.c), and puts the new one there.
What is sent meanwhile is lost: 0.01 to 0.1 ms on an idle host, once at a start and once at a stop.
"""

from __future__ import annotations

import signal

from broker_host import broker_in, two_hosts
from paced import paced


def gaps(lost: list[int]) -> int:
    """How many times in a row something was lost."""
    return sum(number - 1 not in lost for number in lost)


def between(lost: list[int], first: int, last: int) -> list[int]:
    return [number for number in lost if first <= number <= last]


def test_traffic_passes_the_start_and_the_stop_and_nothing_is_lost_while_the_broker_serves() -> None:
    with two_hosts("start") as lab, broker_in(lab["a"]) as broker, paced(lab["a"], lab["b"]) as traffic:
        traffic.more(200)
        broker.start()
        ready = traffic.last
        traffic.more(1500)  # its first two seconds
        serving = traffic.last
        assert broker.end(signal.SIGTERM) == 0
        traffic.more(200)
        lost = traffic.lost()
        assert between(lost, ready, serving) == []
        assert gaps(between(lost, 0, ready)) <= 1
        assert gaps(between(lost, serving, traffic.sent)) <= 1

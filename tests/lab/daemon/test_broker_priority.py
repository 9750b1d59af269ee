"""Who runs before ordinary programs on a busy host, and who does not. In processes of their own: niceness is theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_host import Broker, two_hosts

from broker.process.priority import NICENESS
from tools.lab import Lab

CONFIGURATION = 'version = 1\n[[interface]]\nname = "eth0"\negress = "20 Mbit/s"\n'


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with two_hosts("priority") as made:
        yield made


def niceness_of(pid: int) -> dict[str, int]:
    """Of each thread of a process, by its number; the main thread is "main"."""
    threads = map(int, os.listdir(f"/proc/{pid}/task"))
    return {"main" if one == pid else str(one): os.getpriority(os.PRIO_PROCESS, one) for one in threads}


def autogroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii")


def test_the_daemon_and_its_watchdog_have_it_and_threads_that_answer_requests_do_not(lab: Lab, tmp_path: Path) -> None:
    broker = Broker(lab["a"], tmp_path, configuration=CONFIGURATION)
    broker.start()
    try:
        (watchdog,) = broker.watchdogs()
        threads = niceness_of(broker.status()["daemon"]["pid"])
        assert threads.pop("main") == NICENESS
        assert 0 in threads.values(), "the server of HTTP"
        assert niceness_of(watchdog) == {"main": NICENESS}
        if Path("/proc/sys/kernel/sched_autogroup_enabled").read_text() == "1\n":
            assert autogroup_of(watchdog).endswith(f"nice {NICENESS}\n")
    finally:
        broker.stop()


def test_where_it_is_not_allowed_the_reason_says_what_is_missing() -> None:
    program = """
        import os
        from broker.process import priority
        os.setuid(65534)
        print(priority.take())
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "CAP_SYS_NICE" in done.stdout

"""Tests that share the process which starts ranks share nothing else."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from torch_ranks import RunRanks


class GaveUpError(Exception):
    """As pytest raises it in a test whose time is over."""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_a_test_did_not_wait_for_is_not_what_the_next_one_gets(run_ranks: RunRanks) -> None:
    def give_up(*_: object) -> None:
        raise GaveUpError

    before = signal.signal(signal.SIGUSR1, give_up)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(GaveUpError):
            run_ranks("hooks.py", {"seen": 2})
    finally:
        signal.signal(signal.SIGUSR1, before)
    for result in run_ranks("compression.py", {"refused": 2})["refused"]:
        assert result.exit_code == 0, result.output

"""The figures of the host: read for real, once a second, and unknown where the kernel does not tell."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from broker.measure.host_load import LOOK_S, HostLoads
from broker.model.status_values import HostLoad


def test_the_figures_are_this_hosts_and_the_first_look_has_nothing_to_compare_with() -> None:
    loads = HostLoads()
    first = loads.look(now_s=0.0)
    assert first.processors_used is None
    assert first.memory_available_bytes
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert first.daemon_memory_bytes == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.2)
    assert loads.look(now_s=LOOK_S / 2) is first
    busy_until_s = psutil.Process().cpu_times().user + 0.2
    while psutil.Process().cpu_times().user < busy_until_s:
        pass
    later = loads.look(now_s=LOOK_S)
    assert later.processors_used is not None
    assert 0 < later.processors_used <= 1


def test_what_the_kernel_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError("hidepid")

    loads = HostLoads()
    monkeypatch.setattr(psutil, "virtual_memory", refused)
    assert loads.look(now_s=0.0) == HostLoad()

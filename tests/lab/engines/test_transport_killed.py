"""A process is killed in another host: the others know from that host, before they would take it for dead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from moving_ranks import running

from tools.lab import Lab

UNLIMITED = {"net.ipv4.icmp_ratemask": "0", "net.ipv6.icmp.ratelimit": "0"}
"""A host says it to each peer six times at once, then once a second; less where others on this machine are told."""


@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
def test_a_killed_rank_is_named_at_the_word_of_its_host(
    lab_factory: Callable[..., Lab], tmp_path: Path, six: bool
) -> None:
    lab = lab_factory("killed")
    lab.host("a")
    lab.host("b", sysctls=UNLIMITED)
    lab.router("r")
    for name in ("a", "b"):
        lab.link(name, "r", rate_bits_per_s=100_000_000, delay_s=0.01)
    lab.up()
    places = [("a", "native"), ("a", "native"), ("b", "native")]
    with running(lab, tmp_path, places, six=six) as (first, second, third):
        third.process.kill()
        for one in (first, second):
            words = one.process.communicate(timeout=60)[1].decode()
            assert "lost rank 2" in words
            assert "nobody listens at" in words

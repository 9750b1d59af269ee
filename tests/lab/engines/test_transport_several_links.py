"""Hosts with two links each: what does not work is passed over, what works is used, and a cut is a pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moving_ranks import running

from tools.lab import Host, Lab
from transport.mesh.peers import SPARE_AGAIN_S

RATE_BITS_PER_S = 100_000_000
DELAY_S = 0.002
NATIVE, PYTHON = [("a", "native"), ("b", "native")], [("a", "aioquic"), ("b", "native")]


def two_links(lab: Lab, *, first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> None:
    lab.host("a")
    lab.host("b")
    for name, changed in (("first", first), ("second", second)):
        lab.link("a", "b", name=name, **{"rate_bits_per_s": RATE_BITS_PER_S, "delay_s": DELAY_S} | (changed or {}))
    lab.up()


def remotes(found: dict[str, Any], when: str = "after") -> set[str]:
    """The peer's addresses to which a rank has connections for gradients."""
    return {remote[0] for remote in found[when].values() if not remote[2]}


def links(found: dict[str, Any], to: Host, when: str = "after") -> set[str]:
    """Over which links; on a busy machine one may have a connection of each family."""
    there = remotes(found, when)
    return {name for name in ("first", "second") if there & {to.address_on(name), to.address6_on(name)}}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [NATIVE, pytest.param(PYTHON, marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("again", [False, True], ids=["cut", "plugged in again"])
def test_both_links_are_used_and_a_cut_of_either_is_a_pause(
    lab_factory: Callable[..., Lab], tmp_path: Path, ranks: list[tuple[str, str]], again: bool
) -> None:
    lab = lab_factory("links")
    two_links(lab)
    with running(lab, tmp_path, ranks) as programs:
        for one in programs:
            one.rounds(5)
        lab["b"].run(["ip", "link", "set", "eth0", "down"])
        for one in programs:
            one.rounds(20)
        if not again:
            found = [one.end() for one in programs]
        else:
            lab["b"].run(["ip", "link", "set", "eth0", "up"])
            until_s = time.monotonic() + SPARE_AGAIN_S + 2.0
            while time.monotonic() < until_s:
                for one in programs:
                    one.rounds(1)
            found = [one.end() for one in programs]
            assert links(found[0], lab["b"]) == links(found[0], lab["b"], "before")
            return
    print(f"the slowest round took {max(one['slowest_s'] for one in found):.2f} s")
    assert links(found[0], lab["b"], "before") == {"first", "second"}
    assert links(found[0], lab["b"]) == links(found[1], lab["a"]) == {"second"}


@pytest.mark.timeout(120)
def test_a_first_address_that_leads_nowhere_costs_a_moment(lab_factory: Callable[..., Lab], tmp_path: Path) -> None:
    lab = lab_factory("links")
    two_links(lab, first={"loss": 1.0})
    with running(lab, tmp_path, NATIVE) as programs:
        found = [one.end() for one in programs]
    assert remotes(found[0]) == {lab["b"].address_on("second")}
    assert max(one["connected_s"] for one in found) < 5.0


@pytest.mark.timeout(120)
def test_ranks_meet_where_only_ipv6_leads_from_one_to_the_other(
    lab_factory: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = lab_factory("links")
    two_links(lab)
    for host in ("a", "b"):
        lab[host].run(["ip", "-4", "address", "flush", "scope", "global"])
    with running(lab, tmp_path, NATIVE) as programs:
        found = [one.end() for one in programs]
    assert all(":" in address for address in remotes(found[0]))


@pytest.mark.timeout(120)
def test_two_links_carry_what_each_can(lab_factory: Callable[..., Lab], tmp_path: Path) -> None:
    """A round of 1.4 MB each way is 1.1 s of the slow link alone."""
    lab = lab_factory("links")
    two_links(lab, first={"rate_bits_per_s": RATE_BITS_PER_S // 10})
    with running(lab, tmp_path, NATIVE) as programs:
        for one in programs:
            one.rounds(10)
        found = [one.end() for one in programs]
    carried = found[0]["sent_bytes"]
    print(carried)
    assert carried[lab["b"].address_on("second")] > 3 * carried[lab["b"].address]

"""How many segments an interface takes in one piece: the choice, its key, and its way through the roster."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from fake_kernel import FakeKernel

from broker.enforce.egress import EgressTrees
from broker.enforce.interfaces import ShapedInterfaces
from broker.enforce.shapes import shape_of
from broker.events.log import open_log
from broker.law.decide import decide
from broker.law.sharing.gso import PIECE_BYTES_MAX, PIECE_S_MAX, STEADY, choose
from broker.law.state import State
from broker.measure.interfaces import Links
from broker.model.values import Allocation, InterfaceSample, Measurements, SegmentAllocation
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import Policy
from shaping.journal import Journal
from shaping.shaper import Shaper

MBIT = 1_000_000
FRAME_BYTES = 1514


def chosen(mbit_per_s: float, *, frame_bytes: int = FRAME_BYTES, last: SegmentAllocation | None = None) -> int | None:
    return choose(int(mbit_per_s * MBIT), frame_bytes=frame_bytes, last=last).gso_max_segs


@pytest.mark.parametrize(
    ("mbit_per_s", "segments"),
    [
        (0.1, 1),
        (12, 1),
        (12.2, 2),
        (20, 2),
        (38.8, 4),
        (50, 8),
        (97, 16),
        (200, 32),
        (261, 32),
        (263, None),
        (1000, None),
    ],
)
def test_the_table_of_the_module(mbit_per_s: float, segments: int | None) -> None:
    assert chosen(mbit_per_s) == segments


def test_a_piece_is_never_longer_than_it_may_be_nor_half_as_long_for_nothing() -> None:
    for mbit_per_s in range(13, 262):
        segments = chosen(mbit_per_s)
        assert segments is not None
        piece_s = segments * FRAME_BYTES * 8 / (mbit_per_s * MBIT)
        assert PIECE_S_MAX / 2 < piece_s <= PIECE_S_MAX


def test_long_frames_count_as_long() -> None:
    assert (chosen(20, frame_bytes=9014), chosen(100, frame_bytes=9014)) == (1, 2)


def test_a_rate_that_swings_about_an_edge_changes_it_once() -> None:
    seed = random.randrange(2**32)
    swing = random.Random(seed)
    for edge in (12.1, 24.2, 48.4, 96.9, 193.8, 262.1):
        last: SegmentAllocation | None = None
        seen = []
        for _ in range(200):
            last = choose(int(edge * MBIT * swing.uniform(0.9, 1.1)), frame_bytes=FRAME_BYTES, last=last)
            seen.append(last.gso_max_segs)
        assert len(list(itertools.groupby(seen))) <= 2, f"seed {seed}, edge {edge}"


def test_however_it_got_there_a_piece_stays_within_its_time_and_a_large_change_of_rate_is_followed() -> None:
    seed = random.randrange(2**32)
    swing = random.Random(seed)
    last: SegmentAllocation | None = None
    for _ in range(2000):
        rate = int(10 ** swing.uniform(5, 9.5))
        last = choose(rate, frame_bytes=FRAME_BYTES, last=last)
        bound_s = PIECE_S_MAX / (1 - STEADY)
        piece_bytes = PIECE_BYTES_MAX if last.gso_max_segs is None else last.gso_max_segs * FRAME_BYTES
        assert last.gso_max_segs == 1 or piece_bytes * 8 / rate <= bound_s, f"seed {seed}"
        if rate > 400 * MBIT:
            assert last.gso_max_segs is None, f"seed {seed}"


def test_the_reason_names_the_time_and_the_rate() -> None:
    reason = choose(20 * MBIT, frame_bytes=FRAME_BYTES, last=None).reason
    assert (reason.code, reason.text) == ("gso-piece-time", "2 segments in one piece take 1.2 ms at 20 Mbit/s")
    assert choose(1000 * MBIT, frame_bytes=FRAME_BYTES, last=None).reason.code == "gso-fast-enough"


def policy_of(*lines: str) -> Policy:
    return load("\n".join(['version = 1\n[[interface]]\nname = "eth0"', *lines]))


def test_the_key_is_auto_or_off() -> None:
    assert policy_of().interfaces[0].limit_segments
    assert policy_of('gso_max_segs = "auto"', 'egress = "20 Mbit/s"').interfaces[0].limit_segments
    assert not policy_of('gso_max_segs = "off"').interfaces[0].limit_segments
    assert not policy_of('gso_max_segs = "off"', 'egress = "20 Mbit/s"').interfaces[0].limit_segments
    for wrong in ("2", "true", '"on"', "[]"):
        with pytest.raises(ConfigurationErrors, match=r"interface\[0\]\.gso_max_segs"):
            policy_of(f"gso_max_segs = {wrong}")


def allocated(policy: Policy) -> Allocation:
    measurements = Measurements(tuple(InterfaceSample(name=entry.name) for entry in policy.interfaces))
    return decide(now_s=0.0, state=State(), measurements=measurements, policy=policy).allocation


def test_another_limit_alone_is_worth_a_write() -> None:
    (entry,) = allocated(policy_of('egress = "20 Mbit/s"')).interfaces
    shape = shape_of(entry, rules=(), gso_max_segs=2)
    assert shape == shape_of(entry, rules=(), gso_max_segs=2)
    assert shape != shape_of(entry, rules=(), gso_max_segs=4)


class Site:
    """A roster over a fake kernel."""

    def __init__(self, folder: Path) -> None:
        self.kernel = FakeKernel(("eth0",))
        journal, log = Journal(folder), open_log()
        egress_trees = EgressTrees(Shaper(self.kernel, journal), log=log, clock=lambda: 0.0)
        self.shaped_interfaces = ShapedInterfaces(
            egress_trees, kernel=self.kernel, journal=journal, links=Links(lambda _: None), log=log, clock=lambda: 0.0
        )

    def attach(self, policy: Policy) -> None:
        self.shaped_interfaces.attach_all(allocated(policy), policy=policy, class_cgroups=())

    def apply(self, policy: Policy) -> None:
        self.shaped_interfaces.apply(allocated(policy), policy=policy, class_cgroups=())

    def seen(self) -> tuple[int, int | None, str]:
        """What the device has, and what is shown of it."""
        shown = self.shaped_interfaces.segments()["eth0"]
        return self.kernel.segments("eth0").limit, shown.gso_max_segs, shown.gso_reason.code


def test_the_limit_follows_the_rate_and_is_shown_with_its_reason(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.attach(policy_of('egress = "20 Mbit/s"'))
    assert site.seen() == (2, 2, "gso-piece-time")
    site.apply(policy_of('egress = "100 Mbit/s"'))
    assert site.seen() == (16, 16, "gso-piece-time")
    site.apply(policy_of('egress = "1 Gbit/s"'))
    assert site.seen() == (65_535, 65_535, "gso-fast-enough")


def test_switching_it_off_in_a_running_broker_gives_the_devices_own_back(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.attach(policy_of('egress = "20 Mbit/s"'))
    site.apply(policy_of('egress = "20 Mbit/s"', 'gso_max_segs = "off"'))
    assert site.seen() == (65_535, 65_535, "gso-off")


def test_what_somebody_set_is_shown_as_his(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.kernel.change_segments("eth0", 16)
    site.attach(policy_of('egress = "20 Mbit/s"'))
    assert site.seen() == (16, 16, "gso-not-in-force")


def test_nothing_is_shown_of_an_interface_that_we_do_not_hold(tmp_path: Path) -> None:
    site = Site(tmp_path)
    policy = policy_of('egress = "20 Mbit/s"')
    site.attach(policy)
    site.shaped_interfaces.keep(load('version = 1\n[[interface]]\nname = "eth1"'))
    assert site.shaped_interfaces.segments() == {}

"""The limit of segments is set, kept, and put back as the table of `shaping.gso_limit` says; on the fake kernel."""

from __future__ import annotations

import errno

import pytest
from fake_kernel import DEFAULT_SEGMENTS, FakeKernel
from shaping_contract import make_shape

from hive_qos.errors import ConfigurationError, KernelRejectedError, PrivilegeError, ShapingError
from shaping.journal import Journal
from shaping.model.observations import PriorQdisc, SegmentState
from shaping.shaper import Shaper

OWN = DEFAULT_SEGMENTS.limit
REFUSED = KernelRejectedError("set gso_max_segs", errno_value=errno.EOPNOTSUPP, detail="no")


@pytest.fixture
def shaper(kernel: FakeKernel, journal: Journal) -> Shaper:
    return Shaper(kernel, journal)


def limit(kernel: FakeKernel) -> int:
    return kernel.segments("eth0").limit


def test_it_is_set_with_the_tree_followed_and_put_back(kernel: FakeKernel, journal: Journal, shaper: Shaper) -> None:
    shaper.attach(make_shape("eth0", gso_max_segs=4))
    assert (limit(kernel), journal.read_segments("eth0")) == (4, OWN)
    assert shaper.segments("eth0") == SegmentState(4)
    shaper.apply(make_shape("eth0", gso_max_segs=2))
    assert (limit(kernel), journal.read_segments("eth0")) == (2, OWN)
    assert shaper.detach("eth0") == ()
    assert limit(kernel) == OWN
    assert journal.interfaces() == ()
    assert kernel.segments("eth1").limit == OWN


def test_a_device_that_nobody_wants_limited_is_not_touched(
    kernel: FakeKernel, journal: Journal, shaper: Shaper
) -> None:
    kernel.change_segments("eth0", 77)
    shaper.attach(make_shape("eth0"))
    assert (limit(kernel), journal.read_segments("eth0")) == (77, None)
    assert shaper.segments("eth0") == SegmentState(77)
    shaper.detach("eth0")
    assert limit(kernel) == 77


def test_wanting_none_gives_the_devices_own_back_while_it_is_shaped(
    kernel: FakeKernel, journal: Journal, shaper: Shaper
) -> None:
    shaper.attach(make_shape("eth0", gso_max_segs=4))
    shaper.apply(make_shape("eth0"))
    assert (limit(kernel), journal.read_segments("eth0")) == (OWN, None)
    kernel.change_segments("eth0", 9)  # somebody else's, from when we did not hold it
    shaper.detach("eth0")
    assert limit(kernel) == 9


def test_the_journal_is_written_before_the_device_is_touched(
    kernel: FakeKernel, journal: Journal, shaper: Shaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalled: list[int | None] = []
    set_segments = kernel.set_segments

    def watched(interface: str, value: int) -> None:
        journalled.append(journal.read_segments(interface))
        set_segments(interface, value)

    monkeypatch.setattr(kernel, "set_segments", watched)
    shaper.attach(make_shape("eth0", gso_max_segs=4))
    assert journalled == [OWN]


def test_what_a_killed_shaper_left_is_ours_and_the_devices_own_comes_back(kernel: FakeKernel, journal: Journal) -> None:
    Shaper(kernel, journal).attach(make_shape("eth0", gso_max_segs=4))
    again = Shaper(kernel, journal)
    assert again.attach(make_shape("eth0", gso_max_segs=2)).notes == ()
    assert limit(kernel) == 2
    again.detach("eth0")
    assert limit(kernel) == OWN


def test_a_start_that_wants_no_limit_any_more_puts_back_what_a_killed_one_left(
    kernel: FakeKernel, journal: Journal
) -> None:
    Shaper(kernel, journal).attach(make_shape("eth0", gso_max_segs=4))
    Shaper(kernel, journal).attach(make_shape("eth0"))
    assert (limit(kernel), journal.read_segments("eth0")) == (OWN, None)


def test_clearing_puts_it_back_even_where_only_the_limit_is_left(kernel: FakeKernel, journal: Journal) -> None:
    Shaper(kernel, journal).attach(make_shape("eth0", gso_max_segs=4))
    kernel.delete_root("eth0")
    journal.forget("eth0")
    assert journal.interfaces() == ("eth0",)
    assert Shaper(kernel, journal).clear() == ("eth0: put back what was there before",)
    assert limit(kernel) == OWN
    assert Shaper(kernel, journal).clear() == ()


def test_a_limit_that_somebody_set_stays_unless_we_may_take_over(
    kernel: FakeKernel, journal: Journal, shaper: Shaper
) -> None:
    kernel.change_segments("eth0", 16)
    (note,) = shaper.attach(make_shape("eth0", gso_max_segs=2)).notes
    assert "somebody set gso_max_segs 16" in note
    assert (limit(kernel), journal.read_segments("eth0")) == (16, None)
    shaper.detach("eth0")
    assert limit(kernel) == 16
    shaper.attach(make_shape("eth0", gso_max_segs=2), replace_foreign=True)
    assert limit(kernel) == 2
    shaper.detach("eth0")
    assert limit(kernel) == 16


def test_a_device_with_less_is_never_raised(kernel: FakeKernel, journal: Journal, shaper: Shaper) -> None:
    kernel.change_segments("eth0", 1)
    (note,) = shaper.attach(make_shape("eth0", gso_max_segs=2), replace_foreign=True).notes
    assert "not raised" in note
    assert (limit(kernel), journal.read_segments("eth0")) == (1, None)
    assert shaper.segments("eth0").limit == 1


def test_raising_stops_at_what_the_device_had(kernel: FakeKernel, journal: Journal, shaper: Shaper) -> None:
    kernel.change_segments("eth0", 16)
    shaper.attach(make_shape("eth0", gso_max_segs=2), replace_foreign=True)
    shaper.apply(make_shape("eth0", gso_max_segs=32))
    assert (limit(kernel), journal.read_segments("eth0")) == (16, None)


def test_what_somebody_sets_meanwhile_is_his_from_then_on(kernel: FakeKernel, journal: Journal, shaper: Shaper) -> None:
    shape = make_shape("eth0", gso_max_segs=2)
    shaper.attach(shape)
    assert shaper.verify("eth0")
    kernel.change_segments("eth0", 5)
    assert not shaper.verify("eth0")
    shaper.apply(shape)
    assert (limit(kernel), journal.read_segments("eth0")) == (5, None)
    assert "somebody set gso_max_segs 5" in (shaper.segments("eth0").note or "")
    assert shaper.verify("eth0")
    shaper.detach("eth0")
    assert limit(kernel) == 5


def test_what_somebody_sets_just_before_the_end_stays_and_is_told(kernel: FakeKernel, shaper: Shaper) -> None:
    shaper.attach(make_shape("eth0", gso_max_segs=2))
    kernel.change_segments("eth0", 5)
    assert shaper.detach("eth0") == ("eth0: somebody set gso_max_segs 5; it stays",)
    assert limit(kernel) == 5


def test_a_driver_that_started_anew_is_limited_again(kernel: FakeKernel, shaper: Shaper) -> None:
    shape = make_shape("eth0", gso_max_segs=2)
    shaper.attach(shape)
    kernel.change_segments("eth0", OWN)
    assert not shaper.verify("eth0")
    shaper.apply(shape)
    assert limit(kernel) == 2
    assert shaper.verify("eth0")


def test_a_kernel_that_refuses_keeps_no_rate_from_being_shaped(
    kernel: FakeKernel, journal: Journal, shaper: Shaper
) -> None:
    kernel.reject_segments = REFUSED
    (note,) = shaper.attach(make_shape("eth0", gso_max_segs=2)).notes
    assert "gso_max_segs stays as it is" in note
    assert kernel.observe("eth0") is not None
    assert shaper.verify("eth0")
    assert shaper.detach("eth0") == ()
    assert journal.interfaces() == ()


def test_what_cannot_be_put_back_is_told_stays_journalled_and_the_root_comes_back(
    kernel: FakeKernel, journal: Journal, shaper: Shaper
) -> None:
    shaper.attach(make_shape("eth0", gso_max_segs=2))
    kernel.reject_segments = REFUSED
    (note,) = shaper.detach("eth0")
    assert "was not put back" in note
    assert kernel.observe("eth0") is None
    assert journal.read_segments("eth0") == OWN
    kernel.reject_segments = None
    shaper.clear()
    assert limit(kernel) == OWN


def test_nothing_is_limited_where_the_tree_could_not_be_built(kernel: FakeKernel, journal: Journal) -> None:
    kernel.set_root("eth0", PriorQdisc("tbf", 7, {"raw": "2800"}))
    with pytest.raises(ConfigurationError):
        Shaper(kernel, journal).attach(make_shape("eth0", gso_max_segs=2))
    kernel.privileged = False
    with pytest.raises(PrivilegeError):
        Shaper(kernel, journal).attach(make_shape("eth0", gso_max_segs=2), replace_foreign=True)
    assert (limit(kernel), journal.read_segments("eth0")) == (OWN, None)


def test_a_device_that_was_lent_to_another_namespace_gets_its_own_limit_back(
    kernel: FakeKernel, journal: Journal, shaper: Shaper
) -> None:
    for attached_again in (True, False):
        shaper.attach(make_shape("eth0", gso_max_segs=2))
        kernel.delete_root("eth0")
        kernel.rename("eth0", "elsewhere")
        shaper.detach("eth0")
        kernel.rename("elsewhere", "eth0")
        if attached_again:
            assert shaper.attach(make_shape("eth0", gso_max_segs=2)).notes == ()
            shaper.apply(make_shape("eth0", gso_max_segs=4))
            assert (limit(kernel), journal.read_lent_segments("eth0")) == (4, None)
        assert shaper.detach("eth0") == ()
        assert (limit(kernel), journal.interfaces()) == (OWN, ())


@pytest.mark.parametrize(("found", "default"), [(OWN, OWN), (16, OWN), (2, 2)])
def test_another_device_by_the_name_of_a_lent_one_is_as_it_was_found(
    kernel: FakeKernel, journal: Journal, shaper: Shaper, found: int, default: int
) -> None:
    shaper.attach(make_shape("eth0", gso_max_segs=2))
    kernel.rename("eth0", "elsewhere")
    shaper.detach("eth0")
    kernel.rename("eth1", "eth0")
    kernel.change_segments("eth0", found, default=default)
    shaper.attach(make_shape("eth0", gso_max_segs=2), replace_foreign=True)
    assert limit(kernel) == 2
    shaper.detach("eth0")
    assert (limit(kernel), journal.interfaces()) == (found, ())


def test_a_damaged_entry_is_named_and_the_limit_left(kernel: FakeKernel, journal: Journal, shaper: Shaper) -> None:
    journal.directory.joinpath("gso-eth0.json").write_text('{"version": 1}')
    with pytest.raises(ShapingError, match=r"gso-eth0\.json is not a journal entry .* set gso_max_segs by hand"):
        journal.read_segments("eth0")
    (note,) = shaper.attach(make_shape("eth0", gso_max_segs=2)).notes
    assert "gso-eth0.json is not a journal entry" in note
    assert limit(kernel) == OWN
    assert kernel.observe("eth0") is not None

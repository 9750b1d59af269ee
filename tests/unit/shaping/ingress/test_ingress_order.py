"""What arrives is lost at no step: the redirection is made last and removed first, whatever is refused in between."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_kernel import DEFAULT_SEGMENTS, FakeKernel
from hypothesis import given
from hypothesis import strategies as st
from shaping_contract import MBIT, make_shape

from hive_qos.errors import ConfigurationError, KernelRejectedError, PrivilegeError, ShapingError
from shaping.journal import Journal
from shaping.model.names import DEFAULT_LEAVES
from shaping.model.observations import Capabilities, Redirection
from shaping.model.shapes import DestinationShape, IngressShape, JobShape, Rule
from shaping.model.tree import AddClass, AddFilter, AddLeaf
from shaping.plan.desired_tree import desired_tree
from shaping.shaper import Shaper

REFUSED = KernelRejectedError("add", errno_value=errno.ENOMEM, detail="Cannot allocate memory")
DEVICE = "hqifb1"


def arriving(interface: str = "eth0", *, capacity: int = 40 * MBIT, storage: int = 8 * MBIT) -> IngressShape:
    shape = make_shape(interface, capacity=capacity, storage=storage)
    return IngressShape(interface, capacity, shape.classes, (Rule("storage", port=873),))


class WatchedKernel(FakeKernel):
    """Says after each step whether what comes to eth0 still arrives."""

    lost = 0

    def apply(self, interface: str, operations: object) -> None:
        super().apply(interface, operations)  # type: ignore[arg-type]  # handed on
        self.lost += not self.arrives("eth0")

    def delete_ifb(self, device: str) -> None:
        super().delete_ifb(device)
        self.lost += not self.arrives("eth0")

    def redirect(self, interface: str, device: str) -> None:
        super().redirect(interface, device)
        self.lost += not self.arrives("eth0")


@pytest.fixture
def watched() -> WatchedKernel:
    return WatchedKernel(("eth0", "eth1"))


def test_it_comes_and_goes_without_losing_what_arrives(watched: WatchedKernel, journal: Journal) -> None:
    shaper = Shaper(watched, journal)
    attachment = shaper.ingress.attach(arriving())
    assert (attachment.device, attachment.adopted) == (DEVICE, False)
    assert journal.read_ingress("eth0") == DEVICE
    assert shaper.ingress.check("eth0")
    assert shaper.ingress.verify("eth0")
    assert shaper.ingress.apply(arriving()) == ()
    assert shaper.ingress.apply(arriving(storage=7 * MBIT))
    assert shaper.ingress.verify("eth0")
    assert set(shaper.ingress.counters("eth0").classes) >= {"storage", "other"}
    assert shaper.ingress.detach("eth0") == ()
    assert (watched.redirection("eth0"), watched.ifbs(), watched.lost) == (None, (), 0)
    assert list(journal.directory.iterdir()) == []


def test_the_journal_is_written_before_anything_is_made(kernel: FakeKernel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Shaper(kernel, Journal(tmp_path / "file")).ingress.attach(arriving())
    assert (kernel.ifbs(), kernel.redirection("eth0")) == ((), None)


@pytest.mark.parametrize("step", [AddClass, AddLeaf, AddFilter, "redirect"])
def test_whatever_is_refused_everything_arrives_as_before_and_nothing_is_left(
    watched: WatchedKernel, journal: Journal, step: type | str
) -> None:
    if isinstance(step, type):
        watched.reject_next = (step, REFUSED)
    else:
        watched.reject_redirect = REFUSED
    with pytest.raises(ShapingError):
        Shaper(watched, journal).ingress.attach(arriving())
    assert (watched.ifbs(), watched.redirection("eth0"), watched.lost) == ((), None, 0)
    assert journal.interfaces() == ()


def test_without_privilege_nothing_is_left_in_the_journal(journal: Journal) -> None:
    kernel = FakeKernel(privileged=False)
    with pytest.raises(PrivilegeError):
        Shaper(kernel, journal).ingress.attach(arriving())
    assert journal.interfaces() == ()


@pytest.mark.parametrize("lacking", [Capabilities(u32=False), Capabilities(htb=False)])
def test_a_kernel_that_cannot_says_so(lacking: Capabilities, journal: Journal) -> None:
    kernel = FakeKernel(capabilities=lacking)
    with pytest.raises(ShapingError, match=r"this kernel has no (u32|HTB)"):
        Shaper(kernel, journal).ingress.attach(replace(arriving()))
    assert (kernel.ifbs(), kernel.redirection("eth0")) == ((), None)


@pytest.mark.parametrize(
    "hook",
    [Redirection("clsact"), Redirection("ingress"), Redirection("ingress", others=2), Redirection("clsact", others=1)],
)
def test_somebody_elses_ingress_is_refused_and_stays(kernel: FakeKernel, journal: Journal, hook: Redirection) -> None:
    kernel.set_ingress("eth0", hook)
    with pytest.raises(ConfigurationError, match="somebody has a qdisc"):
        Shaper(kernel, journal).ingress.attach(arriving())
    assert (kernel.redirection("eth0"), kernel.ifbs(), journal.interfaces()) == (hook, (), ())


def _nothing(kernel: FakeKernel) -> None:
    pass


def _watchdog_came(kernel: FakeKernel) -> None:
    kernel.stop_redirecting("eth0")


def _half_done(kernel: FakeKernel) -> None:
    kernel.set_ingress("eth0", Redirection("ingress"))


def _down(kernel: FakeKernel) -> None:
    kernel.stop_device(DEVICE)


def _deleted(kernel: FakeKernel) -> None:
    kernel.delete_ifb(DEVICE)


@pytest.mark.parametrize("meanwhile", [_nothing, _watchdog_came, _half_done, _down, _deleted])
def test_the_next_start_adopts_whatever_a_crash_left(
    kernel: FakeKernel, journal: Journal, meanwhile: Callable[[FakeKernel], None]
) -> None:
    Shaper(kernel, journal).ingress.attach(arriving())
    kernel.enqueue(DEVICE, 0x310, 3)
    meanwhile(kernel)
    shaper = Shaper(kernel, Journal(journal.directory))
    attachment = shaper.ingress.attach(arriving())
    assert attachment.adopted == (meanwhile is not _deleted)
    assert kernel.arrives("eth0")
    assert shaper.ingress.verify("eth0")
    assert kernel.purged_packets == (3 if meanwhile is _deleted else 0)
    shaper.ingress.detach("eth0")
    assert (kernel.ifbs(), kernel.redirection("eth0")) == ((), None)


@pytest.mark.parametrize("harm", [_down, _deleted])
def test_a_look_at_a_broken_ifb_lets_everything_arrive_and_the_next_attach_mends_it(
    kernel: FakeKernel, journal: Journal, harm: Callable[[FakeKernel], None]
) -> None:
    shaper = Shaper(kernel, journal)
    shaper.ingress.attach(arriving())
    harm(kernel)
    assert not kernel.arrives("eth0")
    assert not shaper.ingress.check("eth0")
    assert kernel.arrives("eth0")
    with pytest.raises(ConfigurationError, match="not attached"):
        shaper.ingress.apply(arriving())
    shaper.ingress.attach(arriving())
    assert shaper.ingress.check("eth0")


def test_a_look_that_is_refused_is_repeated(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    shaper.ingress.attach(arriving())
    kernel.stop_device(DEVICE)
    kernel.privileged = False
    with pytest.raises(PrivilegeError):
        shaper.ingress.check("eth0")
    kernel.privileged = True
    assert not shaper.ingress.check("eth0")
    assert kernel.arrives("eth0")


def test_giving_an_interface_back_gives_both_directions_back_and_a_new_name_takes_both_along(
    kernel: FakeKernel, journal: Journal
) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"))
    shaper.ingress.attach(arriving())
    kernel.rename("eth0", "lan0")
    shaper.release("eth0")
    journal.rename({"eth0": "lan0"})
    assert shaper.ingress.attach(arriving("lan0")).adopted
    shaper.attach(make_shape("lan0"))
    assert shaper.detach("lan0") == ()
    assert (kernel.ifbs(), kernel.redirection("lan0"), kernel.observe("lan0")) == ((), None, None)
    assert list(journal.directory.iterdir()) == []


@pytest.mark.parametrize("step", ["stop_redirecting", "delete_ifb"])
def test_an_ifb_that_cannot_be_given_back_keeps_neither_root_nor_segments(
    kernel: FakeKernel, journal: Journal, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(replace(make_shape("eth0"), gso_max_segs=2))
    shaper.ingress.attach(arriving())
    with monkeypatch.context() as patch:
        patch.setattr(kernel, step, _refuse)
        with pytest.raises(KernelRejectedError):
            shaper.detach("eth0")
        assert kernel.observe("eth0") is None
        assert kernel.segments("eth0") == DEFAULT_SEGMENTS
        assert kernel.arrives("eth0")
        shaper.attach(make_shape("eth0"))
        with pytest.raises(KernelRejectedError):
            Shaper(kernel, journal).clear()
        assert kernel.observe("eth0") is None
    assert shaper.ingress.detach("eth0") == ()
    assert (kernel.ifbs(), kernel.redirection("eth0"), journal.interfaces()) == ((), None, ())


@pytest.mark.parametrize("step", ["apply", "counters", "observe"])
def test_an_ifb_that_does_not_drain_is_deleted_all_the_same(
    kernel: FakeKernel, journal: Journal, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    shaper = Shaper(kernel, journal)
    shaper.ingress.attach(arriving())
    monkeypatch.setattr(kernel, step, _refuse)
    assert shaper.ingress.detach("eth0") == ()
    assert (kernel.ifbs(), kernel.redirection("eth0"), journal.interfaces()) == ((), None, ())


def _refuse(*_: object, **__: object) -> None:
    raise REFUSED


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("another", [False, True])
def test_an_interface_that_was_renamed_is_given_back_by_its_number(
    kernel: FakeKernel, journal: Journal, crashed: bool, another: bool
) -> None:
    shaper = Shaper(kernel, journal)
    shaper.ingress.attach(arriving())
    kernel.rename("eth0", "hidden")
    if another:
        kernel.rename("eth1", "eth0")
    (Shaper(kernel, journal) if crashed else shaper).ingress.detach("eth0")
    assert kernel.arrives("hidden")
    assert (kernel.ifbs(), kernel.redirection("hidden"), journal.interfaces()) == ((), None, ())


def test_a_look_at_a_broken_ifb_finds_its_interface_under_a_new_name(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    shaper.ingress.attach(arriving())
    kernel.rename("eth0", "hidden")
    kernel.delete_ifb(DEVICE)
    assert not shaper.ingress.check("eth0")
    assert kernel.arrives("hidden")


@pytest.mark.parametrize("journalled", ["lost", "damaged", "under its former name"])
def test_what_the_journal_does_not_tell_the_interfaces_number_does(
    kernel: FakeKernel, journal: Journal, journalled: str
) -> None:
    Shaper(kernel, journal).ingress.attach(arriving())
    (entry,) = journal.directory.iterdir()
    match journalled:
        case "lost":
            entry.unlink()
        case "damaged":
            entry.write_text("{")
        case _:  # as when it cannot be written anew
            kernel.rename("eth0", "lan0")
    name = "lan0" if "lan0" in kernel.interfaces() else "eth0"
    notes = Shaper(kernel, journal).ingress.detach(name)
    assert bool(notes) == (journalled == "damaged")
    assert (kernel.ifbs(), kernel.redirection(name)) == ((), None)


def test_clearing_finds_what_no_journal_knows(kernel: FakeKernel, journal: Journal, tmp_path: Path) -> None:
    Shaper(kernel, journal).ingress.attach(arriving())
    notes = Shaper(kernel, Journal(tmp_path / "another")).clear()
    assert f"{DEVICE}: removed" in notes
    assert (kernel.ifbs(), kernel.redirection("eth0")) == ((), None)


def test_the_ifbs_tree_has_only_default_leaves_and_takes_neither_jobs_nor_destinations() -> None:
    shape = replace(make_shape("hqifb1"), direction="ingress")
    tree = desired_tree(shape, Capabilities())
    assert {leaf.parent_minor for leaf in tree.leaves} == set(DEFAULT_LEAVES)
    assert {rule.parent_minor for rule in tree.filters} <= {0}
    for extra in ({"jobs": (JobShape(0, MBIT, MBIT, 1),)}, {"destinations": (DestinationShape("10.0.0.1"),)}):
        with pytest.raises(ValueError, match="not told by"):
            desired_tree(replace(shape, **extra), Capabilities())


ACTIONS = st.lists(
    st.sampled_from(("attach", "apply", "check", "detach", "down", "delete", "crash", "watchdog", "refuse")),
    max_size=30,
)


@given(ACTIONS, st.data())
def test_once_looked_at_everything_arrives_whatever_happened_before(actions: list[str], data: st.DataObject) -> None:
    """Attach, change, look, kill, break and refuse in any order: after a look, nothing is lost."""
    kernel = FakeKernel(("eth0",))
    directory = data.draw(st.uuids())
    journal = _MemoryJournal(Path(f"/nowhere/{directory}"))
    shaper = Shaper(kernel, journal)
    for action in actions:
        shape = arriving(storage=data.draw(st.integers(1, 8)) * MBIT)
        try:
            match action:
                case "attach":
                    shaper.ingress.attach(shape)
                case "apply":
                    shaper.ingress.apply(shape)
                case "detach":
                    shaper.ingress.detach("eth0")
                case "down" if DEVICE in kernel.ifbs():
                    kernel.stop_device(DEVICE)
                case "delete":
                    kernel.delete_ifb(DEVICE)
                case "crash":
                    shaper = Shaper(kernel, journal)
                    kernel.stop_redirecting("eth0")  # the watchdog
                case "watchdog":
                    kernel.stop_redirecting("eth0")
                case "refuse":
                    kernel.reject_next = (AddFilter, REFUSED)
        except (ConfigurationError, KernelRejectedError):
            pass
        shaper.ingress.check("eth0")
        assert kernel.arrives("eth0"), action
    kernel.reject_next = None
    shaper.ingress.attach(arriving())
    assert shaper.ingress.verify("eth0")
    shaper.ingress.detach("eth0")
    assert (kernel.ifbs(), kernel.redirection("eth0"), journal.interfaces()) == ((), None, ())


class _MemoryJournal(Journal):
    """Entries of this one kind in memory: a property test is not the place to sync a disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._devices: dict[str, str] = {}

    def write_ingress(self, interface: str, device: str) -> None:
        self._devices[interface] = device

    def read_ingress(self, interface: str) -> str | None:
        return self._devices.get(interface)

    def forget_ingress(self, interface: str) -> None:
        self._devices.pop(interface, None)

    def interfaces(self) -> tuple[str, ...]:
        return tuple(self._devices)

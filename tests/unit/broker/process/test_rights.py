"""Who may do what: classes that a program may enter, and what it may not leave behind by entering."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.enforce import cgroups
from broker.policy.toml import load
from broker.process.rights import Authority, Peer

POLICY = load(
    """
    version = 1
    [[interface]]
    name = "eth0"
    egress = "40 Mbit/s"
    [class.compute]
    match = [{ uid = 1001 }]
    [daemon]
    group = "no-such-group"
    admin_group = "root"
    """
)


def peer(uid: int, *groups: int) -> Peer:
    return Peer(pid=1, uid=uid, groups=frozenset((uid, *groups)))


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        (peer(0), {"control", "compute", "storage", "other"}),
        (peer(1001), {"compute", "storage", "other"}),
        (peer(1001, 0), {"control", "compute", "storage", "other"}),
        (peer(1002), set()),
    ],
)
def test_what_promotes_a_whole_program_needs_a_rule_on_its_user(who: Peer, allowed: set[str]) -> None:
    authority = Authority.of(POLICY)
    found = {name for name in ("control", "compute", "storage", "other") if authority.may_enter(who, name)}
    assert found == allowed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("1:name=systemd:/x\n0::/user.slice/session.scope\n")
    scope = tmp_path / "mount/user.slice/session.scope"
    scope.mkdir(parents=True)
    for name, value in (("memory.max", "max"), ("cpu.max", "max 100000"), ("pids.max", "max")):
        (scope / name).write_text(value + "\n")
        (scope.parent / name).write_text(value + "\n")
    return tmp_path


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of a test are no cgroups; tests/lab looks at those."""
    monkeypatch.setattr(cgroups, "programs_of_others", lambda path: ())


def limits(tree: Path) -> tuple[str, ...]:
    return cgroups.left_behind(str(tree / "mount"), pid=7, traffic_class="storage", proc=str(tree / "proc"))


def test_a_process_without_limits_leaves_none_behind(tree: Path) -> None:
    (tree / "mount/user.slice/pids.max").write_text("4915\n")  # what systemd gives every user
    assert limits(tree) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory.high", "max"),
        ("memory.swap.max", "max"),
        ("cpu.weight", "100"),
        ("cpu.weight", "500"),  # leaving costs the process, not others
        ("cpu.idle", "0"),
        ("cpuset.cpus", ""),
        ("io.max", ""),
        ("io.max", "8:0 rbps=max wbps=max riops=max wiops=max"),
        ("io.weight", "default 100"),
        ("misc.max", "sev max\nsev_es max"),
        ("rdma.max", "mlx4_0 hca_handle=max hca_object=max"),
        ("hugetlb.2MB.max", "max"),
        ("memory.low", "1000000"),
    ],
)
def test_a_controller_that_limits_nothing_keeps_nobody(tree: Path, name: str, value: str) -> None:
    (tree / "mount/user.slice" / name).write_text(value + "\n")
    (tree / "mount/user.slice/session.scope" / name).write_text(value + "\n")
    assert limits(tree) == ()


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("user.slice/session.scope", "pids.max", "100"),
        ("user.slice/session.scope", "cpu.max", "5000 100000"),
        ("user.slice", "memory.max", "1000000"),
        ("user.slice", "memory.high", "1000000"),
        ("user.slice", "memory.swap.max", "0"),
        ("user.slice", "cpuset.cpus", "0-1"),
        ("user.slice", "cpu.weight", "20"),
        ("user.slice", "io.weight", "default 50"),
        ("user.slice", "io.max", "8:0 rbps=max wbps=1000 riops=max wiops=max"),
        ("user.slice", "misc.max", "sev 3"),
        ("user.slice", "hugetlb.2MB.max", "0"),
        ("user.slice", "cpu.uclamp.max", "20.00"),
    ],
)
def test_a_limit_of_its_cgroup_or_above_is_named(tree: Path, place: str, name: str, value: str) -> None:
    (tree / "mount" / place / name).write_text(value + "\n")
    assert limits(tree) == (f"{name} = {value} (/{place})",)


def class_cgroup(tree: Path, *files: str) -> Path:
    """The kernel's files of the class storage, as they are when the directories of all are made."""
    mount = tree / "mount"
    for _, path in cgroups.class_paths():
        (mount / path).mkdir(parents=True)
        for name in files:
            (mount / path / name).touch()
            (mount / path).with_name(name).touch()
    return mount / dict(cgroups.class_paths())["storage"]


def test_a_limit_of_tasks_as_systemd_gives_each_service_is_left_for_one_of_the_class_that_is_lower(tree: Path) -> None:
    place = class_cgroup(tree, "pids.max", "cgroup.subtree_control")
    cgroups.make(str(tree / "mount"))
    assert (place.parent / "cgroup.subtree_control").read_text() == "+pids"
    bound = int((place / "pids.max").read_text())
    host = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    assert 0.1 * host < bound < 0.15 * host
    own = tree / "mount/user.slice/session.scope/pids.max"
    own.write_text(f"{int(0.15 * host)}\n")
    assert limits(tree) == ()
    own.write_text(f"{bound - 1}\n")
    assert limits(tree) == (f"pids.max = {bound - 1} (/user.slice/session.scope)",)


def test_where_a_class_has_no_limit_of_tasks_each_such_limit_keeps_its_process(tree: Path) -> None:
    class_cgroup(tree)
    cgroups.make(str(tree / "mount"))
    (tree / "mount/user.slice/session.scope/pids.max").write_text("1000000\n")
    assert limits(tree) == ("pids.max = 1000000 (/user.slice/session.scope)",)


def test_a_line_of_several_that_limits_is_enough(tree: Path) -> None:
    (tree / "mount/user.slice/io.weight").write_text("default 100\n8:0 30\n")
    (tree / "mount/user.slice/misc.max").write_text("sev max\nsev_es 2\n")
    assert limits(tree) == (
        "io.weight = default 100, 8:0 30 (/user.slice)",
        "misc.max = sev max, sev_es 2 (/user.slice)",
    )


def test_a_cgroup_outside_of_our_view_counts_as_limited(tree: Path) -> None:
    (tree / "proc/7/cgroup").write_text("0::/../elsewhere\n")
    assert limits(tree)


def test_no_number_that_names_no_process_is_moved(tmp_path: Path) -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match="not the number of a process"):
            cgroups.enter(str(tmp_path), traffic_class="storage", pid=number)


def test_cgroups_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    assert cgroups.enter(str(tmp_path), traffic_class="storage", pid=7)
    assert not cgroups.enter(str(tmp_path), traffic_class="storage", pid=8)
    assert (tmp_path / cgroups.base_name() / "storage/cgroup.procs").read_text() == "8"


def test_the_cgroups_of_each_network_namespace_have_a_name_of_their_own() -> None:
    assert cgroups.base_name() == f"hive-qos-{Path('/proc/self/ns/net').stat().st_ino}"

"""Socket programs outlive whoever attached them, are adopted as they are, and never touch those of others."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shaping_bench import Bench

from hive_qos.errors import KernelRejectedError
from shaping.classify import bpf, cgroup
from shaping.classify.bpf import instruction
from shaping.classify.cgroup import SocketClassifier
from shaping.model.shapes import Rule
from tools.lab.kernel import entered

ALLOW = instruction(0xB7, dst=0, immediate=1) + instruction(0x95)
USER = 61_235


@pytest.fixture
def group() -> Iterator[Path]:
    path = cgroup.mount() / f"hqcgroup-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.fixture
def classifier(bench: Bench) -> Iterator[SocketClassifier]:
    with entered(bench.sender):
        made = SocketClassifier()
        yield made
        made.clear()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def programs(path: Path) -> list[bpf.Attached]:
    with opened(path) as descriptor:
        return [
            found
            for attach_type in (bpf.ATTACH_SOCK_CREATE, bpf.ATTACH_SOCK_OPS)
            for found in bpf.attached(cgroup=descriptor, attach_type=attach_type)
        ]


def others_program() -> int:
    return bpf.load_program(
        program_type=bpf.PROG_TYPE_CGROUP_SOCK, attach_type=bpf.ATTACH_SOCK_CREATE, instructions=ALLOW, name="theirs"
    )


def test_a_restart_keeps_the_very_programs_and_their_storage(classifier: SocketClassifier, group: Path) -> None:
    rules = (Rule("storage", cgroup=group.name), Rule("control", uid=USER))
    assert classifier.apply(rules) == ()
    before = programs(group)
    assert len(before) == 2
    assert before[0].maps == before[1].maps != ()
    again = SocketClassifier()
    assert again.apply(rules) == ()
    assert programs(group) == before


def test_a_restart_with_another_rule_replaces_the_programs(classifier: SocketClassifier, group: Path) -> None:
    classifier.apply((Rule("storage", cgroup=group.name),))
    before = {found.program_id for found in programs(group)}
    assert SocketClassifier().apply((Rule("control", cgroup=group.name),)) == ()
    after = {found.program_id for found in programs(group)}
    assert len(after) == 2
    assert not before & after


def test_what_an_earlier_run_left_goes_when_no_rule_wants_it(classifier: SocketClassifier, group: Path) -> None:
    classifier.apply((Rule("storage", cgroup=group.name),))
    assert SocketClassifier().apply(()) == ()
    assert programs(group) == []


def test_users_rules_at_the_same_place_come_and_go_by_themselves(classifier: SocketClassifier) -> None:
    one, two = Rule("storage", uid=USER), Rule("control", uid=USER + 1)

    def ours() -> set[int]:
        return {found.program_id for found in programs(cgroup.mount()) if found.name == classifier._name}

    classifier.apply((one,))
    first = ours()
    classifier.apply((one, two))
    assert first < ours()
    classifier.apply((two,))
    assert len(ours()) == 2
    assert not first & ours()


def test_what_the_kernel_refused_once_is_tried_again(
    classifier: SocketClassifier, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached = bpf.attached

    def held(**_: int) -> list[bpf.Attached]:
        raise KernelRejectedError("look for programs", errno_value=errno.EPERM, detail="Operation not permitted")

    assert classifier.apply(()) == ()
    monkeypatch.setattr(bpf, "attached", held)
    rules = (Rule("storage", cgroup=group.name),)
    assert "somebody else may hold this cgroup" in str(classifier.apply(rules))
    monkeypatch.setattr(bpf, "attached", attached)
    assert classifier.apply(rules)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + cgroup.AGAIN_S)
    assert classifier.apply(rules) == ()
    assert len(programs(group)) == 2


def test_programs_of_others_stay(classifier: SocketClassifier, group: Path) -> None:
    theirs = others_program()
    with opened(group) as descriptor:
        bpf.attach(cgroup=descriptor, program=theirs, attach_type=bpf.ATTACH_SOCK_CREATE)
    os.close(theirs)
    assert classifier.apply((Rule("storage", cgroup=group.name),)) == ()
    assert len(programs(group)) == 3
    assert classifier.clear() == 1
    assert [found.name for found in programs(group)] == ["theirs"]


def test_a_cgroup_that_somebody_holds_for_himself_is_told_and_left(classifier: SocketClassifier, group: Path) -> None:
    theirs = others_program()
    with opened(group) as descriptor:
        alone = struct.pack("=IIII", descriptor, theirs, bpf.ATTACH_SOCK_CREATE, 0)
        bpf._bpf(8, alone, what="attach alone")
    os.close(theirs)
    notes = classifier.apply((Rule("storage", cgroup=group.name),))
    assert any("somebody else" in note for note in notes)
    assert classifier.apply((Rule("storage", cgroup=group.name),)) == notes, "told again, not forgotten"
    assert [found.name for found in programs(group)] == ["theirs"]


def test_a_cgroup_whose_places_are_all_taken_is_told_as_what_it_is(classifier: SocketClassifier, group: Path) -> None:
    with opened(group) as descriptor:
        for _ in range(64):
            theirs = others_program()
            bpf.attach(cgroup=descriptor, program=theirs, attach_type=bpf.ATTACH_SOCK_CREATE)
            os.close(theirs)
    notes = classifier.apply((Rule("storage", cgroup=group.name),))
    assert any("all 64 places" in note for note in notes), notes


def test_an_absolute_path_and_one_below_the_mount_are_the_same_cgroup(
    classifier: SocketClassifier, group: Path
) -> None:
    classifier.apply((Rule("storage", cgroup=str(group)),))
    before = programs(group)
    assert len(before) == 2
    classifier.apply((Rule("storage", cgroup="/" + group.name),))
    assert programs(group) == before


ATTACH = """
import sys
from pathlib import Path
from shaping.classify.cgroup import SocketClassifier
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.model.names import CLASS_NAMES
from shaping.model.shapes import ClassShape, InterfaceShape, Rule
from shaping.shaper import Shaper
rules = (Rule("storage", uid=61235), Rule("storage", port=873))
classes = tuple(ClassShape(name, 10**6, 10**7, 1) for name in CLASS_NAMES)
shaper = Shaper(RealKernel(), Journal(Path(sys.argv[1])), classifier=SocketClassifier())
for note in shaper.attach(InterfaceShape("v0", 10**7, classes, rules)).notes:
    print(note)
print("filters:", len(shaper.observe("v0").filters))
print("put back:", *shaper.detach("v0"))
"""
WITHOUT_BPF = {
    "root": ["--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"],
    "user": [
        *("--reuid", "65534", "--inh-caps", "+net_admin,+dac_override"),
        *("--ambient-caps", "+net_admin,+dac_override"),
    ],
}


@pytest.mark.parametrize("who", WITHOUT_BPF)
def test_without_cap_bpf_the_rest_is_shaped_and_the_lack_is_told(bench: Bench, tmp_path: Path, who: str) -> None:
    argv = ["nsenter", f"--net=/run/netns/{bench.sender}", "setpriv", *WITHOUT_BPF[who], sys.executable, "-c", ATTACH]
    done = subprocess.run(
        [*argv, str(tmp_path)], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Operation not permitted" in done.stdout
    assert "filters: 9" in done.stdout  # eight of the port, and one that leads to the default leaf of storage
    assert "put back:" in done.stdout
    assert "htb" not in bench.root()


def test_a_program_that_the_kernel_cannot_prove_safe_is_refused_with_its_words() -> None:
    with pytest.raises(KernelRejectedError, match="R0"):
        bpf.load_program(
            program_type=bpf.PROG_TYPE_CGROUP_SOCK,
            attach_type=bpf.ATTACH_SOCK_CREATE,
            instructions=instruction(0x95),
            name="broken",
        )

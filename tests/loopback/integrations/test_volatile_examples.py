"""The examples of training over members that come and go do what they say, as a reader starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until
from torch._C._distributed_c10d import TCPStore

EXAMPLES = Path(__file__).parents[3] / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes=1")
ENVIRONMENT = os.environ | {
    "HIVE_LISTEN": "127.0.0.1",
    "HIVE_BROKER": "off",
    "HIVE_JOB_SECRET": "secret of the test",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def store() -> Iterator[str]:
    """A register's address, for as long as a test."""
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{served.port}"
    del served


def said_by(*commands: tuple[str, ...]) -> list[list[str]]:
    """What programs that run at the same time have written, each line of it; they end well."""
    members = [
        subprocess.Popen(one, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for one in commands
    ]
    try:
        told = [one.communicate(timeout=110) for one in members]
    finally:
        for one in members:
            one.kill()
            one.communicate()
    assert [one.returncode for one in members] == [0] * len(members), told
    return [output.splitlines() for output, _ in told]


def test_the_example_trains_with_whoever_is_there_and_begins_anew_when_all_have_left(
    store: str, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        str(EXAMPLES / "volatile.py"),
        "--store",
        store,
        "--members",
        "1",
        "--meetings",
        "1000000",
    ]
    started: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        with (tmp_path / name).open("wb") as output:
            started[name] = subprocess.Popen([*command, "--name", name], env=ENVIRONMENT, stdout=output, stderr=output)

    def said() -> str:
        return "".join(f"{name}:\n{(tmp_path / name).read_text()[-2000:]}\n" for name in started)

    def meets(name: str, members: int) -> None:
        wait_until(lambda: f" of {members}: loss" in (tmp_path / name).read_text()[-200:], what=said, limit_s=60.0)

    def leaves(name: str) -> None:
        started[name].send_signal(signal.SIGINT)
        assert started[name].wait(LIMIT_S) == 0, said()

    try:
        start("a")
        start("b")
        for name in "ab":
            meets(name, 2)
        leaves("a")
        meets("b", 1)
        leaves("b")
        start("c")
        meets("c", 1)
        leaves("c")
    finally:
        for one in started.values():
            one.kill()
            one.wait()


@pytest.mark.long
def test_the_ranks_that_trained_by_ddp_train_by_diloco_under_torchrun() -> None:
    (said,) = said_by((*TORCHRUN, "--nproc-per-node=2", "--standalone", str(EXAMPLES / "ddp_to_diloco.py")))
    # Two ranks may write into one line, and the first may have left when the other one counts.
    assert len(re.findall(r", meeting 10 of [12]: loss ", "\n".join(said))) == 2, said


@pytest.mark.long
def test_all_ranks_of_two_sites_end_with_the_same_model(store: str) -> None:
    command = (str(EXAMPLES / "two_sites.py"), "--store", store, "--steps", "80", "--site")
    said = said_by(
        (*TORCHRUN, "--nproc-per-node=2", "--standalone", *command, "paris"),
        (*TORCHRUN, "--nproc-per-node=1", "--standalone", *command, "rome"),
    )
    # Two ranks of a torchrun may write into one line.
    ends = re.findall(r"([a-z]+ \d) ends: loss (\d+\.\d{4})", "\n".join(line for lines in said for line in lines))
    assert sorted(name for name, _ in ends) == ["paris 0", "paris 1", "rome 0"]
    assert len({loss for _, loss in ends}) == 1


@pytest.mark.long
def test_a_laptop_joins_for_its_time_and_leaves(store: str) -> None:
    command = (sys.executable, str(EXAMPLES / "laptop.py"), "--store", store)
    desk, laptop = said_by(
        (*command, "--name", "desk", "--minutes", "0.15"), (*command, "--name", "laptop", "--minutes", "0.05")
    )
    assert desk[-1].startswith("desk leaves after merge ")
    assert laptop[-1].startswith("laptop leaves after merge ")

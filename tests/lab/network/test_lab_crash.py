"""Whatever happens to a lab's owner, and whenever: no namespace, file or process of the lab is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

ROOT = Path(__file__).parents[3]
TWO_HOSTS = ROOT / "tools/lab/two-hosts.toml"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own, by which everything that belongs to its labs can be told."""
    monkeypatch.setenv("HIVE_LAB_STATE", str(tmp_path))
    yield tmp_path
    subprocess.run([sys.executable, "-m", "tools.lab", "down", "--all"], cwd=ROOT, timeout=60, check=True)
    assert leftovers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def leftovers(place: Path) -> list[str]:
    """What is there of labs that are written down in `place`, or in no place at all.

    A lab that is killed while it is being written down, before anything else is made, leaves a draft (a name with a
    dot) for the next command to remove; the fixture looks for that one.
    """
    found = [f"state {entry.name}" for entry in place.iterdir() if not entry.name.startswith(".")]
    entries: list[Path] = []
    for directory in (Path("/run/netns"), Path("/etc/netns")):
        with contextlib.suppress(FileNotFoundError):  # the last lab that ends removes it
            entries += directory.iterdir()
    elsewhere = Path("/run/hive-lab")  # after the namespaces: labs of others are written down before they have any
    known = {entry.name for entry in elsewhere.iterdir()} if elsewhere.is_dir() else set()
    for entry in entries:
        name = re.match(r"hq([0-9a-f]{4})-", entry.name)
        if name is not None and name[1] not in known and entry.exists():
            found.append(str(entry))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"HIVE_LAB_STATE={place}".encode() in (entry / "environ").read_bytes():
                    found.append(f"process {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
            except OSError:
                continue  # gone meanwhile
    return found


def start_lab(**options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tools.lab", "up", "--foreground", str(TWO_HOSTS)]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **options)


def lab(*words: str, status: int = 0) -> str:
    """What a command says."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.lab", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def wait_until_up(owner: subprocess.Popen[bytes]) -> None:
    assert owner.stdout is not None
    assert b"is up" in owner.stdout.readline()
    owner.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_leaves_nothing(place: Path, number: signal.Signals) -> None:
    """Random moments from before the first import to after the lab is up (which takes about 0.3 s, or longer)."""
    seed = random.randrange(1000)
    moments = random.Random(seed)
    for _ in range(6):
        delay_s = moments.uniform(0.05, 0.45)
        owner = start_lab(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay_s)
        owner.send_signal(number)
        owner.wait(60)
        wait_until(
            lambda: leftovers(place) == [],
            what=lambda delay_s=delay_s: f"seed {seed}, after {delay_s:.3f} s: {leftovers(place)}",
        )


def test_repeated_ctrl_c_does_not_cut_the_clean_up_short(place: Path) -> None:
    owner = start_lab(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_until_up(owner)
    for _ in range(20):
        owner.send_signal(signal.SIGINT)
        time.sleep(0.005)
    owner.wait(60)
    wait_until(lambda: leftovers(place) == [], what=lambda: leftovers(place))


def test_owner_and_guard_killed_together_are_cleaned_up_by_down_all(place: Path) -> None:
    owner = start_lab(stdout=subprocess.PIPE)
    wait_until_up(owner)
    (path,) = place.glob("*/state.json")
    state = json.loads(path.read_text())
    os.kill(state["guard"]["pid"], signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert any("/run/netns" in part for part in leftovers(place))
    done = subprocess.run(
        [sys.executable, "-m", "tools.lab", "down", "--all"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "its owner was dead; taken down" in done.stdout
    wait_until(lambda: leftovers(place) == [], what=lambda: leftovers(place))


def test_a_state_that_cannot_be_read_does_not_keep_the_guard_from_taking_the_lab_down(place: Path) -> None:
    owner = start_lab(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_until_up(owner)
    (path,) = place.glob("*/state.json")
    path.write_text(path.read_text()[:40])
    owner.kill()
    owner.wait()
    wait_until(lambda: leftovers(place) == [], what=lambda: leftovers(place))


def test_the_command_makes_uses_changes_and_takes_down_a_lab(place: Path) -> None:
    assert "is up: a, b, s, r" in lab("up", str(TWO_HOSTS))
    assert lab("exec", "a", "--", "python3", "-c", "import socket; print(socket.gethostbyname('s'))") == "10.42.3.1\n"
    assert lab("exec", "--user", "nobody", "a", "--", "id", "-un") == "nobody\n"
    lab("exec", "a", "--", "sh", "-c", "exit 7", status=7)
    lab("set", "a-r", "rate=20 Mbit/s", "delay=5 ms", "loss=1 %")
    status = json.loads(lab("status", "--json"))
    link = status["labs"][0]["links"][0]
    assert (link["name"], link["rate_bits_per_s"], link["delay_s"], link["loss"]) == ("a-r", 20_000_000, 0.005, 0.01)
    assert link["buffer_bytes"] == 500_000
    assert "20 Mbit/s, 5 ms, loss 1 %, relay" in lab("status")
    assert "this lab has a, b, s, r" in lab("exec", "nosuch", "--", "true", status=2)
    assert "this lab has a-r, b-r, s-r" in lab("set", "nosuch", "rate=1 Mbit/s", status=2)
    assert "lab = 'nosuch': no lab of this id" in lab("exec", "--lab", "nosuch", "a", "--", "true", status=2)
    assert "options of exec go before HOST" in lab("exec", "a", "--user", "nobody", "--", "id", status=2)
    assert "goes before HOST" in lab("exec", "--help")
    assert "a-r.rate = 'fast': not a rate; write for example \"200 Mbit/s\"" in lab("set", "a-r", "rate=fast", status=2)
    assert "is down" in lab("down")
    assert "no lab is up" in lab("down", status=1)


def test_a_lab_of_another_version_is_shown_in_a_line_and_taken_down(place: Path) -> None:
    lab("up", str(TWO_HOSTS))
    (path,) = place.glob("*/state.json")
    state = json.loads(path.read_text())
    state["description"]["nodes"][0]["colour"] = "red"
    state["mood"] = "good"
    draft = path.with_suffix(".new")  # in one step, as the program does: the guard reads it at this very moment
    draft.write_text(json.dumps(state))
    draft.replace(path)
    status = lab("status")
    assert f"lab {state['id']} (two-hosts)" in status
    assert "of another version of this program; it can only be taken down" in status
    assert "colour" in json.loads(lab("status", "--json"))["labs"][0]["error"]
    assert lab("exec", "a", "--", "true", status=1).count("\n") == 1
    assert "is down" in lab("down")


def watches_its_owner(guard: int) -> bool:
    for link in Path(f"/proc/{guard}/fd").iterdir():
        try:
            if "pidfd" in os.readlink(link):
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def test_a_detached_lab_that_cannot_be_read_blocks_no_other_and_goes_with_its_guard_by_its_id(place: Path) -> None:
    lab("up", str(TWO_HOSTS))
    (path,) = place.glob("*/state.json")
    state = json.loads(path.read_text())
    wait_until(lambda: not watches_its_owner(state["guard"]["pid"]))  # it has seen that the lab is its own now
    path.write_text(path.read_text()[:40])
    said = lab("up", str(TWO_HOSTS))
    assert "is up" in said
    assert f"`python -m tools.lab down {state['id']}` takes it down" in said
    assert "(two-hosts), owner" in lab("status")
    assert f"lab {state['id']} is down" in lab("down", state["id"])
    assert "is down" in lab("down")
    wait_until(lambda: leftovers(place) == [], what=lambda: leftovers(place))


INTERRUPTED = """
import os, runpy, signal, sys
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter())
runpy.run_module("tools.lab", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("moment", ["tools.lab.cli", "tools.lab.lab", "tools.lab.kernel", "tools.lab.wire"])
def test_ctrl_c_while_the_program_is_loaded_ends_without_a_traceback(moment: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, moment], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == b""

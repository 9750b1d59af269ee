"""An ordinary user gets a lab in a user namespace, or one line that says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLAIN = 'hosts = ["a", "b"]\n[[link]]\nbetween = ["a", "b"]\nrate = "40 Mbit/s"\n'
ECHO = """
import socket, threading
server = socket.create_server(("10.42.1.1", 7000))
socket.create_connection(("10.42.1.1", 7000))
print(socket.gethostbyname("b"))
"""


@pytest.fixture
def nobody() -> Iterator[tuple[Path, list[str]]]:
    """A directory that `nobody` owns, with the programs in it, and the command prefix that makes one of them run."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for package in ("hive_qos", "tools/lab"):
            shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
        (place / "tools/__init__.py").touch()
        (place / "plain.toml").write_text(PLAIN)
        (place / "run").mkdir()
        subprocess.run(["chown", "-R", "nobody", str(place)], check=True)
        become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env", "-i", "PATH=/usr/bin:/bin"]
        become += [f"XDG_RUNTIME_DIR={place}/run", "PYTHONDONTWRITEBYTECODE=1"]
        yield place, [*become, os.path.realpath(sys.executable), "-m", "tools.lab"]


def run(nobody: tuple[Path, list[str]], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*nobody[1], *words], cwd=nobody[0], capture_output=True, text=True, timeout=60)


def user_namespaces_allowed() -> bool:
    unshare = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "unshare", "--user", "--net", "true"]
    return subprocess.run(unshare, capture_output=True).returncode == 0


def test_an_ordinary_user_gets_a_lab_or_one_line_that_says_why_not(nobody: tuple[Path, list[str]]) -> None:
    up = run(nobody, "up", "plain.toml")
    if not user_namespaces_allowed():
        assert up.returncode == 1
        assert up.stderr.startswith("lab: not root, and")
        assert up.stderr.count("\n") == 1
        return
    assert (up.returncode, up.stderr) == (0, "")
    try:
        spoken = run(nobody, "exec", "a", "--", "python3", "-c", ECHO)
        assert (spoken.stdout, spoken.stderr) == ("10.42.1.2\n", "")
        assert run(nobody, "set", "a-b", "rate=20 Mbit/s").returncode == 0
        assert "20 Mbit/s, 0 ms, loss 0 %, veth" in run(nobody, "status").stdout
    finally:
        down = run(nobody, "down")
    assert "is down" in down.stdout
    assert run(nobody, "status").stdout == "no lab is up\n"
    assert not list((nobody[0] / "run/hive-lab").iterdir())


def test_a_delay_without_access_to_tap_devices_is_refused_in_one_line(nobody: tuple[Path, list[str]]) -> None:
    if not user_namespaces_allowed() or os.stat("/dev/net/tun").st_mode & 0o006:
        pytest.skip("here an ordinary user may have TAP devices, or no namespace at all; the other test covers that")
    done = run(nobody, "up", "tools/lab/two-hosts.toml")
    assert done.returncode == 1
    assert "/dev/net/tun" in done.stderr
    assert done.stderr.count("\n") == 1
    assert run(nobody, "status").stdout == "no lab is up\n"

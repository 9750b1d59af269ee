"""A Debian machine with systemd, in a host of the lab: what `apt-get install` does on a real one is done here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import LIMIT_S, wait_until

from shaping.classify import cgroup
from tools.lab.host import Host

BOOT = Path(__file__).with_name("boot.sh")
UNTOLD = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/log", "/var/cache", "/var/lib/apt", "/var/lib/dpkg")
"""Folders whose files say nothing: the kernel's, those of one boot, and what apt remembers of every package."""
BACKUPS = ("/etc/group-", "/etc/gshadow-", "/etc/passwd-", "/etc/shadow-")


class Machine:
    """A machine that has booted: programs run in it as root, with its network, processes and files."""

    def __init__(self, host: Host, init: int) -> None:
        self.host, self._init = host, init

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; with `check` it has to end well. Standard error comes with the output."""
        inside = ["nsenter", "--target", str(self._init), "--all", "env", "-i", "HOME=/root", "LANG=C.UTF-8"]
        inside += [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND=noninteractive",
        ]
        done = subprocess.run(
            [*inside, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=10 * LIMIT_S, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}"
        return done

    def says(self, *argv: str) -> str:
        """The output of a program that ends well, without the last line's end."""
        return self.run(*argv).stdout.rstrip("\n")

    def put(self, file: Path, path: str) -> str:
        """Copy a file into the machine; gives its path there."""
        self.write(path, file.read_bytes())
        return path

    def write(self, path: str, content: bytes) -> None:
        """Write a file of the machine."""
        Path(f"/proc/{self._init}/root{path}").write_bytes(content)

    def apt(self, *argv: str) -> str:
        """Run apt-get, which has no network here: what it needs has to be there."""
        return self.says("apt-get", "--quiet", "--yes", *argv)

    def service(self, key: str) -> str:
        """A property of hive-qos.service."""
        return self.says("systemctl", "show", f"--property={key}", "--value", "hive-qos.service")

    def root_qdisc(self) -> str:
        """What stands at the root of eth0."""
        return self.says("tc", "qdisc", "show", "dev", "eth0", "root")

    def traces(self) -> set[str]:
        """All that a package may leave: files with the contents of those in /etc, groups, cgroups, settings, qdiscs."""
        untold = [word for path in UNTOLD for word in ("-path", path, "-o")][:-1]
        files = self.says("find", "/", "-xdev", "(", *untold, ")", "-prune", "-o", "-print").splitlines()
        contents = self.says("find", "/etc", "-type", "f", "-exec", "sha256sum", "{}", "+").splitlines()
        found = [line for line in (*files, *contents) if not line.endswith(BACKUPS)]
        found += self.says("find", "/sys/fs/cgroup", "-maxdepth", "1", "-name", "*hive*").splitlines()
        found += self.says("find", "/run", "-name", "*hive*").splitlines()
        found += self.says("sysctl", "net.core.rmem_max", "net.core.wmem_max").splitlines()
        found += re.findall(r"^(.*?)(?: refcnt .*)?$", self.says("tc", "qdisc", "show"), re.MULTILINE)
        return set(found)


@contextmanager
def booted(host: Host, *, root: Path, place: Path) -> Iterator[Machine]:
    """Boot a root of Debian in a host of the lab; what it wrote is gone afterwards, and so are its processes.

    Args:
        place: an empty folder.
    """
    group = cgroup.mount() / f"hqdeb-{host.namespace}"
    group.mkdir()
    process = host.popen([str(BOOT), str(root), str(place), str(group)])
    try:
        wait_until(lambda: _child(process))
        machine = Machine(host, _child(process))
        wait_until(lambda: _running(machine), what=lambda: _state(machine), pause_s=0.2)
        yield machine
    finally:
        process.kill()
        process.wait()
        wait_until(lambda: _removed(group))


def _child(process: subprocess.Popen[bytes]) -> int:
    assert process.poll() is None, "the machine did not boot"
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(found[0]) if found else 0


def _running(machine: Machine) -> bool:
    return machine.run("systemctl", "is-system-running", check=False).stdout.strip() == "running"


def _state(machine: Machine) -> str:
    """What systemd says of a boot that does not end well."""
    failed = machine.run("systemctl", "list-units", "--failed", "--no-legend", "--plain", check=False).stdout
    return failed + machine.run("journalctl", "--no-pager", "--priority=warning", "--lines=20", check=False).stdout


def _removed(group: Path) -> bool:
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        try:
            folder.rmdir()
        except OSError:  # what is in it is about to end
            return False
    try:
        group.rmdir()
    except OSError:
        return False
    return True

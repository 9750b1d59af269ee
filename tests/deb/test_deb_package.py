"""The Debian package on Debian 12 and 13: installed, configured, upgraded under traffic, removed and purged.

`make test-deb` builds the package first. The machines have systemd and no network but the lab's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine, booted
from paced import paced
from patience import wait_until

from tools.lab import Lab

ROOT = Path(__file__).parents[2]
SUITES = os.environ.get("SUITES", "bookworm trixie").split()
CONFIGURATION = b'version = 1\n[[interface]]\nname = "eth0"\negress = "20 Mbit/s"\n'
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="session")
def package() -> Path:
    """The newest package of this machine's kind; `make deb` builds it."""
    found = sorted((ROOT / "dist").glob("hive-qos_*_amd64.deb"), key=lambda path: path.stat().st_mtime)
    assert found, "there is no package in dist/: make deb"
    return found[-1]


@pytest.fixture(scope="session")
def next_package(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a higher version."""
    folder = tmp_path_factory.mktemp("next")
    subprocess.run(["dpkg-deb", "-R", package, folder / "root"], check=True)
    control = folder / "root/DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", r"\g<0>+next", control.read_text(), flags=re.MULTILINE))
    built = folder / "hive-qos_next.deb"
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", folder / "root", built], check=True)
    return built


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab("deb") as lab:
        lab.host("a")
        lab.host("b")
        lab.link("a", "b")
        lab.up()
        yield lab


@pytest.fixture(params=SUITES)
def machine(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[Machine]:
    root = ROOT / "out/deb" / request.param
    subprocess.run(["bash", ROOT / "tools/deb/root.sh", request.param, root], check=True)
    with booted(lab["a"], root=root, place=tmp_path) as machine:
        yield machine


def install(machine: Machine, package: Path) -> str:
    """Install or upgrade; gives what apt said."""
    return machine.apt("install", machine.put(package, f"/tmp/{package.name}"))


def configure(machine: Machine) -> None:
    machine.write("/etc/hive-qos/broker.toml", CONFIGURATION)
    machine.run("hive-qos", "check")
    machine.run("systemctl", "--quiet", "enable", "--now", "hive-qos")


def test_lintian_finds_nothing_in_the_package(package: Path) -> None:
    program = shutil.which("lintian")
    assert program is not None, "lintian is missing: apt-get install lintian"
    argv = [program, "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", str(package)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_installing_shapes_nothing_and_the_two_commands_that_it_names_start_the_broker(
    machine: Machine, package: Path
) -> None:
    before = machine.root_qdisc()
    said = install(machine, package)
    assert "hive-qos init\n  systemctl enable --now hive-qos" in said
    assert (machine.service("ActiveState"), machine.service("UnitFileState")) == ("inactive", "disabled")
    assert machine.root_qdisc() == before

    configure(machine)
    assert machine.service("ActiveState") == "active"
    assert "htb" in machine.root_qdisc()
    status = json.loads(machine.says("hive-qos", "status", "--json"))
    assert [one["name"] for one in status["interfaces"]] == ["eth0"]
    assert status["alarms"] == []
    assert machine.says("journalctl", "--quiet", "--unit=hive-qos", "--priority=err", "--output=cat") == ""
    findings = json.loads(machine.run("hive-qos", "doctor", "--json", check=False).stdout)
    assert [one for one in findings if one["verdict"] == "bad"] == []
    assert {one["what"]: one["verdict"] for one in findings}["engine native"] == "good"

    machine.write("/tmp/new.toml", CONFIGURATION.replace(b"20", b"10"))
    machine.run("hive-qos", "apply", "/tmp/new.toml", "--yes", "--confirm-within", "10m")
    assert machine.says("cat", "/etc/hive-qos/broker.toml") == CONFIGURATION.decode().strip()
    machine.run("hive-qos", "apply", "--confirm")
    assert machine.says("cat", "/etc/hive-qos/broker.toml") == machine.says("cat", "/tmp/new.toml")


def test_shells_complete_commands_and_options(machine: Machine, package: Path) -> None:
    install(machine, package)
    bash = (
        ". /usr/share/bash-completion/bash_completion; _completion_loader hive-qos; COMP_WORDS=(hive-qos run --cl);"
        " COMP_CWORD=2; _hive_qos_completion hive-qos; echo ${COMPREPLY[*]}"
    )
    assert machine.says("bash", "-c", bash) == "--class"
    assert machine.says("fish", "-c", "complete --do-complete 'hive-qos rel'").split()[0] == "reload"
    # In a terminal of its own: zsh completes nowhere else. The quotes tell the prompt from the echo of setting it.
    zsh = (
        "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z 'autoload -U compinit; compinit -u; PS1=rea\"\"dy';"
        " zpty -r z got '*ready*'; zpty -w -n z $'hive-qos broker --take\\t'; zpty -r z got '*--take-over*';"
        " print -r -- $got"
    )
    assert "--take-over" in machine.says("zsh", "-f", "-c", zsh)


def test_after_the_start_and_in_an_upgrade_no_packet_is_lost_and_queues_are_adopted(
    machine: Machine, package: Path, next_package: Path, lab: Lab
) -> None:
    install(machine, package)
    configure(machine)
    former = machine.service("MainPID")
    with paced(lab["a"], lab["b"]) as traffic:  # from the moment that the first start is done
        traffic.more(1000)
        install(machine, next_package)
        assert machine.says("dpkg-query", "--show", "--showformat=${Version}", "hive-qos").endswith("+next")
        assert machine.service("ActiveState") == "active"
        assert machine.service("MainPID") not in ("0", former)
        assert json.loads(machine.says("hive-qos", "status", "--json"))["interfaces"][0]["shaped"]
        log = machine.says("journalctl", "--quiet", "--unit=hive-qos", "--output=cat")
        assert re.search(r"adopted\W+true", log, re.IGNORECASE), log
        assert traffic.lost() == []


def test_an_upgrade_whose_configuration_is_refused_leaves_the_former_broker_running(
    machine: Machine, package: Path, next_package: Path
) -> None:
    install(machine, package)
    configure(machine)
    former = machine.service("MainPID")
    machine.write("/etc/hive-qos/broker.toml", CONFIGURATION + b"unknown = 1\n")
    said = install(machine, next_package)
    assert "unknown" in said
    assert "systemctl restart hive-qos" in said
    assert (machine.service("ActiveState"), machine.service("MainPID")) == ("active", former)


@pytest.mark.parametrize("end", ["running", "killed"])
def test_removing_puts_everything_back_and_purging_leaves_no_trace(machine: Machine, package: Path, end: str) -> None:
    before = machine.traces()
    install(machine, package)
    configure(machine)
    machine.run("usermod", "--append", "--groups", "hive-qos", "daemon")
    if end == "killed":  # with its watchdog, as by the kernel for want of memory, and nobody starts it again
        machine.run("systemctl", "mask", "--quiet", "--runtime", "hive-qos")
        machine.run("systemctl", "kill", "--kill-who=all", "--signal=KILL", "hive-qos")
        wait_until(lambda: machine.service("MainPID") == "0")
        assert "htb" in machine.root_qdisc()
        machine.run("systemctl", "unmask", "--quiet", "--runtime", "hive-qos")

    machine.apt("remove", "hive-qos")
    left = machine.traces() - before
    kept = r"/etc/hive-qos|/var/lib/hive-qos|  /etc/(group|gshadow|passwd|shadow)$"
    assert [line for line in left if not re.search(kept, line)] == []

    machine.apt("purge", "hive-qos")
    assert machine.traces() ^ before == set()

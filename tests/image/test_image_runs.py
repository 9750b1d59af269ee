"""The image's own tree at work: read-only, on a lab's host, with the capabilities that the chart gives and no other.

A container's engine adds namespaces and limits to what is tried here. Run by `make test-image`, which makes the tree.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from kubernetes_api import KubernetesApi, pod
from patience import LIMIT_S, wait_until

from broker import client
from hive_qos.errors import BrokerUnavailableError
from shaping.classify import cgroup
from tools.lab import Lab

ROOT = Path(__file__).parents[2]
TREE = ROOT / "out" / "image" / "rootfs"
TEMPLATE = ROOT / "packaging" / "helm" / "hive-qos" / "templates" / "daemonset.yaml"
CONFIGURATION = 'version = 1\n[[interface]]\nname = "eth0"\negress = "50 Mbit/s"\n'
NEEDED, LEFT_OUT = ("net_admin", "bpf"), ("sys_admin", "sys_ptrace")
ENTER = """
set -e
tree=$1; folder=$2; cgroups=$3; shift 3
mount --make-rprivate /
mount --bind "$tree" "$tree"
mount --rbind /proc "$tree/proc"
mount -t sysfs sysfs "$tree/sys"
mount --bind "$cgroups" "$tree/sys/fs/cgroup"
mount --bind "$folder/etc" "$tree/etc/hive-qos"
mount --bind "$folder/run" "$tree/run/hive-qos"
mount --bind "$folder/state" "$tree/var/lib/hive-qos"
mount -t tmpfs -o size=16m tmpfs "$tree/tmp"
mount -o remount,bind,ro "$tree"
exec chroot "$tree" env -i PATH=/opt/hive-qos/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 $ENVIRONMENT "$@"
"""


class Container:
    """A folder with what is mounted, and commands in the tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("etc", "run", "state"):
            (folder / name).mkdir()
        (folder / "etc" / "broker.toml").write_text(CONFIGURATION)

    def argv(self, capabilities: Sequence[str], *command: str) -> list[str]:
        bounding = ",".join(["-all", *(f"+{one}" for one in capabilities)])
        confined = ["setpriv", "--no-new-privs", f"--bounding-set={bounding}", "--inh-caps=-all", *command]
        enter = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(TREE), str(self.folder), str(cgroup.mount())]
        return [*enter, *confined]

    def answers(self) -> bool:
        with suppress(BrokerUnavailableError):
            return bool(client.status(str(self.folder / "run" / "broker.sock")))
        return False


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab("image") as lab:
        lab.host("a")
        lab.host("b")
        lab.link("a", "b")
        lab.up()
        yield lab


def test_the_capabilities_that_are_tried_are_those_of_the_chart() -> None:
    added = re.findall(r"^ +- ([A-Z_]+)$", TEMPLATE.read_text(), re.MULTILINE)
    assert tuple(one.lower() for one in added) == NEEDED + LEFT_OUT


@pytest.mark.parametrize("capabilities", [NEEDED + LEFT_OUT, NEEDED], ids=["all", "needed"])
def test_the_broker_shapes_an_interface_and_gives_it_back(
    lab: Lab, tmp_path: Path, capabilities: Sequence[str]
) -> None:
    container, host = Container(tmp_path), lab["a"]
    before = host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout
    with open(tmp_path / "log", "wb") as log:
        broker = host.popen(container.argv(capabilities, "hive-qos", "broker"), stderr=log)
    try:
        wait_until(container.answers, what=lambda: (tmp_path / "log").read_text())
        assert "htb ffe0:" in host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout
        health = host.run(container.argv((), "hive-qos", "status", "--json"))
        assert [one["name"] for one in json.loads(health.stdout)["interfaces"]] == ["eth0"]
        said = (tmp_path / "log").read_text()
        assert "Read-only" not in said, said
    finally:
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(LIMIT_S) == 0, (tmp_path / "log").read_text()
    assert host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout == before


def test_without_a_broker_the_health_check_fails(tmp_path: Path) -> None:
    found = subprocess.run(
        Container(tmp_path).argv((), "hive-qos", "status"), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (found.returncode, "no broker runs here" in found.stderr) == (4, True), found.stderr


def test_pods_classes_are_written_without_any_capability(tmp_path: Path) -> None:
    container, api = Container(tmp_path), KubernetesApi(tmp_path)
    try:
        api.put(pod("a", uid="a", host_network=False, addresses=("10.1.0.1",)))
        (api.account / "ca.crt").rename(tmp_path / "etc" / "ca.crt")
        (api.account / "token").rename(tmp_path / "etc" / "token")
        argv = container.argv((), "hive-qos", "pods", "--once", "--account=/etc/hive-qos")
        settings = " ".join(f"{name}={value}" for name, value in api.environment.items())
        environment = {**os.environ, "ENVIRONMENT": settings}
        subprocess.run(argv, check=True, timeout=LIMIT_S, env=environment)
        assert "10.1.0.1/32" in (tmp_path / "run" / "broker.toml").read_text()
    finally:
        api.close()


def test_nothing_in_the_image_can_take_anothers_rights() -> None:
    """No program with the set-user-id bit: they would count for nothing (no-new-privileges), and are not needed."""
    found = [
        path for path in TREE.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o6000
    ]
    assert found == []

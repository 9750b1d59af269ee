"""`hive-qos init`: what it finds on a host, and that what it writes is a configuration."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.changing import init_command
from broker.cli.changing.init_command import Answers, configuration
from broker.cli.changing.survey import Survey, Uplink, look_at_host
from broker.policy.known_programs import KNOWN_PROGRAMS
from broker.policy.toml import load
from broker.policy.types import MatchRule
from shaping.netlink.routes import WideRoute

RUN = CliRunner()


class Host:
    """The files of a host, and its routes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.routes: list[WideRoute] = []

    def write(self, path: str, text: str = "") -> Host:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return self

    def route(self, *devices: str, metric: int = 0, to: str = "0.0.0.0/0") -> Host:
        self.routes.append(WideRoute(to, metric, devices))
        return self

    def link(self, name: str, *, kind: str = "", lower: tuple[str, ...] = (), physical: bool = False) -> Host:
        self.write(f"sys/class/net/{name}/uevent", f"DEVTYPE={kind}\n" if kind else "")
        if kind in ("bridge", "bond"):
            (self.root / f"sys/class/net/{name}/{'bridge' if kind == 'bridge' else 'bonding'}").mkdir()
        if physical:
            (self.root / f"sys/class/net/{name}/device").mkdir()
        for below in lower:
            (self.root / f"sys/class/net/{name}/lower_{below}").symlink_to(self.root / f"sys/class/net/{below}")
            (self.root / f"sys/class/net/{below}/upper_{name}").symlink_to(self.root / f"sys/class/net/{name}")
        return self

    def names(self) -> list[str]:
        return [uplink.name for uplink in self.found().uplinks]

    def found(self) -> Survey:
        return look_at_host(self.root, routes=self.routes)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_uplink_is_where_the_default_routes_lead_with_its_drivers_speed(host: Host) -> None:
    host.link("eth0", physical=True).write("sys/class/net/eth0/speed", "2500\n").route("eth0")
    host.route("eth0", metric=1024, to="::/0")
    (uplink,) = host.found().uplinks
    assert (uplink.name, uplink.driver_bits_per_s) == ("eth0", 2_500_000_000)
    assert uplink.why == "the default route leads there (IPv4 and IPv6)"


def test_two_uplinks_stand_in_the_order_of_their_metrics(host: Host) -> None:
    host.link("eth0").link("wwan0").route("wwan0", metric=700).route("eth0", metric=100)
    assert host.names() == ["eth0", "wwan0"]


def test_uplinks_that_share_a_default_route_are_all_found(host: Host) -> None:
    assert host.link("eth0").link("eth1").route("eth0", "eth1").names() == ["eth0", "eth1"]


@pytest.mark.parametrize("halves", [("0.0.0.0/1", "128.0.0.0/1"), ("::/1", "8000::/1")])
def test_two_routes_of_half_the_addresses_are_a_default_route_where_there_is_no_other(
    host: Host, halves: tuple[str, str]
) -> None:
    host.link("eth0", physical=True).link("tun0", kind="tun").route("tun0", to=halves[0])
    assert host.names() == []
    assert host.route("tun0", to=halves[1]).names() == ["eth0"]
    assert "the VPN tun0 has the default route" in host.found().uplinks[0].why
    assert host.route("eth0").found().uplinks[0].why == "the default route leads there (IPv4)"
    assert host.names() == ["eth0"]


def test_an_uplink_of_ipv6_alone_is_found(host: Host) -> None:
    assert host.link("eth0").route("eth0", metric=256, to="::/0").names() == ["eth0"]


def test_of_a_bridge_the_port_that_leads_out_is_chosen(host: Host) -> None:
    host.link("eno1", physical=True).link("tap0").link("br0", kind="bridge", lower=("eno1", "tap0")).route("br0")
    assert host.names() == ["eno1"]


def test_of_a_bond_the_bond_is_chosen(host: Host) -> None:
    host.link("eno1", physical=True).link("eno2", physical=True).link("bond0", kind="bond", lower=("eno1", "eno2"))
    assert host.route("bond0").names() == ["bond0"]


def test_one_vlan_is_chosen_itself_and_of_several_their_parent(host: Host) -> None:
    host.link("eth0", physical=True).link("eth0.10", kind="vlan", lower=("eth0",)).route("eth0.10")
    assert host.names() == ["eth0.10"]
    host.link("eth0.20", kind="vlan", lower=("eth0",))
    assert host.names() == ["eth0"]


def test_below_a_vpn_with_the_default_route_the_physical_interface_is_chosen(host: Host) -> None:
    host.link("eth0", physical=True).link("wg0", kind="wireguard").route("wg0")
    assert host.names() == ["eth0"]


def test_a_vpn_beside_the_uplink_is_noted(host: Host) -> None:
    host.link("eth0", physical=True).link("wg0", kind="wireguard").route("eth0")
    found = host.found()
    assert [uplink.name for uplink in found.uplinks] == ["eth0"]
    assert found.notes[0].startswith("wg0: a VPN.")


def process(host: Host, pid: int, name: str, *, cgroup: str, parent: int = 1) -> None:
    host.write(f"proc/{pid}/comm", f"{name}\n").write(f"proc/{pid}/cgroup", f"0::/{cgroup}\n")
    host.write(f"proc/{pid}/status", f"Name:\t{name}\nPPid:\t{parent}\n")


def test_storage_programs_are_known_by_their_processes_and_services(host: Host) -> None:
    process(host, 1, "systemd", cgroup="init.scope", parent=0)
    process(host, 10, "smbd", cgroup="system.slice/smbd.service")
    process(host, 11, "nfsd", cgroup="", parent=2)
    process(host, 12, "ceph-osd", cgroup=r"system.slice/system-ceph\x2dosd.slice/ceph-osd@3.service")
    process(host, 13, "syncthing", cgroup="user.slice/user-1000.slice/session-1.scope")
    process(host, 14, "borg", cgroup="user.slice/user-1000.slice/session-1.scope")
    host.write("usr/lib/systemd/system/minio.service")
    found = host.found()
    assert dict(found.programs) == {
        "ceph": "runs now",
        "minio": "installed as a service",
        "nfs": "runs now",
        "samba": "runs now",
        "syncthing": "runs now",
    }
    assert found.storage == ()


def test_a_service_under_another_name_is_found_by_what_systemd_started_in_it(host: Host) -> None:
    process(host, 1, "systemd", cgroup="init.scope", parent=0)
    process(host, 10, "restic", cgroup="system.slice/nightly-copy.service")
    process(host, 11, "cron", cgroup="system.slice/cron.service")
    process(host, 12, "rclone", cgroup="system.slice/cron.service", parent=11)
    found = host.found()
    assert (found.programs, found.storage) == ((), (("system.slice/nightly-copy.service", "restic"),))


def test_a_gpu_and_the_time_zone_are_found(host: Host) -> None:
    host.write("proc/driver/nvidia/gpus/0000:01:00.0/information").write("etc/timezone", "Europe/Berlin\n")
    found = host.found()
    assert (found.gpu, found.timezone) == ("1 NVIDIA GPU", "Europe/Berlin")


def test_an_empty_host_has_no_uplink(tmp_path: Path) -> None:
    assert look_at_host(tmp_path, routes=()) == Survey(uplinks=())


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize("rate", ["auto", "40 Mbit/s"])
def test_what_is_written_is_what_check_accepts(rate: str, people: bool) -> None:
    uplinks = (Uplink("eth0", "a \x1b[31m reason", 10**9), Uplink('we"ird', "b", None))
    found = Survey(
        uplinks,
        programs=tuple((name, "runs now") for name in KNOWN_PROGRAMS),
        storage=((r"system.slice/a\x2db.service", "restic"),),
        timezone="UTC",
        notes=("note",),
    )
    text = configuration(found, Answers({"eth0": rate, 'we"ird': "auto"}, people=people))
    policy = load(text)
    assert [entry.name for entry in policy.interfaces] == ["eth0", 'we"ird']
    assert policy.interfaces[0].egress_bits_per_s == (None if rate == "auto" else 40_000_000)
    assert len(policy.schedules) == people
    assert policy.class_policy("storage").programs == tuple(sorted(KNOWN_PROGRAMS))
    assert MatchRule(cgroup=r"system.slice/a\x2db.service") in policy.class_policy("storage").match
    assert "\x1b" not in text
    assert max(map(len, text.splitlines()[1:])) <= 110


@pytest.fixture
def found_here(monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey((Uplink("eth0", "the default route leads there (IPv4)", None),))
    monkeypatch.setattr(init_command, "look_at_host", lambda: survey)


@pytest.mark.usefixtures("found_here")
def test_without_a_terminal_nothing_is_asked_and_the_file_is_for_all_to_read(tmp_path: Path) -> None:
    file, before = tmp_path / "new" / "broker.toml", os.umask(0o077)
    try:
        result = RUN.invoke(app, ["init", "--output", str(file)])
    finally:
        os.umask(before)
    assert result.exit_code == 0, result.output
    assert tomllib.loads(file.read_text(encoding="utf-8"))["interface"] == [{"name": "eth0", "egress": "auto"}]
    assert file.stat().st_mode & 0o777 == 0o644
    assert f"hive-qos check {file}" in result.stdout
    assert "nobody names the speed of eth0" in result.stdout


@pytest.mark.usefixtures("found_here")
def test_a_file_that_is_there_is_replaced_by_force_alone(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("mine", encoding="utf-8")
    result = RUN.invoke(app, ["init", "--yes", "-o", str(file)])
    assert result.exit_code == 3
    assert "--force" in result.stderr
    assert file.read_text(encoding="utf-8") == "mine"
    result = RUN.invoke(app, ["init", "--yes", "--force", "-o", str(file), "--rate", "20 Mbit/s"])
    assert (result.exit_code, "nobody names" in result.stdout) == (0, False)
    assert load(file.read_text(encoding="utf-8")).interfaces[0].egress_bits_per_s == 20_000_000
    assert os.listdir(tmp_path) == ["broker.toml"]


@pytest.mark.usefixtures("found_here")
@pytest.mark.parametrize("rate", ["40 Mbps", "0 bit/s", "1 kbit/s"])
def test_a_rate_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, rate: str) -> None:
    result = RUN.invoke(app, ["init", "--rate", rate, "-o", str(tmp_path / "f.toml")])
    assert result.exit_code == 3
    assert "--rate" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("found_here")
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    def fail(_: int) -> None:
        raise problem

    monkeypatch.setattr("os.fsync", fail)
    result = RUN.invoke(app, ["init", "-o", str(tmp_path / "f.toml")])
    assert result.exit_code == (10 if isinstance(problem, OSError) else 130)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("found_here")
def test_stdout_has_the_file_alone() -> None:
    result = RUN.invoke(app, ["init", "--stdout"])
    assert result.exit_code == 0
    load(result.stdout)

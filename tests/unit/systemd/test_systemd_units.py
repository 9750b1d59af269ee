"""What is installed on a host: units that systemd accepts, few privileges, groups, an example the broker reads."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from broker.policy.toml import CLASS_DEFAULTS, load
from broker.policy.types import CLASS_NAMES, DaemonPolicy, MatchRule
from broker.process import priority

SYSTEMD = Path(__file__).parents[3] / "systemd"
UNITS = (
    "hive-qos.service",
    "hive-qos-adapter.service",
    "hive-qos-restore.service",
    "hive-compute.slice",
    "hive-storage.slice",
)
INSTALLED, PYTHON = "/opt/hive-qos/bin/hive-qos", "/opt/hive-qos/bin/python"
EXPOSURE_OK = 4.9
"""systemd-analyze(1): below 5.0 a service is "OK" or better."""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with an executable that is there: the package is not installed where the tests run."""
    for name in UNITS:
        text = (SYSTEMD / name).read_text(encoding="utf-8")
        text = text.replace(INSTALLED, "/bin/true").replace(PYTHON, "/bin/true")
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def settings_of(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (SYSTEMD / name).read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    assert program is not None, "systemd-analyze is missing: apt-get install systemd"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_accepts_every_unit_without_a_word(units: Path) -> None:
    done = analyze("verify", "--man=no", *(str(units / name) for name in UNITS))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_misspelt_setting_would_be_noticed(units: Path) -> None:
    service = units / "hive-qos.service"
    service.write_text(service.read_text(encoding="utf-8").replace("WatchdogSec", "WatchdogSek"), encoding="utf-8")
    assert "WatchdogSek" in analyze("verify", "--man=no", str(service)).stderr


@pytest.mark.parametrize("name", ["hive-qos.service", "hive-qos-adapter.service", "hive-qos-restore.service"])
def test_the_services_are_rated_ok_or_better(units: Path, name: str) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(units / name))
    found = re.search(rf"Overall exposure level for {name}: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_OK, done.stdout


def test_the_documented_installation_puts_the_program_where_the_service_looks_for_it() -> None:
    (start,) = settings_of("hive-qos.service")["ExecStart"]
    assert start.split()[0] == INSTALLED
    text = (SYSTEMD.parent / "docs/operate/first-hour.md").read_text(encoding="utf-8")
    prefix = str(Path(INSTALLED).parents[1])
    assert f"python3 -m venv {prefix}\n" in text
    assert f"{prefix}/bin/pip install " in text
    assert f"ln -s {INSTALLED} /usr/local/bin/\n" in text


def test_the_service_waits_for_the_network_that_it_shapes() -> None:
    service = settings_of("hive-qos.service")
    assert "network-online.target" in service["After"][0].split()
    assert service["Wants"] == ["network-online.target"]


def test_the_service_keeps_four_capabilities_and_names_why_each() -> None:
    service = settings_of("hive-qos.service")
    (kept,) = service["CapabilityBoundingSet"]
    assert set(kept.split()) == {"CAP_NET_ADMIN", "CAP_BPF", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"}
    comments = "\n".join(
        line for line in (SYSTEMD / "hive-qos.service").read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    assert all(capability in comments for capability in kept.split())


def test_the_service_runs_before_ordinary_programs_within_a_quota() -> None:
    service = settings_of("hive-qos.service")
    assert service["Nice"] == [str(priority.NICENESS)]
    assert service["Slice"] == ["-.slice"], "a weight counts among the groups beside it"
    assert int(service["CPUWeight"][0]) > 100
    assert service["CPUQuota"][0].endswith("%")
    assert service["RestrictRealtime"] == ["yes"]
    allowed = service["SystemCallFilter"]
    denied = next(number for number, line in enumerate(allowed) if line.startswith("~") and "@resources" in line)
    assert any("setpriority" in line.split() for line in allowed[denied + 1 :]), "threads of requests give it up"


def test_the_service_tells_systemd_that_it_is_ready_and_alive() -> None:
    service = settings_of("hive-qos.service")
    assert service["Type"] == ["notify"]
    assert int(service["WatchdogSec"][0]) >= 5
    assert service["Restart"] == ["on-failure"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_watchdog_outlives_the_daemon_and_what_it_could_not_do_is_done_after_it() -> None:
    service, restore = settings_of("hive-qos.service"), settings_of("hive-qos-restore.service")
    assert service["KillMode"] == ["process"]  # "mixed" and "control-group" kill the watchdog with the daemon
    state = DaemonPolicy().state_dir
    assert service["ExecStopPost"] == [f"-{PYTHON} -P -m broker.process.watchdog --once {state}"]
    assert service["OnFailure"] == ["hive-qos-restore.service"]
    assert restore["ExecStart"] == [f"{INSTALLED} clear --state-dir {state}"]
    (kept,), (needed,) = service["CapabilityBoundingSet"], restore["CapabilityBoundingSet"]
    assert set(kept.split()) - set(needed.split()) == {"CAP_SYS_PTRACE"}  # it takes things away, and looks at nobody


def test_the_services_directories_are_those_of_the_default_configuration() -> None:
    service, daemon = settings_of("hive-qos.service"), DaemonPolicy()
    assert daemon.state_dir == f"/var/lib/{service['StateDirectory'][0]}"
    assert str(Path(daemon.session_socket).parent) == f"/run/{service['RuntimeDirectory'][0]}"
    assert str(Path(daemon.api_socket).parent) == f"/run/{service['RuntimeDirectory'][0]}"


def test_the_groups_of_the_default_configuration_are_made_and_the_service_may_hand_sockets_to_them() -> None:
    daemon, service = DaemonPolicy(), settings_of("hive-qos.service")
    made = re.findall(r"^g (\S+)", (SYSTEMD / "hive-qos-sysusers.conf").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(made) == {daemon.group, daemon.admin_group}
    assert {service["Group"][0], service["SupplementaryGroups"][0]} == set(made)


def test_sysusers_accepts_the_groups(tmp_path: Path) -> None:
    program = shutil.which("systemd-sysusers")
    assert program is not None, "systemd-sysusers is missing: apt-get install systemd"
    done = subprocess.run(
        [program, "--dry-run", f"--root={tmp_path}", str(SYSTEMD / "hive-qos-sysusers.conf")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hive-qos-admin" in done.stderr


def test_the_example_configuration_loads_and_finds_the_slices() -> None:
    policy = load((SYSTEMD / "broker.toml").read_text(encoding="utf-8"))
    for name in ("compute", "storage"):
        path = f"hive.slice/hive-{name}.slice"  # systemd.slice(5): a dash in a slice's name is a level below
        assert MatchRule(cgroup=path) in policy.class_policy(name).match
        assert (SYSTEMD / f"hive-{name}.slice").exists()


def test_what_the_example_shows_as_defaults_are_the_defaults() -> None:
    text = (SYSTEMD / "broker.toml").read_text(encoding="utf-8")
    shown = re.sub(r"(?m)^# ([a-z_]+ = )(?!\"/var/lib/hive-qos/decisions)", r"\1", text)
    shown = re.sub(r"(?m)^match = \[\]\n", "", shown)
    policy, bare = load(shown), load(text)
    assert policy == bare
    assert set(tomllib.loads(shown)["class"]["storage"]) >= {"guarantee", "floor", "ceiling", "weight", "priority"}
    for name in CLASS_NAMES:
        assert bare.class_policy(name).guarantee == CLASS_DEFAULTS[name].guarantee
        assert bare.class_policy(name).ceiling == CLASS_DEFAULTS[name].ceiling


def test_sysctl_raises_buffers_and_touches_nothing_else() -> None:
    lines = (SYSTEMD / "hive-qos-sysctl.conf").read_text(encoding="utf-8").splitlines()
    keys = [line.partition("=")[0].strip() for line in lines if line and not line.startswith("#")]
    assert keys == ["net.core.rmem_max", "net.core.wmem_max"]

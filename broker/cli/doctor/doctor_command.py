"""`hive-qos doctor`: what works on this host, what does not, and what to do next. Changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from broker import client
from broker.cli.alarm_advice import ALARM_ADVICE
from broker.cli.changing.apply_command import broker_file
from broker.cli.doctor.configured import configuration
from broker.cli.doctor.finding import Finding
from broker.cli.exits import ExitCode
from broker.cli.options import SocketOption
from broker.client import http
from broker.enforce import cgroups
from broker.policy.types import DaemonPolicy, Policy
from hive_qos.errors import BrokerError, BrokerUnavailableError, HiveError
from hive_qos.text import printable


def doctor(
    socket: SocketOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Give the findings as JSON.")] = False,
) -> None:
    """Look at this host and say what works, what does not, and what to do next. Exit code 9 when something is bad.

    It changes nothing. All that is not well has a next step, mostly as a command to paste.

    \b
    Examples:
      sudo hive-qos doctor
      sudo hive-qos doctor --json | jq -r '.[] | select(.verdict == "bad") | .command'
    """
    checks: tuple[Callable[[], list[Finding]], ...] = (
        _python, _engines, _torch, _shaping, lambda: _layers(socket), _cgroup, _tcp, _groups,
        lambda: configuration(broker_file(socket), state_dir=_state_dir(socket)), lambda: _broker(socket),
        _congestion,
    )  # fmt: skip
    findings = [finding for check in checks for finding in check()]
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        signs = {"good": "ok  ", "note": "note", "bad": "BAD "}
        for finding in findings:
            typer.echo(f"{signs[finding.verdict]}  {finding.what}: {printable(finding.text, length_max=500)}")
            if finding.advice:
                typer.echo(f"      -> {finding.advice}")
            if finding.command:
                typer.echo(f"         {finding.command}")
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(ExitCode.FOUND)


def _python() -> list[Finding]:
    return [Finding("python", "good", f"{platform.python_version()} on {platform.system()} {platform.release()}")]


def _engines() -> list[Finding]:
    found = []
    try:
        version = importlib.metadata.version("aioquic")
        found.append(Finding("engine aioquic", "good", f"{version}"))
    except importlib.metadata.PackageNotFoundError:
        found.append(Finding("engine aioquic", "bad", "not installed", "install it", "pip install 'aioquic>=1.7,<1.8'"))
    native = _native_version()
    if isinstance(native, str):
        found.append(Finding("engine native", "good", native))
    else:
        advice = "install a wheel that has it (make wheel), or install again where cargo is: pip install ."
        found.append(Finding("engine native", "note", f"not here: {native}", advice))
    found.append(_engine_in_use(native))
    return found


def _native_version() -> str | ImportError:
    """The native engine's version, or why it cannot be imported."""
    from transport.engine import NATIVE_MODULE

    try:
        return str(importlib.import_module(NATIVE_MODULE).__version__)
    except ImportError as problem:
        return problem


def _engine_in_use(native: str | ImportError) -> Finding:
    """Which engine a program in this environment gets, and by whose wish."""
    from transport.engine import NAMES

    what, wish = "engine in use", os.environ.get("HIVE_ENGINE") or "auto"
    if wish not in NAMES:
        return Finding(what, "bad", f"HIVE_ENGINE={wish} is not known", f"set it to one of {', '.join(NAMES)}")
    here = isinstance(native, str)
    if wish == "native" and not here:
        return Finding(what, "bad", "none: HIVE_ENGINE=native, and it is not here", "unset HIVE_ENGINE, or install it")
    if wish == "auto":
        return Finding(what, "good", "native, because it is here" if here else "aioquic, because native is not here")
    return Finding(what, "good", f"{wish}, because HIVE_ENGINE says so")


def _torch() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return [
            Finding(
                "torch", "note", "not installed; a storage host needs none", "pip install '.[torch]', in its repository"
            )
        ]
    entries = importlib.metadata.entry_points(group="torch.backends")
    if any(entry.name == "hive" for entry in entries):
        return [Finding("torch", "good", f"{importlib.metadata.version('torch')}, backend `hive` is known to it")]
    return [Finding("torch", "bad", "the backend `hive` is not known to it", "install this package: pip install -e .")]


def _shaping() -> list[Finding]:
    if os.geteuid() != 0:
        return [Finding("shaping", "note", "not looked at: needs root", "ask as root", "sudo hive-qos doctor")]
    from shaping.kernel import RealKernel

    try:
        kernel = RealKernel()
        try:
            offers = kernel.capabilities()
        finally:
            kernel.close()
    except HiveError as problem:
        return [Finding("shaping", "bad", str(problem), "give the service CAP_NET_ADMIN, as systemd/ does")]
    found = []
    if offers.htb:
        leaves = "fq_codel" if offers.fq_codel else "bfifo"
        found.append(Finding("shaping", "good", f"HTB with {leaves} leaves"))
    else:
        advice = "load it, or use a kernel with CONFIG_NET_SCH_HTB"
        found.append(Finding("shaping", "bad", "no HTB", advice, "modprobe sch_htb"))
    if not offers.u32:
        found.append(
            Finding(
                "rules", "note", "no u32: rules on ports, DSCP and addresses do nothing", "load it", "modprobe cls_u32"
            )
        )
    found += [_socket_programs(), _forwarded()]
    return found


def _socket_programs() -> Finding:
    from shaping.classify import bpf
    from shaping.classify.cgroup import SocketClassifier

    what = "classification by cgroup and user"
    try:
        SocketClassifier()
        os.close(bpf.make_socket_storage())
    except HiveError as problem:
        advice = "`hive-qos run` and rules on cgroups and users need cgroup v2, CONFIG_CGROUP_BPF and CAP_BPF"
        return Finding(what, "note", str(problem), advice)
    return Finding(what, "good", "BPF programs at socket creation")


def _forwarded() -> Finding:
    from hive_qos.netlink import NetlinkSocket
    from shaping.netlink import nftables

    what = "classification behind NAT"
    advice = "what containers behind NAT send is `other`, whatever rules say: modprobe nf_tables, Linux 5.12 or later"
    version = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if version < nftables.OWNER_SINCE:
        return Finding(what, "note", f"Linux {platform.release()}, which has no tables with an owner", advice)
    try:
        with contextlib.closing(NetlinkSocket(nftables.NETLINK_NETFILTER)) as kernel:
            kernel.ask("ask nftables for its generation", nftables.generation(), lambda kind, body: kind)
    except HiveError as problem:
        return Finding(what, "note", f"no nftables: {problem}", advice)
    return Finding(what, "good", "nftables, tables with an owner")


def _layers(socket: Path | None) -> list[Finding]:
    """Bridges, bonds and VLANs among what the broker shapes, or would by its configuration."""
    from broker.enforce.device_stack import misplaced

    try:
        found = client.status(str(socket) if socket is not None else None)
        names = [str(entry.get("name", "")) for entry in found.get("interfaces", [])]
    except BrokerError:
        policy = _configured()
        names = [entry.name for entry in policy.interfaces] if policy is not None else []
    return [
        Finding(f"interface {printable(one.interface)}", "note", one.text, one.advice)
        for one in misplaced(name for name in names if name and "/" not in name)
    ]


def _configured() -> Policy | None:
    """What the configuration says; None where it cannot be read: the broker's own start says what is wrong with it."""
    from broker.cli.configuration import DEFAULT_CONFIG
    from broker.policy.toml import ConfigurationErrors, load

    try:
        return load(DEFAULT_CONFIG.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ConfigurationErrors):
        return None


def _state_dir(socket: Path | None) -> str | None:
    """Of the broker that runs, which may have been started with `--state-dir`; None where none tells this user."""
    try:
        policy = json.loads(http.fetch("/v1/policy", socket_path=None if socket is None else str(socket)))
        return str(policy["daemon"]["state_dir"])
    except (BrokerError, ValueError, LookupError, TypeError):  # none, or one of another version
        return None


def _cgroup() -> list[Finding]:
    mount = cgroups.mount_point()
    if mount is None:
        return [Finding("cgroup v2", "note", "not mounted: `hive-qos run` does nothing", "boot with a cgroup v2 mount")]
    return [Finding("cgroup v2", "good", f"mounted at {mount}")]


def _tcp() -> list[Finding]:
    from broker.measure.tcp_diag import tcp_pages

    try:
        count = sum(len(page) for page in tcp_pages(clock=time.monotonic))
    except OSError as problem:
        advice = "load tcp_diag; without it, storage connections are not measured"
        return [Finding("TCP_INFO through sock_diag", "note", str(problem), advice, "modprobe tcp_diag")]
    return [Finding("TCP_INFO through sock_diag", "good", f"{count} connections seen")]


def _groups() -> list[Finding]:
    found = []
    policy = _configured()
    daemon = policy.daemon if policy is not None else DaemonPolicy()
    for name, right in ((daemon.group, "use the broker"), (daemon.admin_group, "change policy")):
        try:
            members = grp.getgrnam(name).gr_mem
            found.append(Finding(f"group {name}", "good", f"may {right}: root, {', '.join(members) or 'nobody else'}"))
        except KeyError:
            text = f"does not exist; root alone may {right}"
            advice = f"make it, then add its users: usermod -aG {name} USER"
            found.append(Finding(f"group {name}", "note", text, advice, f"groupadd --system {name}"))
    return found


def _broker(socket: Path | None) -> list[Finding]:
    try:
        document = client.status(None if socket is None else str(socket))
    except BrokerUnavailableError as problem:
        advice = "start it; without a broker training and storage go on, unshaped"
        return [Finding("broker", "note", str(problem), advice, "systemctl start hive-qos")]
    except BrokerError as problem:  # its own word on what this user may do
        advice = "if it is a matter of rights: usermod -aG GROUP USER, then log in again, for a login keeps its groups"
        return [Finding("broker", "bad", str(problem), advice)]
    interfaces = [entry for entry in document.get("interfaces", []) if entry.get("direction") == "egress"]
    named = ", ".join(f"{entry.get('name')}{'' if entry.get('shaped') else ' (not shaped)'}" for entry in interfaces)
    found = [Finding("broker", "good", f"interfaces: {named}"), *_watchdog(document)]
    for alarm in document.get("alarms", []):
        known = ALARM_ADVICE.get(str(alarm.get("code")))
        subject = printable(str(alarm.get("subject")))
        about = f"alarm {printable(str(alarm.get('code')))}, {subject}"
        if known is None:  # of a newer broker
            advice = "read docs/operate/alarms.md of the broker's version"
            found.append(Finding(about, "bad", str(alarm.get("text")), advice, "journalctl -u hive-qos -n 50"))
            continue
        command = known.command.format(subject=shlex.quote(subject))
        found.append(Finding(about, "bad", str(alarm.get("text")), known.action, command))
    return found


def _watchdog(document: dict[str, Any]) -> list[Finding]:
    """What opens the ceilings if the daemon dies. A broker of an earlier version has none and says nothing of it."""
    watchdog = document.get("daemon", {}).get("watchdog")
    if not isinstance(watchdog, dict):
        return []
    if not watchdog.get("alive"):
        advice = "the broker starts it again; its log says what failed"
        return [Finding("broker's watchdog", "bad", "does not run", advice, "journalctl -u hive-qos -n 50")]
    opened = f"it has opened the ceilings {watchdog.get('openings')} times"
    return [Finding("broker's watchdog", "good", f"pid {watchdog.get('pid')}; {opened}")]


def _congestion() -> list[Finding]:
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    try:
        offered = path.read_text(encoding="ascii").split()
    except OSError as problem:
        advice = "mount /proc; without it nothing is known of TCP here"
        return [Finding("TCP", "note", f"{path}: {problem.strerror}", advice, "mount -t proc proc /proc")]
    found = [Finding("TCP", "good", f"congestion control: {', '.join(offered)}")]
    try:
        buffers = int(Path("/proc/sys/net/core/rmem_max").read_text(encoding="ascii"))
    except FileNotFoundError:  # in a network namespace of an older kernel: the host's holds
        return found
    if buffers < 2 * 2**20:
        text = f"net.core.rmem_max is {buffers}: large UDP receive buffers are not possible"
        advice = "allow larger ones; systemd/hive-qos-sysctl.conf does so at each boot"
        found.append(Finding("UDP buffers", "note", text, advice, "sysctl -w net.core.rmem_max=8388608"))
    return found

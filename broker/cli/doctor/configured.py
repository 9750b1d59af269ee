"""What the configuration asks of the host, before a broker finds it missing: the alarms of a start, checked ahead."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from broker.cli.changing.check_command import MistakenFileError, checked
from broker.cli.doctor.finding import Finding
from broker.policy.types import Policy
from hive_qos.errors import ConfigurationError, HiveError
from hive_qos.text import printable

FREE_BYTES_MIN = 64 * 2**20
"""Of the state directory's disk: a month of accounts is a few MB, a recording of decisions 20 MB an hour."""
_PING_GROUPS = Path("/proc/sys/net/ipv4/ping_group_range")


def configuration(file: Path, *, state_dir: str | None = None) -> list[Finding]:
    """Whether the file can be taken, and whether the host has what it names.

    Args:
        state_dir: of the broker that runs; None: the file's.
    """
    what, shown = f"configuration {printable(str(file))}", shlex.quote(str(file))
    if not file.exists():
        advice = "write a first one; it looks at the host and asks little"
        return [Finding(what, "note", "there is none", advice, "hive-qos init")]
    try:
        policy = checked(file)
    except MistakenFileError as problem:
        first = problem.mistakes[0]
        count = f"{len(problem.mistakes)} mistake{'s' if len(problem.mistakes) > 1 else ''}"
        text = f"{count}, the first on line {first.line or '-'}: {first.key}: {first.reason}"
        return [Finding(what, "bad", text, "correct the file", f"hive-qos check {shown}")]
    except ConfigurationError as problem:
        return [Finding(what, "bad", problem.reason, "run doctor as root, or make the file readable", f"ls -l {shown}")]
    names = ", ".join(entry.name for entry in policy.interfaces)
    return [
        Finding(what, "good", f"no mistakes; shapes {names}"),
        *_interfaces(policy),
        *_inbound(policy),
        *_certificate(policy),
        *_disk(Path(state_dir or policy.daemon.state_dir)),
        *_echoes(policy),
    ]


def _interfaces(policy: Policy) -> list[Finding]:
    from broker.measure.interfaces import driver_of, speed_mbit_per_s_of

    found = []
    here = {path.name for path in Path("/sys/class/net").iterdir()}
    for entry in policy.interfaces:
        what, name = f"interface {printable(entry.name)}", shlex.quote(entry.name)
        if entry.name not in here:
            advice = "correct its name in [[interface]], or connect it; it is shaped when it appears"
            found.append(Finding(what, "note", "is not there", advice, "ip -br link"))
        elif entry.egress_bits_per_s is None and (not speed_mbit_per_s_of(entry.name) or not driver_of(entry.name)):
            text = "the file names no rate, and its driver none: the broker begins at 1 Gbit/s, and measures"
            advice = "if you know what the line carries, say so, here or in the file"
            found.append(
                Finding(what, "note", text, advice, f'hive-qos set interface {name} egress="40 Mbit/s" --keep')
            )
    return found


def _inbound(policy: Policy) -> list[Finding]:
    """An IFB is made when it is needed; whether it can be shows in the modules."""
    import platform

    if not any(entry.ingress_bits_per_s is not None for entry in policy.interfaces):
        return []
    modules = Path("/lib/modules") / platform.release()
    builtin = (modules / "modules.builtin").read_text() if (modules / "modules.builtin").exists() else ""
    missing = [
        name for name in ("ifb", "act_mirred")
        if not (Path("/sys/module") / name).exists() and f"/{name}.ko" not in builtin
        and not any(modules.rglob(f"{name}.ko*"))
    ]  # fmt: skip
    if not missing or not modules.exists():  # a kernel without modules has it built in, or says so when it is tried
        return []
    text = f"the file limits what arrives, and this kernel has no {' and no '.join(missing)}"
    advice = 'load them, or set ingress = "off"'
    return [Finding("inbound traffic", "bad", text, advice, f"modprobe -a {' '.join(missing)}")]


def _certificate(policy: Policy) -> list[Finding]:
    if policy.peers is None:
        return []
    from broker.cli.changing.check_command import certificate_of

    path = printable(policy.peers.certificate)
    try:
        notes, warnings = certificate_of(policy)
    except HiveError as problem:
        advice = "correct the files that [peers] names"
        return [
            Finding(f"certificate {path}", "bad", printable(str(problem), length_max=500), advice, "hive-qos check")
        ]
    command = "hive-qos ca issue NODE --renew"
    advice = "renew it on the CA's machine, and install the pair"
    return [
        *(Finding(f"certificate {path}", "good", note) for note in notes),
        *(Finding(f"certificate {path}", "note", warning, advice, command) for warning in warnings),
    ]


def _disk(place: Path) -> list[Finding]:
    there = next((one for one in (place, *place.parents) if one.exists()), Path("/"))
    what, shown = f"state directory {printable(str(place))}", shlex.quote(str(there))
    try:
        free = shutil.disk_usage(there).free
    except OSError as problem:
        return [Finding(what, "note", str(problem.strerror), "look at it as root", f"ls -ld {shown}")]
    if free < FREE_BYTES_MIN:
        text = f"{free // 2**20} MiB are free: journal, accounts and settings may not be kept"
        return [Finding(what, "bad", text, "make room on this disk", f"df -h {shown}")]
    return [Finding(what, "good", f"{free // 2**20} MiB are free")]


def _echoes(policy: Policy) -> list[Finding]:
    if policy.probe is None:
        return []
    try:
        low, high = (int(word) for word in _PING_GROUPS.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = 1, 0
    if low <= 0 <= high:
        return [Finding("probes", "good", "the kernel gives the broker a socket for ICMP echoes")]
    advice = "let the kernel give root's group such sockets, or take [probe] out"
    text = f"net.ipv4.ping_group_range is {low} {high}: [probe] cannot send echoes"
    return [Finding("probes", "note", text, advice, 'sysctl -w net.ipv4.ping_group_range="0 2147483647"')]

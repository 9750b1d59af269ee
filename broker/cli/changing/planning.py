"""The comparison behind `hive-qos plan` and `apply`: a policy against what runs, in words and as kernel operations."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import if_nameindex
from typing import Any

import msgspec

from broker.cli.changing.check_command import checked_text
from broker.client import http
from broker.enforce.preview import ACTIONS, Found, InterfacePlan, at_capacity, change, shapes_under, start
from broker.measure.interfaces import Links
from broker.measure.schedules import schedules_at
from broker.model.values import InterfaceSample
from broker.policy.differences import Difference, differences
from broker.policy.settings import Setting
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import DaemonPolicy, Policy, Share
from hive_qos.errors import BrokerRejectedError, BrokerUnavailableError, PrivilegeError
from hive_qos.netlink import NetlinkSocket
from hive_qos.text import printable
from hive_qos.units import format_rate, parse_fraction, parse_rate_bits_per_s
from shaping.kernel import RealKernel
from shaping.model.observations import Capabilities
from shaping.model.tree import Tree
from shaping.netlink.links import read_link

_RESTART = ("daemon.", "peers.")


@dataclass(frozen=True)
class Plan:
    """What a file would change.

    Args:
        against: "broker" where one runs, "kernel" where none does.
        differences: setting by setting; empty against the bare kernel.
        interfaces: what happens to each.
        before: the policy that runs; None where none does.
        restart: settings that take a restart of the broker.
    """

    against: str
    differences: tuple[Difference, ...]
    interfaces: tuple[InterfacePlan, ...]
    before: Policy | None
    restart: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether anything does."""
        return bool(self.differences) or any(one.action not in ("unchanged", "wait") for one in self.interfaces)


def plan_for(text: str, *, file: Path, socket: Path | None) -> Plan:
    """Compare a file's text with the broker's policy, or with the kernel where no broker runs.

    What `hive-qos set` has put over the broker's file stays over this one, where it fits.

    Raises:
        MistakenFileError: the text has mistakes.
        PrivilegeError: no broker runs, and this user may not look at the kernel.
        BrokerRejectedError: the broker does not let this user see its policy.
    """
    path = None if socket is None else str(socket)
    after = checked_text(text, file=file)
    try:
        before = msgspec.json.decode(http.fetch("/v1/policy", socket_path=path), type=Policy)
        status = http.status(path)
    except BrokerUnavailableError as problem:
        if not isinstance(problem.__cause__, (ConnectionRefusedError, FileNotFoundError)):  # one is there, and hangs
            raise
        return _against_kernel(after)
    except msgspec.ValidationError as problem:
        raise BrokerRejectedError(f"the broker's policy cannot be read: {problem}; is it of this version?") from problem
    with contextlib.suppress(ConfigurationErrors):
        after = load(text, settings=_settings(status))
    return _against_broker(before, after, status)


def _settings(status: Mapping[str, Any]) -> tuple[Setting, ...]:
    found = status.get("configuration", {}).get("settings", [])
    return tuple(Setting(one["kind"], one["name"], one["key"], one["value"]) for one in found)


def _against_broker(before: Policy, after: Policy, status: Mapping[str, Any]) -> Plan:
    kept = {one.name for one in before.interfaces if one in after.interfaces}
    capacities = {
        str(entry.get("name")): entry["capacity_bits_per_s"]
        for entry in status.get("interfaces", [])
        if entry.get("direction") == "egress" and entry.get("name") in kept and entry.get("capacity_bits_per_s")
    }
    present = _present()
    samples = _samples({entry.name for entry in (*before.interfaces, *after.interfaces)} & present)
    now_s = int(time.time())
    shapes = [
        shapes_under(at_capacity(one, capacities), samples, schedules_at(now_s, one.schedules))
        for one in (before, after)
    ]
    with contextlib.closing(RealKernel()) as kernel:  # looking needs no privilege
        there = _found(kernel, {entry.name for entry in (*before.interfaces, *after.interfaces)} & present)
    interfaces = change(
        *shapes,
        present=frozenset(present),
        found=there,
        capabilities=_capabilities([one.tree for one in there.values() if one.tree is not None]),
        unshaped={str(entry.get("name")) for entry in status.get("interfaces", []) if _is_unshaped(entry)},
        take_over=bool(status.get("configuration", {}).get("take_over")),
    )
    found = tuple(one for one in differences(before, after) if not _of_command_line(one))
    restart = tuple(dict.fromkeys(one.key for one in found if one.key.startswith(_RESTART)))
    return Plan("broker", found, interfaces, before, restart)


def _is_unshaped(entry: Mapping[str, Any]) -> bool:
    return entry.get("direction") == "egress" and entry.get("shaped") is False


def _of_command_line(one: Difference) -> bool:
    """Paths that the broker was started with (`--state-dir`, `--runtime-dir`) and that the file leaves out."""
    key = one.key.removeprefix("daemon.")
    default = DaemonPolicy()
    return key in ("state_dir", "api_socket", "session_socket") and one.after == getattr(default, key)


def _against_kernel(after: Policy) -> Plan:
    present = _present()
    names = {entry.name for entry in after.interfaces} & present
    try:
        with contextlib.closing(RealKernel()) as kernel:
            capabilities = kernel.capabilities()
            found = _found(kernel, names)
    except PrivilegeError as problem:
        advice = "no broker runs, so the kernel is asked, which needs root: sudo hive-qos plan"
        raise PrivilegeError(f"{problem.args[0]}; {advice}") from problem
    shapes = shapes_under(after, _samples(names), schedules_at(int(time.time()), after.schedules))
    return Plan("kernel", (), start(shapes, found=found, capabilities=capabilities), None, ())


def _present() -> set[str]:
    return {name for _, name in if_nameindex()}


def _samples(names: set[str]) -> tuple[InterfaceSample, ...]:
    now_s = time.monotonic()
    with contextlib.closing(NetlinkSocket()) as netlink:
        links = Links(partial(read_link, netlink))
        return tuple(links.look(name, now_s=now_s) for name in sorted(names))


def _found(kernel: RealKernel, names: set[str]) -> dict[str, Found]:
    trees = {name: kernel.observe(name) for name in sorted(names)}
    return {name: Found(tree, kernel.root(name) if tree is None else None) for name, tree in trees.items()}


def _capabilities(trees: Sequence[Tree]) -> Capabilities:
    """As the broker found them: its leaves show it. Asking the kernel would need root."""
    kinds = {leaf.kind for tree in trees for leaf in tree.leaves}
    filters = not trees or any(tree.filters for tree in trees)
    return Capabilities(fq_codel="fq_codel" in kinds, u32=filters)


def lines_of(made: Plan, *, file: Path, operations: bool = False) -> list[str]:
    """The plan in words: settings, then interfaces with their operations, then what they add up to."""
    runs = "the running broker" if made.against == "broker" else "the kernel, for no broker runs"
    lines = [f"{printable(str(file))} against {runs}", ""]
    lines += [f"  {line}" for one in made.differences for line in _setting(one, made)]
    lines += [""] if made.differences else []
    for entry in made.interfaces:
        lines += _interface(entry, operations=operations)
    if made.restart:
        lines += ["", "[daemon] and [peers] change at a restart: systemctl restart hive-qos"]
    return lines if made.changes else [*lines, "nothing would change"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _setting(one: Difference, made: Plan) -> list[str]:
    key = printable(one.key)
    if not one.before:
        return [f"+ {key}: {printable(one.after)}"]
    if not one.after:
        return [f"- {key}: {printable(one.before)}"]
    line = f"~ {key}: {printable(one.before, length_max=1000)} -> {printable(one.after, length_max=1000)}"
    meaning = _meaning(one, made)
    return [line, f"    {meaning}"] if meaning else [line]


def _meaning(one: Difference, made: Plan) -> str:
    """What a share is as a rate on each interface that stays: the reader thinks in Mbit/s."""
    kind, _, setting = one.key.rpartition(".")
    if setting not in ("guarantee", "floor", "ceiling") or not kind.startswith("class."):
        return ""
    rates = []
    for entry in made.interfaces:
        if entry.capacity_bits_per_s is not None and made.before is not None:
            before = _share(one.before).of(entry.capacity_bits_per_s)
            after = _share(one.after).of(entry.capacity_bits_per_s)
            more = f"{format_rate(abs(after - before))} {'more' if after >= before else 'less'}"
            rates.append(f"{printable(entry.interface)}: {format_rate(before)} -> {format_rate(after)}, {more}")
    what = {"guarantee": "promised on average", "floor": "kept at every moment", "ceiling": "allowed at most"}[setting]
    return f"{'; '.join(rates)} {what}" if rates else ""


def _share(text: str) -> Share:
    return Share(parse_fraction(text)) if "%" in text else Share(rate_bits_per_s=parse_rate_bits_per_s(text))


def _interface(entry: InterfacePlan, *, operations: bool) -> list[str]:
    at = f", shaped to {format_rate(entry.capacity_bits_per_s)}" if entry.capacity_bits_per_s else ""
    lines = [f"{printable(entry.interface)}{at}: {ACTIONS[entry.action]}"]
    if operations:
        return [*lines, *(f"  {printable(one, length_max=1000)}" for one in entry.operations)]
    if entry.operations:
        lines.append(f"  {_count(len(entry.operations), 'kernel operation')} (--operations shows them)")
    return lines


def document_of(made: Plan, file: Path) -> dict[str, Any]:
    return {
        "file": str(file),
        "against": made.against,
        "changes": made.changes,
        "differences": [msgspec.structs.asdict(one) for one in made.differences],
        "interfaces": [dataclasses.asdict(one) | {"meaning": ACTIONS[one.action]} for one in made.interfaces],
        "restart": list(made.restart),
    }

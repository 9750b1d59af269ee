"""`python -m tools.lab`: up, exec, set, status, down. The thin side of the library: parses, prints.

0 done; 1 the lab or the kernel could not; 2 the command line or the description is wrong; `exec` gives the
program's own status.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from hive_qos.errors import ConfigurationError
from hive_qos.units import format_rate, format_size
from tools.lab import privilege, state
from tools.lab.description import parse_properties
from tools.lab.kernel import LabError
from tools.lab.lab import Lab
from tools.lab.state import LabState


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as `__main__` left it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        options = _parser().parse_args(words)
        status = options.run(options, words)
    except ConfigurationError as error:
        print(f"lab: {error}", file=sys.stderr)
        status = 2
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _up(options: argparse.Namespace, words: list[str]) -> int:
    privilege.ensure([sys.executable, "-m", "tools.lab", *words])
    lab = Lab.from_file(options.file)
    if options.foreground:
        with lab:
            print(f"lab {lab.id} ({lab.description.name}) is up; Ctrl-C takes it down", flush=True)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            while True:
                signal.pause()
    with lab:
        lab.detach()
        print(f"lab {lab.id} ({lab.description.name}) is up: {', '.join([*lab.hosts, *lab.routers])}")
    return 0


def _exec(options: argparse.Namespace, words: list[str]) -> int:
    found = _choose(options.lab)
    _join(found, words)
    lab = Lab.attach(found.id)
    if options.host not in lab.plan.interfaces:
        raise ConfigurationError("host", options.host, f"this lab has {', '.join(lab.plan.interfaces)}")
    argv = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.command[:1] != ["--"] and argv and argv[0].startswith("-"):
        raise ConfigurationError("option", argv[0], "options of exec go before HOST, the program after --")
    if not argv:
        raise ConfigurationError("command", "", "name a program: python -m tools.lab exec HOST -- PROGRAM")
    command = lab[options.host].command(argv, user=options.user)
    os.execv(command[0], command)


def _set(options: argparse.Namespace, words: list[str]) -> int:
    raw = dict(pair.split("=", 1) for pair in options.properties if "=" in pair)
    if len(raw) != len(options.properties) or not set(raw) <= {"rate", "delay", "loss"}:
        reason = 'write rate="20 Mbit/s", delay="5 ms" or loss="1 %"'
        raise ConfigurationError("set", " ".join(options.properties), reason)
    values = parse_properties(options.link, raw)
    found = _choose(options.lab)
    _join(found, words)
    lab = Lab.attach(found.id)
    if options.link not in lab.links:
        raise ConfigurationError("link", options.link, f"this lab has {', '.join(lab.links)}")
    link = lab.links[options.link]
    if "rate_bits_per_s" in values:
        link.set_rate(values["rate_bits_per_s"])
    if "delay_s" in values:
        link.set_delay(values["delay_s"])
    if "loss" in values:
        link.set_loss(values["loss"])
    return 0


def _status(options: argparse.Namespace, words: list[str]) -> int:
    found = [known for known in state.all_labs() if not known.stale]
    if len(found) == 1:
        _join(found[0], words)
    labs = [_describe(known) for known in found]
    if options.json:
        print(json.dumps({"schema": 1, "labs": labs}, indent=2))
        return 0
    if not labs:
        print("no lab is up")
    for lab in labs:
        print(f"lab {lab['id']} ({lab['name']}), owner {lab['owner_pid']}{', detached' if lab['detached'] else ''}")
        if lab["error"]:
            print(f"  {lab['error']}")
        for node in lab["nodes"]:
            print(f"  {node['kind']:<6} {node['name']:<15} {node['address']:<15} {node['address6']}")
        for link in lab["links"]:
            rate = format_rate(link["rate_bits_per_s"]) if link["rate_bits_per_s"] else "no limit"
            path = f"{link['delay_s'] * 1e3:g} ms, loss {link['loss'] * 100:g} %, {link['medium']}"
            path += ", offload" if link["offload"] else ""
            print(f"  link   {link['name']:<15} {rate}, {path}, buffer {format_size(link['buffer_bytes'])}")
            for end, way in link["directions"].items():
                sent = f"{format_size(way['bytes'])} sent, {way['drops']} dropped, {way['lost']} lost"
                print(f"           from {end:<8} {sent}, {format_size(way['backlog_bytes'])} waiting")
    return 0


def _down(options: argparse.Namespace, words: list[str]) -> int:
    swept = state.sweep()
    for lab_id in swept:
        print(f"lab {lab_id}: its owner was dead; taken down")
    if options.all:
        chosen = [known for known in state.all_labs() if known.detached]
    elif options.lab in state.all_ids() and not _is_readable(options.lab):
        state.tear_down(options.lab)
        print(f"lab {options.lab} is down")
        chosen = []
    elif options.lab is not None or not swept:
        chosen = [_choose(options.lab)]
    else:
        chosen = []
    for known in chosen:
        if not known.detached:
            raise LabError(f"lab {known.id} belongs to process {known.owner.pid}; end that one")
        if _is_elsewhere(known):
            os.kill(known.owner.pid, signal.SIGTERM)  # its guard lives in namespaces of its own and cleans up there
            _wait_until_gone(known)
        else:
            state.tear_down(known.id)
        print(f"lab {known.id} is down")
    return 0


def _describe(known: LabState) -> dict[str, Any]:
    whose = {"id": known.id, "name": known.name, "owner_pid": known.owner.pid, "detached": known.detached}
    try:
        lab = Lab.attach(known.id)
    except (
        LabError
    ) as error:  # it is being made or ending, or is another version's: the other labs are shown all the same
        return {**whose, "error": str(error), "nodes": [], "links": []}
    return {
        **whose,
        "error": None,
        "nodes": [
            {
                "name": node.name,
                "kind": node.kind,
                "site": node.site,
                "namespace": lab[node.name].namespace,
                "address": lab[node.name].address if lab[node.name].interfaces else "",
                "address6": lab[node.name].address6 if lab[node.name].interfaces else "",
            }
            for node in lab.description.nodes
        ],
        "links": [_describe_link(lab, name) for name in lab.links],
    }


def _describe_link(lab: Lab, name: str) -> dict[str, Any]:
    link = lab.links[name]
    delay_s, loss = link.path()
    return {
        "name": name,
        "ends": list(link.ends),
        "medium": link.medium,
        "offload": link.spec.offload,
        "rate_bits_per_s": link.rate_bits_per_s,
        "delay_s": delay_s,
        "loss": loss,
        "buffer_bytes": link.buffer_bytes,
        "directions": {
            end: {
                "bytes": way.bytes,
                "packets": way.packets,
                "drops": way.drops,
                "backlog_bytes": way.backlog_bytes,
                "lost": way.lost,
            }
            for end, way in link.counters().items()
        },
    }


def _choose(wanted: str | None) -> LabState:
    """The lab by id or name, or the only one that is up."""
    labs = [known for known in state.all_labs() if not known.stale and wanted in (None, known.id, known.name)]
    if len(labs) == 1:
        return labs[0]
    if labs:
        listing = ", ".join(f"{known.id} ({known.name})" for known in labs)
        raise ConfigurationError("lab", wanted or "", f"which one? There are {listing}")
    if wanted is not None:
        raise ConfigurationError("lab", wanted, "no lab of this id or name is up")
    raise LabError("no lab is up")


def _is_readable(lab_id: str) -> bool:
    """Whether it can be seen whose a lab is; otherwise who names it by its id has to know."""
    try:
        state.read(lab_id)
    except LabError:
        return False
    return True


def _is_elsewhere(known: LabState) -> bool:
    """Whether the lab lives in a user namespace of its own, made by `privilege.ensure`."""
    try:
        return os.readlink(f"/proc/{known.owner.pid}/ns/user") != os.readlink("/proc/self/ns/user")
    except OSError:  # another user's process: not ours to look into
        return False


def _wait_until_gone(known: LabState) -> None:
    deadline_s = time.monotonic() + 10
    while known.owner.alive:
        if time.monotonic() > deadline_s:
            raise LabError(f"lab {known.id}: its guard, process {known.owner.pid}, does not end")
        time.sleep(0.02)


def _join(known: LabState, words: list[str]) -> None:
    """Start again inside the namespaces of the lab's owner where those are not ours."""
    if _is_elsewhere(known):
        os.environ["HIVE_LAB_STATE"] = str(state.state_root())
        enter = [
            "nsenter",
            f"--target={known.owner.pid}",
            "--user",
            "--mount",
            "--net",
            "--preserve-credentials",
            "--wd=.",
        ]
        os.execvp("nsenter", [*enter, "--", sys.executable, "-m", "tools.lab", *words])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hive-lab", description="Hosts, routers and links in network namespaces.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="make the lab that a TOML file describes")
    up.add_argument("file", metavar="FILE")
    up.add_argument("--foreground", action="store_true", help="stay, and take it down at Ctrl-C")
    up.set_defaults(run=_up)
    run = commands.add_parser("exec", help="run a program in a host (options go before HOST)")
    run.add_argument("--lab", help="id or name, where several are up")
    run.add_argument("--user", help="become this user; goes before HOST")
    run.add_argument("host", metavar="HOST")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- PROGRAM ARGUMENT...")
    run.set_defaults(run=_exec)
    change = commands.add_parser("set", help='change a link while it runs: set a-r rate="20 Mbit/s"')
    change.add_argument("--lab", help="id or name, where several are up")
    change.add_argument("link", metavar="LINK")
    change.add_argument("properties", nargs="+", metavar="rate=|delay=|loss=")
    change.set_defaults(run=_set)
    status = commands.add_parser("status", help="what is up, with counters")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    down = commands.add_parser("down", help="take a lab down")
    down.add_argument("lab", nargs="?", help="id or name, where several are up")
    down.add_argument("--all", action="store_true", help="every detached lab and whatever a dead owner left")
    down.set_defaults(run=_down)
    return parser

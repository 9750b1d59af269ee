"""`broker.toml` to a `Policy`, or every mistake in it at once.

Reading goes on after a mistake, so that an operator mends a file in one round. Each problem names the key as it would
be written, the value as it stands there, and what to write instead. Of the host nothing is looked up but the names of
time zones: whether an interface or a cgroup exists is for the daemon to find out.
"""

from __future__ import annotations

import difflib
import ipaddress
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from broker.policy.known_programs import ALL, KNOWN_PROGRAMS
from broker.policy.page import KEYS as PAGE_KEYS
from broker.policy.page import read_page
from broker.policy.peers import KEYS as PEERS_KEYS
from broker.policy.peers import read_peers
from broker.policy.people import JOB_KEYS, OVERRIDE_KEYS, SCHEDULE_KEYS, read_jobs, read_schedules
from broker.policy.probe import KEYS as PROBE_KEYS
from broker.policy.probe import read_probe
from broker.policy.programs import KEYS as PROGRAM_KEYS
from broker.policy.programs import read_programs
from broker.policy.reader import Reader
from broker.policy.rules import DEMOTED_ONLY, check_classes, check_interfaces, check_match_count, check_people
from broker.policy.settings import Setting, merged
from broker.policy.types import (
    CLASS_NAMES,
    ClassPolicy,
    DaemonPolicy,
    InterfacePolicy,
    MatchRule,
    Policy,
    Share,
)
from hive_qos.errors import ConfigurationError, HiveError
from hive_qos.units import format_rate, parse_duration_s, parse_fraction, parse_rate_bits_per_s

T = TypeVar("T")

TICK_S_MIN, TICK_S_MAX = 0.02, 1.0
"""Below 20 ms a tick costs more than it finds out (reports come every 100 ms); above 1 s a drop is found too late."""
GUARANTEE_WINDOW_S_MIN, GUARANTEE_WINDOW_S_MAX = 1.0, 3600.0
"""Ten ticks at least, so that an average exists; an hour at most, so that a promise is one that somebody can check."""
INTERFACES_MAX, MATCH_RULES_MAX = 16, 64
"""More is a mistake in a generated file rather than a host; every rule, whatever its class, is up to eight filters that
unmarked packets walk one by one on each interface, or two BPF programs, of which a cgroup holds 64."""
EGRESS_BITS_PER_S_MIN = 100_000
"""One full frame takes 0.12 s of it: below that nobody's promise can be kept, and a floor of 2 % is under the 8 kbit/s
that the kernel side gives every class."""
CGROUP_BYTES_MAX, CGROUP_NAME_BYTES_MAX = 1024, 255
"""Of a path (the kernel's own PATH_MAX is 4096, with the mount before it) and of each name in it (NAME_MAX)."""

CLASS_DEFAULTS = {
    "control": ClassPolicy("control", Share(0.02), 60.0, Share(0.02), Share(0.05), 1.0, 0),
    "compute": ClassPolicy("compute", Share(0.60), 60.0, Share(0.02), Share(1.0), 6.0, 1),
    "storage": ClassPolicy("storage", Share(0.20), 60.0, Share(0.02), Share(1.0), 2.0, 3),
    "other": ClassPolicy("other", Share(0.10), 60.0, Share(0.02), Share(1.0), 1.0, 2),
}
"""Where the file says nothing: 92 % promised, training first, people's own traffic before replication. Whoever may use
the broker may use `control`, which goes before all: so it has little, and nobody gains who puts everything there. A
message of up to 64 KiB (HTB's burst) does not wait for that."""

_TOP_KEYS = (
    "version", "interface", "class", "daemon", "peers", "job", "schedule", "probe", "page", "storage_program",
)  # fmt: skip
_INTERFACE_KEYS = ("name", "egress", "ingress", "gso_max_segs")
_CLASS_KEYS = ("guarantee", "guarantee_window", "floor", "ceiling", "weight", "priority", "match", "programs")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_MATCH_KEYS = ("cgroup", "port", "uid", "dscp", "address")
_DAEMON_KEYS = ("tick", "state_dir", "api_socket", "session_socket", "group", "admin_group", "record_file")
KEYS: Mapping[str, Sequence[str]] = {
    "": _TOP_KEYS, "interface": _INTERFACE_KEYS, "class": _CLASS_KEYS, "match": _MATCH_KEYS, "daemon": _DAEMON_KEYS,
    "peers": PEERS_KEYS, "probe": PROBE_KEYS, "job": JOB_KEYS, "schedule": SCHEDULE_KEYS,
    "schedule.class": OVERRIDE_KEYS, "storage_program": PROGRAM_KEYS,
}  # fmt: skip
"""All that a file may say, by section."""


SHOWN_MAX = 100
"""More than anybody mends at once; a file of a mebibyte may have a hundred thousand."""


class ConfigurationErrors(HiveError):
    """The operator's file has mistakes. Correct each; `problems` lists all, in the order in which they were found."""

    code = "configuration"

    def __init__(self, problems: Sequence[ConfigurationError]) -> None:
        super().__init__(f"{len(problems)} problem(s)")
        self.problems = tuple(problems)

    def __str__(self) -> str:
        shown = [str(problem) for problem in self.problems[:SHOWN_MAX]]
        more = len(self.problems) - len(shown)
        return "\n".join([*shown, f"and {more} more mistakes"] if more else shown)


def load(text: str, *, name: str = "broker.toml", settings: Sequence[Setting] = ()) -> Policy:
    """Read a configuration and validate it whole.

    Args:
        text: the TOML text of `broker.toml`, `version = 1`. Every key is in `docs/reference/configuration.md`.
        name: the file's, for an error that concerns all of it.
        settings: values that count instead of the file's.

    Raises:
        ConfigurationErrors: with every key, value and reason that is wrong.
    """
    reader = _Reader()
    policy = reader.policy(text, name=name, settings=settings)
    if policy is not None:
        reader.problems += check_interfaces(policy.interfaces)
        reader.problems += check_classes(policy.classes, interfaces=policy.interfaces)
        reader.problems += check_match_count(policy.classes, most=MATCH_RULES_MAX)
        reader.problems += check_people(policy)
    if policy is None or reader.problems:
        raise ConfigurationErrors(reader.problems)
    return policy


class _Reader(Reader):
    """Reads the whole file."""

    def policy(self, text: str, *, name: str, settings: Sequence[Setting]) -> Policy | None:
        try:
            raw = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # beside what is no TOML: numbers too long, and brackets too deep
            self.problem(name, None, f"not TOML: {error}")
            return None
        try:
            raw = merged(raw, settings) if settings else raw
        except ConfigurationError as error:
            self.problems.append(error)
        self.known(raw, keys=_TOP_KEYS, prefix="")
        version = raw.get("version")
        if version != 1 or isinstance(version, bool):
            self.problem("version", version, "write `version = 1`; this program reads no other")
        daemon = self.daemon(self.table(raw, "daemon", prefix=""))
        return Policy(
            interfaces=self.interfaces(raw),
            classes=self.classes(raw),
            daemon=daemon,
            peers=self.optional(raw, "peers", PEERS_KEYS, read_peers),
            probe=self.optional(raw, "probe", PROBE_KEYS, read_probe),
            page=self.optional(raw, "page", PAGE_KEYS, read_page),
            jobs=read_jobs(self, raw, share=_share),
            schedules=read_schedules(self, raw, share=_share),
            storage_programs=read_programs(self, raw),
        )

    def optional(
        self, raw: Mapping[str, Any], name: str, keys: Sequence[str], read: Callable[[Reader, Mapping[str, Any]], T]
    ) -> T | None:
        """Read a section that a file may leave out."""
        if name not in raw:
            return None
        section = self.table(raw, name, prefix="")
        self.known(section, keys=keys, prefix=f"{name}.")
        return read(self, section)

    def interfaces(self, raw: Mapping[str, Any]) -> tuple[InterfacePolicy, ...]:
        entries = raw.get("interface", [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            self.problem("interface", entries, "write each interface as a section of its own: [[interface]]")
            return ()
        if not 1 <= len(entries) <= INTERFACES_MAX:
            self.problem("interface", len(entries), f"name 1 to {INTERFACES_MAX} interfaces, each as [[interface]]")
        return tuple(self.interface(entry, prefix=f"interface[{i}].") for i, entry in enumerate(entries))

    def interface(self, raw: Mapping[str, Any], *, prefix: str) -> InterfacePolicy:
        self.known(raw, keys=_INTERFACE_KEYS, prefix=prefix)
        name = raw.get("name")
        if not isinstance(name, str) or not _is_interface_name(name):
            self.problem(prefix + "name", name, 'write the name that `ip link` shows, e.g. "eth0" (1 to 15 characters)')
            name = ""
        ingress, ingress_rate = self.ingress(raw, prefix=prefix)
        gso = raw.get("gso_max_segs", "auto")
        if gso not in ("auto", "off"):
            reason = 'write "auto" (follows the rate) or "off" (the device\'s own stays)'
            self.problem(prefix + "gso_max_segs", gso, reason)
        egress = None
        if raw.get("egress", "auto") != "auto":
            egress = self.rate(raw, "egress", prefix=prefix, hint='"auto" or a rate')
        return InterfacePolicy(name, egress, gso != "off", ingress=ingress, ingress_bits_per_s=ingress_rate)

    def ingress(self, raw: Mapping[str, Any], *, prefix: str) -> tuple[bool, int | None]:
        """Whether the inbound direction is managed, and its rate (None: the driver's)."""
        if raw.get("ingress", "off") in ("off", "auto"):
            return raw.get("ingress", "off") == "auto", None
        rate = self.rate(raw, "ingress", prefix=prefix, hint='"off", "auto" or a rate')
        return rate is not None, rate

    def rate(self, raw: Mapping[str, Any], key: str, *, prefix: str, hint: str) -> int | None:
        """What a direction of an interface carries."""
        rate = self.parsed(raw, key, parse_rate_bits_per_s, prefix=prefix, default=None, hint=hint)
        if rate is None or rate >= EGRESS_BITS_PER_S_MIN:
            return rate
        least = format_rate(EGRESS_BITS_PER_S_MIN)
        self.problem(prefix + key, raw[key], f"too slow to be shared among four classes; write at least {least}")
        return None

    def classes(self, raw: Mapping[str, Any]) -> tuple[ClassPolicy, ...]:
        table = self.table(raw, "class", prefix="")
        self.known(table, keys=CLASS_NAMES, prefix="class.")
        return tuple(self.traffic_class(name, self.table(table, name, prefix="class.")) for name in CLASS_NAMES)

    def traffic_class(self, name: str, raw: Mapping[str, Any]) -> ClassPolicy:
        prefix, default = f"class.{name}.", CLASS_DEFAULTS[name]
        self.known(raw, keys=_CLASS_KEYS, prefix=prefix)
        guarantee = self.parsed(raw, "guarantee", _share, prefix=prefix, default=default.guarantee)
        ceiling = self.parsed(
            raw, "ceiling", _share, prefix=prefix, default=_default_ceiling(default.ceiling, guarantee)
        )
        floor = self.parsed(
            raw, "floor", _share, prefix=prefix, default=_default_floor(default.floor, guarantee, ceiling)
        )
        window_s = self.parsed(
            raw, "guarantee_window", parse_duration_s, prefix=prefix, default=default.guarantee_window_s,
        )  # fmt: skip
        if not GUARANTEE_WINDOW_S_MIN <= window_s <= GUARANTEE_WINDOW_S_MAX:
            self.problem(prefix + "guarantee_window", raw.get("guarantee_window"), 'write between "1 s" and "1 h"')
        return ClassPolicy(
            name=name,
            guarantee=guarantee,
            guarantee_window_s=window_s,
            floor=floor,
            ceiling=ceiling,
            weight=self.weight(raw, prefix=prefix, default=default.weight),
            priority=self.integer(raw, "priority", prefix=prefix, high=7, default=default.priority),
            match=self.match_rules(raw, prefix=prefix),
            programs=self.programs(name, raw, key=prefix + "programs"),
        )

    def programs(self, class_name: str, raw: Mapping[str, Any], *, key: str) -> tuple[str, ...]:
        """Known programs by name; all of them for "known"."""
        entries = raw.get("programs", [])
        if entries == ALL:
            entries = list(KNOWN_PROGRAMS)
        if not isinstance(entries, list):
            self.problem(key, entries, f'write names in a list, e.g. ["syncthing", "rsync"], or "{ALL}" for all')
            return ()
        if entries and class_name not in DEMOTED_ONLY:
            reason = f"programs are found by ports, which anybody can choose; write it in {' or '.join(DEMOTED_ONLY)}"
            self.problem(key, entries, reason)
            return ()
        for number, name in enumerate(entries):
            if not isinstance(name, str) or name not in KNOWN_PROGRAMS:
                near = difflib.get_close_matches(str(name), list(KNOWN_PROGRAMS), n=1)
                advice = f"did you mean `{near[0]}`?" if near else "for another program write a match"
                self.problem(f"{key}[{number}]", name, f"not known; {advice}; known are {', '.join(KNOWN_PROGRAMS)}")
        return tuple(dict.fromkeys(name for name in entries if isinstance(name, str) and name in KNOWN_PROGRAMS))

    def match_rules(self, raw: Mapping[str, Any], *, prefix: str) -> tuple[MatchRule, ...]:
        entries = raw.get("match", [])
        key = prefix + "match"
        if not isinstance(entries, list):
            self.problem(key, entries, 'write a list, e.g. [{ cgroup = "hive.slice/hive-storage.slice" }]')
            return ()
        if len(entries) > MATCH_RULES_MAX:
            self.problem(key, len(entries), f"at most {MATCH_RULES_MAX} rules in all classes together")
            return ()
        rules = [self.match_rule(entry, key=f"{key}[{i}]") for i, entry in enumerate(entries)]
        return tuple(rule for rule in rules if rule is not None)

    def match_rule(self, raw: object, *, key: str) -> MatchRule | None:
        if not isinstance(raw, dict) or len(raw) != 1:
            self.problem(key, raw, "write exactly one of cgroup, port, uid, dscp, address in each { }")
            return None
        if not self.known(raw, keys=_MATCH_KEYS, prefix=key + "."):
            return None
        ((kind, value),) = raw.items()
        if kind == "cgroup":
            return self.cgroup_rule(value, key=key + ".cgroup")
        if kind == "address":
            return self.address_rule(value, key=key + ".address")
        low, high = {"port": (1, 65535), "uid": (0, 2**32 - 2), "dscp": (0, 63)}[kind]
        before = len(self.problems)
        number = self.integer(raw, kind, prefix=key + ".", low=low, high=high, default=low)
        if len(self.problems) > before:
            return None
        if kind == "port":
            return MatchRule(port=number)
        return MatchRule(uid=number) if kind == "uid" else MatchRule(dscp=number)

    def cgroup_rule(self, value: object, *, key: str) -> MatchRule | None:
        path = value.strip("/") if isinstance(value, str) else ""
        names = path.split("/")
        if not path:
            reason = 'write a path below the cgroup mount, e.g. "hive.slice/hive-storage.slice"'
        elif not path.isprintable():
            reason = "it has a control character, which no cgroup that we may name has"
        elif not {"", ".", ".."}.isdisjoint(names):
            reason = 'write the path below the cgroup mount as it is, without "..", "." and "//"'
        elif len(path.encode()) > CGROUP_BYTES_MAX or max(len(name.encode()) for name in names) > CGROUP_NAME_BYTES_MAX:
            reason = f"longer than {CGROUP_BYTES_MAX} bytes, or a name in it longer than {CGROUP_NAME_BYTES_MAX}"
        else:
            return MatchRule(cgroup=path)
        self.problem(key, value, reason)
        return None

    def address_rule(self, value: object, *, key: str) -> MatchRule | None:
        try:
            if not isinstance(value, str) or "%" in value:  # a zone, which no packet has in it
                raise ValueError
            network = ipaddress.ip_network(value)
        except ValueError as error:
            why = f" ({error})" if str(error) else ""
            self.problem(key, value, f'write a network or an address, e.g. "10.88.0.0/16" or "fd00:1::/64"{why}')
            return None
        if network.prefixlen == 0:
            self.problem(key, value, "that is everybody; without a rule traffic goes to `other`")
            return None
        if network.version == 6 and network.subnet_of(_MAPPED):
            self.problem(key, value, 'such packets travel as IPv4: write the IPv4 network, e.g. "10.88.0.0/16"')
            return None
        return MatchRule(address=str(network))

    def daemon(self, raw: Mapping[str, Any]) -> DaemonPolicy:
        default = DaemonPolicy()
        self.known(raw, keys=_DAEMON_KEYS, prefix="daemon.")
        tick_s = self.parsed(raw, "tick", parse_duration_s, prefix="daemon.", default=default.tick_s)
        if not TICK_S_MIN <= tick_s <= TICK_S_MAX:
            self.problem("daemon.tick", raw.get("tick"), 'write between "20 ms" and "1 s"')
        return DaemonPolicy(
            tick_s=tick_s,
            state_dir=self.path(raw, "state_dir", default=default.state_dir),
            api_socket=self.path(raw, "api_socket", default=default.api_socket),
            session_socket=self.path(raw, "session_socket", default=default.session_socket),
            group=self.word(raw, "group", default=default.group),
            admin_group=self.word(raw, "admin_group", default=default.admin_group),
            record_file=self.path(raw, "record_file", default="") or None,
        )

    def path(self, raw: Mapping[str, Any], key: str, *, default: str) -> str:
        value = raw.get(key, default)
        if isinstance(value, str) and value.isprintable() and (value.startswith("/") or value == default):
            return value
        self.problem(f"daemon.{key}", value, "write an absolute path without control characters")
        return default

    def word(self, raw: Mapping[str, Any], key: str, *, default: str) -> str:
        value = raw.get(key, default)
        if isinstance(value, str) and value.isprintable() and value and not any(c in " :" for c in value):
            return value
        self.problem(f"daemon.{key}", value, "write the name of a group")
        return default


def _is_interface_name(name: str) -> bool:
    """What the kernel takes (dev_valid_name), and a terminal shows."""
    taken = 1 <= len(name.encode()) <= 15 and name.isprintable() and name not in (".", "..")
    return taken and not any(c.isspace() or c in "/:" for c in name)


def _default_ceiling(ceiling: Share, guarantee: Share) -> Share:
    """A ceiling that nobody wrote gives way to a larger guarantee that somebody did write, or to one that is a rate."""
    if ceiling.fraction == 1.0:
        return ceiling
    return guarantee if guarantee.fraction is None or guarantee.fraction > (ceiling.fraction or 0.0) else ceiling


def _default_floor(floor: Share, guarantee: Share, ceiling: Share) -> Share:
    """A floor that nobody wrote gives way to a smaller guarantee or ceiling that somebody did write.

    Where those are rates, the decision takes the smaller of them when the capacity is known.
    """
    fractions = [share.fraction for share in (floor, guarantee, ceiling) if share.fraction is not None]
    return Share(min(fractions))


def _share(text: str) -> Share:
    if "%" in text:
        return Share(fraction=parse_fraction(text))
    try:
        return Share(rate_bits_per_s=parse_rate_bits_per_s(text))
    except ValueError as error:
        raise ValueError(f'{error}, or a share, for example "20 %"') from error

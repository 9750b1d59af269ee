"""What is simulated, as values, and read from TOML: sites of hosts behind an uplink, jobs that train, copies."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hive_qos.errors import ConfigurationError
from hive_qos.units import parse_duration_s, parse_rate_bits_per_s, parse_size_bytes

HOSTS_MAX, FLOWS_MAX, SECONDS_MAX = 2_000, 20_000, 3_600.0
"""More takes hours; a mistake in a generated file rather than a question."""

_TOP = {"version", "seconds", "seed", "site", "job", "copy", "generate"}
_SITE = {"name", "hosts", "link", "uplink", "buffer", "delay", "changes"}
_JOB = {"name", "hosts", "burst", "think"}
_COPY = {"from", "to", "streams"}
_GENERATE = {"job_hosts", "burst", "think", "copies"}


@dataclass(frozen=True)
class Change:
    """From `at_s` on an uplink carries this much, each way."""

    at_s: float
    uplink_bits_per_s: int


@dataclass(frozen=True)
class Site:
    """Hosts on links of their own behind a shared uplink.

    Fields: `link_bits_per_s` of each host, each way; `uplink_bits_per_s` of all together towards other sites, each way;
    `buffer_s` how much each of these holds; `delay_s` one way from a host to the middle of the network.
    """

    name: str
    hosts: int
    link_bits_per_s: int
    uplink_bits_per_s: int
    buffer_s: float
    delay_s: float
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Job:
    """Hosts that compute for `think_s`, then each send `burst_bytes` to the next one and wait for all, without end."""

    name: str
    hosts: tuple[int, ...]
    burst_bytes: int
    think_s: float


@dataclass(frozen=True)
class Copy:
    """Storage: connections without end from one host to another."""

    source: int
    target: int
    streams: int = 1


@dataclass(frozen=True)
class Scenario:
    """One simulated network. Hosts are numbered through all sites in their order."""

    seconds: float
    seed: int
    sites: tuple[Site, ...]
    jobs: tuple[Job, ...]
    copies: tuple[Copy, ...]

    def host_sites(self) -> tuple[int, ...]:
        """The number of each host's site."""
        return tuple(number for number, site in enumerate(self.sites) for _ in range(site.hosts))

    def host_name(self, host: int) -> str:
        """As the file names it: `site/number`."""
        for site in self.sites:
            if host < site.hosts:
                return f"{site.name}/{host}"
            host -= site.hosts
        raise IndexError(host)


def load(path: Path) -> Scenario:
    """Read a scenario; `docs/reference/simulator.md` has the form.

    Raises:
        ConfigurationError: cannot be read, or cannot be simulated; names key, value and what would do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigurationError("SCENARIO", str(path), f"cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigurationError("SCENARIO", str(path), "not UTF-8 text") from problem
    return parse(text)


def parse(text: str) -> Scenario:
    """As `load`, of the text itself."""
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError("SCENARIO", text[:40], f"not TOML: {error}") from error
    _known("", raw, _TOP)
    if raw.get("version") != 1 or isinstance(raw.get("version"), bool):
        raise ConfigurationError("version", raw.get("version"), "write `version = 1`; this program reads no other")
    sites = tuple(_site(f"site[{i}].", entry) for i, entry in enumerate(_tables("site", raw)))
    names = [site.name for site in sites]
    if not sites or len(set(names)) != len(names):
        raise ConfigurationError("site", names, "describe at least one [[site]], each with a name of its own")
    hosts = {
        f"{site.name}/{i}": sum(earlier.hosts for earlier in sites[:number]) + i
        for number, site in enumerate(sites)
        for i in range(site.hosts)
    }
    if not 2 <= len(hosts) <= HOSTS_MAX:
        raise ConfigurationError("site", len(hosts), f"2 to {HOSTS_MAX} hosts in all")
    jobs = [_job(f"job[{i}].", entry, hosts) for i, entry in enumerate(_tables("job", raw))]
    copies = [_copy(f"copy[{i}].", entry, hosts) for i, entry in enumerate(_tables("copy", raw))]
    if "generate" in raw:
        more_jobs, more_copies = _generated(raw["generate"], sites, len(hosts))
        jobs, copies = jobs + more_jobs, copies + more_copies
    if sum(len(job.hosts) for job in jobs) + sum(copy.streams for copy in copies) > FLOWS_MAX:
        raise ConfigurationError("copy", len(copies), f"at most {FLOWS_MAX} connections in all")
    return Scenario(
        seconds=_duration("seconds", raw.get("seconds", "30 s"), most=SECONDS_MAX),
        seed=_count("seed", raw.get("seed", 1), least=0, most=2**31),
        sites=sites,
        jobs=tuple(jobs),
        copies=tuple(copies),
    )


def _site(key: str, raw: Mapping[str, Any]) -> Site:
    _known(key, raw, _SITE)
    name = raw.get("name")
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigurationError(key + "name", name, "a name of letters, digits and _, like office")
    link = _rate(key + "link", raw.get("link"))
    changes = []
    for i, entry in enumerate(_tables("changes", raw, prefix=key)):
        _known(f"{key}changes[{i}].", entry, {"at", "uplink"})
        at_s = _duration(f"{key}changes[{i}].at", entry.get("at"), most=SECONDS_MAX)
        changes.append(Change(at_s, _rate(f"{key}changes[{i}].uplink", entry.get("uplink"))))
    return Site(
        name=name,
        hosts=_count(key + "hosts", raw.get("hosts"), least=1, most=HOSTS_MAX),
        link_bits_per_s=link,
        uplink_bits_per_s=_rate(key + "uplink", raw.get("uplink", raw.get("link"))),
        buffer_s=_duration(key + "buffer", raw.get("buffer", "50 ms"), most=10.0),
        delay_s=_duration(key + "delay", raw.get("delay", "1 ms"), most=1.0),
        changes=tuple(sorted(changes, key=lambda change: change.at_s)),
    )


def _job(key: str, raw: Mapping[str, Any], hosts: Mapping[str, int]) -> Job:
    _known(key, raw, _JOB)
    members = raw.get("hosts")
    if not isinstance(members, list) or len(members) < 2 or len(set(map(str, members))) != len(members):
        raise ConfigurationError(key + "hosts", members, 'two hosts or more, each once: ["a/0", "b/0"]')
    return Job(
        name=str(raw.get("name", key.rstrip("."))),
        hosts=tuple(_host(key + "hosts", name, hosts) for name in members),
        burst_bytes=_size(key + "burst", raw.get("burst")),
        think_s=_duration(key + "think", raw.get("think"), most=600.0),
    )


def _copy(key: str, raw: Mapping[str, Any], hosts: Mapping[str, int]) -> Copy:
    _known(key, raw, _COPY)
    source, target = _host(key + "from", raw.get("from"), hosts), _host(key + "to", raw.get("to"), hosts)
    if source == target:
        raise ConfigurationError(key + "to", raw.get("to"), "another host than `from`")
    return Copy(source, target, _count(key + "streams", raw.get("streams", 1), least=1, most=1000))


def _generated(raw: object, sites: Sequence[Site], hosts: int) -> tuple[list[Job], list[Copy]]:
    """Jobs over hosts of different sites, each host in one; and copies from each host to one half way round."""
    if not isinstance(raw, dict):
        raise ConfigurationError("generate", raw, "a table: [generate]")
    _known("generate.", raw, _GENERATE)
    size = _count("generate.job_hosts", raw.get("job_hosts", 4), least=2, most=hosts)
    burst = _size("generate.burst", raw.get("burst", "2 MB"))
    think_s = _duration("generate.think", raw.get("think", "400 ms"), most=600.0)
    first = [sum(site.hosts for site in sites[:number]) for number in range(len(sites))]
    depth = max(site.hosts for site in sites)
    across = [first[n] + i for i in range(depth) for n, site in enumerate(sites) if i < site.hosts]
    groups = [across[at : at + size] for at in range(0, len(across) - size + 1, size)]
    jobs = [Job(f"job{number}", tuple(group), burst, think_s) for number, group in enumerate(groups)]
    streams = _count("generate.copies", raw.get("copies", 1), least=0, most=100)
    copies = [Copy(host, (host + hosts // 2) % hosts, streams) for host in range(hosts)] if streams else []
    return jobs, copies


def _known(prefix: str, raw: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(raw) - keys)
    if unknown:
        raise ConfigurationError(prefix + unknown[0], raw[unknown[0]], f"unknown; there are {', '.join(sorted(keys))}")


def _tables(name: str, raw: Mapping[str, Any], *, prefix: str = "") -> list[Mapping[str, Any]]:
    entries = raw.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError(prefix + name, entries, f"a list of tables: [[{name}]]")
    return entries


def _host(key: str, name: object, hosts: Mapping[str, int]) -> int:
    if not isinstance(name, str) or name not in hosts:
        raise ConfigurationError(key, name, "a host as site/number, numbers from 0")
    return hosts[name]


def _count(key: str, value: object, *, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigurationError(key, value, f"a number from {least} to {most}")
    return value


def _rate(key: str, value: object) -> int:
    return int(_parsed(key, value, parse_rate_bits_per_s, "100 Mbit/s"))


def _size(key: str, value: object) -> int:
    return int(_parsed(key, value, parse_size_bytes, "4 MB"))


def _duration(key: str, value: object, *, most: float) -> float:
    seconds = float(_parsed(key, value, parse_duration_s, "100 ms"))
    if not 0 < seconds <= most:
        raise ConfigurationError(key, value, f"above 0 and at most {most:g} s")
    return seconds


def _parsed(key: str, value: object, parse_one: Any, example: str) -> Any:
    if not isinstance(value, str):
        raise ConfigurationError(key, value, f'text with its unit, like "{example}"')
    try:
        return parse_one(value)
    except ValueError as error:
        raise ConfigurationError(key, value, str(error)) from error

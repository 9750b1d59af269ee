"""A lab's description as TOML text, and as plain values for the state file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hive_qos.errors import ConfigurationError
from hive_qos.units import parse_duration_s, parse_fraction, parse_rate_bits_per_s, parse_size_bytes
from tools.lab.model import Description, LinkSpec, NodeSpec

_TOP = {"name", "hosts", "routers", "defaults", "link", "site", "sysctls", "congestion", "gso_max_segs"}
_PROPERTIES = {"rate", "delay", "loss", "buffer", "carrier", "seed", "offload"}


def parse(text: str) -> Description:
    """Read a description; the form is in docs/reference/lab.md.

    Raises:
        ConfigurationError: not TOML, an unknown key, or a value that cannot work; names key and value.
    """
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # beside what is no TOML: numbers too long, and brackets too deep
        raise ConfigurationError("description", text[:40], f"not TOML: {error}") from error
    _known("", raw, _TOP)
    sysctls = {key: str(value) for key, value in _table("sysctls", raw.get("sysctls", {})).items()}
    defaults = _table("defaults", raw.get("defaults", {}))
    _known("defaults", defaults, _PROPERTIES)
    congestion = _names("congestion", [raw.get("congestion", "")])[0]

    def host(name: str, site: str = "") -> NodeSpec:
        segments = raw.get("gso_max_segs", 1)
        return NodeSpec(name=name, site=site, congestion=congestion, sysctls=sysctls, gso_max_segs=segments)

    def router(name: str, site: str = "") -> NodeSpec:
        return NodeSpec(name=name, kind="router", site=site, sysctls=sysctls)

    nodes = [host(name) for name in _names("hosts", raw.get("hosts", []))]
    nodes += [router(name) for name in _names("routers", raw.get("routers", []))]
    links: list[LinkSpec] = []
    for number, site in enumerate(_tables("site", raw.get("site", []))):
        key = f"site[{number}]"
        _known(key, site, _PROPERTIES | {"name", "hosts"})
        name = _names(f"{key}.name", [site.get("name")])[0]
        nodes.append(router(name, name))
        for member in _names(f"{key}.hosts", site.get("hosts", [])):
            nodes.append(host(member, name))
            links.append(_link(key, {**defaults, **site}, member, name, f"{member}-{name}"))
    for number, link in enumerate(_tables("link", raw.get("link", []))):
        key = f"link[{number}]"
        _known(key, link, _PROPERTIES | {"name", "between"})
        ends = _names(f"{key}.between", link.get("between", []))
        if len(ends) != 2:
            raise ConfigurationError(f"{key}.between", ends, 'name two ends: between = ["a", "r"]')
        name = _names(f"{key}.name", [link.get("name", f"{ends[0]}-{ends[1]}")])[0]
        links.append(_link(key, {**defaults, **link}, ends[0], ends[1], name))
    return Description(name=_names("name", [raw.get("name", "lab")])[0], nodes=tuple(nodes), links=tuple(links))


def parse_properties(key: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read rate, delay, loss, buffer and the like as people write them into the arguments of `LinkSpec`.

    Raises:
        ConfigurationError: an unknown key or a value of no such form.
    """
    values: dict[str, Any] = {}
    for name, value in raw.items():
        try:
            match name:
                case "rate":
                    values["rate_bits_per_s"] = None if value == "none" else parse_rate_bits_per_s(value)
                case "delay":
                    values["delay_s"] = parse_duration_s(value)
                case "loss":
                    values["loss"] = parse_fraction(value)
                case "buffer":
                    _read_buffer(value, values)
                case "carrier" | "seed" | "offload":
                    values[name] = value
                case _:
                    raise ConfigurationError(f"{key}.{name}", value, f"known: {', '.join(sorted(_PROPERTIES))}")
        except (ValueError, AttributeError, TypeError) as error:
            reason = str(error) if isinstance(error, ValueError) else "write it as text with a unit"
            raise ConfigurationError(f"{key}.{name}", value, reason) from error
    return values


def to_plain(description: Description) -> dict[str, Any]:
    """As values that JSON can hold; `from_plain` reads them back."""
    nodes = [
        {
            "name": node.name,
            "kind": node.kind,
            "site": node.site,
            "congestion": node.congestion,
            "sysctls": dict(node.sysctls),
            "gso_max_segs": node.gso_max_segs,
        }
        for node in description.nodes
    ]
    return {"name": description.name, "nodes": nodes, "links": [asdict(link) for link in description.links]}


def from_plain(raw: Mapping[str, Any]) -> Description:
    """What `to_plain` wrote.

    Raises:
        TypeError, KeyError, ConfigurationError: another version's `to_plain` wrote it.
    """
    return Description(
        name=raw["name"],
        nodes=tuple(NodeSpec(**node) for node in raw["nodes"]),
        links=tuple(LinkSpec(**link) for link in raw["links"]),
    )


def _link(key: str, raw: Mapping[str, Any], first: str, second: str, name: str) -> LinkSpec:
    properties = parse_properties(key, {name: value for name, value in raw.items() if name in _PROPERTIES})
    return LinkSpec(name=name, first=first, second=second, **properties)


def _read_buffer(value: str, values: dict[str, Any]) -> None:
    try:
        values["buffer_s"] = parse_duration_s(value)
    except ValueError:
        try:
            values["buffer_bytes"] = parse_size_bytes(value)
        except ValueError:
            raise ValueError('neither a time nor a size; write for example "100 ms" or "500 kB"') from None


def _known(key: str, raw: Mapping[str, Any], known: set[str]) -> None:
    for name, value in raw.items():
        if name not in known:
            where = f"{key}.{name}" if key else name
            raise ConfigurationError(where, value, f"no such key; known: {', '.join(sorted(known))}")


def _table(key: str, raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ConfigurationError(key, raw, f"write it as a table: [{key}]")
    return raw


def _tables(key: str, raw: object) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise ConfigurationError(key, raw, f"write each as a table: [[{key}]]")
    return raw


def _names(key: str, raw: object) -> list[str]:
    if not isinstance(raw, list) or not all(isinstance(entry, str) for entry in raw):
        raise ConfigurationError(key, raw, 'write names: ["a", "b"]')
    return raw

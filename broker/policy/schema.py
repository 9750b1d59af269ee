"""The JSON Schema of `broker.toml`, for editors: made from the keys, bounds and names that the reader checks with.

A schema knows single values. What has to be true of several together (sums of guarantees, a floor below its guarantee)
only `broker.policy.toml` knows; so a file that the schema accepts may still have mistakes, never the other way round.
Draft 2020-12, https://json-schema.org/draft/2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.policy import known_programs, people, probe, programs, reader, toml
from broker.policy.peers import ENGINES
from broker.policy.types import CLASS_NAMES

Schema = dict[str, Any]

_NUMBER = r"[0-9]+(\.[0-9]+)?"
_RATE = rf"\s*{_NUMBER}\s*[kMGT]?bit(/s)?\s*"
_SHARE = rf"\s*{_NUMBER}\s*%\s*"
_TIME = r"([01]?[0-9]|2[0-4]):[0-5][0-9]"


def _text(pattern: str, **more: Any) -> Schema:
    return {"type": "string", "pattern": f"^({pattern})$", **more}


def _whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


RATE = _text(_RATE, examples=["40 Mbit/s", "1 Gbit/s"])
SHARE = _text(f"{_SHARE}|{_RATE}", examples=["20 %", "10 Mbit/s"])
DURATION = _text(rf"\s*{_NUMBER}\s*(ms|s|min|h)\s*", examples=["60 s", "250 ms"])
ABSOLUTE = _text(r"/[^\x00-\x1f]*")
NAME: Schema = {"type": "string", "minLength": 1}
WEIGHT: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": reader.WEIGHT_MAX}
PRIORITY = _whole(0, 7)
"""Values that several sections have."""
CLASS_FIGURES: Mapping[str, Schema] = {
    "guarantee": SHARE, "floor": SHARE, "ceiling": SHARE, "weight": WEIGHT, "priority": PRIORITY,
}  # fmt: skip
TIME: Schema = _text(_TIME, examples=["08:00"])

VALUES: Mapping[str, Mapping[str, Schema]] = {
    "interface": {
        "name": _text(r"[^\s/:\x00-\x1f]{1,15}"),
        "egress": {"anyOf": [{"const": "auto"}, RATE]},
        "ingress": {"anyOf": [{"enum": ["off", "auto"]}, RATE]},
        "gso_max_segs": {"enum": ["auto", "off"]},
    },
    "class": {
        **CLASS_FIGURES,
        "guarantee_window": DURATION,
        "programs": {
            "anyOf": [
                {"const": known_programs.ALL},
                {"type": "array", "items": {"enum": list(known_programs.KNOWN_PROGRAMS)}},
            ]
        },
    },
    "match": {
        "cgroup": NAME,
        "port": _whole(1, 65535),
        "uid": _whole(0, people.UID_MAX),
        "dscp": _whole(0, 63),
        "address": NAME,
    },
    "daemon": {
        "tick": DURATION, "state_dir": ABSOLUTE, "api_socket": ABSOLUTE, "session_socket": ABSOLUTE,
        "group": NAME, "admin_group": NAME, "record_file": ABSOLUTE,
    },
    "peers": {
        "listen": NAME, "ca": ABSOLUTE, "certificate": ABSOLUTE, "key": ABSOLUTE, "engine": {"enum": list(ENGINES)},
    },
    "probe": {
        "targets": {"type": "array", "items": NAME, "minItems": 1, "maxItems": probe.TARGETS_MAX},
        "interval": DURATION,
    },
    "job": {"weight": WEIGHT, "guarantee": SHARE, "ceiling": SHARE, "uid": _whole(0, people.UID_MAX)},
    "schedule": {
        "name": {**NAME, "maxLength": people.SCHEDULE_NAME_LENGTH_MAX},
        "days": {"type": "array", "items": {"enum": list(people.DAYS)}, "minItems": 1},
        "from": TIME, "to": TIME, "timezone": {**NAME, "examples": ["Europe/Berlin", "UTC"]},
    },
    "schedule.class": CLASS_FIGURES,
    "storage_program": {
        "name": _text(programs.NAME_PATTERN), "kind": {"enum": list(programs.KINDS)},
        "url": _text(r"(http|https)://.+|unix:/.+", examples=list(programs.DEFAULT_URLS.values())),
        "key_file": ABSOLUTE, "ca_file": ABSOLUTE, "deadline": TIME, "timezone": NAME,
        "limit": {"type": "boolean"},
    },
}  # fmt: skip
"""What a key may be, by section. A key of the reader's that is missing here may be anything."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "interface": ("name",),
    "peers": ("ca", "certificate", "key"),
    "probe": ("targets",),
    "storage_program": ("kind",),
    "schedule": ("name", "from", "to", "timezone", "class"),
}


def schema() -> Schema:
    """The whole schema."""
    match = {**_section("match"), "minProperties": 1, "maxProperties": 1}
    rules = {"type": "array", "items": match, "maxItems": toml.MATCH_RULES_MAX}
    classes = _by_class(_section("class", match=rules))
    schedule = _section("schedule", **{"class": {**_by_class(_section("schedule.class")), "minProperties": 1}})
    interfaces = {"type": "array", "items": _section("interface"), "minItems": 1, "maxItems": toml.INTERFACES_MAX}
    sections: dict[str, Schema] = {
        "version": {"const": 1},
        "interface": interfaces,
        "class": classes,
        "daemon": _section("daemon"),
        "peers": _section("peers"),
        "job": {"type": "object", "additionalProperties": _section("job"), "maxProperties": people.JOBS_MAX},
        "schedule": {"type": "array", "items": schedule, "maxItems": people.SCHEDULES_MAX},
        "probe": _section("probe"),
        "storage_program": {
            "type": "array", "items": _section("storage_program"), "maxItems": programs.PROGRAMS_MAX,
        },
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hive-qos broker.toml",
        **_object({key: sections.get(key, {}) for key in toml.KEYS[""]}, required=("version", "interface")),
    }


def _section(name: str, **more: Schema) -> Schema:
    values = {**VALUES[name], **more}
    return _object({key: values.get(key, {}) for key in toml.KEYS[name]}, required=REQUIRED.get(name, ()))


def _by_class(entry: Schema) -> Schema:
    return _object(dict.fromkeys(CLASS_NAMES, entry))


def _object(properties: Mapping[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    found: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**found, "required": list(required)} if required else found

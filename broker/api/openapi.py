"""The HTTP socket's description in OpenAPI 3.1, made from the types that are shown, so that it keeps up with them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

import msgspec

from broker.api.document import SCHEMA
from broker.api.programs import Program
from broker.api.snapshot import DaemonInfo, SessionInfo
from broker.law.capacity.quorum import Heard
from broker.model.leases import Hold, Lease
from broker.model.reasons import Reason
from broker.model.status_values import HostLoad, SegmentInfo
from broker.model.values import Alarm, InterfaceAllocation, Need, ScheduleInForce, SenderSample
from broker.peers.peer_status import PeerStatus
from broker.policy.types import TRIAL_S_MAX, TRIAL_S_MIN, Policy
from hive_qos import __version__

_TEXT: Mapping[str, Any] = {"type": "string"}
_NUMBER: Mapping[str, Any] = {"type": "number"}
_COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0}  # bytes, packets, rates
_MAYBE: Mapping[str, Any] = {"type": ["boolean", "null"]}
_FIGURE: Mapping[str, Any] = {"type": ["integer", "null"]}


def description() -> dict[str, Any]:
    """The whole of it. Objects may get more keys than stand here; none of these goes away within `schema` 1."""
    components: dict[str, Any] = {}
    interface = _of(InterfaceAllocation, components)
    _leave_out(components["InterfaceAllocation"], "jobs", "flows", "segments")  # shown by themselves
    components["ClassAllocation"]["properties"] |= _of_outbound(components)
    _of(Hold, components)
    _of(Lease, components)
    for name in ("Hold", "Lease"):
        _leave_out(components[name], "traffic_class")
        components[name] = {"allOf": [components[name], _object(**{"class": _TEXT, "granted": _MAYBE})]}
    components["Status"] = _object(
        schema={"const": SCHEMA}, host=_TEXT, version=_TEXT, daemon=_of(DaemonInfo, components),
        load=_of(HostLoad, components),
        interfaces=_list({"allOf": [interface, _object(shaped={"type": "boolean"}, measured=_measured(components))]}),
        flows=_list({"$ref": "#/components/schemas/Flow"}), flows_total=_COUNT, tcp_connections=_COUNT,
        programs=_list({"$ref": "#/components/schemas/Program"}), programs_total=_COUNT,
        jobs=_list({"$ref": "#/components/schemas/Job"}), schedules=_list(_of(ScheduleInForce, components)),
        needs=_list({"$ref": "#/components/schemas/Need"}), holds=_list({"$ref": "#/components/schemas/Hold"}),
        leases=_list({"$ref": "#/components/schemas/Lease"}), peers=_list(_of(PeerStatus, components)),
        sessions=_list(_of(SessionInfo, components)),
        alarms=_list(_of(Alarm, components)),
    )  # fmt: skip
    _of(SegmentInfo, components)  # the keys that an interface has besides while it is shaped
    flow = {"flow": _TEXT, "kind": {"enum": ["socket", "connection", "tcp", "udp", "probe"]}, "class": _TEXT}
    components["Flow"] = _object(**flow)
    components["Flows"] = _object(schema={"const": SCHEMA}, flows=_list({"$ref": "#/components/schemas/Flow"}))
    _of(Program, components)
    _leave_out(components["Program"], "traffic_class")
    components["Program"] = {"allOf": [components["Program"], _object(**{"class": _TEXT})]}
    components["Job"] = _object(
        job=_TEXT, uid=_COUNT, sessions=_COUNT, sockets=_COUNT,
        bursts=_list(_object(
            interface=_TEXT, step=_COUNT, announced_bytes=_COUNT, credited_bytes=_COUNT, age_s=_NUMBER,
            remaining_s=_NUMBER, next_s={"type": ["number", "null"]},
        )),
    )  # fmt: skip
    _of(Need, components)
    components["Need"] = {"allOf": [components["Need"], _object(interface=_TEXT)]}
    components["Done"] = _object(done=_TEXT)
    components["Error"] = _object(error=_TEXT)
    policy = _of(Policy, components)
    seconds = {"type": "number", "minimum": TRIAL_S_MIN, "maximum": TRIAL_S_MAX}
    trial = {"name": "confirm_s", "in": "query", "required": False, "schema": seconds}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hive-qos broker",
            "version": __version__,
            "description": "What a host's broker has decided, and why. Over a Unix socket; rights by SO_PEERCRED.",
        },
        "paths": {
            "/v1/status": _get("everything that is decided, and why", {"$ref": "#/components/schemas/Status"}),
            "/v1/policy": _get("the policy in force, as it was understood", policy),
            "/v1/flows": _get("all flows that are known", {"$ref": "#/components/schemas/Flows"}),
            "/v1/openapi.json": _get("this description", {"type": "object"}),
            "/metrics": _get("figures by class", None),
            "/v1/reload": _post("read the configuration again; on trial where `confirm_s` is given", [trial]),
            "/v1/confirm": _post("what is on trial is good", []),
        },
        "components": {"schemas": components},
    }


def _measured(components: dict[str, Any]) -> dict[str, Any]:
    """What a direction's figures rest on; null while the interface is not there. Towards us `senders` and more, from us
    `destinations`."""
    _of(SenderSample, components)
    _leave_out(components["SenderSample"], "traffic_class")
    sender = {"allOf": [{"$ref": "#/components/schemas/SenderSample"}, _object(**{"class": _TEXT})]}
    more = {"received_bytes": _FIGURE, "pace_bits_per_s": _FIGURE, "senders": _list(sender)}
    more["destinations"] = _list(_of(Heard, components))
    either: dict[str, Any] = _object(link_bits_per_s=_FIGURE, carrier=_MAYBE, carrier_changes=_FIGURE)
    either["properties"] |= {"counters_age_s": {"type": ["number", "null"]}, **more}
    return {"anyOf": [either, {"type": "null"}]}


def _get(summary: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    content = {"text/plain": {"schema": _TEXT}} if schema is None else {"application/json": {"schema": schema}}
    answers = {"200": {"description": "as of the last tick", "content": content}}
    return {"get": {"summary": summary, "responses": answers | _errors("403", "503")}}


def _of_outbound(components: dict[str, Any]) -> dict[str, Any]:
    """What a class of a way out has besides its allocation."""
    reason = _of(Reason, components)
    return {
        "window_s": _NUMBER, "average_bits_per_s": _FIGURE, "average_over_s": {"type": ["number", "null"]},
        "usable_bits_per_s": _COUNT, "lends_bits_per_s": {"type": "object"}, "lending": _TEXT,
        "held": _TEXT, "promise": reason, "limited_by": reason,
    }  # fmt: skip


def _post(summary: str, parameters: list[Any]) -> dict[str, Any]:
    done = {"description": "done", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Done"}}}}
    answers = {"200": done} | _errors("400", "403", "409", "422", "503")
    return {"post": {"summary": summary, "parameters": parameters, "responses": answers}}


_WHY = {
    "400": "not understood; nothing was changed",
    "403": "who asks may not",
    "409": "refused for the reason that is given; what held before holds",
    "422": "the configuration has a mistake, which is named; what held before holds",
    "503": "nobody can answer now",
}


def _errors(*codes: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {code: {"description": _WHY[code], "content": content} for code in codes}


def _leave_out(schema: dict[str, Any], *names: str) -> None:
    """What a type has and the document does not show."""
    for name in names:
        del schema["properties"][name]
        schema["required"].remove(name)


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_SIMPLE: Mapping[Any, Mapping[str, Any]] = {
    str: _TEXT, int: {"type": "integer"}, float: _NUMBER, bool: {"type": "boolean"}, type(None): {"type": "null"},
}  # fmt: skip


def _of(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type as `msgspec.to_builtins` writes it; structs become components."""
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, Union):
        return {"anyOf": [_of(one, components) for one in arguments]}
    if origin is tuple and arguments[-1] is Ellipsis:
        return _list(_of(arguments[0], components))
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of(arguments[1], components)}
    if names := _field_names(kind):
        if kind.__name__ not in components:
            components[kind.__name__] = {}  # named before its fields are read: one may hold its own kind
            hints = typing.get_type_hints(kind)
            fields = {name: _of(hints[name], components) for name in names}
            components[kind.__name__] = _object(**fields)
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    raise TypeError(f"no schema for {kind}")


def _field_names(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()

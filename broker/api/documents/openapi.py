"""The HTTP socket's description in OpenAPI 3.1, made from the types that are shown, so that it cannot differ."""

from __future__ import annotations

from typing import Any

import msgspec

from broker.api.documents.schema import Done, Error, Flows, RecentLog, Status, UsageReport
from broker.events.recent import LEVELS
from broker.model.usage import GROUPS
from broker.policy.settings import KEYS, PAUSE_S_MAX, SETTING_S_MAX, SETTINGS_MAX
from broker.policy.types import TRIAL_S_MAX, TRIAL_S_MIN, Policy
from hive_qos import __version__

_TEXT = {"type": "string"}
_WHY = {
    "400": "not understood; nothing was changed",
    "403": "who asks may not",
    "409": "refused for the reason that is given; what held before holds",
    "422": "the configuration has a mistake, which is named; what held before holds",
    "503": "nobody can answer now",
}


def description() -> dict[str, Any]:
    """The whole of it. Objects may get more keys than stand here; none of these goes away within `schema` 1."""
    shown = (Status, Flows, Policy, UsageReport, RecentLog, Done, Error)
    references, components = msgspec.json.schema_components(shown, ref_template="#/components/schemas/{name}")
    status, flows, policy, usage, log, done, error = references

    def answers(code_200: dict[str, Any], what: str, *refusals: str) -> dict[str, Any]:
        refused = {"application/json": {"schema": error}}
        return {
            "200": {"description": what, "content": code_200},
            **{code: {"description": _WHY[code], "content": refused} for code in refusals},
        }

    def get(summary: str, schema: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
        kind = "text/plain" if schema is _TEXT else "application/json"
        refusals = ("400", "403", "503") if parameters else ("403", "503")
        found = answers({kind: {"schema": schema}}, "as of the last tick", *refusals)
        more = {"parameters": list(parameters)} if parameters else {}
        return {"get": {"summary": summary, **more, "responses": found}}

    def post(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
        found = answers({"application/json": {"schema": done}}, "done", "400", "403", "409", "422", "503")
        return {"post": {"summary": summary, "parameters": list(parameters), "responses": found}}

    seconds = {"type": "number", "minimum": TRIAL_S_MIN, "maximum": TRIAL_S_MAX}
    trial = {"name": "confirm_s", "in": "query", "required": False, "schema": seconds}
    candidate = {"name": "candidate", "in": "query", "required": False, "schema": {"const": "true"}}
    kinds, several = {"enum": list(KEYS)}, {"type": "array", "items": _TEXT, "maxItems": SETTINGS_MAX}

    def for_s(most: float) -> dict[str, Any]:
        limits = {"type": "number", "minimum": 1, "maximum": most}
        return {"name": "for_s", "in": "query", "required": False, "schema": limits}

    def about(*, required: bool) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "query", "required": required, "schema": kind}
            for name, kind in (("kind", kinds), ("name", _TEXT))
        ]

    texts = {"name": "set", "in": "query", "required": True, "schema": {**several, "minItems": 1}}
    keys = {"name": "key", "in": "query", "required": False, "schema": several}
    span = [
        {"name": name, "in": "query", "required": False, "style": "form", "explode": False, "schema": kind}
        for name, kind in (
            ("since_s", {"type": "number"}),
            ("until_s", {"type": "number"}),
            ("by", {"type": "array", "items": {"enum": list(GROUPS)}}),
        )
    ]
    part = [
        {"name": name, "in": "query", "required": False, "schema": kind}
        for name, kind in (
            ("after", {"type": "integer", "minimum": 0}),
            ("since_s", {"type": "number"}),
            ("level", {"enum": list(LEVELS)}),
            ("limit", {"type": "integer", "minimum": 1}),
        )
    ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hive-qos broker",
            "version": __version__,
            "description": "What a host's broker has decided, and why. Over a Unix socket; rights by SO_PEERCRED.",
        },
        "paths": {
            "/v1/status": get("everything that is decided, and why", status),
            "/v1/policy": get("the policy in force, as it was understood", policy),
            "/v1/flows": get("all flows that are known", flows),
            "/v1/usage": get("what was carried, lent, borrowed and repaid", usage, *span),
            "/v1/log": get("the last events of the daemon's log", log, *part),
            "/v1/openapi.json": get("this description", {"type": "object"}),
            "/metrics": get("figures by class", _TEXT),
            "/v1/reload": post(
                "take the file, or with `candidate` that beside it; on trial by `confirm_s`", trial, candidate
            ),
            "/v1/confirm": post("what is on trial is good"),
            "/v1/rollback": post("end the trial: the former configuration comes back"),
            "/v1/set": post(
                "put KEY=VALUE over the file, until unset without `for_s`",
                *about(required=True),
                texts,
                for_s(SETTING_S_MAX),
            ),
            "/v1/unset": post("let the file count again, for all where nothing is named", *about(required=False), keys),
            "/v1/pause": post("limit nobody for a while, 600 s without `for_s`", for_s(PAUSE_S_MAX)),
            "/v1/resume": post("limit again"),
        },
        "components": {"schemas": components},
    }

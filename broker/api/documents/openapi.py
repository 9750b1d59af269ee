"""The HTTP socket's description in OpenAPI 3.1, made from the types that are shown, so that it cannot differ."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from broker.api.documents.schema import Done, Error, Flows, RecentLog, Status, UsageReport
from broker.api.questions import ACTIONS, Bare, LogQuestion, UsageQuestion, parameters
from broker.policy.types import Policy
from hive_qos import __version__

_TEXT = {"type": "string"}
_WHY = {
    "400": "not understood; nothing was changed",
    "403": "who asks may not",
    "409": "refused for the reason that is given; what held before holds",
    "422": "the configuration has a mistake, which is named; what held before holds",
    "503": "nobody can answer now",
}


_ACTIONS = {
    "/v1/reload": "take the file, or with `candidate` that beside it; on trial by `confirm_s`",
    "/v1/confirm": "what is on trial is good",
    "/v1/rollback": "end the trial: the former configuration comes back",
    "/v1/set": "put KEY=VALUE over the file, until unset without `for_s`",
    "/v1/unset": "let the file count again, for all where nothing is named",
    "/v1/pause": "limit nobody for a while, 600 s without `for_s`",
    "/v1/resume": "limit again",
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

    def get(summary: str, schema: dict[str, Any], asked: type[Struct] = Bare) -> dict[str, Any]:
        kind, given = "text/plain" if schema is _TEXT else "application/json", parameters(asked)
        refusals = ("400", "403", "503") if given else ("403", "503")
        found = answers({kind: {"schema": schema}}, "as of the last tick", *refusals)
        more = {"parameters": given} if given else {}
        return {"get": {"summary": summary, **more, "responses": found}}

    def post(path: str, summary: str) -> dict[str, Any]:
        found = answers({"application/json": {"schema": done}}, "done", "400", "403", "409", "422", "503")
        return {"post": {"summary": summary, "parameters": parameters(ACTIONS[path]), "responses": found}}

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
            "/v1/usage": get("what was carried, lent, borrowed and repaid", usage, UsageQuestion),
            "/v1/log": get("the last events of the daemon's log", log, LogQuestion),
            "/v1/openapi.json": get("this description", {"type": "object"}),
            "/metrics": get("figures by class", _TEXT),
            **{path: post(path, summary) for path, summary in _ACTIONS.items()},
        },
        "components": {"schemas": components},
    }

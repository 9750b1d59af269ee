"""What a POST may ask for, and how its query is read. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from broker.api.requests import PolicyRequest
from broker.policy.settings import SETTINGS_MAX

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "/v1/reload": ("confirm_s", "candidate"),
    "/v1/confirm": (),
    "/v1/rollback": (),
    "/v1/set": ("kind", "name", "set", "for_s"),
    "/v1/unset": ("kind", "name", "key"),
    "/v1/pause": ("for_s",),
    "/v1/resume": (),
}
"""The parameters of each. `set` and `key` may come several times."""
_FIELDS_MAX = SETTINGS_MAX + 3  # with kind, name and for_s


def request_of(path: str, query: str) -> PolicyRequest:
    """The request of a path of `ACTIONS`.

    Raises:
        ValueError: a parameter that the path has not, or that is no number: nothing is done then.
    """
    try:
        wanted = urllib.parse.parse_qs(query, keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise ValueError(f"at most {_FIELDS_MAX} parameters") from None
    unknown = sorted(wanted.keys() - set(ACTIONS[path]))
    if unknown:  # a trial that is misspelt must not become a change for good
        raise ValueError(f"{path} knows no {', '.join(unknown)!r}")
    return PolicyRequest(
        what=path.removeprefix("/v1/"),
        trial_s=_seconds(wanted, "confirm_s"),
        candidate=_true(wanted, "candidate"),
        for_s=_seconds(wanted, "for_s"),
        kind=wanted.get("kind", [""])[-1],
        name=wanted.get("name", [""])[-1],
        texts=tuple(wanted.get("set", wanted.get("key", ()))),
    )


def _seconds(wanted: Mapping[str, list[str]], name: str) -> float | None:
    if name not in wanted:
        return None
    try:
        return float(wanted[name][-1])
    except ValueError:
        raise ValueError(f"{name} is a number of seconds") from None


def _true(wanted: Mapping[str, list[str]], name: str) -> bool:
    if name in wanted and wanted[name][-1] != "true":
        raise ValueError(f"{name} is true, or left out")
    return name in wanted

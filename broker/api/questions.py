"""What a request's query may say, as types: how it is read and how OpenAPI describes it are both made from them."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from broker.events.recent import LEVELS
from broker.model.usage import GROUPS
from broker.policy.settings import KEYS, PAUSE_S_MAX, SETTING_S_MAX, SETTINGS_MAX
from broker.policy.types import TRIAL_S_MAX, TRIAL_S_MIN

Question = TypeVar("Question", bound=Struct)
MOMENT_S_MAX = 1e12
"""Seconds since 1970: thirty thousand years, and no infinity."""


def _seconds(low: float, high: float) -> Meta:
    """Judged by the loop, as what `hive-qos` and the file say."""
    return Meta(
        description=f"a number of seconds from {low:.0f} to {high:.0f}",
        extra_json_schema={"minimum": low, "maximum": high},
    )


def _name_of(names: Collection[str]) -> Meta:
    """A text that is one of some. `$` alone would let a line feed follow."""
    return Meta(
        pattern=rf"^({'|'.join(names)})$(?!\n)",
        description=f"one of {', '.join(names)}",
        extra_json_schema={"enum": list(names)},
    )


Count = Annotated[int, Meta(ge=0, description="a whole number from 0")]
Limit = Annotated[int, Meta(ge=1, description="a whole number from 1")]
Moment = Annotated[float, Meta(ge=-MOMENT_S_MAX, le=MOMENT_S_MAX, description="a number of seconds since 1970")]
Level = Annotated[str, _name_of(LEVELS)]
Groups = Annotated[
    tuple[Annotated[str, _name_of(GROUPS)], ...],
    Meta(description=f"one or more of {', '.join(GROUPS)}, with commas between them"),
]
Texts = Annotated[tuple[str, ...], Meta(max_length=SETTINGS_MAX, description=f"at most {SETTINGS_MAX} of these")]
Kind = Annotated[str, Meta(extra_json_schema={"enum": list(KEYS)})]
"""Judged with the setting, where the advice is better."""
OnlyTrue = Annotated[Literal["true"], Meta(description="true, or leave it out")]
TrialSeconds = Annotated[float, _seconds(TRIAL_S_MIN, TRIAL_S_MAX)]
SettingSeconds = Annotated[float, _seconds(1, SETTING_S_MAX)]
PauseSeconds = Annotated[float, _seconds(1, PAUSE_S_MAX)]
"""The descriptions are the advice to whom wrote another value."""
_FIELDS_MAX = SETTINGS_MAX + 3  # with kind, name and for_s
_SEVERAL = ("set", "key")
_LISTS = ("by",)


class LogQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Events with a larger number than `after`, since a time, at least as grave; of these the last `limit`."""

    after: Count = 0
    since_s: Moment = 0.0
    level: Level = "debug"
    limit: Limit | UnsetType = UNSET


class UsageQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Hours that begin in [since, until), seconds since 1970, and what divides them; until now, and by class."""

    since_s: Moment = 0.0
    until_s: Moment | UnsetType = UNSET
    by: Groups = ("class",)


class Bare(Struct, frozen=True, forbid_unknown_fields=True):
    """An action without parameters."""


class Reload(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long it is on trial, if it is; and whether it is of the candidate beside the file."""

    trial_s: TrialSeconds | UnsetType = field(name="confirm_s", default=UNSET)
    candidate: OnlyTrue | UnsetType = UNSET


class Set(Struct, frozen=True, forbid_unknown_fields=True):
    """What it is about, `KEY=VALUE`, and for how long it holds; without that it is kept."""

    kind: Kind
    name: str
    texts: Annotated[Texts, Meta(min_length=1)] = field(name="set")
    for_s: SettingSeconds | UnsetType = UNSET


class Unset(Struct, frozen=True, forbid_unknown_fields=True):
    """What it is about, and keys; all of it where none is named."""

    kind: Kind = ""
    name: str = ""
    texts: Texts = field(name="key", default=())


class PauseQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long."""

    for_s: PauseSeconds | UnsetType = UNSET


ACTIONS: Final[Mapping[str, type[Struct]]] = {
    "/v1/reload": Reload,
    "/v1/confirm": Bare,
    "/v1/rollback": Bare,
    "/v1/set": Set,
    "/v1/unset": Unset,
    "/v1/pause": PauseQuestion,
    "/v1/resume": Bare,
}
"""What a POST may ask for."""


def read_query(kind: type[Question], query: str) -> Question:
    """Read a query such as `after=17&level=warning`. `set` and `key` may come several times.

    Raises:
        ValueError: a parameter that the path has not, or that cannot be understood: nothing is done then, for a trial
            that is misspelt must not become a change for good.
    """
    given = urllib.parse.parse_qs(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=_FIELDS_MAX)
    values: dict[str, Any] = {name: found if name in _SEVERAL else found[-1] for name, found in given.items()}
    for name in values.keys() & set(_LISTS):
        values[name] = values[name].split(",") if values[name] else []
    known = kind.__struct_encode_fields__
    if unknown := sorted(values.keys() - set(known)):
        raise ValueError(f"no parameter {', '.join(unknown)!r}; known here: {', '.join(known) or 'none'}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise ValueError(_advice(kind, given, problem)) from None


def _advice(kind: type[Struct], given: Mapping[str, Sequence[str]], problem: msgspec.ValidationError) -> str:
    """Which parameter is wrong or missing, and what it takes: a validator tells of types and patterns."""
    for one in parameters(kind):
        name = one["name"]
        if one["required"] and name not in given:
            return f"{name} is missing"
        if re.search(rf"`\$\.{name}\b", str(problem)):
            return f"{name}={given[name][-1]}: write {one['schema']['description']}"
    return str(problem)


def parameters(kind: type[Struct]) -> list[dict[str, Any]]:
    """The parameters of a query as OpenAPI describes them."""
    (described,) = msgspec.json.schema(kind)["$defs"].values()
    return [
        {"name": name, "in": "query", "required": name in described["required"], "schema": schema}
        | ({"style": "form", "explode": False} if name in _LISTS else {})
        for name, schema in described["properties"].items()
    ]

"""What a request's query may say, as types: how it is read and how OpenAPI describes it are both made from them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping
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


def _one_of(names: Iterable[str]) -> Meta:
    """A text that is one of some: the pattern tells who wrote another what could be."""
    return Meta(pattern=f"^({'|'.join(names)})$", extra_json_schema={"enum": list(names)})


Moment = Annotated[float, Meta(ge=-MOMENT_S_MAX, le=MOMENT_S_MAX)]
Level = Annotated[str, _one_of(LEVELS)]
Group = Annotated[str, _one_of(GROUPS)]
Texts = Annotated[tuple[str, ...], Meta(max_length=SETTINGS_MAX)]
Kind = Annotated[str, Meta(extra_json_schema={"enum": list(KEYS)})]
"""Judged with the setting, where the advice is better."""
TrialSeconds = Annotated[float, Meta(extra_json_schema={"minimum": TRIAL_S_MIN, "maximum": TRIAL_S_MAX})]
SettingSeconds = Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": SETTING_S_MAX})]
PauseSeconds = Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": PAUSE_S_MAX})]
"""Judged by the loop, as what `hive-qos` and the file say."""
_FIELDS_MAX = SETTINGS_MAX + 3  # with kind, name and for_s
_SEVERAL = ("set", "key")
_LISTS = ("by",)


class LogQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Events with a larger number than `after`, since a time, at least as grave; of these the last `limit`."""

    after: Annotated[int, Meta(ge=0)] = 0
    since_s: Moment = 0.0
    level: Level = "debug"
    limit: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class UsageQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Hours that begin in [since, until), seconds since 1970, and what divides them; until now, and by class."""

    since_s: Moment = 0.0
    until_s: Moment | UnsetType = UNSET
    by: tuple[Group, ...] = ("class",)


class Bare(Struct, frozen=True, forbid_unknown_fields=True):
    """An action without parameters."""


class Reload(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long it is on trial, if it is; and whether it is of the candidate beside the file."""

    trial_s: TrialSeconds | UnsetType = field(name="confirm_s", default=UNSET)
    candidate: Literal["true"] | UnsetType = UNSET


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
    return msgspec.convert(values, kind, strict=False)


def parameters(kind: type[Struct]) -> list[dict[str, Any]]:
    """The parameters of a query as OpenAPI describes them."""
    (described,) = msgspec.json.schema(kind)["$defs"].values()
    return [
        {"name": name, "in": "query", "required": name in described["required"], "schema": schema}
        | ({"style": "form", "explode": False} if name in _LISTS else {})
        for name, schema in described["properties"].items()
    ]

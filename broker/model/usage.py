"""What was carried, lent, borrowed and repaid, as it is kept and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

HOUR_S = 3600
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "hour": ("hour_s",), "day": ("day_s",), "interface": ("interface",), "class": ("class",), "job": ("job", "uid"),
    "user": ("uid",),
}  # fmt: skip
"""What a report can be divided by, and the keys of a row that do it: a job is a name of one user."""


def keys_of(by: Iterable[str]) -> tuple[str, ...]:
    """The keys of a row that divide a report, in the order asked, each once.

    Raises:
        KeyError: a part is none of `GROUPS`.
    """
    return tuple(dict.fromkeys(key for one in by for key in GROUPS[one]))


class UsageKey(Struct, frozen=True, kw_only=True):
    """Whose bytes: of one hour, interface, class and job. `hour_s` is the hour's begin, in seconds since 1970 (UTC).

    `job` is "" and `uid` None for what no job of a session has sent: programs that know nothing of us.
    """

    hour_s: int
    interface: str
    traffic_class: str = field(name="class")
    job: str = ""
    uid: int | None = None


class Usage(Struct, frozen=True, kw_only=True):
    """Bytes on the wire, outbound.

    `lent_bytes` are what a class left of its guarantee to others while it had more to send, `borrowed_bytes` what
    others took of that, and `repaid_bytes` what the lender got above its guarantee afterwards, at most what it lent.
    """

    carried_bytes: int = 0
    lent_bytes: int = 0
    borrowed_bytes: int = 0
    repaid_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            carried_bytes=self.carried_bytes + other.carried_bytes,
            lent_bytes=self.lent_bytes + other.lent_bytes,
            borrowed_bytes=self.borrowed_bytes + other.borrowed_bytes,
            repaid_bytes=self.repaid_bytes + other.repaid_bytes,
        )


class UsageRow(Usage, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a report; what it is not divided by is left out. `hour_s` and `day_s` are begins in UTC."""

    hour_s: int | None = None
    day_s: int | None = None
    interface: str | None = None
    traffic_class: str | None = field(name="class", default=None)
    job: str | None = None
    uid: int | None = None
    carried_bytes: int
    lent_bytes: int
    borrowed_bytes: int
    repaid_bytes: int

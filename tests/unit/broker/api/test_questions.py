"""A query that cannot be understood is refused with what could be written, and where."""

from __future__ import annotations

import pytest
from msgspec import Struct

from broker.api.questions import ACTIONS, LogQuestion, UsageQuestion, read_query

RELOAD, SET, CONFIRM = (ACTIONS[f"/v1/{name}"] for name in ("reload", "set", "confirm"))


@pytest.mark.parametrize(
    ("kind", "query", "text"),
    [
        (RELOAD, "confirm=60", "no parameter 'confirm'; known here: confirm_s, candidate"),
        (RELOAD, "confirm_s=60s", "confirm_s=60s: write a number of seconds from 1 to 3600"),
        (RELOAD, "candidate=yes", "candidate=yes: write true, or leave it out"),
        (CONFIRM, "x=1", "no parameter 'x'; known here: none"),
        (SET, "kind=job&name=x", "set is missing"),
        (SET, "kind=job&name=x&set=weight%3D2&for_s=1h", "for_s=1h: write a number of seconds from 1 to 2592000"),
        (LogQuestion, "after=-1", "after=-1: write a whole number from 0"),
        (LogQuestion, "since_s=inf", "since_s=inf: write a number of seconds since 1970"),
        (LogQuestion, "level=warn", "level=warn: write one of debug, info, warning, error"),
        (UsageQuestion, "by=class,jobs", "by=class,jobs: write one or more of hour, day, interface, class, job, user"),
    ],
)
def test_who_mistypes_a_query_reads_where_and_what_it_takes(kind: type[Struct], query: str, text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared
        read_query(kind, query)
    assert str(refused.value).removesuffix(", with commas between them") == text


@pytest.mark.parametrize(("kind", "query"), [(LogQuestion, "level=debug%0A"), (UsageQuestion, "by=class%0A")])
def test_a_name_with_a_line_feed_behind_it_is_none(kind: type[Struct], query: str) -> None:
    with pytest.raises(ValueError, match="write one"):
        read_query(kind, query)

"""Ranks say of themselves what another one asks; what nobody asked for is ignored."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from transport.engine.base import ConnectionStatistics
from transport.inspection import links
from transport.inspection.survey import Survey
from transport.mesh.endpoint import CONTROL_BYTES_MAX

WIDE = {"links": [[number, random.Random(number).random()] for number in range(1000)]}


class Ranks:
    """Surveys of some ranks; what they send waits in `under_way`, what they do in their thread is done at once."""

    def __init__(self, size: int) -> None:
        self.under_way: list[tuple[int, int, Mapping[str, Any]]] = []
        self.surveys = [
            Survey(send=self._sender(rank), call=lambda item: item(), describe=lambda rank=rank: {"rank": rank, **WIDE})
            for rank in range(size)
        ]

    def _sender(self, by: int) -> Callable[[int, Mapping[str, Any]], None]:
        return lambda rank, message: self.under_way.append((by, rank, json.loads(json.dumps(message))))

    def deliver(self, by: int, rank: int, message: Mapping[str, Any]) -> None:
        fields = {key: value for key, value in message.items() if key != "op"}
        if message["op"] == "describe":
            self.surveys[rank].describe_to(by, fields["number"])
        else:
            self.surveys[rank].described(by, **fields)


def collect(ranks: Ranks, of: list[int]) -> dict[int, Mapping[str, object]]:
    """Rank 0 asks while the messages go to and fro."""
    found: dict[int, Mapping[str, object]] = {}
    asking = threading.Thread(target=lambda: found.update(ranks.surveys[0].collect(of, limit_s=20.0)))
    asking.start()
    while asking.is_alive():
        waiting = [ranks.under_way.pop(0) for _ in range(len(ranks.under_way))]  # the other thread appends meanwhile
        for one in waiting:
            ranks.deliver(*one)
        asking.join(0.01)
    return found


def test_every_rank_is_heard() -> None:
    found = collect(Ranks(4), [1, 2, 3])
    assert found == {rank: {"rank": rank, **WIDE} for rank in (1, 2, 3)}


def test_who_does_not_answer_in_time_is_missing_and_may_answer_later_in_vain() -> None:
    ranks = Ranks(2)
    assert ranks.surveys[0].collect([1], limit_s=0.0) == {}
    for one in ranks.under_way:
        ranks.deliver(*one)
    assert ranks.surveys[0].collect([], limit_s=0.0) == {}


@pytest.mark.parametrize(("rank", "number"), [(2, 0), (1, 7)])
def test_an_answer_that_nobody_waits_for_changes_nothing(rank: int, number: int) -> None:
    ranks = Ranks(3)
    found: list[object] = []
    survey = ranks.surveys[0]
    asking = threading.Thread(target=lambda: found.append(survey.collect([1], limit_s=20.0)))
    asking.start()
    while not ranks.under_way:
        asking.join(0.001)
    survey.described(rank, number, {"a": "lie"})
    survey.described(1, 0, {"a": "truth"})
    asking.join(20.0)
    assert found == [{1: {"a": "truth"}}]


def statistics(**fields: Any) -> ConnectionStatistics:
    known = dict.fromkeys(ConnectionStatistics.__dataclass_fields__, 0)
    return ConnectionStatistics(**{**known, "peer": "p", "remote": ("", 0), **fields})


def test_connections_to_one_rank_are_one_row() -> None:
    found = links.rows(
        [
            (3, statistics(rtt_s=0.02, delivery_rate_bits_per_s=100, lost_packets=1, sent_packets=10, sent_bytes=7)),
            (3, statistics(rtt_s=0.01, delivery_rate_bits_per_s=50, lost_packets=2, sent_packets=20, sent_bytes=5)),
        ]
    )
    (row,) = found
    assert (row["rank"], row["rate_bits_per_s"], row["rtt_s"], row["loss"], row["sent_bytes"]) == (
        3,
        150,
        0.01,
        0.1,
        12,
    )


def test_of_very_many_links_those_with_the_longest_round_trips_stay() -> None:
    found = links.rows([(rank, statistics(rtt_s=rank / 1000)) for rank in range(1000)])
    assert [one["rank"] for one in found] == list(range(1000 - links.LINKS_MAX, 1000))
    assert len(json.dumps(found)) < CONTROL_BYTES_MAX / 2

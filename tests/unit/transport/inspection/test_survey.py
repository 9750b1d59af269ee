"""What ranks say of themselves comes in parts, in any order; what nobody asked for, or what is too much, is ignored."""

from __future__ import annotations

import base64
import json
import random
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from memory_engine import statistics

from transport.inspection import links
from transport.inspection.survey import DOCUMENT_BYTES_MAX, PARTS_MAX, Survey, packed, unpacked
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
            self.surveys[rank].described(by, fields.pop("number"), **fields)


def collect(ranks: Ranks, of: list[int], *, shuffled: bool = False) -> dict[int, Mapping[str, object]]:
    """Rank 0 asks while the messages go to and fro."""
    found: dict[int, Mapping[str, object]] = {}
    asking = threading.Thread(target=lambda: found.update(ranks.surveys[0].collect(of, limit_s=20.0)))
    asking.start()
    while asking.is_alive():
        waiting = [ranks.under_way.pop(0) for _ in range(len(ranks.under_way))]  # the other thread appends meanwhile
        if shuffled:
            random.Random(1).shuffle(waiting)
        for one in waiting:
            ranks.deliver(*one)
        asking.join(0.01)
    return found


@pytest.mark.parametrize("shuffled", [False, True])
def test_every_rank_is_heard_whatever_the_order_of_its_parts(shuffled: bool) -> None:
    found = collect(Ranks(4), [1, 2, 3], shuffled=shuffled)
    assert found == {rank: {"rank": rank, **WIDE} for rank in (1, 2, 3)}


def test_who_does_not_answer_in_time_is_missing_and_may_answer_later_in_vain() -> None:
    ranks = Ranks(2)
    assert ranks.surveys[0].collect([1], limit_s=0.0) == {}
    for one in ranks.under_way:
        ranks.deliver(*one)
    assert ranks.surveys[0].collect([], limit_s=0.0) == {}


def test_a_part_fits_into_a_control_message() -> None:
    texts = packed(WIDE)
    assert len(texts) > 3
    message = {"op": "described", "number": 2**31, "part": 10, "parts": 10, "text": texts[0]}
    assert len(json.dumps(message)) < CONTROL_BYTES_MAX


def test_what_is_no_document_is_ignored() -> None:
    bomb = base64.b64encode(zlib.compress(b" " * (DOCUMENT_BYTES_MAX + 1))).decode()
    lists = base64.b64encode(zlib.compress(b"[" * 100_000)).decode()
    cut = base64.b64encode(zlib.compress(b'{"a": 1}')[:-8]).decode()
    for text in (bomb, lists, "no base64", base64.b64encode(b"not zlib").decode(), cut):
        with pytest.raises(ValueError, match=r"\w"):
            unpacked([text])


@pytest.mark.parametrize(
    ("rank", "number", "part", "parts"),
    [(2, 0, 0, 1), (1, 7, 0, 1), (1, 0, 1, 1), (1, 0, -1, 1), (1, 0, 0, PARTS_MAX + 1)],
)
def test_an_answer_that_nobody_waits_for_changes_nothing(rank: int, number: int, part: int, parts: int) -> None:
    ranks = Ranks(3)
    found: list[object] = []
    survey = ranks.surveys[0]
    asking = threading.Thread(target=lambda: found.append(survey.collect([1], limit_s=20.0)))
    asking.start()
    while not ranks.under_way:
        asking.join(0.001)
    survey.described(rank, number, part=part, parts=parts, text=packed({"a": "lie"})[0])
    survey.described(1, 0, part=0, parts=1, text=packed({"a": "truth"})[0])
    asking.join(20.0)
    assert found == [{1: {"a": "truth"}}]


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
    assert len(packed({"links": found})) <= PARTS_MAX

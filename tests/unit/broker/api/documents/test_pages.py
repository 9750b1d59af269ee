"""Pages are encoded in pieces, so that no reader keeps the interpreter from the loop, and made once for all readers."""

from __future__ import annotations

import json
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from broker.api.documents import pages
from broker.api.documents.pages import DESCRIPTION, PATHS, Pages, encoded
from broker.api.documents.schema import Flows, UdpFlow
from broker.api.documents.snapshot import Snapshot


class Line(Struct):
    """A document that has every kind of field."""

    lines: list[str]
    pairs: dict[str, int]
    one: int | None = None


@given(st.lists(st.text(), max_size=5), st.dictionaries(st.text(), st.integers(0, 9)), st.none() | st.integers(0, 9))
def test_pieces_make_the_bytes_that_one_call_makes(lines: list[str], pairs: dict[str, int], one: int | None) -> None:
    whole = Line(lines, pairs, one)
    assert encoded(whole) == msgspec.json.encode(whole)


def test_no_call_encodes_more_than_one_entry_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of C keeps the interpreter's lock: the loop would wait for all flows of a document."""
    sizes: list[int] = []

    class Counting:
        def encode(self, value: object) -> bytes:
            body = msgspec.json.encode(value)
            sizes.append(len(body))
            return body

    monkeypatch.setattr(pages, "_ENCODER", Counting())
    flow = UdpFlow(
        flow="udp/1", traffic_class="other", local="10.0.0.1:1", peer=None, uid=0, pid=None, command="x" * 64,
        cgroup=None, waiting_bytes=0, waited_lately=False,
    )  # fmt: skip
    found = encoded(Flows(flows=[flow] * 2000))
    assert len(json.loads(found)["flows"]) == 2000
    assert max(sizes) == len(msgspec.json.encode(flow))


def test_a_page_of_a_snapshot_is_made_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def document(snapshot: Snapshot) -> Line:
        made.append(snapshot)
        return Line([str(snapshot)], {})

    monkeypatch.setattr(pages, "_PAGES", {"/v1/status": (pages.JSON, document)})
    shown, first, second = Pages(), cast(Snapshot, "first"), cast(Snapshot, "second")
    assert [shown.of("/v1/status", first) for _ in range(3)] == [(pages.JSON, encoded(Line(["first"], {})))] * 3
    assert shown.of("/v1/status", second) == (pages.JSON, encoded(Line(["second"], {})))
    assert made == [first, second]


def test_the_description_is_the_same_every_time_and_lists_the_pages() -> None:
    shown = Pages()
    kind, body = shown.description()
    assert (kind, body) == shown.description()
    assert set(PATHS) <= set(json.loads(body)["paths"])
    assert DESCRIPTION in PATHS

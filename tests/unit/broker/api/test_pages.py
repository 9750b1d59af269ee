"""Pages are encoded in pieces, so that no reader keeps the interpreter from the loop, and made once for all readers."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api import pages
from broker.api.pages import AT_ONCE, DESCRIPTION, PATHS, Pages, encoded
from broker.api.snapshot import Snapshot

KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2 * AT_ONCE) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=60,
)


@given(VALUES)
def test_pieces_make_the_bytes_that_json_makes_of_the_whole(value: Any) -> None:
    assert encoded(value) == json.dumps(value).encode()


def test_a_name_that_json_does_not_take_is_refused() -> None:
    with pytest.raises(TypeError, match="keys must be"):
        encoded({(1, 2): 3})


def test_no_call_encodes_more_than_a_few_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    whole = json.dumps

    def dumps(value: Any) -> str:
        text = whole(value)
        sizes.append(len(text))
        return text

    monkeypatch.setattr("broker.api.pages.json.dumps", dumps)
    flow = {"flow": "tcp/1/10.0.0.1:2", "rtt_s": 0.001, "command": "x" * 64}
    document = {"schema": 1, "interfaces": [{"classes": [flow] * 4}] * 64, "flows": [flow] * 2000}
    found = encoded(document)
    assert json.loads(found) == document
    assert max(sizes) <= AT_ONCE * len(whole({"classes": [flow] * 4}) + ", ")
    assert len(found) > 50 * len(whole([flow] * AT_ONCE))


def test_a_page_of_a_snapshot_is_made_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def document(snapshot: Snapshot) -> dict[str, Any]:
        made.append(snapshot)
        return {"of": str(snapshot)}

    monkeypatch.setattr(pages, "_PAGES", {"/v1/status": (pages.JSON, document)})
    shown, first, second = Pages(), cast(Snapshot, "first"), cast(Snapshot, "second")
    assert [shown.of("/v1/status", first) for _ in range(3)] == [(pages.JSON, b'{"of": "first"}')] * 3
    assert shown.of("/v1/status", second) == (pages.JSON, b'{"of": "second"}')
    assert made == [first, second]


def test_the_description_is_the_same_every_time_and_lists_the_pages() -> None:
    shown = Pages()
    kind, body = shown.description()
    assert (kind, body) == shown.description()
    assert set(PATHS) <= set(json.loads(body)["paths"])
    assert DESCRIPTION in PATHS

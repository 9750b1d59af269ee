"""The vectors of the wire protocol hold in both directions, and the tables of docs/reference/wire.md are the code's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from transport.wire.control_frames import FrameReader, encode_frame
from transport.wire.dtypes import ITEM_BYTES
from transport.wire.error_codes import WireCode, WireError
from transport.wire.header import Header, Kind, decode_header, encode_header, split_header
from transport.wire.varint import decode_varint, encode_varint

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
TEXT = (REFERENCE / "wire.md").read_text(encoding="utf-8")
VECTORS = [json.loads(line) for line in (REFERENCE / "wire-vectors.jsonl").read_text(encoding="utf-8").splitlines()]


def of_kind(kind: str) -> list[Any]:
    found = [pytest.param(vector, id=f"{kind}-{at}") for at, vector in enumerate(VECTORS) if vector["kind"] == kind]
    assert found, f"the document has no vectors of kind {kind}"
    return found


@pytest.mark.parametrize("vector", of_kind("varint"))
def test_varint_vectors_hold(vector: dict[str, Any]) -> None:
    wire = bytes.fromhex(vector["wire"])
    assert encode_varint(vector["value"]) == wire
    assert decode_varint(wire) == (vector["value"], len(wire))


@pytest.mark.parametrize("vector", of_kind("header"))
def test_header_vectors_hold(vector: dict[str, Any]) -> None:
    fields = dict(vector["value"])
    fields["kind"] = Kind(fields["kind"])
    fields["shape"] = tuple(fields.get("shape", ()))
    header = Header(**fields)
    wire = bytes.fromhex(vector["wire"])
    assert encode_header(header) == wire
    split = split_header(wire + b"payload")
    assert split is not None
    assert decode_header(split[0]) == header
    assert split[1] == len(wire)


@pytest.mark.parametrize("vector", of_kind("control"))
def test_control_vectors_hold(vector: dict[str, Any]) -> None:
    fields = with_integer_keys(vector["value"])
    wire = bytes.fromhex(vector["wire"])
    assert encode_frame(vector["type"], fields) == wire
    assert list(FrameReader().feed(wire)) == [(vector["type"], fields)]


@pytest.mark.parametrize("vector", of_kind("bad-header"))
def test_bad_header_vectors_are_refused_with_their_code(vector: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        decode_header(bytes.fromhex(vector["wire"]))
    assert caught.value.wire_code == vector["code"]


def test_the_table_of_codes_is_the_enumeration() -> None:
    table = dict(re.findall(r"^\| (0x[0-9a-f]{2}) \| ([A-Z_]+) \|", TEXT, re.MULTILINE))
    assert {int(code, 16): name for code, name in table.items()} == {int(code): code.name for code in WireCode}


def test_the_list_of_dtypes_is_the_table() -> None:
    rows = re.findall(
        r"^\| (.*) \| (\d+) \|$", TEXT.split("| dtype | bytes of an element |")[1].split("## ")[0], re.MULTILINE
    )
    listed = {name: int(size) for names, size in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == dict(ITEM_BYTES)


def with_integer_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {int(key): with_integer_keys(entry) for key, entry in value.items()}
    return value

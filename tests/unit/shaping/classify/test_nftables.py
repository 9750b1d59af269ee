"""The table's messages say what the filters say; read back here with a decoder of the tests' own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hive_qos.netlink import Request, attribute_map
from shaping.classify.nftables import replace_table
from shaping.model.names import MARK_MINOR
from shaping.model.shapes import Rule
from shaping.model.tree import FilterSpec
from shaping.plan.packet_filters import packet_filters

HEAD_BYTES = 4


def expressions(request: Request) -> Iterator[str]:
    """A rule's expressions in short: the name and what tells one from another."""
    listed = attribute_map(request.body, HEAD_BYTES)[4]
    while listed:  # all are of one kind
        length = int.from_bytes(listed[:2], sys.byteorder)
        expression = attribute_map(listed[4:length])
        listed = listed[(length + 3) & ~3 :]
        name, data = expression[1].rstrip(b"\0").decode(), attribute_map(expression[2])
        match name:
            case "meta":
                yield f"{'set' if 3 in data else 'load'} meta {number(data[2])}"
            case "payload":
                yield f"load {number(data[4])} bytes at {number(data[3])} from base {number(data[2])}"
            case "bitwise":
                assert not any(attribute_map(data[5])[1])
                yield f"and {attribute_map(data[4])[1].hex()}"
            case "cmp":
                yield f"is {attribute_map(data[3])[1].hex()}"
            case "immediate":
                value = attribute_map(data[2])
                yield f"verdict {number(attribute_map(value[2])[1])}" if 2 in value else f"put {value[1].hex()}"


def number(word: bytes) -> int:
    return int.from_bytes(word, "big")


def rules_of(filters: tuple[FilterSpec, ...]) -> list[list[str]]:
    return [list(expressions(request)) for request in replace_table(filters)[4:]]


STORAGE = [
    f"put {(0xFFE00030).to_bytes(4, sys.byteorder).hex()}",
    "set meta 2",
    "verdict 1",
]
IPV4, IPV6 = ["load meta 15", "is 02"], ["load meta 15", "is 0a"]


def test_a_network_is_compared_with_source_and_destination() -> None:
    filters = packet_filters(
        (Rule("storage", address="172.17.0.0/16"), Rule("storage", address="fd00::/40")), MARK_MINOR
    )
    assert rules_of(filters) == [
        [*IPV4, "load 4 bytes at 12 from base 1", "and ffff0000", "is ac110000", *STORAGE],
        [*IPV4, "load 4 bytes at 16 from base 1", "and ffff0000", "is ac110000", *STORAGE],
        [
            *IPV6,
            *("load 4 bytes at 8 from base 1", "is fd000000"),
            *("load 4 bytes at 12 from base 1", "and ff000000", "is 00000000"),
            *STORAGE,
        ],
        [
            *IPV6,
            *("load 4 bytes at 24 from base 1", "is fd000000"),
            *("load 4 bytes at 28 from base 1", "and ff000000", "is 00000000"),
            *STORAGE,
        ],
    ]


def test_a_port_is_compared_in_both_families_and_protocols_and_the_rules_keep_their_order() -> None:
    filters = packet_filters((Rule("storage", port=873), Rule("other", dscp=8)), MARK_MINOR)
    rules = rules_of(filters)
    assert len(rules) == 8 + 2
    assert rules[1] == [
        *IPV6,
        *("load 4 bytes at 4 from base 1", "and 0000ff00", "is 00000600"),
        *("load 4 bytes at 40 from base 1", "and ffff0000", "is 03690000"),
        *STORAGE,
    ]
    assert rules[-1][-3] == f"put {(0xFFE00410).to_bytes(4, sys.byteorder).hex()}"

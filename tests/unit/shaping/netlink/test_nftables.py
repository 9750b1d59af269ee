"""The table's messages say what the rules say; read back here by pyroute2's decoder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from pyroute2.netlink.nfnetlink.nftsocket import nft_rule_msg

from hive_qos.netlink import Request
from shaping.model.names import MARK_MINOR
from shaping.model.shapes import Rule
from shaping.netlink import messages
from shaping.netlink.nftables import replace_table


def expressions(request: Request) -> Iterator[str]:
    """A rule's expressions in short: the name and what tells one from another."""
    rule = messages.decode(nft_rule_msg, request.message_type, request.body)
    for expression in rule.get_attr("NFTA_RULE_EXPRESSIONS"):
        name, data = expression.get_attr("NFTA_EXPR_NAME"), expression.get_attr("NFTA_EXPR_DATA")

        def value(key: str, data: object = data) -> str:
            return bytes(data.get_nested(key, "NFTA_DATA_VALUE")).hex()  # type: ignore[attr-defined]

        match name:
            case "meta":
                action = "load" if data.get_attr("NFTA_META_SREG") is None else "set"
                yield f"{action} {data.get_attr('NFTA_META_KEY')}"
            case "payload":
                base, start, size = (data.get_attr(f"NFTA_PAYLOAD_{key}") for key in ("BASE", "OFFSET", "LEN"))
                yield f"load {size} at {start} from {base}"
            case "bitwise":
                assert not int(value("NFTA_BITWISE_XOR"), 16)
                yield f"and {value('NFTA_BITWISE_MASK')}"
            case "cmp":
                yield f"is {value('NFTA_CMP_DATA')}"
            case "immediate":
                verdict = data.get_nested("NFTA_IMMEDIATE_DATA", "NFTA_DATA_VERDICT", "NFTA_VERDICT_CODE")
                yield verdict if verdict else f"put {value('NFTA_IMMEDIATE_DATA')}"


def rules_of(*rules: Rule) -> list[list[str]]:
    requests = replace_table([(rule, MARK_MINOR[rule.target]) for rule in rules])
    return [list(expressions(request)) for request in requests[4:]]


STORAGE = [f"put {(0xFFE00030).to_bytes(4, sys.byteorder).hex()}", "set NFT_META_PRIORITY", "NF_ACCEPT"]
IPV4, IPV6 = ["load NFT_META_NFPROTO", "is 02"], ["load NFT_META_NFPROTO", "is 0a"]
NETWORK, TRANSPORT = "NFT_PAYLOAD_NETWORK_HEADER", "NFT_PAYLOAD_TRANSPORT_HEADER"


def test_a_network_is_compared_with_source_and_destination() -> None:
    four, six = f"{0xAC110000:08x}", "fd" + 15 * "00"
    assert rules_of(Rule("storage", address="172.17.0.0/16"), Rule("storage", address="fd00::/40")) == [
        [*IPV4, f"load 4 at 12 from {NETWORK}", "and ffff0000", f"is {four}", *STORAGE],
        [*IPV4, f"load 4 at 16 from {NETWORK}", "and ffff0000", f"is {four}", *STORAGE],
        [*IPV6, f"load 16 at 8 from {NETWORK}", f"and {'ff' * 5 + '00' * 11}", f"is {six}", *STORAGE],
        [*IPV6, f"load 16 at 24 from {NETWORK}", f"and {'ff' * 5 + '00' * 11}", f"is {six}", *STORAGE],
    ]


def test_a_single_address_needs_no_mask() -> None:
    assert rules_of(Rule("storage", address="10.0.0.7"))[0] == [
        *IPV4,
        f"load 4 at 12 from {NETWORK}",
        "is 0a000007",
        *STORAGE,
    ]


def test_a_port_is_compared_at_both_ends_in_both_protocols_and_the_rules_keep_their_order() -> None:
    rules = rules_of(Rule("storage", port=873), Rule("storage", port=53), Rule("other", dscp=8))
    ports = [
        [
            "load NFT_META_L4PROTO",
            f"is {protocol:02x}",
            f"load 2 at {start} from {TRANSPORT}",
            f"is {port:04x}",
            *STORAGE,
        ]
        for port, protocol, start in itertools.product((873, 53), (6, 17), (0, 2))
    ]
    assert rules[:-2] == ports
    assert rules[-1][-3] == f"put {(0xFFE00410).to_bytes(4, sys.byteorder).hex()}"


def test_a_codepoint_is_compared_without_the_congestion_bits() -> None:
    assert rules_of(Rule("storage", dscp=46)) == [
        [*IPV4, f"load 1 at 1 from {NETWORK}", "and fc", "is b8", *STORAGE],
        [*IPV6, f"load 2 at 0 from {NETWORK}", "and 0fc0", "is 0b80", *STORAGE],
    ]

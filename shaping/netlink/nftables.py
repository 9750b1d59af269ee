"""One table of nftables that classifies what this host forwards, as pyroute2's messages. Pure: rules in, messages out.

    table inet hive_qos { flags owner
        chain forward { type filter hook forward priority mangle; policy accept
            ip saddr 172.17.0.0/16 meta priority set ffe0:30 accept
            meta l4proto tcp th sport 873 meta priority set ffe0:30 accept
            ...

Why here: source addresses are translated (masquerade) behind the forward hook, so this is the last place that sees a
container's own address; and the first whose priority lasts, for the kernel sets that of every IPv4 packet anew when it
decides to forward it (net.ipv4.ip_forward_update_priority), whatever was set inbound. The rules mean what the filters
of the HTB root mean, and find ports behind options and extension headers, too.

The table belongs to the socket that made it (NFT_TABLE_F_OWNER, Linux 5.12): nobody else can change or flush it, and
the kernel removes it when that socket closes, however its process ends. So nothing has to be journalled or cleared.

All goes as one transaction (`NetlinkSocket.transact`); pyroute2's own NFTables makes one of each command. A rule of the
table takes 0.7 ms of CPU, at a start or a reload; 64 rules on ports are 256, 0.18 s.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from pyroute2.netlink import nlmsg
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nfgen_msg
from pyroute2.netlink.nfnetlink.nftsocket import (
    NFPROTO_INET,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NFT_MSG_DELTABLE,
    NFT_MSG_GETGEN,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE,
    Cmp,
    Meta,
    Regs,
    nft_chain_msg,
    nft_rule_msg,
    nft_table_msg,
)
from pyroute2.nftables.expressions import genex, verdict

from hive_qos.netlink import NLM_F_CREATE, Request
from shaping.model.names import classid
from shaping.model.shapes import Rule
from shaping.netlink import messages

TABLE = "hive_qos"
_CHAIN = "forward"
OWNER_SINCE = (5, 12)
"""Of Linux: tables that belong to a socket."""

# linux/netlink.h, linux/netfilter.h, and of linux/netfilter/{nfnetlink,nf_tables}.h what pyroute2 does not name.
NETLINK_NETFILTER = 12
_NLM_F_APPEND = 0x800
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_TABLE_OWNER = 2
_HOOK_FORWARD = 2
_PRIORITY_MANGLE = -150
_ACCEPT = 1
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2

_PROTOCOLS = (6, 17)  # TCP and UDP: IANA, Protocol Numbers
_PORT_OFFSETS = (0, 2)  # source, destination
_ADDRESSES = {4: (NFPROTO_IPV4, (12, 16)), 6: (NFPROTO_IPV6, (8, 24))}  # RFC 791, RFC 8200: source, destination


def generation() -> Request:
    """Ask how often the rules have changed: whoever answers is nftables, and nothing changes by it."""
    return _request(nfgen_msg, NFT_MSG_GETGEN)


def begin() -> Request:
    """What opens a transaction."""
    return messages.request(nfgen_msg, _BATCH_BEGIN, res_id=NFNL_SUBSYS_NFTABLES)


def end() -> Request:
    """What commits it."""
    return messages.request(nfgen_msg, _BATCH_END, res_id=NFNL_SUBSYS_NFTABLES)


def replace_table(rules: Sequence[tuple[Rule, int]]) -> list[Request]:
    """Make the table anew, in one transaction with the removal of the former one of this socket.

    Args:
        rules: each with the minor that its packets' priority names; the first that matches counts.
    """
    name, owner = ("NFTA_TABLE_NAME", TABLE), ("NFTA_TABLE_FLAGS", _TABLE_OWNER)
    hook = {"attrs": [("NFTA_HOOK_HOOKNUM", _HOOK_FORWARD), ("NFTA_HOOK_PRIORITY", _PRIORITY_MANGLE)]}
    chain = {"TABLE": TABLE, "NAME": _CHAIN, "HOOK": hook, "POLICY": _ACCEPT, "TYPE": "filter"}
    return [
        _request(nft_table_msg, NFT_MSG_NEWTABLE, name, owner, how=NLM_F_CREATE),  # a removal wants one to be there
        _request(nft_table_msg, NFT_MSG_DELTABLE, name),
        _request(nft_table_msg, NFT_MSG_NEWTABLE, name, owner, how=NLM_F_CREATE),
        _request(
            nft_chain_msg,
            NFT_MSG_NEWCHAIN,
            *((f"NFTA_CHAIN_{key}", value) for key, value in chain.items()),
            how=NLM_F_CREATE,
        ),
        *(
            _request(
                nft_rule_msg,
                NFT_MSG_NEWRULE,
                ("NFTA_RULE_TABLE", TABLE),
                ("NFTA_RULE_CHAIN", _CHAIN),
                ("NFTA_RULE_EXPRESSIONS", [*matching, *_set_priority(classid(minor)), *verdict(_ACCEPT)]),
                how=NLM_F_CREATE | _NLM_F_APPEND,
            )
            for rule, minor in rules
            for matching in _matching(rule)
        ),
    ]


def _matching(rule: Rule) -> Iterator[list[Any]]:
    """What each rule of the table compares for one of ours; none for one on cgroups or users."""
    if rule.port is not None:
        for protocol in _PROTOCOLS:
            for offset in _PORT_OFFSETS:
                is_protocol = _meta(Meta.NFT_META_L4PROTO, bytes([protocol]))
                yield is_protocol + _field(_TRANSPORT_HEADER, offset, rule.port.to_bytes(2, "big"))
    if rule.dscp is not None:  # the upper six bits of the second byte; of bits 4 to 11
        four, six = bytes([rule.dscp << 2]), (rule.dscp << 6).to_bytes(2, "big")
        yield _meta(Meta.NFT_META_NFPROTO, bytes([NFPROTO_IPV4])) + _field(_NETWORK_HEADER, 1, four, b"\xfc")
        yield _meta(Meta.NFT_META_NFPROTO, bytes([NFPROTO_IPV6])) + _field(_NETWORK_HEADER, 0, six, b"\x0f\xc0")
    if rule.address is not None:
        network = ipaddress.ip_network(rule.address)
        family, offsets = _ADDRESSES[network.version]
        for offset in offsets:
            field = _field(_NETWORK_HEADER, offset, network.network_address.packed, network.netmask.packed)
            yield _meta(Meta.NFT_META_NFPROTO, bytes([family])) + field


def _meta(key: Meta, value: bytes) -> list[Any]:
    return [genex("meta", {"dreg": Regs.NFT_REG_1, "key": key}), _equals(value)]


def _field(base: int, offset: int, value: bytes, mask: bytes = b"") -> list[Any]:
    """A field of a header, under a mask where one is given. A packet that ends before it does not match."""
    load = genex("payload", {"dreg": Regs.NFT_REG_1, "base": base, "offset": offset, "len": len(value)})
    if not mask.strip(b"\xff"):
        return [load, _equals(value)]
    registers = {"sreg": Regs.NFT_REG_1, "dreg": Regs.NFT_REG_1, "len": len(mask)}
    return [load, genex("bitwise", {**registers, "mask": _data(mask), "xor": _data(bytes(len(mask)))}), _equals(value)]


def _equals(value: bytes) -> Any:
    return genex("cmp", {"sreg": Regs.NFT_REG_1, "op": Cmp.NFT_CMP_EQ, "data": _data(value)})


def _set_priority(priority: int) -> list[Any]:
    value = struct.pack("=I", priority)  # the priority itself is the host's
    load = genex("immediate", {"dreg": Regs.NFT_REG_1, "data": _data(value)})
    return [load, genex("meta", {"key": Meta.NFT_META_PRIORITY, "sreg": Regs.NFT_REG_1})]


def _data(value: bytes) -> dict[str, Any]:
    return {"attrs": [("NFTA_DATA_VALUE", value)]}


def _request(layout: type[nlmsg], message: int, *attributes: Any, how: int = 0) -> Request:
    number = NFNL_SUBSYS_NFTABLES << 8 | message
    return messages.request(layout, number, *attributes, how=how, nfgen_family=NFPROTO_INET)

"""One table of nftables that classifies what this host forwards, as bytes. Pure: filters in, messages out.

    table inet hive_qos { flags owner
        chain forward { type filter hook forward priority mangle; policy accept
            ip saddr 172.17.0.0/16 meta priority set ffe0:30 accept
            ...

Why here: source addresses are translated (masquerade) behind the forward hook, so this is the last place that sees a
container's own address; and the first whose priority lasts, for the kernel sets that of every IPv4 packet anew when it
decides to forward it (net.ipv4.ip_forward_update_priority), whatever was set inbound. The filters are those
of the HTB root, so both places mean the same.

The table belongs to the socket that made it (NFT_TABLE_F_OWNER, Linux 5.12): nobody else can change or flush it, and
the kernel removes it when that socket closes, however its process ends. So nothing has to be journalled or cleared.

Why not pyroute2 0.9.7: its NFTables makes each command a transaction of its own, and one rule costs it 1.4 ms of CPU to
write. 64 rules on ports are 512 here: 0.73 s, longer than the watchdog waits, beside 14 ms. Its bytes are the same.

Layouts and numbers: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h. Integers of attributes are big endian; the
priority itself is the host's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from hive_qos.netlink import NLM_F_CREATE, Request, pack_attribute, pack_text
from shaping.model.names import classid
from shaping.model.tree import FilterSpec

TABLE = "hive_qos"
_CHAIN = "forward"
OWNER_SINCE = (5, 12)
"""Of Linux: tables that belong to a socket."""

# linux/netlink.h, and of nfnetlink.h the bounds of a batch and the subsystem nf_tables.
NETLINK_NETFILTER = 12
_NLM_F_APPEND = 0x800
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_SUBSYSTEM = 10

# linux/netfilter/nf_tables.h: messages, families, hooks, priorities, verdicts, registers, and what an expression reads.
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _GETGEN = (_SUBSYSTEM << 8 | message for message in (0, 2, 3, 6, 16))
_NFPROTO_INET = 1
_NFPROTO = {4: 2, 6: 10}
_HOOK_FORWARD = 2
_PRIORITY_MANGLE = -150
_ACCEPT = 1
_TABLE_OWNER = 2
_REGISTER_VERDICT, _REGISTER = 0, 1
_META_PRIORITY, _META_NFPROTO = 2, 15
_FROM_NETWORK_HEADER = 1
_EQUAL = 0

_WORD_BYTES = 4
_WHOLE_WORD = 0xFFFFFFFF
"""u32 filters compare words of the network header, under a mask of which this one leaves nothing out."""


def generation() -> Request:
    """Ask how often the rules have changed: whoever answers is nftables, and nothing changes by it."""
    return _request(_GETGEN, 0, b"")


def begin() -> Request:
    """What opens a transaction."""
    return Request(_BATCH_BEGIN, 0, struct.pack("!BBH", 0, 0, _SUBSYSTEM))


def end() -> Request:
    """What commits it."""
    return Request(_BATCH_END, 0, struct.pack("!BBH", 0, 0, _SUBSYSTEM))


def replace_table(filters: Sequence[FilterSpec]) -> list[Request]:
    """Make the table anew, in one transaction with the removal of the former one of this socket.

    Args:
        filters: as of an HTB root; the first that matches gives the packet its priority.
    """
    flags = _word(2, _TABLE_OWNER)
    table = pack_text(1, TABLE)
    hook = _word(1, _HOOK_FORWARD) + _word(2, _PRIORITY_MANGLE)
    chain = table + pack_text(3, _CHAIN) + pack_attribute(4, hook) + _word(5, _ACCEPT) + pack_text(7, "filter")
    return [
        _request(_NEWTABLE, NLM_F_CREATE, table + flags),  # a removal wants one to be there
        _request(_DELTABLE, 0, table),
        _request(_NEWTABLE, NLM_F_CREATE, table + flags),
        _request(_NEWCHAIN, NLM_F_CREATE, chain),
        *(_request(_NEWRULE, NLM_F_CREATE | _NLM_F_APPEND, _rule(wanted)) for wanted in filters),
    ]


def _rule(wanted: FilterSpec) -> bytes:
    expressions = []
    if wanted.family is not None:
        expressions += [_load_meta(_META_NFPROTO), _compare(bytes([_NFPROTO[wanted.family]]))]
    for offset, mask, value in wanted.matches:
        expressions.append(_load_word(offset))
        if mask != _WHOLE_WORD:
            expressions.append(_and(mask))
        expressions.append(_compare(struct.pack("!I", value)))
    priority = struct.pack("=I", classid(wanted.target_minor))
    verdict = pack_attribute(2, _word(1, _ACCEPT))
    expressions += [
        _expression("immediate", _word(1, _REGISTER) + pack_attribute(2, pack_attribute(1, priority))),
        _expression("meta", _word(2, _META_PRIORITY) + _word(3, _REGISTER)),
        _expression("immediate", _word(1, _REGISTER_VERDICT) + pack_attribute(2, verdict)),
    ]
    return pack_text(1, TABLE) + pack_text(2, _CHAIN) + pack_attribute(4, _listed(expressions))


def _load_meta(key: int) -> bytes:
    return _expression("meta", _word(1, _REGISTER) + _word(2, key))


def _load_word(offset: int) -> bytes:
    """A rule whose packet ends before it does not match."""
    place = _word(2, _FROM_NETWORK_HEADER) + _word(3, offset) + _word(4, _WORD_BYTES)
    return _expression("payload", _word(1, _REGISTER) + place)


def _and(mask: int) -> bytes:
    bits = pack_attribute(4, pack_attribute(1, struct.pack("!I", mask)))
    none = pack_attribute(5, pack_attribute(1, bytes(_WORD_BYTES)))
    return _expression("bitwise", _word(1, _REGISTER) + _word(2, _REGISTER) + _word(3, _WORD_BYTES) + bits + none)


def _compare(value: bytes) -> bytes:
    return _expression("cmp", _word(1, _REGISTER) + _word(2, _EQUAL) + pack_attribute(3, pack_attribute(1, value)))


def _expression(name: str, data: bytes) -> bytes:
    return pack_text(1, name) + pack_attribute(2, data)


def _listed(elements: Iterable[bytes]) -> bytes:
    return b"".join(pack_attribute(1, element) for element in elements)


def _word(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("!I", value & 0xFFFFFFFF))


def _request(message_type: int, flags: int, body: bytes) -> Request:
    return Request(message_type, flags, struct.pack("!BBH", _NFPROTO_INET, 0, 0) + body)

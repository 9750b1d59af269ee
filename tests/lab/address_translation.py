"""A router that gives what it forwards its own address, as Docker and home routers do, without nft or iptables."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from hive_qos.netlink import NLM_F_CREATE, NetlinkSocket, Request, pack_attribute, pack_text
from shaping.classify import nftables
from tools.lab.host import Host
from tools.lab.kernel import entered

_NEWTABLE, _NEWCHAIN, _NEWRULE = 0xA00, 0xA03, 0xA06
_HOOK_POSTROUTING, _PRIORITY_SRCNAT = 4, 100


@contextmanager
def masquerade(host: Host) -> Iterator[None]:
    """For the time of a `with` block whatever leaves a host, IPv4 and IPv6, has the address of the interface by which
    it leaves: `table inet masquerade { chain out { type nat hook postrouting priority srcnat; masquerade; }; }`."""
    table = pack_text(1, "masquerade")
    hook = _word(1, _HOOK_POSTROUTING) + _word(2, _PRIORITY_SRCNAT)
    chain = table + pack_text(3, "out") + pack_attribute(4, hook) + pack_text(7, "nat")
    rule = table + pack_text(2, "out") + pack_attribute(4, pack_attribute(1, pack_text(1, "masq")))
    with entered(host.namespace):
        netfilter = NetlinkSocket(nftables.NETLINK_NETFILTER)
    try:
        requests = [
            _request(_NEWTABLE, table + _word(2, 2)),  # its owner's: it goes when the socket closes
            _request(_NEWCHAIN, chain),
            _request(_NEWRULE, rule),
        ]
        netfilter.transact("masquerade", requests, begin=nftables.begin(), end=nftables.end())
        yield
    finally:
        netfilter.close()


def _word(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("!I", value))


def _request(message_type: int, body: bytes) -> Request:
    return Request(message_type, NLM_F_CREATE, struct.pack("!BBH", 1, 0, 0) + body)

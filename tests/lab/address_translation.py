"""A router that gives what it forwards its own address, as Docker and home routers do, without nft or iptables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2.netlink import nlmsg
from pyroute2.netlink.nfnetlink.nftsocket import nft_chain_msg, nft_rule_msg, nft_table_msg
from pyroute2.nftables.expressions import masq

from hive_qos.netlink import NLM_F_CREATE, NetlinkSocket, Request
from shaping.netlink import messages, nftables
from tools.lab.host import Host
from tools.lab.kernel import entered

_NEWTABLE, _NEWCHAIN, _NEWRULE = 0xA00, 0xA03, 0xA06
_INET, _TABLE_OWNER = 1, 2
_TABLE = "masquerade"
_POSTROUTING_SRCNAT = [("NFTA_HOOK_HOOKNUM", 4), ("NFTA_HOOK_PRIORITY", 100)]
_INPUT = [("NFTA_HOOK_HOOKNUM", 1), ("NFTA_HOOK_PRIORITY", 0)]
_DROP = 0


@contextmanager
def masquerade(host: Host, *, guarded: bool = False) -> Iterator[None]:
    """For the time of a `with` block whatever leaves a host, IPv4 and IPv6, has the address of the interface by which
    it leaves: `table inet masquerade { chain out { type nat hook postrouting priority srcnat; masquerade; }; }`.

    Args:
        guarded: nothing comes to the host itself, as home routers have it: `chain in { type filter hook input priority
            0; policy drop; }`. IPv6 needs what comes there.
    """
    chain = {"NFTA_CHAIN_TABLE": _TABLE}
    out = {"NFTA_CHAIN_NAME": "out", "NFTA_CHAIN_HOOK": {"attrs": _POSTROUTING_SRCNAT}, "NFTA_CHAIN_TYPE": "nat"}
    into = {"NFTA_CHAIN_NAME": "in", "NFTA_CHAIN_HOOK": {"attrs": _INPUT}, "NFTA_CHAIN_TYPE": "filter"}
    requests = [
        # Its owner's: it goes when the socket closes.
        _request(nft_table_msg, _NEWTABLE, NFTA_TABLE_NAME=_TABLE, NFTA_TABLE_FLAGS=_TABLE_OWNER),
        _request(nft_chain_msg, _NEWCHAIN, **chain, **out),
        _request(nft_rule_msg, _NEWRULE, NFTA_RULE_TABLE=_TABLE, NFTA_RULE_CHAIN="out", NFTA_RULE_EXPRESSIONS=masq()),
    ]
    if guarded:
        requests.append(_request(nft_chain_msg, _NEWCHAIN, **chain, **into, NFTA_CHAIN_POLICY=_DROP))
    with entered(host.namespace):
        netfilter = NetlinkSocket(nftables.NETLINK_NETFILTER)
    try:
        netfilter.transact("masquerade", requests, begin=nftables.begin(), end=nftables.end())
        yield
    finally:
        netfilter.close()


def _request(layout: type[nlmsg], message_type: int, **attributes: Any) -> Request:
    return messages.request(layout, message_type, *attributes.items(), how=NLM_F_CREATE, nfgen_family=_INET)

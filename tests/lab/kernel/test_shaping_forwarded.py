"""The table that classifies what is forwarded belongs to one kernel object, respects others', and holds every rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from shaping_bench import Bench

from hive_qos.errors import ShapingError
from hive_qos.netlink import NLM_F_CREATE, NetlinkSocket, Request, pack_text
from shaping.kernel import RealKernel
from shaping.model.names import MARK_MINOR
from shaping.model.shapes import Rule
from shaping.netlink import nftables
from shaping.plan.packet_filters import RULES_MAX
from tools.lab.kernel import entered

_NEWTABLE, _GETTABLE, _DELTABLE, _GETRULE = 0xA00, 0xA01, 0xA02, 0xA07
_HEAD = b"\1\0\0\0"  # struct nfgenmsg of the family inet
_NAME = pack_text(1, nftables.TABLE)
RULES = [(Rule("storage", address="10.0.0.0/8"), MARK_MINOR["storage"]), (Rule("other", dscp=8), MARK_MINOR["other"])]


@pytest.fixture
def tables(bench: Bench) -> Iterator[NetlinkSocket]:
    """Somebody else's socket to nftables."""
    with entered(bench.sender):
        other = NetlinkSocket(nftables.NETLINK_NETFILTER)
    yield other
    other.close()


@pytest.fixture
def kernels(bench: Bench) -> Iterator[tuple[RealKernel, RealKernel]]:
    with ExitStack() as held, entered(bench.sender):
        made = RealKernel(), RealKernel()
        for kernel in made:
            held.callback(kernel.close)
        yield made


def count(tables: NetlinkSocket) -> int:
    """How many tables there are."""
    return len(tables.read("list tables", Request(_GETTABLE, 0, _HEAD), lambda _, body: body))


def change(tables: NetlinkSocket, message_type: int) -> None:
    request = Request(message_type, NLM_F_CREATE, _HEAD + _NAME)
    tables.transact("change the table", [request], begin=nftables.begin(), end=nftables.end())


def test_the_table_is_its_makers_alone_and_goes_with_him(
    kernels: tuple[RealKernel, RealKernel], tables: NetlinkSocket
) -> None:
    former, later = kernels
    former.classify_forwarded(RULES)
    former.classify_forwarded(RULES[:1])
    assert count(tables) == 1
    with pytest.raises(ShapingError):
        later.classify_forwarded(RULES)
    with pytest.raises(ShapingError):
        change(tables, _DELTABLE)
    assert count(tables) == 1
    former.close()
    assert count(tables) == 0
    later.classify_forwarded(RULES)
    assert count(tables) == 1
    later.classify_forwarded(())
    assert count(tables) == 0


def test_a_table_of_this_name_that_somebody_else_made_is_left_alone(
    kernels: tuple[RealKernel, RealKernel], tables: NetlinkSocket
) -> None:
    change(tables, _NEWTABLE)
    with pytest.raises(ShapingError, match="make the table inet hive_qos"):
        kernels[0].classify_forwarded(RULES)
    assert count(tables) == 1
    change(tables, _DELTABLE)
    kernels[0].classify_forwarded(RULES)


def test_as_many_rules_as_there_may_be_fit_into_one_transaction(
    kernels: tuple[RealKernel, RealKernel], tables: NetlinkSocket
) -> None:
    rules = [*(Rule("other", port=port) for port in range(1, RULES_MAX)), Rule("storage", address="fd00::/8")]
    kernels[0].classify_forwarded([(rule, MARK_MINOR[rule.target]) for rule in rules])
    assert len(tables.read("list rules", Request(_GETRULE, 0, _HEAD), lambda _, body: body)) == 4 * (RULES_MAX - 1) + 2

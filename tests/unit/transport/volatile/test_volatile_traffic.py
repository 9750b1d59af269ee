"""What a member has sent and received is summed over connections that end, come up again, or belong to another view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from hive_qos.errors import MisuseError
from transport.group import Group
from transport.volatile.links.traffic import Traffic


class Connections:
    """A group, as far as it is asked here."""

    def __init__(self, sent: Mapping[int, int] | None) -> None:
        self.sent = sent

    def traffic_bytes(self) -> Mapping[int, tuple[int, int]]:
        """It receives a tenth of what it sends."""
        if self.sent is None:
            raise MisuseError("closed")
        return {number: (sent, sent // 10) for number, sent in self.sent.items()}


def test_bytes_of_connections_that_have_ended_are_kept() -> None:
    traffic = Traffic()
    first, second = Connections({1: 100, 2: 10}), Connections({1: 7})

    def total(group: Connections) -> object:
        traffic.look(cast(Group, group))
        return traffic.document()["sent_bytes"]

    assert traffic.document()["sent_bytes"] == 0
    assert total(first) == total(first) == 110
    first.sent = {1: 150}  # the other end of 2 was lost
    assert total(first) == 160
    first.sent = {1: 20}  # it came up again
    assert total(first) == 180
    first.sent = None
    assert total(first) == 180
    assert total(second) == 187
    second.sent = {1: 9}
    assert total(second) == 189
    assert traffic.document()["received_bytes"] == 18  # 15 and 1 of links that ended, 2 of the one that came up again


def test_ddp_sends_twice_the_gradients_but_for_a_members_own_part() -> None:
    traffic = Traffic()
    assert "ddp_bytes" not in traffic.document()
    traffic.stepped(4_000, members=4)
    traffic.stepped(4_000, members=1)
    assert traffic.document() == {"sent_bytes": 0, "received_bytes": 0, "inner_steps": 2, "ddp_bytes": 6_000}

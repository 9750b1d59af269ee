"""When TCP's connections are looked at before a decision, and when what they said last will do."""

from __future__ import annotations

import pytest

from broker.config import load
from broker.daemon.deciding import looks_first


@pytest.mark.parametrize(
    ("ingress", "between", "asked", "looks"),
    [
        ("off", False, False, True),  # a tick
        ("off", True, False, False),  # an announcement, and nobody sends to us who could be asked to hold back
        ("auto", True, False, True),
        ("auto", True, True, False),  # a lease does not depend on it
        ("off", False, True, False),
    ],
)
def test_tcp_is_looked_at_where_the_decision_rests_on_it(ingress: str, between: bool, asked: bool, looks: bool) -> None:
    text = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'
    assert looks_first(load(f'{text}ingress = "{ingress}"\n'), between=between, asked=asked) is looks

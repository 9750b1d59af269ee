"""Which of several links a message takes, with a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from transport.mesh.outbox import IN_FLIGHT_BYTES_MAX
from transport.mesh.path_choice import DOUBLES_AFTER_S, UNKNOWN_BYTES_MAX, PathLoads

VECTORS = Path(__file__).with_name("path_choice_vectors.txt")
"""What the engine's choice has to do as well; the file says how it is read."""
CASES = [case.splitlines() for case in VECTORS.read_text(encoding="utf-8").split("\ncase ")[1:]]
CHUNK = 512 * 1024
RTT_S = 0.01
UNDER_WAY_MAX = IN_FLIGHT_BYTES_MAX // CHUNK
FAST, SLOW = 1, 2


class Links:
    """Two links that carry messages one after the other, at rates in bytes per second."""

    def __init__(self, fast: float, slow: float) -> None:
        self.rates = {FAST: fast, SLOW: slow}
        self.loads = PathLoads(lambda _now_s: dict.fromkeys(self.rates, RTT_S))
        self.now_s = 100.0

    def carry(self, chunks: int) -> Counter[int]:
        """Send chunks, as many at once as an outbox lets go; how many went over each link."""
        free_s = dict.fromkeys(self.rates, self.now_s)
        waiting: list[tuple[float, int, float]] = []
        took: Counter[int] = Counter()
        while chunks or waiting:
            more = chunks and len(waiting) < UNDER_WAY_MAX
            link = self.loads.choose((FAST, SLOW), CHUNK, now_s=self.now_s) if more else None
            if link is not None:
                self.loads.sent(link, CHUNK)
                free_s[link] = max(free_s[link], self.now_s) + CHUNK / self.rates[link]
                waiting.append((free_s[link] + RTT_S, link, self.now_s))
                took[link] += 1
                chunks -= 1
            else:
                waiting.sort(reverse=True)
                self.now_s, link, sent_s = waiting.pop()
                self.loads.landed(link, CHUNK, sent_s=sent_s, now_s=self.now_s, well=True)
        return took


def test_links_carry_what_each_can_and_end_together() -> None:
    links = Links(12.5e6, 2.5e6)
    links.carry(32)
    began_s = links.now_s
    took = links.carry(60)
    assert took[SLOW] in (9, 10, 11)
    assert links.now_s - began_s < 1.1 * 60 * CHUNK / 15e6


def test_nothing_large_waits_behind_a_link_of_which_nothing_is_known() -> None:
    links = Links(12.5e6, 12.5e3)
    links.carry(32)
    assert links.now_s - 100.0 < UNKNOWN_BYTES_MAX / 12.5e3 + 1.0


def test_a_link_that_gets_slow_is_left_and_one_that_recovers_is_taken_again() -> None:
    links = Links(12.5e6, 12.5e6)
    assert links.carry(60)[SLOW] in (29, 30, 31)
    links.rates[SLOW] = 0.5e6
    links.carry(60)
    assert links.carry(60)[SLOW] <= 3
    links.rates[SLOW] = 12.5e6
    links.now_s += 5 * DOUBLES_AFTER_S
    links.carry(60)
    assert links.carry(60)[SLOW] > 20


def test_what_failed_is_no_longer_under_way_and_says_nothing_of_the_rate() -> None:
    links = Links(1e6, 1e6)
    for _ in range(10):
        links.loads.sent(FAST, CHUNK)
        links.loads.landed(FAST, CHUNK, sent_s=0.0, now_s=100.0, well=False)
    assert links.carry(3) == {FAST: 2, SLOW: 1}


def test_one_connection_is_no_choice_and_one_that_has_ended_is_forgotten() -> None:
    links = Links(1e6, 1e6)
    for _ in range(100):
        assert links.loads.choose((SLOW,), CHUNK, now_s=100.0) == SLOW
        links.loads.sent(SLOW, CHUNK)
    links.loads.forget(SLOW)
    links.loads.landed(SLOW, CHUNK, sent_s=0.0, now_s=100.0, well=False)
    assert links.loads.choose((SLOW, FAST), CHUNK, now_s=100.0) in (SLOW, FAST)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_both_languages_choose_the_same(case: list[str]) -> None:
    rtt_s: dict[int, float] = {}
    loads, now_s = PathLoads(lambda _now_s: rtt_s), 0.0
    for line in filter(None, case[1:]):
        match line.split():
            case "rtt", connection, ms:
                rtt_s[int(connection)] = int(ms) / 1000
            case "at", ms:
                now_s = int(ms) / 1000
            case "choose", nbytes, wanted:
                chosen = loads.choose(sorted(rtt_s), int(nbytes), now_s=now_s)
                assert chosen == (None if wanted == "none" else int(wanted)), line
            case "send", connection, nbytes:
                loads.sent(int(connection), int(nbytes))
            case ("land" | "fail") as how, connection, nbytes, ms:
                loads.landed(int(connection), int(nbytes), sent_s=int(ms) / 1000, now_s=now_s, well=how == "land")
            case _:
                raise AssertionError(f"what is {line}?")

"""Probes that fail for another reason than the link: what was proven stays; and a link that declines is followed."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from changing_link import Changing, Host
from link_figures import late, used
from seeds import assert_most, over_seeds

from broker.policy.toml import load

LINK = 40e6
SETTLED_S, END_S = 15.0, 45.0
FROM_S, FOR_S, DECLINED = 10.0, 10.0, 28e6


def world(rate: Callable[[float], float], *, seed: int, stalls_after_probe_s: tuple[float, ...] = ()) -> Changing:
    """Hosts that believe in 100 Mbit/s."""
    policy = load('version = 1\n[[interface]]\nname = "a"\negress = "100 Mbit/s"\n')
    both = Changing(policy, rate, seed=seed, stalls_after_probe_s=stalls_after_probe_s, stalls_from_s=SETTLED_S)
    return both.run(END_S)


def standing(host: Host, start_s: float, end_s: float) -> list[float]:
    """What the law took the capacity for, drains apart: the most of each second."""
    seconds: dict[int, float] = {}
    for at_s, rate in host.rates:
        if start_s < at_s <= end_s:
            seconds[int(at_s)] = max(seconds.get(int(at_s), 0.0), rate)
    return list(seconds.values())


def longest_s(queues: list[tuple[float, float, float]], over_s: float) -> float:
    """The longest that the queue on the way from a was over a bound without a break."""
    began_s, longest = None, 0.0
    for at_s, queue_s, _ in queues:
        began_s = (at_s if began_s is None else began_s) if queue_s > over_s else None
        longest = max(longest, 0.0 if began_s is None else at_s - began_s)
    return longest


def test_probes_that_fail_because_both_hosts_hold_packets_up_do_not_take_the_rate_down() -> None:
    """It used to go down by a few percent with each."""
    found = over_seeds(6, lambda seed: world(lambda at_s: LINK, seed=seed, stalls_after_probe_s=(0.1,)))
    assert_most([both.held_up for both in found], 1, at_least=1_000)
    for stood in ([min(standing(host, SETTLED_S, END_S)) for host in (both.a, both.b)] for both in found):
        assert_most(stood, 1, at_least=0.9 * LINK)
    assert_most([used(both.carried, SETTLED_S, END_S, LINK) for both in found], 1, at_least=0.9)


def test_where_both_hosts_hold_packets_up_twice_a_probe_the_peer_with_one_destination_goes_down() -> None:
    """The rate of nobody is to fall below 0.9 of the link. Of 10 seeds 1 takes the flooded host below, and 6 take its
    peer, which trains with it alone, as far as 0.2; what crosses the link is 0.75 of it at worst."""
    found = over_seeds(10, lambda seed: world(lambda at_s: LINK, seed=seed, stalls_after_probe_s=(0.05, 0.25)))
    assert_most([both.held_up for both in found], 1, at_least=1_000)
    assert_most([min(standing(both.a, SETTLED_S, END_S)) for both in found], 0.9, at_least=0.9 * LINK)
    assert_most([min(standing(both.b, SETTLED_S, END_S)) for both in found], 0.4, at_least=0.9 * LINK)
    assert_most([used(both.carried, SETTLED_S, END_S, LINK) for both in found], 0.5, at_least=0.88)
    assert_most([used(both.carried, SETTLED_S, END_S, LINK) for both in found], 1, at_least=0.7)


def test_a_link_that_declines_slowly_is_followed() -> None:
    """By 3 to 4 % a second, although failed probes take nothing from a rate that stood."""

    def rate(at_s: float) -> float:
        part = min(1.0, max(0.0, at_s - FROM_S) / FOR_S)
        return LINK + part * (DECLINED - LINK)

    found = over_seeds(5, lambda seed: world(rate, seed=seed))
    queues = [[entry for entry in both.queues if entry[0] > FROM_S] for both in found]
    assert_most([longest_s(queue, over_s=0.1) for queue in queues], 1, at_most=2.0)
    assert_most([late(both.echoes, FROM_S + FOR_S, END_S) for both in found], 1, at_most=0.05)
    stood = [statistics.median(standing(both.a, FROM_S + FOR_S, FROM_S + FOR_S + 5)) for both in found]
    assert_most(stood, 1, at_most=1.06 * DECLINED)
    assert_most([used(both.carried, FROM_S + FOR_S + 2, END_S, DECLINED) for both in found], 1, at_least=0.93)

"""How old a round trip to a broker may be."""

from __future__ import annotations

from broker.measure.senders import MEASURE_S, PeerRtt, PeerRtts
from broker.peers.peer_status import PeerStatus

ADDRESS = "10.0.0.3"


def peer(last_s: float | None) -> tuple[PeerStatus, ...]:
    return (PeerStatus(ADDRESS, rtt_s_min=0.004, rtt_latest_s=last_s),)


def test_a_round_trip_may_be_as_old_as_the_look_before_the_one_that_found_it() -> None:
    trips = PeerRtts()
    found = []
    for now_s, last_s in ((1.0, 0.005), (1.25, 0.005), (1.5, 0.08), (1.75, 0.08), (2.0, 0.006)):
        trips.look(peer(last_s), now_s=now_s)
        trip = trips.get(ADDRESS)
        assert trip is not None
        found.append((trip.last_s, trip.since_s))
    assert found == [(0.005, 1.0), (0.005, 1.0), (0.08, 1.25), (0.08, 1.25), (0.006, 1.75)]


def test_a_broker_without_a_connection_or_a_measurement_has_none() -> None:
    trips = PeerRtts()
    assert trips.is_due(now_s=0.0)
    trips.look(peer(0.005), now_s=0.0)
    assert not trips.is_due(now_s=MEASURE_S / 2)
    assert trips.get(ADDRESS) == PeerRtt(0.004, 0.005, 0.0)
    trips.look(peer(None), now_s=MEASURE_S)
    assert trips.get(ADDRESS) is None
    trips.look((), now_s=2 * MEASURE_S)
    assert trips.get(ADDRESS) is None

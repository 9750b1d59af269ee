"""When this host counts as having moved, with a clock and routes that the test moves."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hive_qos.errors import ConfigurationError, MisuseError
from transport.mesh import address_watcher
from transport.mesh.address_watcher import LOOK_S, LOOKS, AddressWatcher
from transport.mesh.endpoint import Endpoint
from transport.mesh.peers import PeerTable
from transport.mesh.sockets import Sockets, open_sockets, reopen_sockets
from transport.settings import Settings

PEERS = ("10.0.0.7", "10.0.0.8")


class Host:
    """Which addresses it has, and which one leads to each peer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own = {"127.0.0.1", "127.0.0.2"}
        self.leads = dict.fromkeys(PEERS, "127.0.0.1")
        self.told: list[tuple[str, int]] = []
        monkeypatch.setattr(address_watcher, "address_towards", lambda peer: self.leads.get(peer, ""))
        monkeypatch.setattr(address_watcher, "is_ours", lambda address: address in self.own)

    def on_move(self, before: Sockets, sockets: Sockets, number: int) -> None:
        self.told.append((sockets.advertise, number))
        sockets.compute.close()
        sockets.bulk.close()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


Look = Callable[[], object]


def looking(
    host: Host,
    request: pytest.FixtureRequest,
    peers: Sequence[str] = PEERS,
    others: Sequence[str] = (),
    own: str = "127.0.0.1",
    **settings: Any,
) -> Look:
    sockets = open_sockets(Settings(listen=own))
    for sock in (sockets.compute, sockets.bulk):
        request.addfinalizer(sock.close)
    watch = AddressWatcher(
        settings=Settings(**settings),
        sockets=sockets,
        peers=lambda: peers,
        others=lambda: others,
        on_move=host.on_move,
    )
    clock = iter(range(1000))
    return lambda: watch.tick(next(clock) * LOOK_S)


def test_ranks_of_one_host_alone_go_on_over_loopback_where_its_address_has_gone(host: Host, request) -> None:
    own = "127.0.0.2"  # as if it were the LAN's
    host.own, host.leads = {own}, {own: own}
    look = looking(host, request, peers=[own], own=own)
    look()
    assert host.told == []
    host.own, host.leads = set(), {}
    look()
    assert host.told == [("127.0.0.1", 1)]


def test_nothing_happens_while_one_peer_is_reached_from_our_address(host: Host, request) -> None:
    look = looking(host, request)
    look()
    host.leads[PEERS[0]] = "127.0.0.2"
    look()
    assert host.told == []


def test_another_way_to_everybody_is_taken(host: Host, request) -> None:
    look = looking(host, request)
    look()
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    look()
    assert host.told == []  # it may be for a moment only
    look()
    assert host.told == [("127.0.0.2", 1)]


def test_a_cut_link_whose_address_is_still_there_is_not_left_for_one_that_is_used_already(
    host: Host, request, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = looking(host, request, others=["127.0.0.2"])
    look()
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    for _ in range(LOOKS + 1):
        look()
    assert host.told == []
    host.own = {"127.0.0.2"}
    look()
    assert host.told == [("127.0.0.2", 1)]


def test_ranks_of_the_same_host_say_nothing_of_the_way_to_others(host: Host, request) -> None:
    host.leads["127.0.0.1"] = "127.0.0.1"
    look = looking(host, request, ("127.0.0.1", *PEERS))
    look()
    host.leads |= dict.fromkeys(PEERS, "127.0.0.2")
    look()
    assert host.told == []  # it may be for a moment only
    look()
    assert host.told == [("127.0.0.2", 1)]


def test_a_host_without_any_way_waits_for_one(host: Host, request) -> None:
    look = looking(host, request)
    look()
    host.leads = {}
    host.own = set()
    look()
    assert host.told == []
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    look()
    assert host.told == [("127.0.0.2", 1)]


def test_an_address_that_never_led_to_a_peer_is_kept_as_long_as_it_is_there(host: Host, request) -> None:
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    look = looking(host, request)
    look()
    look()
    assert host.told == []
    host.own.remove("127.0.0.1")
    look()
    assert host.told == [("127.0.0.2", 1)]


def test_an_address_that_cannot_be_bound_yet_is_tried_again(host: Host, request, monkeypatch) -> None:
    look = looking(host, request)
    look()
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")

    def not_yet(*_args: object, **_options: object) -> Sockets:
        raise ConfigurationError("HIVE_LISTEN", "127.0.0.2", "cannot bind")

    with monkeypatch.context() as patch:
        patch.setattr(address_watcher, "reopen_sockets", not_yet)
        look()
        assert host.told == []
    look()
    assert host.told == [("127.0.0.2", 1)]


def test_the_address_that_is_told_is_the_one_that_the_user_wants_told(host: Host, request) -> None:
    look = looking(host, request, advertise="192.0.2.5")
    look()
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    look()
    assert host.told == []  # it may be for a moment only
    look()
    assert host.told == [("192.0.2.5", 1)]


def test_an_engine_that_refuses_is_asked_again(host: Host, request, monkeypatch) -> None:
    refused: list[int] = []

    def refuse(before: Sockets, sockets: Sockets, number: int) -> None:
        refused.append(number)
        sockets.compute.close()
        sockets.bulk.close()
        raise MisuseError("the engine is closed")

    monkeypatch.setattr(host, "on_move", refuse)
    look = looking(host, request)
    look()
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    for _ in range(3):
        look()
    assert refused == [1, 2]


def test_a_way_that_is_another_for_one_look_is_not_followed(host: Host, request) -> None:
    look = looking(host, request)
    for _ in range(3):
        host.leads = dict.fromkeys(PEERS, "127.0.0.1")
        look()
        host.leads = dict.fromkeys(PEERS, "127.0.0.2")
        look()
    assert host.told == []


def test_an_address_that_the_user_chose_is_kept(host: Host) -> None:
    sockets = open_sockets(Settings(listen="127.0.0.1"))
    host.leads = dict.fromkeys(PEERS, "127.0.0.2")
    watch = AddressWatcher(
        settings=Settings(listen="127.0.0.1"), sockets=sockets, peers=lambda: PEERS, on_move=host.on_move
    )
    assert watch.tick(1.0) == math.inf
    assert host.told == []
    sockets.compute.close()
    sockets.bulk.close()


def test_the_ports_stay_where_they_are_free_and_change_where_they_are_not() -> None:
    before = open_sockets(Settings(listen="127.0.0.1"))
    moved = reopen_sockets(before, Settings(), address="127.0.0.2", advertise="127.0.0.2")
    again = reopen_sockets(before, Settings(), address="127.0.0.2", advertise="127.0.0.2")
    try:
        assert (moved.compute_port, moved.bulk_port) == (before.compute_port, before.bulk_port)
        assert {again.compute_port, again.bulk_port}.isdisjoint({before.compute_port, before.bulk_port})
    finally:
        for one in (before, moved, again):
            one.compute.close()
            one.bulk.close()


class Refusing:
    """An engine that goes on from no other socket; it closes the one that it is given."""

    collectives = None

    def __init__(self, error: Exception) -> None:
        self.error = error

    def rebind(self, endpoint: int, sock: socket.socket) -> None:
        sock.close()
        raise self.error


def nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("error", [MisuseError("this one is closed"), OSError(9, "Bad file descriptor")], ids=repr)
def test_no_socket_is_left_open_where_the_engine_does_not_go_on_from_the_first(request, error: Exception) -> None:
    refusing: Any = Refusing(error)
    peers = PeerTable(0, (), (), reconnect_s=1.0, now_s=0.0)
    callbacks: dict[str, Any] = dict.fromkeys(("on_gone", "on_control", "on_unexpected", "on_refused"), nothing)
    endpoint = Endpoint(rank=0, job="j", world="w", peers=peers, **callbacks)
    endpoint.begin(refusing, [(1, 2)])
    sockets = open_sockets(Settings(listen="127.0.0.1"))
    for sock in (sockets.compute, sockets.bulk):
        request.addfinalizer(sock.close)
    with pytest.raises(type(error)):
        endpoint.move(sockets, number=1)
    assert (sockets.compute.fileno(), sockets.bulk.fileno()) == (-1, -1)

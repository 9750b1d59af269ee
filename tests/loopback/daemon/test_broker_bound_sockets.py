"""Where packets arrive that a socket gets, as the kernel lists it."""

from __future__ import annotations

import os
import socket
from contextlib import closing

from broker.measure.tcp_diag import BoundSocket, bound_sockets


def listed(*socks: socket.socket) -> list[BoundSocket | None]:
    protocols = {os.fstat(sock.fileno()).st_ino: "tcp" if sock.type == socket.SOCK_STREAM else "udp" for sock in socks}
    found = bound_sockets(protocols)
    assert set(found) <= set(protocols)
    return [found.get(inode) for inode in protocols]


def of(family: socket.AddressFamily, kind: socket.SocketKind, address: str) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.bind((address, 0))
    return sock


def test_datagram_sockets_have_their_address_their_peer_or_all_addresses() -> None:
    with (
        closing(of(socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1")) as one,
        closing(of(socket.AF_INET, socket.SOCK_DGRAM, "0.0.0.0")) as everywhere,
        closing(of(socket.AF_INET6, socket.SOCK_DGRAM, "::")) as both,
        closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as narrow,
        closing(of(socket.AF_INET6, socket.SOCK_DGRAM, "::")) as mapped,
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as unbound,
    ):
        narrow.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        narrow.bind(("::", 0))
        mapped.connect(("::ffff:127.0.0.1", one.getsockname()[1]))
        found = listed(one, everywhere, both, narrow, mapped, unbound)
        ports = [sock.getsockname()[1] for sock in (one, everywhere, both, narrow, mapped)]
    assert found[5] is None or found[5].local[1] == 0
    known = [entry for entry in found[:5] if entry is not None]
    assert [entry.local for entry in known] == list(
        zip(["127.0.0.1", "0.0.0.0", "::", "::", "127.0.0.1"], ports, strict=True)
    )
    assert [entry.versions for entry in known] == [(), (4,), (4, 6), (6,), ()]
    assert [entry.remote for entry in known] == [None, None, None, None, ("127.0.0.1", ports[0])]
    assert {(entry.protocol, entry.uid, entry.device) for entry in known} == {("udp", os.geteuid(), 0)}


def test_of_streams_those_that_listen_and_those_that_are_connected_get_something() -> None:
    with (
        closing(of(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1")) as listener,
        closing(of(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1")) as bound,
        closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as client,
    ):
        listener.listen()
        client.connect(listener.getsockname())
        with closing(listener.accept()[0]) as accepted:
            listening, connected, served, nothing = listed(listener, client, accepted, bound)
            assert listening is not None
            assert connected is not None
            assert served is not None
            assert (listening.local, listening.remote) == (listener.getsockname(), None)
            assert (connected.local, connected.remote) == (client.getsockname(), listener.getsockname())
            assert (served.local, served.remote) == (listener.getsockname(), client.getsockname())
            assert {one.protocol for one in (listening, connected, served)} == {"tcp"}
            assert nothing is None


def test_only_protocols_of_which_a_socket_was_passed_are_listed() -> None:
    with closing(of(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1")) as listener:
        listener.listen()
        inode = os.fstat(listener.fileno()).st_ino
        assert set(bound_sockets({inode: "tcp"})) == {inode}
        assert bound_sockets({inode: "udp"}) == {}

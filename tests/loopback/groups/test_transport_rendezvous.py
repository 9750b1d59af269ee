"""The store that rank 0 serves: entries stay as they were set, and nobody can make it hold or wait without end."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest
from patience import LIMIT_S
from test_transport_examples import free_port

from hive_qos.errors import ConfigurationError, ConnectionLostError, TimedOutError, TransportError
from transport import Group, Settings
from transport.bootstrap.rendezvous import VALUE_BYTES_MAX, FileRendezvous, TcpRendezvous

MEETING = """
import sys, transport
rank = int(sys.argv[1])
store = transport.TcpRendezvous(sys.argv[2], serve=rank == 0)
transport.Group.connect(store, rank=rank, world_size=3, connect_timeout_s=600.0)
"""


@pytest.fixture
def server() -> Iterator[TcpRendezvous]:
    store = TcpRendezvous("127.0.0.1:0", serve=True)
    yield store
    store.close()


def client_of(server: TcpRendezvous) -> TcpRendezvous:
    return TcpRendezvous(f"127.0.0.1:{server.port}", serve=False)


def test_an_entry_can_be_replaced_only_by_the_client_that_set_it(server):
    one, other = client_of(server), client_of(server)
    one.set("hive/w/1", b"first")
    one.set("hive/w/1", b"second")
    with pytest.raises(TransportError, match=r"refused hive/w/1"):
        other.set("hive/w/1", b"forged")
    assert server.get("hive/w/1", LIMIT_S) == b"second"


def test_what_is_held_is_bounded_in_bytes(server, monkeypatch):
    monkeypatch.setattr("transport.bootstrap.rendezvous.ENTRIES_BYTES_MAX", 5 * VALUE_BYTES_MAX)
    client = client_of(server)
    for number in range(4):
        client.set(f"k{number}", bytes(VALUE_BYTES_MAX))
    with pytest.raises(TransportError, match="full"):
        client.set("k4", bytes(VALUE_BYTES_MAX))
    assert len(client.get("k3", LIMIT_S)) == VALUE_BYTES_MAX


def test_what_is_not_there_yet_is_asked_for_again(server):
    client = client_of(server)
    with pytest.raises(TimedOutError, match=r"nothing: not done within the timeout of 0\.3 s"):
        client.get("nothing", 0.3)
    with ThreadPoolExecutor(1) as pool:
        getting = pool.submit(client.get, "late", LIMIT_S)
        with pytest.raises(FutureTimeoutError):
            getting.result(0.1)
        server.set("late", b"1")
        assert getting.result(LIMIT_S) == b"1"


def test_who_asks_for_what_never_comes_holds_no_place(monkeypatch):
    monkeypatch.setattr("transport.bootstrap.rendezvous.CLIENTS_MAX", 2)
    server = TcpRendezvous("127.0.0.1:0", serve=True)
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as sock:
            sock.sendall(struct.pack("!cHI16s", b"G", 5, 600_000, bytes(16)) + b"never")
            assert sock.recv(5)[:1] in (b"N", b""), "answered, or closed while two others were"
    client_of(server).set("k", b"v")
    server.close()


def test_clients_that_say_nothing_are_bounded_and_the_others_are_served(monkeypatch):
    monkeypatch.setattr("transport.bootstrap.rendezvous.CLIENTS_MAX", 2)
    monkeypatch.setattr("transport.bootstrap.rendezvous.CLIENT_READ_S", 0.3)
    server = TcpRendezvous("127.0.0.1:0", serve=True)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    client = client_of(server)
    client.set("k", b"v")
    assert client.get("k", LIMIT_S) == b"v"
    for sock in idle:
        sock.close()
    server.close()


def test_a_store_whose_server_has_ended_is_gone_for_those_who_had_reached_it(server):
    client, late = client_of(server), client_of(server)
    client.set("k", b"v")
    server.close()
    with pytest.raises(ConnectionLostError, match="rank 0, which served it, has ended"):
        client.get("never", 600.0)
    with pytest.raises(TimedOutError, match="refused"):
        late.get("never", 0.3)  # it may be that rank 0 has not started yet


def test_ranks_that_wait_learn_that_rank_0_was_killed():
    port = free_port()
    killed, waiting = (
        subprocess.Popen(
            [sys.executable, "-c", MEETING, str(rank), f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {"HIVE_BROKER": "off", "HIVE_LISTEN": "127.0.0.1", "HIVE_JOB_SECRET": "secret of the test"},
        )
        for rank in (0, 1)
    )
    try:
        store = TcpRendezvous(f"127.0.0.1:{port}", serve=False)
        run = store.get("hive/default/run", LIMIT_S)
        store.get(f"hive/default/{run.hex()}/1", LIMIT_S)  # rank 1 is there, and waits for rank 2, which never comes
        killed.kill()
        began_s = time.monotonic()
        text, _ = waiting.communicate(timeout=LIMIT_S)
    finally:
        for process in (killed, waiting):
            process.kill()
            process.communicate()
    assert "rank 0, which served it, has ended" in text
    assert time.monotonic() - began_s < LIMIT_S


@pytest.mark.parametrize("address", ["nonsense", "", "host:", "host:x", "host:70000", "host:0", "host:-1"])
def test_an_address_that_cannot_be_one_is_named(address):
    with pytest.raises(ConfigurationError, match=r'write "host:port"'):
        TcpRendezvous(address, serve=False)


def test_a_host_without_an_address_is_no_port_that_is_taken():
    with pytest.raises(ConfigurationError, match="cannot be served: ") as refused:
        TcpRendezvous("nosuch.invalid:9", serve=True)
    assert "port that is free" not in str(refused.value)


def test_a_store_of_files_is_made_for_its_user_alone_and_keeps_what_was_set(tmp_path):
    store = FileRendezvous(tmp_path / "meet")
    store.set("hive/w/1", b"first")
    store.set("hive/w/1", b"second")
    assert store.get("hive/w/1", 0.0) == b"second"
    assert (tmp_path / "meet").stat().st_mode & 0o777 == 0o700
    assert [one.name for one in (tmp_path / "meet").iterdir()] == ["hive%2Fw%2F1"]


def test_a_rank_that_is_started_twice_or_in_a_directory_that_was_used_is_told_so(tmp_path):
    FileRendezvous(tmp_path).set("hive/w/1", b"first")
    with pytest.raises(ConfigurationError, match=r"started twice, or another run .* take a new one for every run"):
        FileRendezvous(tmp_path).set("hive/w/1", b"second")
    assert FileRendezvous(tmp_path).get("hive/w/1", 0.0) == b"first"


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "long", "writable"])
def test_an_entry_that_no_rank_has_written_is_refused(tmp_path, what):
    store, entry = FileRendezvous(tmp_path), tmp_path / "key"
    secret = tmp_path / "other"
    secret.write_bytes(b"somebody's file")
    match what:
        case "link":
            entry.symlink_to(secret)
        case "directory":
            entry.mkdir()
        case "fifo":
            os.mkfifo(entry)
        case "long":
            entry.write_bytes(bytes(VALUE_BYTES_MAX + 1))
        case "writable":
            entry.write_bytes(b"value")
            entry.chmod(0o666)
    with pytest.raises(ConfigurationError, match=str(entry)):
        store.get("key", LIMIT_S)


def test_what_is_set_replaces_a_link_and_does_not_follow_it(tmp_path):
    store, other = FileRendezvous(tmp_path), tmp_path / "other"
    other.write_bytes(b"somebody's file")
    (tmp_path / "key").symlink_to(other)
    store.set("key", b"value")
    assert store.get("key", 0.0) == b"value"
    assert other.read_bytes() == b"somebody's file"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_directory_in_which_others_may_write_is_no_store(tmp_path, mode):
    directory = tmp_path / "meet"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        FileRendezvous(directory)


def test_a_second_job_on_one_port_is_told_so_on_every_rank_and_the_first_goes_on():
    first = TcpRendezvous("127.0.0.1:0", serve=True)
    where = f"127.0.0.1:{first.port}"
    with pytest.raises(ConfigurationError, match="in use; take a port that is free, one for each job"):
        TcpRendezvous(where, serve=True)
    settings = Settings(listen="127.0.0.1", broker="off")
    with ThreadPoolExecutor(2) as pool:
        stores = (first, TcpRendezvous(where, serve=False))
        connecting = [
            pool.submit(Group.connect, store, rank=rank, world_size=2, settings=settings, timeout_s=60.0)
            for rank, store in enumerate(stores)
        ]
        groups = [one.result() for one in connecting]
    with pytest.raises(TransportError, match=r"refused hive/default/\w+/1: another client has set it"):
        Group.connect(TcpRendezvous(where, serve=False), rank=1, world_size=2, settings=settings, timeout_s=60.0)
    for work in [group.barrier() for group in groups]:
        work.wait(LIMIT_S)
    for group in groups:
        group.close()
    first.close()


@pytest.mark.parametrize(
    "failure", [ConnectionRefusedError(111, "refused"), socket.gaierror(socket.EAI_NONAME, "such a name comes later")]
)
def test_who_cannot_reach_the_store_names_it_and_not_rank_0(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: OSError
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(socket, "create_connection", fail)
    monkeypatch.setattr("transport.bootstrap.rendezvous.WARN_S", 0.2)
    store = TcpRendezvous("store.example:9", serve=False)
    with pytest.raises(TimedOutError, match=rf"connecting: rendezvous at store.example:9 \(.*{failure.strerror}"):
        Group.connect(
            store, rank=1, world_size=2, settings=Settings(listen="127.0.0.1", broker="off"), connect_timeout_s=1.0
        )
    assert caplog.text.count("waiting for rank 0 at store.example:9") == 1


def test_an_address_of_no_interface_here_is_no_port_that_is_taken() -> None:
    with pytest.raises(ConfigurationError, match=r"no interface here has it: on rank 0 write 0.0.0.0:9"):
        TcpRendezvous("192.0.2.77:9", serve=True)

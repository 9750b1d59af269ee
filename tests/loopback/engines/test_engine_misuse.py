"""What an engine does when its caller is wrong, forks, or breaks, and which engine is taken."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support import (
    ConnectionDown,
    Node,
    bound_socket,
    connected,
    engines,
    key,
    over,
    pytest_generate_tests,
)
from patience import LIMIT_S

from hive_qos.errors import ConfigurationError, ConnectionLostError, MisuseError
from transport.engine import create_engine
from transport.engine.base import EngineSettings, Priority
from transport.identity.credentials import Trust
from transport.wire.header import Header, Kind

__all__ = ["engines", "pytest_generate_tests"]


def test_misuse_is_told_at_the_call() -> None:
    with connected() as (a, b, up, _):
        with pytest.raises(MisuseError, match="says 5 bytes"):
            a.engine.send(up, Header(kind=Kind.CONTROL, length=5), memoryview(b"four"), priority=Priority.CONTROL)
        with pytest.raises(MisuseError, match="writable"):
            b.engine.post("a", key(0), memoryview(b"read-only"))
        with pytest.raises(MisuseError, match="contiguous"):
            b.engine.post("a", key(0), memoryview(bytearray(8))[::2])
        with pytest.raises(MisuseError, match="name must be UTF-8"):
            b.engine.post("\ud800", key(0), None)
        with pytest.raises(MisuseError, match="name must be UTF-8"):
            a.engine.connect(a.endpoint, b.address, expected_peer="\ud800")
        assert len(getattr(a.engine, "_links", [up])) == 1, (
            "the native engine keeps a connection that was never dialled"
        )
        header = Header(kind=Kind.CONTROL, group="g" * 200)
        with pytest.raises(MisuseError, match="would refuse"):
            a.engine.send(up, header, None, priority=Priority.CONTROL)
        a.engine.close()
        a.engine.close()
        with pytest.raises(MisuseError, match="closed"):
            a.send(up, b"x")


@over(("aioquic", "aioquic"), ("native", "native"))
def test_a_socket_that_is_closed_already_is_misuse_and_nothing_else_ends() -> None:
    with connected() as (a, b, up, _):
        closed = bound_socket("127.0.0.1")
        closed.close()
        with pytest.raises(MisuseError, match="this one is closed"):
            a.engine.rebind(a.endpoint, closed)
        trust = Trust(pins={b.identity.pin: "b"})
        with pytest.raises(MisuseError, match="this one is closed"):
            a.engine.add_endpoint(closed, credentials=a.credentials, trust=trust, hello={}, bulk=False)
        a.send(up, b"goes on")
        assert b.outcome(b.post("a", None)).payload == b"goes on"


def engine_threads() -> int:
    """The native engine's threads for endpoints in this process."""
    return sum(path.read_text().strip() == "hive-quic" for path in Path("/proc/self/task").glob("*/comm"))


@over(("native", "native"))
def test_an_endpoint_that_is_refused_leaves_no_thread_behind() -> None:
    with connected() as (a, _b, _up, _):
        before = engine_threads()
        for _ in range(20):
            trust, no_udp = Trust(pins={a.identity.pin: "a"}), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            with pytest.raises(MisuseError, match="this socket cannot be used"):
                a.engine.add_endpoint(no_udp, credentials=a.credentials, trust=trust, hello={}, bulk=False)
        assert engine_threads() <= before + 1  # the one for the next endpoint


@contextlib.contextmanager
def no_more_files() -> Iterator[int]:
    """This process may open no further file; the limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, limits[1]))
        yield used
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(used)


@over(("native", "native"))  # the other engine opens nothing for an endpoint
def test_too_many_open_files_are_told_with_the_limit_and_how_to_raise_it() -> None:
    with connected() as (a, b, up, _):
        trust = Trust(pins={b.identity.pin: "b"})
        for _ in range(2):
            sock = bound_socket("127.0.0.1")
            with no_more_files() as limit, pytest.raises(ConfigurationError, match=f"ulimit -n = {limit}: .* raise"):
                a.engine.add_endpoint(sock, credentials=a.credentials, trust=trust, hello={}, bulk=False)
            assert sock.fileno() == -1
            with no_more_files() as limit, pytest.raises(ConfigurationError, match=f"ulimit -n = {limit}: .* raise"):
                create_engine("native", EngineSettings(), lambda _: None)
        a.send(up, b"goes on")
        assert b.outcome(b.post("a", None)).payload == b"goes on"


def test_an_address_that_is_none_ends_the_attempt_and_nothing_else() -> None:
    with connected() as (a, b, up, _):
        for host in ("a" * 64, "\ud800", "192.0.2.1\ud800"):
            attempt = a.engine.connect(a.endpoint, (host, 7), expected_peer="c")
            down = a.take(ConnectionDown)
            assert (down.attempt, down.connection, down.peer) == (attempt, None, "c")
            assert "cannot be dialled from this socket" in str(down.error)
        a.send(up, b"goes on")
        assert b.outcome(b.post("a", None)).payload == b"goes on"


def test_sending_over_a_connection_that_is_gone_fails_the_operation() -> None:
    with connected() as (a, _b, up, _):
        a.engine.disconnect(up, wire_code=0, reason="done")
        assert isinstance(a.outcome(a.send(up, b"x")).error, ConnectionLostError)


def test_an_engine_is_inert_in_a_forked_child() -> None:
    with connected() as (a, b, up, _):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                a.send(up, b"from the child")
            except MisuseError:
                a.engine.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        a.send(up, b"from the parent")
        assert b.outcome(b.post("a", None)).payload == b"from the parent"


def break_down(node: Node) -> None:
    """Let something inside an engine raise."""

    engine: Any = node.engine

    def fail(*_: object) -> None:
        if engine.name == "native":
            del engine._event  # once is enough
        raise RuntimeError("a bug")

    if engine.name == "native":
        engine._event = fail
        engine.connect(0, ("127.0.0.1", 1), expected_peer="nobody")  # there is no endpoint 0: that is an event
    else:
        engine._core.command(fail)


def test_a_failure_inside_the_engine_ends_everything_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with connected() as (a, _b, up, _):
        post = a.post("b", None)

        break_down(a)
        assert isinstance(a.take(ConnectionDown).error, ConnectionLostError)
        assert "a bug" in str(a.outcome(post).error)
        assert "a bug" in caplog.text
        with pytest.raises(MisuseError):
            a.send(up, b"x")


def test_a_caller_whose_callback_raises_does_not_stop_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    with connected() as (a, b, up, _):
        caller: Any = b.engine if b.engine.name == "native" else b.engine._core  # type: ignore[attr-defined]
        real = caller.on_events
        called = threading.Event()

        def fail(events: object) -> None:
            called.set()
            raise RuntimeError("the caller's bug")

        caller.on_events = fail
        a.send(up, b"into the void")
        assert called.wait(LIMIT_S)
        caller.on_events = real
        a.send(up, b"still alive", tag=1)
        assert b.outcome(b.post("a", None, tag=1)).payload == b"still alive"
        assert "on_events raised" in caplog.text


@over(("aioquic", "aioquic"))  # no node at all
def test_native_is_refused_with_a_way_to_get_it_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hive_qos_native", None)
    with pytest.raises(ConfigurationError, match="HIVE_ENGINE = 'native': it is not installed here"):
        create_engine("native", EngineSettings(), lambda events: None)
    engine = create_engine("auto", EngineSettings(), lambda events: None)
    assert engine.name == "aioquic"
    engine.close()
    with pytest.raises(ConfigurationError, match="one of auto, native, aioquic"):
        create_engine("carrier-pigeon", EngineSettings(), lambda events: None)

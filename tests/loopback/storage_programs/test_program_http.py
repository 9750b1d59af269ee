"""A program that is gone, slow, somebody else's or broken costs a bounded time, and says what is to be done."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.adapters import http
from broker.adapters.http import ProgramHttp, read_key
from broker.adapters.program import ProgramError
from broker.policy.types import StorageProgram
from hive_qos.errors import ConfigurationError

Serve = Callable[[Callable[[socket.socket], None]], StorageProgram]
SHORT_S = 0.5


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers each connection on a port of its own by a function, in a thread."""
    with contextlib.ExitStack() as held:

        def start(answer: Callable[[socket.socket], None]) -> StorageProgram:
            server = held.enter_context(socket.create_server(("127.0.0.1", 0)))

            def take() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection = server.accept()[0]
                        with connection, contextlib.suppress(OSError):
                            connection.recv(65536)
                            answer(connection)

            thread = threading.Thread(target=take)
            thread.start()
            held.callback(thread.join)
            held.callback(lambda: server.shutdown(socket.SHUT_RDWR))
            return StorageProgram("p", "syncthing", f"http://127.0.0.1:{server.getsockname()[1]}")

        yield start


def says(text: str) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(text.encode())


def refused(program: StorageProgram) -> tuple[str, str]:
    with pytest.raises(ProgramError) as caught:
        ProgramHttp(program, {}).json("GET", "/")
    assert program.url in caught.value.text
    return caught.value.state, caught.value.text


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ("HTTP/1.1 403 Forbidden\r\n\r\nno", "refused", "key_file"),
        ("HTTP/1.1 401 Unauthorized\r\n\r\n", "refused", "key_file"),
        ("HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\x1b[31m\r\n\r\n", "unexpected", "redirects to http://else"),
        ("HTTP/1.1 500 Oops\r\n\r\n", "unexpected", "500"),
        ("HTTP/1.1 200 OK\r\n\r\n<html>", "unexpected", "not JSON"),
        ("HTTP/1.1 200 OK\r\n\r\n" + "[" * 100_000, "unexpected", "not JSON"),
        ("SSH-2.0-OpenSSH\r\n", "unexpected", "does not speak HTTP"),
        ("", "unreachable", "closed connection"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "unexpected", "does not speak HTTP"),
    ],
)
def test_what_is_no_answer_is_named(serve: Serve, answer: str, state: str, words: str) -> None:
    found, text = refused(serve(says(answer)))
    assert found == state
    assert words in text
    assert "\x1b" not in text


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert refused(StorageProgram("p", "rclone", f"http://127.0.0.1:{port}"))[0] == "unreachable"
    assert refused(StorageProgram("p", "rclone", "unix:/nowhere/socket"))[0] == "unreachable"


@pytest.mark.parametrize("held", [None, "no certificate"])
def test_a_ca_file_that_is_gone_or_none_is_named(tmp_path: Path, held: str | None) -> None:
    path = tmp_path / "ca.pem"
    if held is not None:
        path.write_text(held)
    state, text = refused(StorageProgram("p", "syncthing", "https://127.0.0.1:1", ca_file=str(path)))
    assert state == "refused"
    assert f"ca_file {path} cannot be used" in text


def test_an_answer_without_end_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 1 << 20)

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(bytes(1 << 16))

    assert "more than" in refused(serve(endless))[1]


@pytest.mark.parametrize("head", ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n"])
def test_a_program_that_sends_a_byte_now_and_then_holds_nobody_longer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(http, "REQUEST_S_MAX", SHORT_S)
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(head.encode())
        while not ended.wait(0.05):
            connection.sendall(b"X")

    program = serve(drip)
    began_s = time.monotonic()
    try:
        state, text = refused(program)
    finally:
        ended.set()
    assert (state, "no answer within" in text) == ("unreachable", True)
    assert time.monotonic() - began_s >= SHORT_S


def test_a_unix_socket_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def take() -> None:
            connection = server.accept()[0]
            with connection:
                connection.recv(65536)
                connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}')

        thread = threading.Thread(target=take)
        thread.start()
        assert ProgramHttp(StorageProgram("p", "rclone", f"unix:{path}"), {}).json("GET", "/") == {"a": 1}
        thread.join()


def test_a_certificate_that_nobody_vouches_for_is_refused(serve: Serve) -> None:
    def garbage(connection: socket.socket) -> None:
        connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28")  # a TLS alert: handshake failure

    program = serve(garbage)
    encrypted = StorageProgram("p", "syncthing", program.url.replace("http:", "https:"))
    state, text = refused(encrypted)
    assert (state, "ca_file" in text) == ("refused", True)
    assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED


def keyed(path: Path) -> StorageProgram:
    return StorageProgram("p", "syncthing", "http://127.0.0.1:1", key_file=str(path))


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n")
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_key(keyed(path))
    path.chmod(0o600)
    assert read_key(keyed(path)) == "secret"


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"k\x00y", "schlüssel".encode()])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        read_key(keyed(path))
    assert "lines" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_key(keyed(tmp_path / "none"))

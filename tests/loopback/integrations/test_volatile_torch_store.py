"""torch's store as a register whose server, or the way to it, goes away for a while."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from patience import wait_until
from torch._C._distributed_c10d import TCPStore

from hive_qos.errors import RegisterLostError
from integrations.volatile.torch_store import TorchStore
from transport.volatile.protocol.view import Member, View
from transport.volatile.register.register import Register

SERVER = """
import sys, time
from torch._C._distributed_c10d import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""
FIRST = View(1, (Member("a", 1),), 0, bytes(16))


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A store's server, and its port."""
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server, int(server.stdout.readline())
        finally:
            server.kill()


def register_at(port: int, *, timeout_s: float) -> Register:
    return Register(TorchStore(TCPStore("127.0.0.1", port)), job="j", timeout_s=timeout_s)


def test_a_store_whose_connection_broke_is_connected_to_anew() -> None:
    with serving() as (_, port):
        register = register_at(port, timeout_s=10.0)
        assert register.advance(FIRST, None) == FIRST
    with serving(port):
        assert register.view() is None, "it has forgotten everything, and answers"
        assert register.advance(FIRST, None) == FIRST


def test_a_store_that_falls_silent_is_asked_again_when_it_is_back() -> None:
    with serving() as (server, port):
        register = register_at(port, timeout_s=0.5)
        register.advance(FIRST, None)
        server.send_signal(signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(RegisterLostError, match=r"no answer within 0.5 s"):
                register.view()
        server.send_signal(signal.SIGCONT)

        def answers() -> bool:
            with contextlib.suppress(RegisterLostError):
                return register.view() == FIRST
            return False

        wait_until(answers)

"""torch's store as a register whose server, or the way to it, goes away for a while."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from patience import LIMIT_S, wait_until
from torch._C._distributed_c10d import Store, TCPStore

from hive_qos.errors import MisuseError, RegisterLostError
from integrations.volatile import LocalSGD
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
        register_at(port, timeout_s=LIMIT_S).advance(FIRST, None)
        register = register_at(port, timeout_s=0.5)
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)  # a thread that runs may answer until all of them stand
        for _ in range(2):
            with pytest.raises(RegisterLostError, match=r"no answer within 0.5 s"):
                register.view()
        server.send_signal(signal.SIGCONT)

        def answers() -> bool:
            with contextlib.suppress(RegisterLostError):
                return register.view() == FIRST
            return False

        wait_until(answers)


def test_a_connection_that_was_made_too_late_for_one_call_is_there_for_the_next() -> None:
    """Else a store that is far away is never heard again, once it was not for as long as a call may take."""

    class Far(Store):
        takes_s = 5.0

        def clone(self) -> Store:
            time.sleep(0.6)
            store = Far()
            store.takes_s = 0.0
            return store

        def compare_set(self, _key: str, expected: str, _value: str) -> bytes:
            time.sleep(self.takes_s)
            return expected.encode()

    register = Register(TorchStore(Far()), job="j", timeout_s=0.3)

    def answers() -> bool:
        with contextlib.suppress(RegisterLostError):
            return register.view() is None
        return False

    wait_until(answers, limit_s=5.0)


def test_a_store_that_serves_the_others_goes_on_where_it_is_asked_over_a_new_connection() -> None:
    limit = datetime.timedelta(seconds=5)
    store = TorchStore(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit))
    store.set("key", b"value")
    assert store.renew()
    assert store.get("key") == b"value"


def test_something_else_at_the_register_s_address_is_named_and_a_signal_ends_the_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        code = f"from integrations.volatile import torch_register; torch_register('127.0.0.1:{mute.getsockname()[1]}')"
        with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as member:
            try:
                assert member.stderr is not None
                assert "does not answer; look whether it is a torch store" in member.stderr.readline()
                member.send_signal(signal.SIGINT)
                assert member.wait(10.0) != 0
            finally:
                member.kill()


def test_an_address_in_the_place_of_a_register_is_refused() -> None:
    algorithm = LocalSGD(torch.nn.Linear(2, 2).parameters())
    joined = algorithm.join("127.0.0.1:1", name="a")  # type: ignore[arg-type]  # as a user may
    with pytest.raises(MisuseError, match=r'torch_register\("host:port"\)'), joined:
        pass

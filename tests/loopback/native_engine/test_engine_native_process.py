"""What happens to the process around the native engine: forks, Ctrl-C, a thread that keeps the interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from engine_support import (
    QUICK,
    ConnectionDown,
    Node,
    connected_to_program,
    engines,
    over,
    pytest_generate_tests,
)
from patience import LIMIT_S

from transport.engine.base import SendDone
from transport.identity.credentials import Trust

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")

BEGIN = """
import gc, os, signal, sys, threading
sys.path[:0] = ["tests/loopback", "tests"]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
import engine_support
from engine_support import connected
engine_support._pair = ("native", "native")
manager = connected()
a, b, up, _ = manager.__enter__()
"""

FORKS = (
    BEGIN
    + """
from hive_qos.errors import MisuseError
import numpy as np

def use():
    for call in (lambda: a.send(up, b"x"), lambda: b.post("a", None), lambda: a.engine.statistics(),
                 lambda: a.engine.connect(a.endpoint, b.address, expected_peer=None)):
        try:
            call()
        except MisuseError:
            continue
        os._exit(3)
    a.engine.close()
    os._exit(0)

def forget():
    global a, b, manager, payload, buffer
    del a, b, manager, payload, buffer
    gc.collect()
    os._exit(0)

def leave():
    sys.exit(0)

def work():  # as a DataLoader's worker: compute, collect, and write into memory that its parent has on loan
    buffer[:] = bytes(len(buffer))
    np.ones(100_000).sum()
    gc.collect()
    os._exit(0)

for turn in range(3):
    payload = bytearray(np.random.default_rng(turn).bytes(20_000_000))
    buffer = bytearray(len(payload))
    post = b.post("a", buffer, tag=turn)
    send = a.send(up, payload, tag=turn)
    children = []
    for life in (use, forget, leave, work):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            life()
        children.append(child)
    for child in children:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0, status
    assert b.outcome(post).payload == payload
    a.outcome(send)
manager.__exit__(None, None, None)
print("well")
"""
)

WAIT = (
    BEGIN
    + """
lent = [bytearray(50_000_000) for _ in range(4)]
for tag in range(2):
    a.send(up, lent[tag], tag=tag)
    b.post("a", lent[2 + tag], tag=tag)
a.send(up, bytes(50_000_000), tag=9)
post = b.post("a", None, tag=100)
print("waiting", flush=True)
b.outcome(post)
"""
)


def program(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@over(NATIVE)
def test_children_that_are_forked_in_the_middle_neither_hang_nor_harm() -> None:
    running = program(FORKS)
    out, errors = running.communicate(timeout=3 * LIMIT_S)
    assert out.strip() == "well", errors
    assert "panicked" not in errors


@over(NATIVE)
@pytest.mark.parametrize("times", [1, 3])
def test_control_c_in_the_middle_of_a_transfer_ends_the_program_in_time(times: int) -> None:
    running = program(WAIT)
    assert running.stdout is not None
    assert running.stdout.readline() == "waiting\n"
    for _ in range(times):
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode in (-signal.SIGINT, 1, 130), errors
    assert "KeyboardInterrupt" in errors or running.returncode == -signal.SIGINT
    assert "panicked" not in errors
    assert "FATAL" not in errors


@over(NATIVE)
def test_an_interrupt_while_an_engine_ends_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("a", settings=QUICK)
    node.serve(Trust(pins={node.identity.pin: "a"}))
    core = node.engine._core  # type: ignore[attr-defined]

    class Interrupted:
        def close(self, timeout_s: float) -> None:
            core.close(timeout_s)
            raise KeyboardInterrupt

    monkeypatch.setattr(node.engine, "_core", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        node.engine.close()
    assert node.sock.fileno() == -1


HOLD = """
import ctypes, sys
sys.path[:0] = ["tests/loopback", "tests"]
import engine_support
from engine_support import ConnectionDown, ConnectionUp, Node, QUICK
from transport.identity.credentials import Trust
engine_support._pair = ("native", "native")
node = Node("b", settings=QUICK)
print(node.identity.pin.hex(), node.address[1], flush=True)
node.serve(Trust(pins={bytes.fromhex(sys.stdin.readline()): "a"}))
up = node.take(ConnectionUp)
post = node.post("a", bytearray(60_000_000))
print("holding", flush=True)
ctypes.PyDLL(None).usleep(4_000_000)  # with the interpreter held: nothing of Python's runs in this process
assert len(node.outcome(post).payload) == 60_000_000
assert not [event for event in node.events if isinstance(event, ConnectionDown)]
print("well", flush=True)
node.engine.close()
"""


@over(NATIVE)
def test_a_host_whose_interpreter_is_held_moves_its_messages_and_does_not_look_dead() -> None:
    a = Node("a", settings=QUICK)
    other = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    try:
        up = connected_to_program(a, other)
        assert other.stdout.readline() == "holding\n"
        # All of it is acknowledged by a process in which no line of Python runs: four times its patience.
        sent = a.send(up, bytes(60_000_000))
        assert isinstance(a.outcome(sent), SendDone)
        assert other.stdout.readline() == "well\n"
        down = a.take(ConnectionDown)
        assert down.error is None, down
    finally:
        a.engine.close()
        other.communicate(timeout=LIMIT_S)

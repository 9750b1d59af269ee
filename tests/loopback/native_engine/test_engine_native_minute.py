"""A thread that keeps the interpreter for a minute: what was under way arrives meanwhile, and nobody takes it for dead.

With the patience that groups have by themselves, thirty times of which this is; `make test-engines` alone has the time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from engine_support import ConnectionDown, Node, connected_to_program, engines, over, pytest_generate_tests
from patience import LIMIT_S

from transport import FileRendezvous, Group, Settings
from transport.engine.base import Received, SendDone

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")
SIZE = 200_000_000
HOLD_S = 60

HELD = """
import ctypes, json, sys, time
sys.path[:0] = ["tests/loopback", "tests"]
import numpy as np
import engine_support
from engine_support import ConnectionDown, ConnectionUp, Node
from transport import FileRendezvous, Group, Settings
from transport.engine.base import Received, SendDone
from transport.identity.credentials import Trust
engine_support._pair = ("native", "native")
folder, size, hold_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
node = Node("b")
print(node.identity.pin.hex(), node.address[1], flush=True)
node.serve(Trust(pins={bytes.fromhex(sys.stdin.readline()): "a"}))
up = node.take(ConnectionUp).connection
settings = Settings(listen="127.0.0.1", broker="off", engine="native", job_secret=b"secret of the test")
group = Group.connect(FileRendezvous(folder), rank=1, world_size=2, settings=settings)
post, send = node.post("a", bytearray(size)), node.send(up, bytearray(size))
print("holding", flush=True)
began_s = time.monotonic()
ctypes.PyDLL(None).usleep(hold_s * 1_000_000)  # with the interpreter held: nothing of Python's runs in this process
ended_s = time.monotonic()
assert isinstance(node.outcome(post), Received)
assert isinstance(node.outcome(send), SendDone)
assert not [event for event in node.events if isinstance(event, ConnectionDown)]
tensor = np.full(1000, 2.0)
group.allreduce(tensor).wait()
assert (tensor == 3.0).all() and not group.lost_ranks()
print(json.dumps([began_s, ended_s]), flush=True)
group.barrier().wait()
group.close()
node.engine.close()
"""


@over(NATIVE)
@pytest.mark.timeout(300)
def test_a_minute_without_the_interpreter_stalls_no_transfer_and_is_no_death(tmp_path: Path) -> None:

    a = Node("a")
    command = [sys.executable, "-W", "ignore", "-c", HELD, str(tmp_path), str(SIZE), str(HOLD_S)]
    held = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert held.stdout is not None
    try:
        up = connected_to_program(a, held)
        settings = Settings(listen="127.0.0.1", broker="off", engine="native", job_secret=b"secret of the test")
        group = Group.connect(FileRendezvous(str(tmp_path)), rank=0, world_size=2, settings=settings)
        post = a.post("b", bytearray(SIZE))
        said = held.stdout.readline()
        assert said == "holding\n", held.communicate()[1]
        tensor = np.ones(1000)
        reducing = group.allreduce(tensor, timeout_s=200.0)  # waits for one who says nothing for a minute
        assert isinstance(a.outcome(a.send(up, bytearray(SIZE))), SendDone)
        assert isinstance(a.outcome(post), Received)
        moved_s = time.monotonic()
        reducing.wait()
        assert (tensor == 3.0).all()
        assert not group.lost_ranks()
        assert not [event for event in a.events if isinstance(event, ConnectionDown)]
        began_s, ended_s = json.loads(held.stdout.readline())
        assert ended_s - began_s >= HOLD_S
        assert moved_s < ended_s, "both directions were to move while nothing of Python's ran there"
        group.barrier().wait()
        group.close()
    finally:
        a.engine.close()
        held.kill()
        held.communicate(timeout=LIMIT_S)

"""A forked child: it is told that the group is its parent's, keeps no socket of it, and harms nothing by leaving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from hive_qos.errors import MisuseError
from transport import Group, MemoryRendezvous, Settings

settings = Settings(listen="127.0.0.1", broker="/nonexistent/session.sock", job_secret=b"secret of the test")
rendezvous = MemoryRendezvous()
pool = ThreadPoolExecutor(2)
first, second = pool.map(
    lambda rank: Group.connect(rendezvous, rank=rank, world_size=2, settings=settings, timeout_s=60.0), range(2)
)

def udp_sockets():
    known = open("/proc/net/udp").read().split() + open("/proc/net/udp6").read().split()
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink("/proc/self/fd/" + name))
        except OSError:
            pass
    return sum(one.startswith("socket:[") and one[8:-1] in known for one in names)

assert udp_sockets() == 8, udp_sockets()  # two of each rank, and their copies for the broker
running = first.recv(None, 1)
child = os.fork()
if child == 0:
    signal.alarm(60)
    refused = 0
    for call in (
        lambda: first.allreduce(np.ones(3)),
        lambda: first.send(np.ones(3), 1),
        lambda: first.recv(None, 1),
        lambda: first.subgroup([0, 1]),
        lambda: first.abort(),
        lambda: running.wait(),
    ):
        try:
            call()
        except MisuseError as error:
            refused += "forked child" in str(error)
    first.close()
    second.close()
    os._exit(10 * refused + udp_sockets())
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 60, os.waitstatus_to_exitcode(status)
second.send(np.ones(3), 0).wait(30)
assert running.wait(30).sum() == 3
for closed in [pool.submit(group.close) for group in (first, second)]:
    closed.result()
assert udp_sockets() == 0, udp_sockets()
print("well")
"""


def test_a_forked_child_is_refused_has_no_sockets_and_leaves_its_parents_group_alone() -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.stdout.strip() == "well", result.stderr


CHILD_LEAVES = """
import os, sys, time
from hive_qos.errors import ConnectionLostError
from transport import FileRendezvous, Group, MemoryRendezvous, Settings

settings = Settings(listen="127.0.0.1", broker="off", job_secret=b"secret of the test")
alone = Group.connect(MemoryRendezvous(), rank=0, world_size=1, settings=settings)
child = os.fork()
store = FileRendezvous(sys.argv[1])
group = Group.connect(store, rank=int(child == 0), world_size=2, settings=settings, timeout_s=60.0)
group.barrier().wait(60)
if child == 0:
    sys.exit(0)  # without closing
try:
    group.recv(None, 1).wait(60)
except ConnectionLostError as error:
    print("left" if "has left the group" in str(error) else error)
"""


def test_a_child_that_has_a_group_of_its_own_says_goodbye_as_it_exits(tmp_path: Path) -> None:
    program = [sys.executable, "-c", CHILD_LEAVES, str(tmp_path / "meet")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "left\n", done.stderr

"""Whatever comes over session.sock, from however many clients: the daemon lives, others are served, nothing is left.

What it decided meanwhile is recorded, and replays to the same bytes: hostile input is part of what a recording holds.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import json
import os
import random
import socket
from typing import Any

import pytest
from broker_support import Running, ask, connected, register
from patience import wait_until

from broker.client.protocol import DESCRIPTORS_MAX
from broker.enforce import cgroups
from broker.law.recording import replay
from broker.sessions.server import SESSIONS_PER_USER_MAX
from hive_qos.errors import PrivilegeError

HELLO = {"v": 1, "op": "hello", "client": "fuzz", "job": "f", "pid": 1}
GOOD: tuple[dict[str, Any], ...] = (
    register(),
    register(2, "storage", "storage"),
    {"op": "burst", "id": 3, "job": "f", "step": 1, "bytes": {"127.0.0.1": 10**6}, "deadline_s": 0.5, "next_s": 0.8},
    {"op": "unregister", "id": 1},
    {"op": "burst-end", "job": "f", "step": 1},
    {"op": "need", "id": 4, "backlog_bytes": 10**9, "deadline_s": 60, "replicas_at_risk": 3, "bytes": {"::1": 5}},
    {"op": "report", "connections": [{"peer": "127.0.0.1:9", "rtt_s": 0.01, "delivered_bytes": 10**6}]},
    {"op": "enter", "id": 5, "class": "control"},
    HELLO,
    {"op": "bye"},
)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**64, 10**400, -0.5, 1e308, 1e-308, "", "0", "127.0.0.1", "::1", "10.0.0.2:4242",
    "compute", "\x1b[2J\x07", "\ud800", "\x00", "\u202e" * 200, "y" * 10_240, [], {}, [[[[]]]], {"127.0.0.1": -1},
    {"127.0.0.1": 2**60}, {"not an address": 1}, [{"peer": "127.0.0.1:9", "rtt_s": -1}] * 200, [None],
)  # fmt: skip
CLIENTS, MESSAGES = 6, 60


def message(chance: random.Random) -> bytes:
    """A good message, mostly with something wrong in it."""
    kind = chance.random()
    if kind < 0.05:
        return chance.randbytes(chance.choice((1, 100, 70_000)))
    found = dict(chance.choice(GOOD))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        found[chance.choice([*found, "op", "id", "job", "bytes", "nonsense"])] = chance.choice(VALUES)
    packet = json.dumps(found).encode()
    return packet[: chance.randrange(1, len(packet))] if kind < 0.1 else packet


def say(session: socket.socket, packet: bytes, descriptors: list[int]) -> bool:
    """Send a packet; False where the session has ended."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        with contextlib.suppress(BlockingIOError):  # its queue is full
            session.sendmsg([packet], rights)
        while answer := session.recv(70_000):
            assert json.loads(answer)["op"], "whatever it says, it says in the protocol's words"
    except BlockingIOError:  # no answer yet
        return True
    except (BrokenPipeError, ConnectionResetError):
        return False
    except OSError as problem:
        if problem.errno != errno.EMSGSIZE:
            raise
        return True
    return False


def left(running: Running) -> list[object]:
    """What is known of sessions; other tests' connections are in this network namespace, too."""
    status = running.status()
    passed = [flow for flow in status["flows"] if flow["kind"] == "socket"]
    return [*status["sessions"], *passed, *status["jobs"], *status["needs"]]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_clients_say_the_daemon_lives_and_serves_the_others_and_nothing_is_left(
    running: Running, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(mount: str, *, traffic_class: str, pid: int) -> bool:
        raise PrivilegeError("the clients are this very process, and it stays where it is")

    monkeypatch.setattr(cgroups, "enter", refused)
    chance = random.Random(seed)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(connected(running.sessions))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        tcp = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
        file = stack.enter_context(open(os.devnull))
        clients: list[socket.socket | None] = [None] * CLIENTS
        for number in range(MESSAGES * CLIENTS):
            place = chance.randrange(CLIENTS)
            client = clients[place]
            if client is None:
                client = clients[place] = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                client.connect(running.sessions)
                client.setblocking(False)
                say(client, json.dumps(HELLO).encode(), [])
            passed = chance.choices((udp, tcp, file, client), k=chance.choice((0, 0, 0, 1, 1, 2, DESCRIPTORS_MAX)))
            if not say(client, message(chance), [one.fileno() for one in passed]) or chance.random() < 0.02:
                client.close()
                clients[place] = None
            if number % 60 == 59:
                answer = ask(honest, register(number), descriptors=(udp.fileno(),))
                assert (answer["op"], answer["id"]) == ("registered", number)
        assert running.error is None
        assert running.status()["schema"] == 1
    wait_until(lambda: not left(running))
    wait_until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= before)
    running.stop()
    assert running.error is None
    found = replay((running.folder / "record.jsonl").read_text().splitlines())
    assert found.first_difference is None
    running.start()


def test_a_flood_of_sessions_is_refused_beyond_its_bound_and_leaves_nothing_behind(running: Running) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            taken = [stack.enter_context(connected(running.sessions)) for _ in range(SESSIONS_PER_USER_MAX)]
            for _ in range(2 * SESSIONS_PER_USER_MAX):
                with connected(running.sessions, hello=False) as refused:
                    assert json.loads(refused.recv(1000))["code"] == "too-many"
                    assert refused.recv(10) == b""
            wait_until(lambda: len(running.status()["sessions"]) == SESSIONS_PER_USER_MAX)  # a page may be 0.1 s old
            ticks = running.status()["daemon"]["ticks"]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                for session in (taken[0], taken[-1]):
                    assert ask(session, register(), descriptors=(udp.fileno(),))["op"] == "registered"
            wait_until(lambda: running.status()["daemon"]["ticks"] > ticks + 2)  # noqa: B023 - waited for here
        wait_until(lambda: running.status()["sessions"] == [])
        wait_until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= before)

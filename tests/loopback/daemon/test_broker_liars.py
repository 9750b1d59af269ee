"""Announcements that lie, and what storage declares, against a whole daemon over its real socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from broker_support import Running, ask, connected
from patience import LIMIT_S, wait_until

from broker.client import Session
from broker.client.protocol import encode
from shaping.model.names import DSCP, MARK_MINOR


def lie(step: int, **fields: object) -> dict[str, Any]:
    terabyte = {"127.0.0.1": 10**12}
    return {"op": "burst", "id": step, "job": "j", "step": step, "bytes": terabyte, "deadline_s": 60.0, **fields}


def alarms(running: Running) -> list[str]:
    return [alarm["code"] for alarm in running.status()["alarms"]]


def credited(running: Running, step: int, *, job: str = "j") -> int:
    """What is believed of a burst of a minute, once it is decided on."""

    def found() -> list[int]:
        bursts = (burst for one in running.status()["jobs"] if one["job"] == job for burst in one["bursts"])
        return [one["credited_bytes"] for one in bursts if one["step"] == step and (one["remaining_s"] or 0) > 1]

    return int(wait_until(found)[0])


def test_a_job_that_sends_nothing_of_what_it_announces_loses_its_credit_and_no_other_name_helps(
    running: Running,
) -> None:
    with connected(running.sessions) as session:
        session.send(encode(lie(1)))
        assert 0 < credited(running, 1) < 10**8, "a terabyte is believed up to what the link carries in two seconds"
        for step in range(2, 8):
            session.send(encode({"op": "burst-end", "job": "j", "step": step - 1}))
            session.send(encode(lie(step)))
            believed = credited(running, step)
        assert believed == 0
        wait_until(lambda: "announcements-unused" in alarms(running))
        with connected(running.sessions, hello=False) as other:
            assert ask(other, {"v": 1, "op": "hello", "client": "test", "job": "k", "pid": 1})["op"] == "welcome"
            other.send(encode(lie(1, job="k")))
            assert credited(running, 1, job="k") == 0
            reasons = {
                job["job"]: job["bursts"][0]["credit_reason"]["code"]
                for job in wait_until(lambda: [one for one in running.status()["jobs"] if one["bursts"]])
            }
            assert reasons.get("k", "name-unknown") == "name-unknown"
            assert reasons.get("j", "credit-lost") == "credit-lost"


def test_a_flood_of_terabytes_due_in_a_millisecond_is_outlived_and_bounded(running: Running) -> None:
    with connected(running.sessions) as flood:
        flood.setblocking(False)
        for step in range(5000):
            with contextlib.suppress(BlockingIOError):
                flood.send(encode({**lie(step, deadline_s=0.001), "bytes": {f"127.0.{step % 250}.1": 10**15}}))
        with connected(running.sessions) as other:
            other.send(encode(lie(1)))
            credited(running, 1)
        bursts = [burst for job in running.status()["jobs"] for burst in job["bursts"]]
        assert len(bursts) <= 17
        assert all(burst["credited_bytes"] < 10**8 for burst in bursts)
    assert running.error is None


def test_what_storage_declares_is_shown_and_kept_over_a_restart_of_the_broker_until_it_is_done(
    running: Running,
) -> None:
    with Session(job="", client="replicator", socket_path=running.sessions) as session:
        session.need(backlog_bytes=10**12, deadline_s=600.0, replicas_at_risk=3)
        for restart in (False, True):
            if restart:
                running.stop()
                running.start()
            (need,) = wait_until(lambda: running.status()["needs"])
            assert (need["interface"], need["backlog_bytes"], need["replicas_at_risk"]) == ("lo", 10**12, 3)
            assert 0 < need["remaining_s"] <= 600
            wait_until(lambda: "deadline-at-risk" in alarms(running))
            classes = {entry["name"]: entry for entry in running.status()["interfaces"][0]["classes"]}
            assert classes["storage"]["reason"]["code"] == "replicas-at-risk"
            assert classes["storage"]["rate_bits_per_s"] == classes["storage"]["guarantee_bits_per_s"]
        session.need(backlog_bytes=0)
        wait_until(lambda: running.status()["needs"] == [])
        session.need(backlog_bytes=1)
        wait_until(lambda: running.status()["needs"])
        assert session.rejections == ()
    wait_until(lambda: running.status()["needs"] == [])


def test_the_replication_example_copies_and_declares_what_is_left(running: Running, tmp_path: Path) -> None:
    program = Path(__file__).parents[3] / "examples" / "replicate.py"
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1_000_000) * 8)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        copying = subprocess.Popen(
            [sys.executable, program, "send", "--to", f"127.0.0.1:{server.getsockname()[1]}", "--file", source,
             "--deadline", "600", "--at-risk", "2"],
            env=os.environ | {"HIVE_BROKER": running.sessions}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        connection, _ = server.accept()
        with connection:  # nothing is read yet: the copy stands still, and what it declared stays
            (need,) = wait_until(lambda: running.status()["needs"])
            assert 0 < need["backlog_bytes"] <= 8_000_000
            assert (need["replicas_at_risk"], need["interface"]) == (2, "lo")
            received = bytearray()

            def take() -> None:
                while piece := connection.recv(2**20):
                    received.extend(piece)

            taker = threading.Thread(target=take)
            taker.start()
            assert copying.communicate(timeout=LIMIT_S)[0] == "8000000 bytes\n"
            taker.join(LIMIT_S)
    assert copying.returncode == 0
    assert bytes(received) == source.read_bytes()
    wait_until(lambda: running.status()["needs"] == [])
    assert (MARK_MINOR["storage"], DSCP["storage"]) in running.marks

"""Memory that Python lends to the native engine, whatever becomes of it meanwhile: what `make sanitize` runs too."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from engine_relay import rough
from engine_support import (
    ENDS,
    ConnectionDown,
    UnexpectedMessage,
    connected,
    engines,
    over,
    pytest_generate_tests,
    relayed,
)
from patience import wait_until

from hive_qos.errors import MisuseError
from transport.engine.base import EngineSettings, OperationFailed, Received, SendDone

__all__ = ["engines", "pytest_generate_tests"]

NATIVE = ("native", "native")


def grow(lent: bytearray) -> None:
    lent.extend(b"more")


def is_free(lent: bytearray) -> bool:
    """Whether nobody has it on loan: then, and only then, Python lets it grow."""
    try:
        grow(lent)
    except BufferError:
        return False
    return True


@over(NATIVE)
def test_whatever_is_cancelled_in_the_middle_is_given_back_and_not_written_again() -> None:
    rng = random.Random(5)
    with connected(settings=EngineSettings(unexpected_bytes_max=2**20)) as (a, b, up, _):
        for turn in range(40):
            size = rng.choice([1, 5000, 300_000, 3_000_000])
            payload, buffer = bytearray(rng.randbytes(size)), bytearray(size)
            sent = bytes(payload)
            post = b.post("a", buffer, tag=turn)
            send = a.send(up, payload, tag=turn)
            if turn % 4:
                time.sleep(rng.random() / 200)  # somewhere in the middle, or before or after it
                # Where one is withdrawn in time the other would wait for ever.
                calls = [lambda post=post: b.engine.cancel(post), lambda send=send: a.engine.cancel(send)]
                for call in calls if turn % 4 == 1 else reversed(calls):
                    call()
            assert isinstance(a.outcome(send), (SendDone, OperationFailed))
            # What is received is a view of the buffer: it is let go of here, as a caller does.
            received = isinstance(b.outcome(post), Received)
            # The events have been told, so the loans have ended: at once, not some time later.
            grow(buffer)
            grow(payload)
            if received:
                assert buffer[:-4] == sent
                continue
            left = bytes(buffer)
            behind = b.post("a", None, tag=1000 + turn)
            a.send(up, b"behind it", tag=1000 + turn)
            b.outcome(behind)
            assert buffer == left, "it was written after it had been given back"


@over(NATIVE)
def test_tensors_that_nobody_else_holds_live_as_long_as_the_network_needs_them() -> None:
    with relayed(rough(3)) as (a, b, up, _, _relay):
        expected = {}
        for tag in range(30):
            array = np.random.default_rng(tag).integers(0, 255, 50_000, dtype=np.uint8)
            expected[b.post("a", None, tag=tag)] = array.tobytes()
            a.send(up, array.data, tag=tag)
            del array
            gc.collect()
        for post, payload in expected.items():
            found = b.outcome(post)
            assert isinstance(found, Received), found
            assert found.payload == payload


@over(NATIVE)
def test_memory_of_the_engine_outlives_the_engine() -> None:
    with connected() as (a, b, up, _):
        post = b.post("a", None)
        a.send(up, bytes(range(256)) * 4000)
        payload = b.outcome(post).payload
    gc.collect()
    payload[0] = 7  # it is writable, and nobody else's
    assert bytes(payload[1:256]) == bytes(range(1, 256))
    assert len(payload) == 1_024_000


class Tensor(bytearray):
    """A buffer that can be watched."""


@over(NATIVE)
@pytest.mark.parametrize("end", ["close", "disconnect"])
def test_everything_lent_is_given_back_when_the_engine_or_the_connection_ends(end: str) -> None:
    with connected(settings=EngineSettings(unexpected_bytes_max=2**20)) as (a, b, up, _):
        lent = [Tensor(3_000_000) for _ in range(8)]
        sends = [a.send(up, one, tag=tag) for tag, one in enumerate(lent[:4])]
        posts = [a.post("b", one, tag=tag) for tag, one in enumerate(lent[4:])]
        if end == "close":
            a.engine.close()
        else:
            a.engine.disconnect(up, wire_code=0, reason="done")
        for operation in sends + posts:
            assert isinstance(a.outcome(operation), OperationFailed)
        wait_until(lambda: all(is_free(one) for one in lent), what=lambda: "something is still lent")
        watched = [weakref.ref(one) for one in lent]
        lent.clear()
        gc.collect()
        assert not [one for one in watched if one() is not None]
        assert b.engine is not None


@over(NATIVE)
def test_however_short_the_goodbye_every_operation_ends_and_all_that_was_lent_is_given_back() -> None:
    for _ in range(20):
        with connected(settings=EngineSettings(unexpected_bytes_max=2**20)) as (a, _b, up, _):
            lent = [bytearray(3_000_000) for _ in range(8)]
            sends = [a.send(up, one, tag=tag) for tag, one in enumerate(lent[:4])]
            posts = [a.post("b", one, tag=tag) for tag, one in enumerate(lent[4:])]
            a.engine.close(timeout_s=0)
            for operation in sends + posts:
                outcome = a.found_outcome(operation)
                assert isinstance(outcome, OperationFailed), outcome
            assert not [event for event in a.events if isinstance(event, ENDS)], "an end was told twice"
            assert a.find(ConnectionDown) is not None
            assert all(is_free(one) for one in lent), "something is still lent"


@over(NATIVE)
def test_a_message_that_nobody_took_keeps_nothing_that_was_lent_beside_it() -> None:
    for _ in range(10):
        with connected(settings=EngineSettings(unexpected_bytes_max=2**20)) as (a, b, up, back):
            b.send(back, b"nobody takes it")
            a.take(UnexpectedMessage)
            lent = [bytearray(3_000_000) for _ in range(4)]
            sends = [a.send(up, one, tag=tag) for tag, one in enumerate(lent)]
            a.engine.close(timeout_s=0)
            assert all(isinstance(a.found_outcome(send), OperationFailed) for send in sends)
            assert all(is_free(one) for one in lent), "something is still lent"


@over(NATIVE)
def test_a_post_whose_call_raises_lends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as (a, _b, _up, _):
        engine, buffer = a.engine, bytearray(10)

        def interrupted(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_core", SimpleNamespace(over=False, post=interrupted))
            with pytest.raises(KeyboardInterrupt):
                a.post("b", buffer)
        assert engine._posted == {}  # type: ignore[attr-defined]
        gc.collect()
        grow(buffer)


@over(NATIVE)
def test_a_send_that_is_refused_at_the_call_lends_nothing() -> None:
    with connected() as (a, _b, up, _):
        payload = bytearray(1000)
        with pytest.raises(MisuseError, match="group is longer than 128 bytes"):
            a.send(up, payload, group="g" * 129)
        grow(payload)


@over(NATIVE)
def test_many_threads_lend_take_back_and_drop_at_once() -> None:
    with connected() as (a, b, up, _):
        wrong: list[BaseException] = []

        def work(seed: int) -> None:
            rng = random.Random(seed)
            try:
                for turn in range(40):
                    tag = seed * 1000 + turn
                    data = rng.randbytes(rng.choice([0, 10, 70_000]))
                    buffer = bytearray(len(data)) if rng.random() < 0.5 else None
                    post = b.post("a", buffer, tag=tag)
                    send = a.send(up, bytearray(data), tag=tag)
                    if rng.random() < 0.3:
                        (a if rng.random() < 0.5 else b).engine.cancel(rng.choice([send, post]))
                    if isinstance(a.outcome(send), OperationFailed):
                        b.engine.cancel(post)  # where it was refused or never came nobody else ends it
                    got = b.outcome(post)
                    if isinstance(got, Received):
                        assert got.payload == data
            except BaseException as failure:
                wrong.append(failure)
                raise

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@over(NATIVE)
def test_what_is_received_into_a_posted_buffer_is_held_nowhere_else() -> None:
    size = 128 * 2**20
    payload, buffer = b"\1" * size, bytearray(b"\2") * size  # touched, all of it
    with connected() as (a, b, up, _):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: proc_pid_clear_refs(5)
        before = kilobytes("VmHWM")
        post = b.post("a", buffer)
        a.send(up, payload)
        assert isinstance(b.outcome(post), Received)
        grown = kilobytes("VmHWM") - before
    assert buffer == payload
    assert grown < 48 * 1024, "windows of data under way and no more"


def kilobytes(name: str) -> int:
    """A line of this process' status (proc_pid_status(5))."""
    return int(
        next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)).split()[1]
    )

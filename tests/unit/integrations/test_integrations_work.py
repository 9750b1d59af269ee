"""A Work as torch sees it: typed errors, a future that carries them safely, nobody told too early or under a lock."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from patience import wait_until

from hive_qos.errors import ConnectionLostError, TimedOutError
from integrations.torch_backend.completion_threads import CompletionThreads
from integrations.torch_backend.work import HiveWork
from transport.work import Work

THREADS = CompletionThreads(idle_s=0.2)


def make(parts: list[Work], **kwargs: object) -> HiveWork:
    work = HiveWork("all-reduce 7 of group 0", result=[torch.ones(2)], sequence=7, threads=THREADS, **kwargs)  # type: ignore[arg-type]
    work.follow(parts)
    return work


def test_success_gives_the_outputs_through_wait_result_and_future() -> None:
    part = Work("part")
    work = make([part])
    assert not work.is_completed()
    part.finish()
    assert work.wait() is True
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0].tolist() == [1, 1]
    assert work.get_future().wait()[0].tolist() == [1, 1]
    assert work._get_sequence_number() == 7


def test_a_lost_rank_is_a_runtime_error_with_its_class_rank_and_code() -> None:
    part = Work("part")
    work = make([part])
    part.finish(error=ConnectionLostError("h2", "silent for 5 s", rank=1))
    with pytest.raises(ConnectionLostError, match=r"\[connection-lost\] lost rank 1 \(h2\)") as caught:
        work.wait()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, dist.DistNetworkError)
    assert caught.value.rank == 1
    assert not work.is_success()
    assert isinstance(work.exception(), ConnectionLostError)


def test_the_future_of_a_failed_work_raises_while_its_root_succeeds() -> None:
    part = Work("part")
    work = make([part])
    part.finish(error=ConnectionLostError("h2", "silent", rank=1))
    with pytest.raises(RuntimeError, match=r"\[connection-lost\] lost rank 1"):
        work.get_future().wait()
    root, _ = work._futures[0]
    assert root.wait() is None  # an exception set on this one would crash DDP


def test_a_wait_that_is_too_short_names_the_bytes_done_and_leaves_the_work_running() -> None:
    part = Work("part", bytes_total=100)
    part.progress(60)
    work = make([part])
    with pytest.raises(TimedOutError, match=r"\[timed-out\].*60 of 100 bytes done") as caught:
        work.wait(timedelta(milliseconds=1))
    assert isinstance(caught.value, RuntimeError)
    part.finish()
    assert work.wait(timedelta(seconds=30))


def test_it_ends_only_when_every_part_has_because_the_tensors_are_lent_until_then() -> None:
    parts = [Work("a"), Work("b")]
    work = make(parts)
    parts[0].finish(error=ConnectionLostError("h2", "silent", rank=1))
    with pytest.raises(TimedOutError):
        work.wait(timedelta(milliseconds=1))
    parts[1].finish()
    with pytest.raises(ConnectionLostError):
        work.wait()


def test_a_work_that_is_only_waited_for_ends_without_another_thread() -> None:
    part = Work("part")
    work = make([part])
    part.finish()
    assert work.is_completed()


def test_all_who_ask_for_the_future_get_the_same_one_before_the_end_and_after_it() -> None:
    part = Work("part")
    work, late = make([part]), make([part])
    future = work.get_future()
    assert not future.done()
    part.finish()
    assert work.get_future() is future
    assert future.wait() is work.tensors
    after = late.get_future()
    assert after.done()
    assert after.wait() is late.tensors


def test_received_values_are_in_place_before_anybody_is_told() -> None:
    log: list[str] = []
    part = Work("part")
    work = make([part], finish=lambda: log.append("in place"))
    done = work.get_future().then(lambda _: log.append("told"))
    part.finish()
    done.wait()
    assert log == ["in place", "told"]


def test_a_copy_back_that_fails_fails_the_work() -> None:
    def finish() -> None:
        raise RuntimeError("out of GPU memory")

    part = Work("part")
    work = make([part], finish=finish)
    part.finish()
    with pytest.raises(RuntimeError, match="out of GPU memory"):
        work.wait()


def test_what_callbacks_of_the_future_did_is_there_after_wait_and_they_never_run_on_the_transports_thread() -> None:
    for _ in range(100):
        part = Work("part")
        work = make([part])
        seen: list[str] = []
        done = work.get_future().then(lambda _future, seen=seen: seen.append(threading.current_thread().name))
        part.finish()
        work.wait()
        assert seen == ["hive-complete"]
        assert done.done()


def test_work_without_parts_ends_by_itself() -> None:
    assert make([]).wait()


def test_a_receive_knows_its_source() -> None:
    part = Work("part")
    work = make([part])
    part.source = 3
    part.finish()
    work.wait()
    assert work._source_rank() == 3


def test_nothing_holds_the_tensors_once_the_work_is_dropped() -> None:
    import gc
    import weakref

    part = Work("part")
    tensor = torch.ones(4)
    held = weakref.ref(tensor)
    ended = threading.Event()
    work = HiveWork("w", result=[tensor], sequence=1, threads=THREADS, finish=lambda: None)
    work.follow([part])
    work.get_future().then(lambda _: ended.set())
    del tensor
    part.finish()
    assert ended.wait(30)
    work.wait()
    del work, part

    def let_go() -> bool:
        gc.collect()
        return held() is None

    wait_until(let_go)  # the thread that told of it may still be on its way out of the job

"""One process group's operations: their order, their end, and the connections they share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from lazy_gpu import BusyError, GpuTensor, LazyGpu, StuckError
from patience import wait_until

import transport
from hive_qos.errors import CancelledError, ConnectionLostError, MisuseError, TimedOutError
from integrations.torch_backend import collectives as collectives_module
from integrations.torch_backend import operations, staging
from integrations.torch_backend import world as world_module
from integrations.torch_backend.collectives import Collectives
from integrations.torch_backend.gpu import GPUS
from integrations.torch_backend.options import GroupOptions
from integrations.torch_backend.staging import Staged
from integrations.torch_backend.world import World, group_name_of, world_for
from transport.collectives.calls import Call, CallContext, Compression
from transport.collectives.codecs import Codec
from transport.collectives.error_feedback import ErrorFeedback
from transport.collectives.partial_input import PartialInput


class FakeGroup:
    """Records what is started and leaves it to the test to end it."""

    rank = 0
    size = 2
    ranks = (0, 1)
    name = "0"

    def __init__(self) -> None:
        self.started: list[tuple[str, Any]] = []
        self.works: list[transport.Work] = []
        self.closed = 0
        self.children: list[FakeGroup] = []
        self.on_start: Callable[[list[Call]], None] = lambda prepared: None

    def __getattr__(self, name: str) -> Any:
        def start(*args: Any, **kwargs: Any) -> transport.Work:
            self.started.append((name, kwargs.get("timeout_s")))
            self.works.append(transport.Work(name))
            return self.works[-1]

        return start

    @property
    def site(self) -> CallContext:
        return CallContext(group=self.name, rank=self.rank, size=self.size)

    def compression(self, *_: object) -> None:
        """None: nothing is compressed."""

    def start(self, prepared: list[Call], *, timeout_s: float, priority: object) -> list[transport.Work]:
        self.on_start(prepared)
        return [getattr(self, call.operation.name.lower())(timeout_s=timeout_s) for call in prepared]

    def subgroup(self, ranks: list[int], *, name: str, timeout_s: float) -> FakeGroup:
        child = FakeGroup()
        child.name = name
        child.ranks = tuple(ranks)  # type: ignore[assignment]
        self.children.append(child)
        return child

    def close(self, *, timeout_s: float) -> None:
        self.closed += 1

    def abort(self, reason: str) -> None:
        self.started.append(("abort", reason))


@pytest.fixture
def group() -> FakeGroup:
    return FakeGroup()


@pytest.fixture
def collectives(group: FakeGroup) -> Collectives:
    world = World(group, ranks=(0, 1))  # type: ignore[arg-type]
    return Collectives(world, world.lend("0", (0, 1), timeout_s=7), timeout_s=7)


SUM = transport.ReduceOp.SUM


def test_operations_take_the_groups_timeout_or_their_own(collectives: Collectives, group: FakeGroup) -> None:
    collectives.allreduce([torch.ones(1)], SUM)
    collectives.allreduce([torch.ones(1)], SUM, timeout_s=2)
    collectives.timeout_s = 9
    collectives.broadcast([torch.ones(1)], 0)
    assert group.started == [("allreduce", 7), ("allreduce", 2), ("broadcast", 9)]


def test_residuals_go_by_memory_for_as_long_as_it_is_the_same_tensors(
    collectives: Collectives, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, memory = ErrorFeedback(), bytearray(4 * 4)
    collectives.options = GroupOptions.parse({"compression": "int8"})
    monkeypatch.setattr(group, "compression", lambda codec, key: Compression(Codec.named(codec), kept, key))

    def left_of(tensor: torch.Tensor, op: transport.ReduceOp = SUM) -> float:
        """What was left out the last time; the same number more is left out now."""
        compression = collectives._compression_of(tensor, op)
        assert compression is not None
        residual = kept.take(compression.key, 4)
        kept.keep(compression.key, residual + 1)
        return float(residual[0])

    first = torch.frombuffer(memory, dtype=torch.float32)
    assert [left_of(first), left_of(first.view(2, 2)), left_of(first, transport.ReduceOp.MEAN)] == [0, 1, 0]
    del first
    assert left_of(torch.frombuffer(memory, dtype=torch.float32)) == 0
    left_of(torch.ones(4))
    assert len(kept._kept) == 1, "what is gone holds nothing"


def test_several_tensors_are_one_work_that_ends_with_the_last_and_fails_with_any(
    collectives: Collectives, group: FakeGroup
) -> None:
    work = collectives.allreduce([torch.ones(1), torch.ones(1)], SUM)
    group.works[0].finish(error=ConnectionLostError("h", "silent", rank=1))
    assert not work.is_completed()
    group.works[1].finish()
    with pytest.raises(ConnectionLostError):
        work.wait()


def test_a_barrier_ends_after_earlier_collectives(collectives: Collectives, group: FakeGroup) -> None:
    first = collectives.allreduce([torch.ones(1)], SUM)
    barrier = collectives.barrier()
    group.works[1].finish()
    with pytest.raises(RuntimeError, match="timed-out"):
        barrier.wait(core_module_timedelta(0.05))
    group.works[0].finish()
    assert first.wait()
    assert barrier.wait()


def core_module_timedelta(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)


def test_a_tensor_that_is_still_on_its_way_from_the_gpu_holds_back_what_comes_after(
    collectives: Collectives, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = threading.Event()

    class Late(Staged):
        """A staged tensor whose copy to the host ends when the test says so."""

        pending = property(lambda self: self.tensor.numel() == 3)

        def until_ready(self) -> None:
            if self.pending:
                assert arrived.wait(30)

    monkeypatch.setattr(collectives_module, "Staged", Late)
    works = [
        collectives.allreduce([torch.ones(3)], SUM),
        collectives.broadcast([torch.ones(1)], 0),
        collectives.reduce(torch.ones(1), 0, SUM),
    ]
    assert group.started == []
    arrived.set()
    begun = threading.Event()
    collectives.barrier().tell(begun.set)
    wait_until(lambda: len(group.works) == 4)  # the drain runs on a thread; every one of these is started by it
    assert [name for name, _ in group.started] == ["allreduce", "broadcast", "reduce", "barrier"]
    for part in group.works:
        part.finish()
    assert all(work.wait() for work in works)
    assert begun.wait(30)


def test_where_one_tensor_is_refused_no_operation_begins_on_the_others(
    collectives: Collectives, group: FakeGroup
) -> None:
    good, bad = torch.ones(2), torch.ones(2, dtype=torch.float8_e5m2)
    row = [torch.empty(2), torch.empty(2)]
    with pytest.raises(MisuseError, match="float8"):
        collectives.allreduce([good, bad], SUM)
    with pytest.raises(MisuseError, match="bits8"):
        collectives.broadcast([good, torch.empty(2, dtype=torch.bits8)], 0)
    with pytest.raises(MisuseError, match="different dtypes"):
        collectives.all_gather([row, row], [good, bad])
    with pytest.raises(MisuseError, match="they differ"):
        collectives.reduce_scatter([good, torch.ones(3)], [row, row], SUM)
    assert group.started == []


def test_a_failure_to_start_reaches_the_caller_when_on_time_and_the_work_when_late(
    collectives: Collectives, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise MisuseError("no such dtype")

    monkeypatch.setattr(group, "allreduce", refuse, raising=False)
    with pytest.raises(MisuseError, match="no such dtype"):
        collectives.allreduce([torch.ones(1)], SUM)
    monkeypatch.setattr(Staged, "pending", property(lambda self: True))
    with pytest.raises(MisuseError, match="no such dtype"):
        collectives.allreduce([torch.ones(1)], SUM).wait()


def test_wrong_sizes_are_refused_before_anything_is_sent(collectives: Collectives, group: FakeGroup) -> None:
    with pytest.raises(MisuseError, match="are not 2 times"):
        collectives.all_gather_single([torch.empty(3)], [torch.empty(2)])
    with pytest.raises(MisuseError, match="are not 2 times"):
        collectives.reduce_scatter_single([torch.empty(2)], [torch.empty(2, dtype=torch.int32)], SUM)
    with pytest.raises(MisuseError, match="do not add up"):
        collectives.all_to_all_single(torch.empty(4), torch.empty(4), output_rows=[1, 1], input_rows=[2, 2])
    with pytest.raises(MisuseError, match="cannot be divided"):
        collectives.all_to_all_single(torch.empty(3), torch.empty(3), output_rows=[], input_rows=[])
    with pytest.raises(MisuseError, match="on the root"):
        collectives.gather([], torch.empty(1), 0)
    assert group.started == []


def test_a_group_after_its_end_says_so(collectives: Collectives, group: FakeGroup) -> None:
    collectives.close()
    collectives.close()
    assert group.closed == 1
    with pytest.raises(MisuseError, match="has been destroyed"):
        collectives.barrier()


def test_whoever_waits_for_the_end_of_a_group_hears_of_it_also_where_that_is_interrupted(
    collectives: Collectives, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*, timeout_s: float) -> None:
        raise KeyboardInterrupt

    told: list[str] = []
    collectives.on_close.append(lambda: told.append("ended"))
    monkeypatch.setattr(group, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collectives.close()
    assert told == ["ended"]


def test_abort_tells_the_others_and_leaves(collectives: Collectives, group: FakeGroup) -> None:
    collectives.abort("enough")
    collectives.abort("enough")
    assert group.started == [("abort", "enough")]
    assert group.closed == 1


def test_connections_close_with_the_last_group_on_them(group: FakeGroup) -> None:
    world = World(group, ranks=(4, 7))  # type: ignore[arg-type]
    whole = world.lend("0", (4, 7), timeout_s=1)
    part = world.lend("1", (7,), timeout_s=1)
    assert part.ranks == (1,)
    world.give_back(whole)
    assert group.closed == 0
    world.give_back(part)
    assert (group.children[0].closed, group.closed) == (1, 1)


def test_a_name_that_torch_gives_again_is_another_group(group: FakeGroup) -> None:
    world = World(group, ranks=(0, 1))  # type: ignore[arg-type]
    for _ in range(3):
        world.give_back(world.lend("hash", (1,), timeout_s=1))
    assert [one.name for one in group.children] == ["hash", "hash#2", "hash#3"]


def test_a_group_that_is_made_anew_connects_anew_although_others_still_use_its_connections(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its members do not all know of those others, and have to do the same."""
    connected = [World(group, ranks=(0, 1, 2))]  # type: ignore[arg-type]
    monkeypatch.setattr(world_module, "_worlds", connected)
    (world,) = connected
    whole, part = world.lend("0", (0, 1, 2), timeout_s=1), world.lend("1", (0, 1), timeout_s=1)
    assert world_for(None, ranks=(0, 1), name="2", timeout_s=1) is world
    world.give_back(whole)
    assert (connected, group.closed) == ([], 0)
    world.give_back(part)
    assert group.closed == 1


def test_a_forked_child_leaves_the_connections_alone(group: FakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(group, ranks=(0, 1))  # type: ignore[arg-type]
    lent = world.lend("0", (0, 1), timeout_s=1)
    monkeypatch.setattr("os.getpid", lambda: world.process + 1)
    world.give_back(lent)
    assert group.closed == 0


def test_long_group_names_are_cut_to_different_short_ones() -> None:
    assert group_name_of("12") == "12"
    names = {group_name_of("x" * length) for length in range(60, 200)}
    assert len(names) == 140
    assert max(len(name.encode()) for name in names) <= 64


def test_an_input_that_fails_ends_its_work_and_gives_its_numbers_up(
    collectives: Collectives, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_staged: object) -> None:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(operations, "until_all_ready", broken)
    with monkeypatch.context() as patch:
        patch.setattr(Staged, "pending", True)
        work = collectives.allreduce([torch.ones(1), torch.ones(1)], SUM)
        with pytest.raises(RuntimeError, match="device-side assert"):
            work.wait()
    behind = collectives.barrier()
    wait_until(lambda: any(name == "barrier" for name, _ in group.started))
    assert not behind.is_completed()
    assert [name for name, _ in group.started] == ["give_up", "give_up", "barrier"]


def test_a_start_that_fails_late_ends_its_work_whatever_was_raised(
    collectives: Collectives, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allreduce(*_args: Any, **_options: Any) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(group, "allreduce", allreduce, raising=False)
    monkeypatch.setattr(Staged, "pending", True)
    with pytest.raises(ValueError, match="a mistake"):
        collectives.allreduce([torch.ones(1)], SUM).wait()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> LazyGpu:
    lazy = LazyGpu()
    monkeypatch.setitem(GPUS, "cuda", lazy)
    monkeypatch.setattr(staging, "_streams", {})
    monkeypatch.setattr(staging, "PIECE_BYTES", 8)
    return lazy


def test_a_collective_begins_with_the_first_piece_of_a_gpu_tensor_and_is_told_of_the_others(
    collectives: Collectives, group: FakeGroup, gpu: LazyGpu
) -> None:
    told: list[tuple[int, list[float]]] = []

    def begun(prepared: list[Call]) -> None:
        partial, memory = prepared[0].partial, prepared[0].views[0].numpy()
        if partial is None:
            return  # all of it is there
        end = partial.missing[1]
        partial.tell(lambda: told.append((end - partial.missing[0], memory.tolist())))
        told.append((end - partial.missing[0], memory.tolist()))

    group.on_start = begun
    work = collectives.allreduce([GpuTensor(torch.arange(5.0))], SUM)
    after = collectives.allreduce([torch.ones(1)], SUM)
    wait_until(lambda: len(group.works) == 2)
    assert told == [(12, [0, 1, 99, 99, 99]), (4, [0, 1, 2, 3, 99]), (0, [0, 1, 2, 3, 4])]
    for one in group.works:
        one.finish()
    assert work.wait()
    assert after.wait()


def test_a_gpu_that_fails_behind_the_first_piece_fails_the_collective_and_not_the_next(
    collectives: Collectives, group: FakeGroup, gpu: LazyGpu
) -> None:
    partials: list[PartialInput] = []

    def begun(prepared: list[Call]) -> None:
        if prepared[0].partial is None:
            return
        partials.append(prepared[0].partial)

        def fail() -> None:
            raise StuckError("an illegal address")

        gpu.streams[1].queue[0] = fail

    group.on_start = begun
    collectives.allreduce([GpuTensor(torch.arange(5.0))], SUM)
    collectives.allreduce([torch.ones(1)], SUM)
    wait_until(lambda: len(group.works) == 2)
    assert str(partials[0].failure) == "an illegal address"


def compute_for_ever() -> None:
    raise BusyError


def test_an_operation_whose_gpu_hangs_ends_by_its_timeout_and_those_behind_it_begin(
    collectives: Collectives, group: FakeGroup, gpu: LazyGpu
) -> None:
    gpu.caller.do(compute_for_ever)
    work = collectives.allreduce([GpuTensor(torch.ones(1))], SUM, timeout_s=0.05)
    collectives.barrier()
    with pytest.raises(TimedOutError, match="waiting for tensors on their devices"):
        work.wait()
    wait_until(lambda: [name for name, _ in group.started] == ["give_up", "barrier"])


def test_what_is_only_received_on_a_gpu_that_hangs_ends_by_its_timeout(
    collectives: Collectives, group: FakeGroup, gpu: LazyGpu
) -> None:
    gpu.caller.do(compute_for_ever)
    work = collectives.broadcast([GpuTensor(torch.ones(1))], 1, timeout_s=0.05)
    group.works[0].finish()
    with pytest.raises(TimedOutError, match="waiting for tensors on their devices"):
        work.wait()


def test_a_message_does_not_wait_for_a_collective_that_waits_for_its_input(
    collectives: Collectives, group: FakeGroup, gpu: LazyGpu
) -> None:
    gpu.caller.do(compute_for_ever)
    collectives.allreduce([GpuTensor(torch.ones(1))], SUM)
    collectives.recv(torch.ones(1), 1, 0)
    assert [name for name, _ in group.started] == ["recv"]
    collectives.close()


def test_of_an_operation_whose_input_is_on_its_way_a_wait_says_so_and_closing_cancels_it(
    collectives: Collectives, group: FakeGroup, gpu: LazyGpu
) -> None:
    def closed(_prepared: list[Call]) -> None:
        raise MisuseError("group 0 has been closed")

    gpu.caller.do(compute_for_ever)
    work = collectives.allreduce([GpuTensor(torch.ones(1))], SUM)
    behind = collectives.allreduce([torch.ones(1)], SUM)
    for one in (work, behind):
        with pytest.raises(TimedOutError, match="waiting for tensors on their devices"):
            one.wait(timedelta(seconds=0.01))
    group.on_start = closed
    collectives.close()
    for one in (work, behind):
        with pytest.raises(CancelledError, match="the process group was closed"):
            one.wait()

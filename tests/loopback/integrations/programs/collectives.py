"""Every collective that torch offers on the CPU, over hive, each checked against what it must give.

Inputs are made from a seed per rank, so that every rank can compute every other's and the expected result. Each check
reports its name and what was wrong; the test then has one test a check.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

sys.path.insert(0, str(Path(__file__).parent))
from ranks import connect, report

CHECKS: dict[str, Callable[[int, int], None]] = {}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
OP = dist.ReduceOp


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CHECKS[function.__name__] = function
    return function


def data(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """What rank `rank` puts in: small whole numbers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    values = torch.randint(1, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double() if values.dim() else values.double()).to(dtype)
    return (values > 2).to(dtype) if dtype is torch.bool else values.to(dtype)


def everybody(size: int, *shape: int, **kwargs: object) -> torch.Tensor:
    return torch.stack([data(rank, *shape, **kwargs) for rank in range(size)])  # type: ignore[arg-type]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert torch.equal(found, expected), (found, expected)


def raises(kind: type[BaseException], call: Callable[[], object], text: str = "") -> None:
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value), str(caught.value)


@check
def allreduce_sums_every_dtype(rank: int, size: int) -> None:
    for dtype in (*FLOATS, *INTEGERS, *COMPLEX):
        tensor = data(rank, 7, 3, dtype=dtype)
        dist.all_reduce(tensor)
        same(tensor, everybody(size, 7, 3, dtype=dtype).sum(0).to(dtype))


@check
def allreduce_knows_every_operation(rank: int, size: int) -> None:
    def reduced(op: object, dtype: torch.dtype) -> torch.Tensor:
        tensor = data(rank, 65, dtype=dtype)
        dist.all_reduce(tensor, op=op)
        return tensor

    for dtype in (*FLOATS, *INTEGERS):
        every = everybody(size, 65, dtype=dtype)
        same(reduced(OP.MIN, dtype), every.amin(0))
        same(reduced(OP.MAX, dtype), every.amax(0))
        same(reduced(OP.PRODUCT, dtype), functools.reduce(torch.mul, every))
    for dtype in INTEGERS:
        every = everybody(size, 65, dtype=dtype)
        same(reduced(OP.BAND, dtype), functools.reduce(torch.bitwise_and, every))
        same(reduced(OP.BOR, dtype), functools.reduce(torch.bitwise_or, every))
        same(reduced(OP.BXOR, dtype), functools.reduce(torch.bitwise_xor, every))
    for dtype in FLOATS:
        mean = reduced(OP.AVG, dtype)
        assert torch.allclose(mean.double(), everybody(size, 65).double().mean(0), rtol=1e-2)
    same(reduced(OP.MAX, torch.bool), everybody(size, 65, dtype=torch.bool).any(0))
    same(reduced(OP.MIN, torch.bool), everybody(size, 65, dtype=torch.bool).all(0))
    same(reduced(OP.SUM, torch.bool), everybody(size, 65, dtype=torch.bool).any(0))


@check
def premultiplied_sums_scale_each_ranks_values(rank: int, size: int) -> None:
    tensor = data(rank, 5)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    same(tensor, everybody(size, 5).sum(0) * 0.5)


@check
def operations_that_make_no_sense_are_refused_on_the_spot(rank: int, size: int) -> None:
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2), op=OP.BXOR), "[misuse]")


@check
def shapes_of_all_kinds_work(rank: int, size: int) -> None:
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(float(sum(range(size)))))
    for shape in ((0,), (0, 3)):
        empty = torch.empty(shape)
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
    base = data(rank, 6, 4)
    dist.all_reduce(base.t()[1:3])
    expected = data(rank, 6, 4)
    expected.t()[1:3] = everybody(size, 6, 4).sum(0).t()[1:3]
    same(base, expected)
    strided = torch.zeros(10)
    strided[::2] = rank + 1
    dist.broadcast(strided[::2], src=1)
    same(strided, torch.tensor([2.0, 0.0] * 5))


@check
def large_tensors_have_the_same_bits_everywhere(rank: int, size: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    tensor = torch.randn(300_001, generator=generator)
    dist.all_reduce(tensor)
    every = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(every, tensor)
    assert all(torch.equal(one, tensor) for one in every)
    expected = sum(torch.randn(300_001, generator=torch.Generator().manual_seed(r)).double() for r in range(size))
    assert torch.allclose(tensor.double(), expected, atol=1e-5)


@check
def broadcast_reaches_everybody_from_every_root(rank: int, size: int) -> None:
    for root in range(size):
        for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.int64):
            tensor = data(rank, 9, dtype=dtype)
            dist.broadcast(tensor, src=root)
            same(tensor, data(root, 9, dtype=dtype))


@check
def reduce_reaches_the_root_alone(rank: int, size: int) -> None:
    tensor = data(rank, 9)
    dist.reduce(tensor, dst=1)
    same(tensor, everybody(size, 9).sum(0) if rank == 1 else data(rank, 9))


@check
def all_gather_in_all_its_forms(rank: int, size: int) -> None:
    every = everybody(size, 4, 3)
    outputs = [torch.empty(4, 3) for _ in range(size)]
    dist.all_gather(outputs, data(rank, 4, 3))
    same(torch.stack(outputs), every)
    flat = torch.empty(4 * size, 3)
    dist.all_gather_into_tensor(flat, data(rank, 4, 3))
    same(flat, every.reshape(-1, 3))
    stacked = torch.empty(size, 4, 3)
    dist.all_gather_into_tensor(stacked, data(rank, 4, 3))
    same(stacked, every)
    place = torch.empty(4 * size, 3)  # in place, as FSDP does
    place[4 * rank : 4 * rank + 4] = data(rank, 4, 3)
    dist.all_gather_into_tensor(place, place[4 * rank : 4 * rank + 4])
    same(place, every.reshape(-1, 3))
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [data(rank, 2), data(rank, 3, seed=1)])
    same(torch.stack([row[0] for row in lists]), everybody(size, 2))
    same(torch.stack([row[1] for row in lists]), everybody(size, 3, seed=1))
    turned = [torch.empty(3, 4).t() for _ in range(size)]
    dist.all_gather(turned, data(rank, 4, 3))
    same(torch.stack(turned), every)


@check
def reduce_scatter_in_all_its_forms(rank: int, size: int) -> None:
    output = torch.empty(5)
    dist.reduce_scatter(output, [data(rank, 5, seed=part) for part in range(size)])
    same(output, everybody(size, 5, seed=rank).sum(0))
    single = torch.empty(2, 3)
    dist.reduce_scatter_tensor(single, data(rank, 2 * size, 3))
    same(single, everybody(size, 2 * size, 3).sum(0)[2 * rank : 2 * rank + 2])
    largest = torch.empty(2, dtype=torch.int32)
    dist.reduce_scatter_tensor(largest, data(rank, 2 * size, dtype=torch.int32), op=OP.MAX)
    same(largest, everybody(size, 2 * size, dtype=torch.int32).amax(0)[2 * rank : 2 * rank + 2])


@check
def gather_and_scatter(rank: int, size: int) -> None:
    for root in range(size):
        outputs = [torch.empty(3, dtype=torch.float16) for _ in range(size)] if rank == root else None
        dist.gather(data(rank, 3, dtype=torch.float16), outputs, dst=root)
        if outputs is not None:
            same(torch.stack(outputs), everybody(size, 3, dtype=torch.float16))
        inputs = [data(part, 3, seed=2) for part in range(size)] if rank == root else None
        output = torch.empty(3)
        dist.scatter(output, inputs, src=root)
        same(output, data(rank, 3, seed=2))


@check
def all_to_all_in_all_its_forms(rank: int, size: int) -> None:
    inputs = [data(rank, 2 + to, seed=to) for to in range(size)]
    outputs = [torch.empty(2 + rank) for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    for source in range(size):
        same(outputs[source], data(source, 2 + rank, seed=rank))
    equal = torch.empty(2 * size, 3)
    dist.all_to_all_single(equal, data(rank, 2 * size, 3))
    same(equal, torch.cat([data(s, 2 * size, 3)[2 * rank : 2 * rank + 2] for s in range(size)]))
    # Rank r sends r + to rows to rank `to`; some are none.
    sent = [rank + to for to in range(size)]
    received = [source + rank for source in range(size)]
    rows = torch.empty(sum(received), 2)
    dist.all_to_all_single(rows, torch.full((sum(sent), 2), float(rank)), received, sent)
    same(rows, torch.cat([torch.full((n, 2), float(source)) for source, n in enumerate(received)]))
    raises(RuntimeError, lambda: dist.all_to_all_single(torch.empty(5), torch.empty(size), [5] * size, [1] * size))


@check
def messages_between_two_ranks(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(4, dtype=torch.int64)
    sending = dist.isend(data(rank, 4, dtype=torch.int64), right, tag=5)
    assert dist.recv(received, left, tag=5) == left
    sending.wait()
    same(received, data(left, 4, dtype=torch.int64))
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, data(rank, 3), right), dist.P2POp(dist.irecv, got := torch.empty(3), left)]
    )
    for work in works:
        work.wait()
    same(got, data(left, 3))
    # Tags keep messages apart even when they are taken in another order.
    if rank == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
    if rank == 1:
        second, first = torch.empty(1), torch.empty(1)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        assert (first.item(), second.item()) == (1, 2)


@check
def messages_from_any_rank_name_their_source(rank: int, size: int) -> None:
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            tensor = torch.empty(1)
            source = dist.recv(tensor)
            assert tensor.item() == source
            sources.add(source)
        assert sources == set(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0)


@check
def objects_travel(rank: int, size: int) -> None:
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "pad": "x" * rank})
    assert [one["rank"] for one in objects] == list(range(size))  # type: ignore[index]
    box = ["from 1" if rank == 1 else None]
    dist.broadcast_object_list(box, src=1)
    assert box == ["from 1"]


@check
def coalesced_operations(rank: int, size: int) -> None:
    tensors = [data(rank, 3), data(rank, 4, seed=1), data(rank, 2, dtype=torch.int64)]
    dist.all_reduce_coalesced(tensors[:2])
    same(tensors[0], everybody(size, 3).sum(0))
    same(tensors[1], everybody(size, 4, seed=1).sum(0))
    one, two = data(rank, 3), data(rank, 4, seed=1)
    with dist._coalescing_manager():
        dist.all_reduce(one)
        dist.all_reduce(two)
    same(one, everybody(size, 3).sum(0))
    same(two, everybody(size, 4, seed=1).sum(0))


@check
def functional_collectives(rank: int, size: int) -> None:
    group = dist.group.WORLD
    every = everybody(size, 2 * size, 3)
    tensor = data(rank, 2 * size, 3)
    same(funcol.all_reduce(tensor, "sum", group) + 0, every.sum(0))
    same(funcol.broadcast(tensor, 1, group) + 0, every[1])
    same(funcol.all_gather_tensor(tensor, 0, group) + 0, every.reshape(-1, 3))
    same(funcol.reduce_scatter_tensor(tensor, "sum", 0, group) + 0, every.sum(0)[2 * rank : 2 * rank + 2])
    same(funcol.all_to_all_single(tensor, None, None, group) + 0, torch.cat(list(every[:, 2 * rank : 2 * rank + 2])))
    both = funcol.all_reduce_coalesced([tensor, tensor + 1], "sum", group)
    same(both[1] + 0, every.sum(0) + size)
    gathered = funcol.all_gather_into_tensor_coalesced([tensor, tensor + 1], group)
    same(gathered[1] + 0, every.reshape(-1, 3) + 1)
    scattered = funcol.reduce_scatter_tensor_coalesced([tensor], "sum", [0], group)
    same(scattered[0] + 0, every.sum(0)[2 * rank : 2 * rank + 2])
    same(tensor, data(rank, 2 * size, 3))


@check
def functional_collectives_compile(rank: int, size: int) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(tensor, "sum", dist.group.WORLD) * 2

    same(step(data(rank, 4)) + 0, everybody(size, 4).sum(0) * 2)


@check
def sparse_tensors_add_up(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor([[rank, 0], [0, 1]], torch.tensor([1.0, 2.0]), (size, 2))
    dist.all_reduce(tensor)
    expected = torch.zeros(size, 2)
    for r in range(size):
        expected[r, 0] += 1
        expected[0, 1] += 2
    same(tensor.to_dense(), expected)


@check
def asynchronous_work_has_wait_future_and_result(rank: int, size: int) -> None:
    tensors = [data(rank, 1000, seed=i) for i in range(10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, work in reversed(list(enumerate(works))):
        assert work.wait()
        assert work.is_completed()
        same(work.get_future().wait()[0], everybody(size, 1000, seed=i).sum(0))
        same(work.result()[0], tensors[i])
    chained = dist.all_reduce(data(rank, 3), async_op=True).get_future().then(lambda done: done.value()[0] * 10)
    same(chained.wait(), everybody(size, 3).sum(0) * 10)
    # As the PowerSGD hook does: a callback that starts the next collective and waits for it.
    nested = [
        dist.all_reduce(data(rank, 3, seed=i), async_op=True)
        .get_future()
        .then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0])
        for i in range(1)
    ]
    same(nested[0].wait(), everybody(size, 3).sum(0) * size)


@check
def subgroups_have_ranks_of_their_own(rank: int, size: int) -> None:
    pair = dist.new_group([0, 2])
    other = dist.new_group([2, 1])
    if rank in (0, 2):
        tensor = data(rank, 4)
        dist.all_reduce(tensor, group=pair)
        same(tensor, data(0, 4) + data(2, 4))
        tensor = data(rank, 4)
        dist.broadcast(tensor, src=2, group=pair)
        same(tensor, data(2, 4))
        assert dist.get_rank(pair) == (0, 2).index(rank)
        same(funcol.all_reduce(data(rank, 4), "sum", pair) + 0, data(0, 4) + data(2, 4))
    if rank in (1, 2):
        tensor = data(rank, 4)
        dist.all_reduce(tensor, group=other)
        same(tensor, data(1, 4) + data(2, 4))
    again = dist.new_group([0, 2])
    if rank in (0, 2):
        dist.destroy_process_group(pair)
        dist.barrier(group=again)
        dist.destroy_process_group(again)
    halves = dist.new_subgroups_by_enumeration([[0], [1, 2]])
    tensor = data(rank, 4)
    dist.all_reduce(tensor, group=halves[0])
    same(tensor, data(0, 4) if rank == 0 else data(1, 4) + data(2, 4))


@check
def device_meshes_work(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size,))
    tensor = data(rank, 4)
    dist.all_reduce(tensor, group=mesh.get_group())
    same(tensor, everybody(size, 4).sum(0))


@check
def barriers_hold_everybody_back(rank: int, size: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    for turn in range(3):
        if rank == turn % size:
            time.sleep(0.1)
        store.add(f"arrived/{turn}", 1)
        dist.barrier()
        assert store.add(f"arrived/{turn}", 0) == size
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20), False)  # torch 2.13 keeps dist.monitored_barrier for Gloo


@check
def a_barrier_ends_after_earlier_collectives(rank: int, size: int) -> None:
    works = [dist.all_reduce(data(rank, 50_000), async_op=True) for _ in range(4)]
    dist.barrier()
    assert all(work.is_completed() for work in works)


@check
def sequence_numbers_agree(rank: int, size: int) -> None:
    number = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    numbers: list[object] = [None] * size
    dist.all_gather_object(numbers, number)
    assert numbers == [number] * size


@check
def collectives_from_several_threads_and_groups_do_not_mix(rank: int, size: int) -> None:
    import threading

    groups = [dist.new_group(list(range(size))) for _ in range(3)]
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(10):
            tensor = data(rank, 100, seed=number)
            dist.all_reduce(tensor, group=groups[number])
            if not torch.equal(tensor, everybody(size, 100, seed=number).sum(0)):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@check
def a_late_rank_is_a_timeout_with_the_bytes_done(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    if rank == 1:
        time.sleep(2.5)  # alive, and late
    started_s = time.monotonic()
    if rank != 1:
        raises(RuntimeError, lambda: dist.all_reduce(torch.ones(100), group=group), "[timed-out]")
        assert time.monotonic() - started_s < 30  # the group's own timeout, and not the minute of the others
        work = dist.irecv(torch.empty(1), 1, tag=99)
        raises(RuntimeError, lambda: work.wait(timedelta(milliseconds=100)), "bytes done")
    dist.barrier()  # the default group is as good as before
    if rank == 1:
        for other in range(size):
            if other != 1:
                dist.send(torch.ones(1), other, tag=99)
    else:
        work.wait()


@check
def ddp_trains_to_identical_weights(rank: int, size: int) -> None:
    torch.manual_seed(rank)  # DDP must make them equal
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 5))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(every, flat)
    assert all(torch.equal(one, flat) for one in every)


@check
def ddp_communication_hooks_work(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook, state in (
        (default_hooks.bf16_compress_hook, None),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)),
    ):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Linear(50, 5))
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)  # type: ignore[arg-type]
        ddp.register_comm_hook(state, hook)
        for _ in range(4):
            ddp(torch.full((4, 20), float(rank))).sum().backward()
        gradient = model[0].weight.grad
        assert gradient is not None
        every = [torch.empty_like(gradient) for _ in range(size)]
        dist.all_gather(every, gradient)
        assert all(torch.equal(one, gradient) for one in every)


@check
def data_loader_workers_leave_the_engine_alone(rank: int, size: int) -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(64.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for (batch,) in loader:
            total = batch.clone()
            dist.all_reduce(total)
            same(total, batch * size)


@check
def holding_the_gil_for_a_while_is_not_a_death(rank: int, size: int) -> None:
    if rank == 1:
        ctypes.PyDLL(None).usleep(2_500_000)  # PyDLL keeps the GIL: no thread of this process runs meanwhile
    tensor = data(rank, 4)
    dist.all_reduce(tensor)
    same(tensor, everybody(size, 4).sum(0))


@check
def split_groups_work(rank: int, size: int) -> None:
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        return  # before torch 2.15 only NCCL groups can be split
    group = dist.split_group(split_ranks=[[0, 1], [2]])
    tensor = data(rank, 3)
    dist.all_reduce(tensor, group=group)
    same(tensor, data(2, 3) if rank == 2 else data(0, 3) + data(1, 3))


@check
def zz_a_destroyed_group_can_be_made_again(rank: int, size: int) -> None:
    old = dist.new_group(list(range(size)))
    for _ in range(2):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        connect()
        tensor = data(rank, 4)
        dist.all_reduce(tensor)
        same(tensor, everybody(size, 4).sum(0))
    raises(RuntimeError, lambda: old.allreduce([torch.ones(1)]), "destroyed")
    from integrations.torch_backend import adapters

    assert len(adapters._alive) <= 2  # this group and its backend; none of those before


def run(rank: int, size: int) -> None:
    connect()
    run_checks(rank, size, CHECKS)
    dist.destroy_process_group()


SHORT = (
    "all_gather_in_all_its_forms",
    "all_to_all_in_all_its_forms",
    "allreduce_sums_every_dtype",
    "barriers_hold_everybody_back",
    "coalesced_operations",
    "ddp_trains_to_identical_weights",
    "functional_collectives",
    "gather_and_scatter",
    "objects_travel",
    "reduce_scatter_in_all_its_forms",
    "sequence_numbers_agree",
    "subgroups_have_ranks_of_their_own",
)


def run_without_backend(rank: int, size: int) -> None:
    """With the adapter for torch 2.13, which works on 2.15 as well."""
    from integrations.torch_backend import adapters

    adapters.backend_can_be_subclassed = lambda: False
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # 2.15 would record what it finds in the registered backend; 2.13 does not
    run_checks_short(rank, size, "hive")


def run_in_a_mixed_group(rank: int, size: int) -> None:
    """As one of several backends in a process group of torch's own; from torch 2.15 on."""
    run_checks_short(rank, size, "cpu:hive,cuda:gloo")


def run_checks_short(rank: int, size: int, backend: str) -> None:
    connect(backend)
    run_checks(rank, size, {name: CHECKS[name] for name in SHORT})
    dist.destroy_process_group()


def run_checks(rank: int, size: int, checks: dict[str, Callable[[int, int], None]]) -> None:
    for name, function in sorted(checks.items()):
        started_s = time.monotonic()
        try:
            function(rank, size)
            problem = ""
        except Exception:  # noqa: BLE001 - whatever went wrong is this check's result
            problem = traceback.format_exc()
        report(check=name, problem=problem, seconds=round(time.monotonic() - started_s, 3))

"""Groups and what is built on them, over hive: works, barriers, threads, late ranks, DDP."""

from __future__ import annotations

import ctypes
import logging
import time
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from checks import check, data, everybody, raises, same
from ranks import DEVICE, connect
from torch.distributed.device_mesh import init_device_mesh

from integrations.torch_backend.options import HiveOptions
from transport import Priority


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
    met = dist.all_reduce(data(rank, 3), async_op=True).get_future().then(lambda _: dist.barrier())
    met.wait()
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

    mesh = init_device_mesh(DEVICE.type, (size,))
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
    number = dist.group.WORLD._get_sequence_number_for_group()
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
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(8, 20, generator=generator, device="cpu").to(DEVICE)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(every, flat)
    assert all(torch.equal(one, flat) for one in every)


@check
def compiled_ddp_trains_as_it_does_uncompiled(rank: int, size: int) -> None:
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it warns of DDP's own profiling
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 5)
        ddp: Any = torch.nn.parallel.DistributedDataParallel(model)
        step = torch.compile(ddp, backend="eager") if compiled else ddp
        for _ in range(2):  # before the second step DDP's reducer broadcasts from C++, within the compiled region
            step(torch.full((4, 20), float(rank))).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.allclose(gradients[1], gradients[0])


@check
def batched_messages_compile(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size

    @torch.compile(backend="eager", fullgraph=True)
    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(tensor)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, received, left)])
        for work in works:
            work.wait()
        return received + 1

    with torch._dynamo.config.patch(enable_p2p_compilation=True):  # torch's switch for it
        if hasattr(dist.ProcessGroup, "reconfigure"):
            same(exchange(data(rank, 4)), data(left, 4) + 1)
        else:  # before torch 2.15 its C++ asks for a backend, which Python cannot make
            raises(RuntimeError, lambda: exchange(data(rank, 4)), "No backend type")


@check
def data_loader_workers_leave_the_engine_alone(rank: int, size: int) -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(64.0, device="cpu"))
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
def coalesced_calls_are_one_work(rank: int, size: int) -> None:
    """With a device torch leaves the coalescing to the group."""
    tensors = [data(rank, 4, seed=number) for number in range(3)]
    with dist.distributed_c10d._coalescing_manager(device=DEVICE, async_ops=True) as manager:
        dist.broadcast(tensors[0], 1)
        dist.all_reduce(tensors[1], async_op=True)
        dist.reduce(tensors[2], 0, async_op=True)
    assert len(manager.works) <= 2  # torch gathers the all-reduce by itself
    manager.wait()
    same(tensors[0], data(1, 4, seed=0))
    same(tensors[1], everybody(size, 4, seed=1).sum(0))
    if rank == 0:
        same(tensors[2], everybody(size, 4, seed=2).sum(0))
    group: Any = dist.group.WORLD
    group._start_coalescing(DEVICE)
    missing = group.recv([torch.empty(1)], (rank + 1) % size, 77)
    work = group._end_coalescing(DEVICE)
    assert not work.is_completed()
    dist.send(torch.ones(1), (rank - 1) % size, tag=77)
    assert work.wait()
    assert missing.is_completed()


@check
def an_ephemeral_timeout_holds_until_the_first_work_has_ended(rank: int, size: int) -> None:
    group: Any = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    if not hasattr(group, "_add_ephemeral_timeout"):
        return
    for late in (True, False):
        if late:
            group._add_ephemeral_timeout(timedelta(seconds=30))
        if rank == 1:
            time.sleep(2.5)
        if late:
            dist.all_reduce(torch.ones(1), group=group)
        elif rank != 1:
            raises(RuntimeError, lambda: dist.all_reduce(torch.ones(1), group=group), "[timed-out]")
    dist.barrier()


@check
def a_backend_tells_its_last_error(rank: int, size: int) -> None:
    group: Any = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    backend = group._get_backend(DEVICE)
    if not hasattr(backend, "get_error"):
        return  # torch 2.15 has it first
    assert backend.get_error().name == "SUCCESS"
    called: list[int] = []
    group.register_abort_hook(1, lambda: called.append(1))
    group.register_abort_hook(2, lambda: called.append(2))
    group.unregister_abort_hook(2)
    if rank != 1:
        raises(RuntimeError, lambda: dist.recv(torch.ones(1), 1, group=group), "[timed-out]")
        give_up_s = time.monotonic() + 10.0
        while not called and time.monotonic() < give_up_s:  # hooks run where the operation ended: another thread
            time.sleep(0.01)
        assert backend.get_error().name == "TIMEOUT"
        assert called == [1]
    else:
        assert backend.get_error().name == "SUCCESS"
        assert not called


@check
def groups_of_several_priorities_agree(rank: int, size: int) -> None:
    names = ("control", "activation gradient", "activation", "gradient", "bulk")
    groups = [dist.new_group(list(range(size)), pg_options={"priority": name}) for name in names]
    tensors = [data(rank, 30_000, seed=number) for number in range(len(groups))]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in zip(tensors, groups, strict=True)]
    for number, work in enumerate(works):
        work.wait()
        same(tensors[number], everybody(size, 30_000, seed=number).sum(0))
    for group in groups:
        received = torch.empty(4)
        sending = dist.isend(data(rank, 4), (rank + 1) % size, group=group)
        dist.recv(received, (rank - 1) % size, group=group)
        sending.wait()
        same(received, data((rank - 1) % size, 4))
    mesh = init_device_mesh(
        DEVICE.type, (size,), mesh_dim_names=("tp",), backend_override={"tp": HiveOptions(priority="bulk")}
    )
    assert mesh.get_group("tp")._get_backend(DEVICE).collectives.options.priority is Priority.BULK
    dist.all_reduce(tensor := data(rank, 1000), group=mesh.get_group("tp"))
    same(tensor, everybody(size, 1000).sum(0))
    raises(RuntimeError, lambda: dist.new_group(list(range(size)), pg_options={"priority": "urgent"}), "[misuse]")
    raises(RuntimeError, lambda: dist.new_group(list(range(size)), pg_options={"color": 1}), "no option color")


@check
def split_groups_tell_of_completion(rank: int, size: int) -> None:
    world: Any = dist.group.WORLD
    group = world.split_group(list(range(size)), timeout=timedelta(seconds=20), opts={"priority": "bulk"})
    assert group.rank() == rank
    work = group.allreduce([data(rank, 3)])
    work.wait()
    assert work.is_completed()
    same(work.result()[0], everybody(size, 3).sum(0))
    again = group.split_group([2, 0])
    if rank == 1:
        assert again is None
    else:
        assert again.rank() == (0 if rank == 2 else 1)
        received = torch.empty(1)
        work = again.recv_anysource([received], 3)
        again.send([torch.full((1,), float(rank))], 1 - again.rank(), 3).wait()
        work.wait()
        assert work.source_rank() == 1 - again.rank()
        same(received, torch.full((1,), float(2 - rank)))
        again.shutdown()
    group.shutdown()


@check
def groups_that_were_started_apart_merge(rank: int, size: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    backends = ["hive"]
    if hasattr(dist.ProcessGroup, "reconfigure"):  # before torch 2.15 Gloo's own merge sometimes waits for ever
        backends += ["gloo", "cpu:hive,cuda:gloo"]
    for backend in backends:
        parts = [dist.new_group(ranks, backend=backend) for ranks in ([0, 1], [2])]
        own: Any = parts[rank // 2]
        for number in range(2):
            name = f"{backend} {number}"
            met = dist.PrefixStore(name, store)  # Gloo takes each for one group
            merged = own.merge_remote_group(met, size, timedelta(seconds=60), name, "together")
            assert (merged.size(), merged.group_name, merged.group_desc) == (size, name, "together")
            ranks = torch.zeros(size)
            ranks[merged.rank()] = 1.0
            merged.allreduce([ranks]).wait()
            same(ranks, torch.ones(size))
            merged.shutdown()


@check
def split_groups_work(rank: int, size: int) -> None:
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        return  # before torch 2.15 `dist.split_group` asks for a GPU
    group = dist.split_group(split_ranks=[[0, 1], [2]])
    tensor = data(rank, 3)
    dist.all_reduce(tensor, group=group)
    same(tensor, data(2, 3) if rank == 2 else data(0, 3) + data(1, 3))
    pair = dist.split_group(split_ranks=[[0, 1]])
    if rank == 2:
        assert pair is dist.GroupMember.NON_GROUP_MEMBER
    else:
        tensor = data(rank, 3)
        dist.all_reduce(tensor, group=pair)
        same(tensor, data(0, 3) + data(1, 3))


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
    from integrations.torch_backend import backend

    assert len(backend._alive) <= 2  # this group and its backend; none of those before

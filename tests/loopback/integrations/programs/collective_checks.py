"""Every collective that torch offers on the CPU, over hive, each checked against what it must give."""

from __future__ import annotations

import contextlib
import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn
from checks import COMPLEX, FLOATS, INTEGERS, OP, check, data, everybody, raises, same
from ranks import DEVICE


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
def an_output_may_lie_in_its_input_and_an_input_in_its_output(rank: int, size: int) -> None:
    """So long that what arrives would come before all is sent."""
    length = 1 << 20
    every = everybody(size, size * length)
    for at in (0, rank * length, length // 2):
        summed, gathered = data(rank, size * length), torch.empty(size * length)
        dist.reduce_scatter_tensor(summed[at : at + length], summed)
        same(summed[at : at + length], every.sum(0)[rank * length : (rank + 1) * length])
        gathered[at : at + length] = data(rank, length)
        dist.all_gather_into_tensor(gathered, gathered[at : at + length])
        same(gathered, everybody(size, length).flatten())
    exchanged = data(rank, size * length)
    dist.all_to_all_single(exchanged, exchanged)
    same(exchanged, every[:, rank * length : (rank + 1) * length].flatten())
    parts = list(data(rank, size, length))
    dist.all_to_all(parts, parts)
    same(torch.stack(parts), everybody(size, size, length)[:, rank])


@check
def averages_of_integers_are_cut_toward_zero(rank: int, size: int) -> None:
    mine = torch.arange(-4, 2 * size - 4, dtype=torch.int64) * (rank + 1)
    average = torch.tensor([int(value * size * (size + 1) / 2 / size) for value in range(-4, 2 * size - 4)])
    everywhere = mine.clone()
    dist.all_reduce(everywhere, op=OP.AVG)
    same(everywhere, average)
    at_root = mine.clone()
    dist.reduce(at_root, 1, op=OP.AVG)
    same(at_root, average if rank == 1 else mine)
    part = torch.empty(2, dtype=torch.int64)
    dist.reduce_scatter_tensor(part, mine, op=OP.AVG)
    same(part, average[2 * rank : 2 * rank + 2])
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), op=OP.AVG), "[misuse]")


@check
def calls_that_lightning_makes_for_its_metrics(rank: int, size: int) -> None:
    """`sync_dist=True` averages what is logged, also integers: divided by hand over Gloo, by AVG over all others."""
    for logged, expected in ((torch.tensor(3 + 2 * rank), size + 2), (torch.tensor(1.0 + rank), (1.0 + size) / 2)):
        dist.barrier(group=dist.group.WORLD)
        dist.all_reduce(logged, op=OP.AVG, group=dist.group.WORLD, async_op=False)
        same(logged, torch.tensor(expected, dtype=logged.dtype))
    mine = torch.full((2,), float(rank), requires_grad=True)
    gathered = torch.stack(dist.nn.functional.all_gather(mine, dist.group.WORLD))
    same(gathered.detach(), torch.arange(float(size))[:, None].expand(size, 2))
    gathered.sum().backward()
    assert mine.grad is not None
    same(mine.grad, torch.full((2,), float(size)))


@check
def premultiplied_sums_scale_each_ranks_values(rank: int, size: int) -> None:
    tensor = data(rank, 5)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    same(tensor, everybody(size, 5).sum(0) * 0.5)


@check
def premultiplied_sums_take_floats(rank: int, size: int) -> None:
    half = dist._make_nccl_premul_sum(torch.tensor([0.5]))
    part = torch.empty(3)
    dist.reduce_scatter_tensor(part, data(rank, 3 * size), op=half)
    same(part, everybody(size, 3 * size).sum(0)[3 * rank : 3 * rank + 3] * 0.5)
    at_root = data(rank, 4)
    dist.reduce(at_root, 1, op=half)
    same(at_root, everybody(size, 4).sum(0) * 0.5 if rank == 1 else data(rank, 4))
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=half), "[misuse]")
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.int32)]
    opts = dist.AllreduceCoalescedOptions()
    opts.reduceOp = half
    raises(RuntimeError, lambda: dist.group.WORLD.allreduce_coalesced(mixed, opts), "[misuse]")
    assert mixed[0].eq(1).all()


@check
def gather_into_one_tensor(rank: int, size: int) -> None:
    if not hasattr(dist, "gather_single"):
        return  # torch 2.15 has it first
    whole = torch.empty(2 * size, 3) if rank == 1 else None
    dist.gather_single(data(rank, 2, 3), whole, dst=1)
    if whole is not None:
        same(whole, everybody(size, 2, 3).flatten(0, 1))
    if rank == 0:
        small = torch.empty(2 * size - 1, 3)
        raises(RuntimeError, lambda: dist.gather_single(data(rank, 2, 3), small, dst=0), "[misuse]")
    else:
        with contextlib.suppress(RuntimeError):  # it may have sent what it has before it learns of the mistake
            dist.gather_single(data(rank, 2, 3), None, dst=0)


@check
def operations_that_make_no_sense_are_refused_on_the_spot(rank: int, size: int) -> None:
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2), op=OP.BXOR), "[misuse]")


@check
def where_the_second_tensor_is_refused_the_first_is_not_touched(rank: int, size: int) -> None:
    tensors = [torch.ones(100_000), torch.ones(2, dtype=torch.float8_e5m2)]
    raises(RuntimeError, lambda: dist.group.WORLD.allreduce(tensors), "[misuse]")
    dist.barrier()
    assert tensors[0].eq(1).all()


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
    def noise(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(300_001, generator=generator, device="cpu").to(DEVICE)

    tensor = noise(rank)
    dist.all_reduce(tensor)
    every = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(every, tensor)
    assert all(torch.equal(one, tensor) for one in every)
    expected = sum(noise(r).double() for r in range(size))
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
    # A tensor without dimensions is one row.
    before, behind = (rank - 1) % size, (rank + 1) % size
    row = torch.empty(())
    given, taken = ([int(one == other) for one in range(size)] for other in (behind, before))
    dist.all_to_all_single(row, torch.tensor(float(rank)), taken, given)
    assert row.item() == before
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
def a_sparse_all_reduce_returns_before_the_others_have_called_it(rank: int, size: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["sparse is called"])
    tensor = torch.sparse_coo_tensor([[rank]], torch.tensor([1.0]), (size,))
    dense = torch.ones(1)
    works = [dist.all_reduce(one, async_op=True) for one in (tensor, dense)]
    if not rank:
        assert not any(one.is_completed() for one in works)
        store.set("sparse is called", "")
    for one in works:
        one.wait()
    same(tensor.to_dense(), torch.ones(size))
    same(dense, torch.tensor([float(size)]))


@check
def a_message_does_not_wait_for_a_sparse_all_reduce(rank: int, size: int) -> None:
    """So large that its sender waits for the receive, before it calls the all-reduce."""
    tensor = torch.sparse_coo_tensor([[rank]], torch.tensor([1.0]), (size,))
    message = data(1, 1_000_000)
    if rank == 1:
        dist.send(message, 0)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        received = torch.empty_like(message)
        dist.recv(received, 1)
        same(received, message)
    work.wait()
    same(tensor.to_dense(), torch.ones(size))


@check
def a_rank_that_cannot_begin_a_sparse_all_reduce_keeps_its_place_among_the_others(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor([[rank]], torch.tensor([1.0]), (size,))
    op = dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
    raises(RuntimeError, lambda: dist.all_reduce(tensor, op=op), "[misuse]" if rank == 1 else "rank 1 gave up")
    for factor in range(1, 4):
        dense = torch.full((2,), float(factor * (rank + 1)))
        dist.all_reduce(dense)
        same(dense, torch.full((2,), float(factor * sum(range(1, size + 1)))))


@check
def tensors_of_inference_mode_are_reduced_dense_or_sparse(rank: int, size: int) -> None:
    with torch.inference_mode():
        strided = data(rank, 4, 2).t()
        dist.all_reduce(strided)
        same(strided + 0, everybody(size, 4, 2).sum(0).t())
        sparse = torch.sparse_coo_tensor([[0]], torch.tensor([1.0]), (2,))
        dist.all_reduce(sparse)
        same(sparse.to_dense(), torch.tensor([float(size), 0.0]))

"""All forms of all methods of a process group, over hive and over Gloo at once: both must do the same.

The forms come from torch itself (`signatures`). Each is called with positional arguments, without what may be left out,
and with everything by name, with a root and an operation that are not the default.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from checks import data
from ranks import connect, report
from signatures import Signature, signatures

ROOT = 1
TIMEOUT = timedelta(seconds=30)
ONE = torch.ones(1)
Tensors = list[torch.Tensor]


class Arguments:
    """Makes fresh arguments for a method, the same for both backends.

    `one`, `many` and `lists` give a parameter's tensors, to be put into as many lists as its kind has.
    """

    def __init__(self, rank: int, size: int, *, root: int) -> None:
        self.rank, self.size, self.root = rank, size, root
        self.one = data(rank, 6, seed=1)
        self.whole = data(rank, 2 * 3 * size, seed=2)
        self.part = data(rank, 2 * 3, seed=3)

    def per_rank(self) -> Tensors:
        return [data(self.rank, 6, seed=10 + rank) for rank in range(self.size)]

    def roots(self) -> Tensors:
        return self.per_rank() if self.rank == self.root else []

    def several(self) -> Tensors:
        return [data(self.rank, 6, seed=4), data(self.rank, 4, 2, seed=5)]

    def wholes(self) -> Tensors:
        return [data(self.rank, 6 * self.size, seed=6), data(self.rank, 4 * self.size, 2, seed=7)]

    def of(self, method: str, name: str, kind: str) -> object:
        """The value of one parameter."""
        makers: dict[str, Callable[[], object]] = {
            "opts": lambda: self.options(kind),
            "op": lambda: dist.ReduceOp.MAX,
            "root": lambda: self.root,
            "timeout": lambda: TIMEOUT,
            "wait_all_ranks": lambda: True,
            "output_split_sizes": lambda: [2 + (self.rank + other) % self.size for other in range(self.size)],
            "input_split_sizes": lambda: [2 + (self.rank + other) % self.size for other in range(self.size)],
            "output_lists": lambda: [self.several() for _ in range(self.size)],
            "dstRank": lambda: (self.rank + 1) % self.size,
            "srcRank": lambda: (self.rank - 1) % self.size,
            "tag": lambda: 3,
            "arg1": lambda: 3,  # the tag of recv_anysource
        }
        if name in makers:
            return makers[name]()
        direction = "out" if name.startswith("out") else "in"
        value = self.tensors(method, direction)
        for _ in range(kind.count("[") - isinstance(value, list)):
            value = [] if isinstance(value, list) and not value else [value]
        return value

    def tensors(self, method: str, direction: str) -> Any:
        """A tensor, or a list of them, for the input or output of a method."""
        if method == "allgather_coalesced" or method == "allreduce_coalesced":
            return self.several()
        if "coalesced" in method:
            whole = ("gather" in method) == (direction == "out")
            return self.wholes() if whole else self.several()
        if method in ("_allgather_base", "all_gather_single"):
            return self.whole if direction == "out" else self.part
        if method in ("_reduce_scatter_base", "reduce_scatter_single"):
            return self.part if direction == "out" else self.whole
        if method in ("all_to_all_single", "alltoall_base"):
            return data(self.rank, sum(2 + other for other in range(self.size)), 2, seed=8 if direction == "in" else 9)
        many = {
            "allgather": {"out": self.per_rank},
            "gather": {"out": self.roots},
            "reduce_scatter": {"in": self.per_rank},
            "scatter": {"in": self.roots},
            "alltoall": {"in": self.per_rank, "out": self.per_rank},
        }
        known = ("allreduce", "broadcast", "reduce", "send", "recv", "recv_anysource", *many)
        assert method in known, f"torch has a method that is not known here: {method}"
        make = many.get(method, {}).get(direction)
        return make() if make else data(self.rank, 6, seed=1 if direction == "in" else 2)

    def options(self, kind: str) -> Any:
        options = getattr(c10d, kind)()
        options.timeout = TIMEOUT
        if hasattr(options, "rootRank"):
            options.rootRank = self.root
        if hasattr(options, "reduceOp"):
            options.reduceOp = dist.ReduceOp.MAX
        return options


def called(group: Any, signature: Signature, rank: int, size: int, *, full: bool) -> list[torch.Tensor]:
    """Call a form; returns the tensors that were among its arguments, as they are then."""
    names = [parameter.name for parameter in signature.parameters]
    root = ROOT if full or "root" in names else 0
    arguments = Arguments(rank, size, root=root)
    args, kwargs = [], {}
    for parameter in signature.parameters:
        if full or not parameter.optional:
            value = arguments.of(signature.method, parameter.name, parameter.kind)
            if full and parameter.named:
                kwargs[parameter.name] = value
            else:
                args.append(value)
    partner = None
    if signature.method == "send":
        received = torch.zeros(6)
        partner = group.recv([received], (rank - 1) % size, 3)
    elif signature.method.startswith("recv"):
        received = torch.zeros(6)
        partner = group.send([data(rank, 6)], (rank + 1) % size, 3)
    work = getattr(group, signature.method)(*args, **kwargs)
    if work is not None:
        work.wait()
    if partner is not None:
        partner.wait()
        args.append(received)
    if signature.method == "reduce" and rank != root:
        return []  # Gloo leaves partial sums there
    return flat([*args, *kwargs.values()])


def flat(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for one in value for tensor in flat(one)] if isinstance(value, list | tuple) else []


def forms(rank: int, size: int) -> None:
    connect("gloo")
    groups = {"gloo": dist.group.WORLD, "hive": dist.new_group(backend="hive")}
    for signature in signatures():
        for full in (False, True):
            problem = ""
            try:
                found = {}
                for name, group in groups.items():
                    target = group if signature.owner == "ProcessGroup" else group._get_backend(torch.device("cpu"))
                    found[name] = called(target, signature, rank, size, full=full)
                same = [torch.equal(ours, theirs) for ours, theirs in zip(found["hive"], found["gloo"], strict=True)]
                if not all(same):
                    problem = f"not what Gloo gives: {found}"
            except Exception:  # noqa: BLE001 - the result of this case
                problem = traceback.format_exc()
            report(check=f"{signature}.{'full' if full else 'short'}", problem=problem)
    dist.destroy_process_group()


WRONG_CALLS: dict[str, Callable[[Any, int], Any]] = {
    "no_tensor": lambda group, size: group.allreduce("x"),
    "none": lambda group, size: group.broadcast(None, 1),
    "unknown_keyword": lambda group, size: group.allreduce(tensors=[ONE], bogus=1),
    "twice": lambda group, size: group.broadcast([ONE], tensor=ONE),
    "too_many": lambda group, size: group.barrier(TIMEOUT, 2),
    "no_root": lambda group, size: group.gather([], ONE),
    "no_tag": lambda group, size: group.send([ONE], 1),
    "root_of_float": lambda group, size: group.broadcast(ONE, 1.0),
    "timeout_of_text": lambda group, size: group.broadcast(ONE, 1, "5"),
    "options_of_none": lambda group, size: group.allreduce([ONE], None),
    "options_of_another": lambda group, size: group.allreduce([ONE], dist.BroadcastOptions()),
    "generator": lambda group, size: group.broadcast((ONE for _ in range(1)), 0),
    "root_too_large": lambda group, size: group.broadcast(ONE, 7),
    "root_below_zero": lambda group, size: group.reduce(ONE, -1),
    "outputs_too_few": lambda group, size: group.allgather([ONE], ONE),
    "outputs_too_large": lambda group, size: group.allgather([torch.ones(2)] * size, ONE),
    "outputs_of_another_dtype": lambda group, size: group.allgather([ONE.int()] * size, ONE),
    "single_output_too_small": lambda group, size: group._allgather_base(ONE, ONE),
    "inputs_too_few": lambda group, size: group.reduce_scatter(ONE, [ONE]),
    "no_tensors": lambda group, size: group.allreduce([]),
    "gather_outputs_too_few": lambda group, size: group.gather([ONE] * (size - 1), ONE, 1),
    "too_few_for_an_alltoall": lambda group, size: group.alltoall([ONE], [ONE]),
    "splits_too_few": lambda group, size: group.alltoall_base(torch.ones(size), torch.ones(size), [1], [1]),
    "bits_of_floats": lambda group, size: group.allreduce(ONE, dist.ReduceOp.BXOR),
}
"""Calls that no backend can carry out, as every rank finds out by itself."""
RIGHT_CALLS: dict[str, Callable[[Any, int], Any]] = {
    "no_tensor": lambda group, size: group.allreduce(torch.ones(1)),
    "unknown_keyword": lambda group, size: group.allreduce([torch.ones(1)]),
    "outputs_too_few": lambda group, size: group.allgather([torch.ones(1) for _ in range(size)], torch.ones(1)),
    "inputs_too_few": lambda group, size: group.reduce_scatter(torch.ones(1), [torch.ones(1)] * size),
    "single_output_too_small": lambda group, size: group._allgather_base(torch.ones(size), torch.ones(1)),
    "bits_of_floats": lambda group, size: group.allreduce(torch.ones(1), dist.ReduceOp.SUM),
    "coalesced": lambda group, size: group.all_gather_single_coalesced([torch.ones(size)] * 2, [torch.ones(1)] * 2),
    "coalesced_keyword": lambda group, size: group.allreduce_coalesced([torch.ones(1) for _ in range(3)]),
}
"""What the others call while one rank calls the wrong one of the same name."""


def mistakes_of_all(rank: int, size: int) -> None:
    connect("gloo")
    groups = {"gloo": dist.group.WORLD, "hive": dist.new_group(backend="hive")}
    for name, call in WRONG_CALLS.items():
        raised: dict[str, BaseException | None] = {}
        for backend, group in groups.items():
            try:
                call(group, size).wait()
                raised[backend] = None
            except Exception as error:  # noqa: BLE001 - what it is, is the question
                raised[backend] = error
        total = torch.ones(1)
        dist.all_reduce(total, group=groups["hive"])
        report(
            check=name,
            kinds={backend: [kind.__name__ for kind in type(error).__mro__] for backend, error in raised.items()},
            text=str(raised["hive"]),
            total=total.item(),
        )
    dist.destroy_process_group()


def mistakes_of_one(rank: int, size: int) -> None:
    """Rank 1 makes a mistake where the others call rightly."""
    connect()
    group: Any = dist.group.WORLD
    # Gloo reads past the output's end here, so that it is not among what is compared.
    wrong = {
        **WRONG_CALLS,
        "coalesced": lambda group, size: group.all_gather_single_coalesced([ONE] * 2, [ONE] * 2),
        "coalesced_keyword": lambda group, size: group.allreduce_coalesced([ONE] * 3, bogus=1),
    }
    for name, call in RIGHT_CALLS.items():
        started_s = time.monotonic()
        kinds, text = [], ""
        try:
            (wrong[name] if rank == 1 else call)(group, size).wait()
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            kinds, text = [kind.__name__ for kind in type(error).__mro__], str(error)
        seconds = time.monotonic() - started_s
        total = torch.ones(1)
        dist.all_reduce(total)
        report(check=name, kinds=kinds, text=text, seconds=seconds, total=total.item())
    dist.destroy_process_group()

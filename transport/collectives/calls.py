"""From what the caller hands over to what the executor runs: tensors checked and viewed, and the schedule chosen.

Everything that is the caller's fault is found here, in the caller's thread, before anything is sent.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hive_qos.errors import MisuseError
from transport.arguments import check_rank
from transport.collectives.codecs import Codec
from transport.collectives.error_feedback import ErrorFeedback
from transport.collectives.kernels import check
from transport.collectives.partial_input import PartialInput
from transport.collectives.problem import SMALL_BYTES, Operation, Problem
from transport.collectives.reduce_op import ReduceOp
from transport.tensors import TensorView, split

SIZES_CHARS_MAX = 40
"""Of a list of sizes in words; a header's `call` has at most 128 bytes for the whole."""
_NARROW = (ReduceOp.MEAN, ReduceOp.PRODUCT)
"""Some ranks' values may come to more than all ranks' do. So may a sum's, as in Gloo, but DDP and its hook for float16
divide before they sum, and direct sums send as many times more between sites as a site has ranks."""


@dataclass(frozen=True)
class CallContext:
    """Where a call is made: this rank of this group."""

    group: str
    rank: int
    size: int


@dataclass(frozen=True)
class Compression:
    """How a collective is to be encoded.

    Args:
        key: what the tensor is called in `kept`, the same each time; None: without error feedback.
        kept: the group's residuals.
    """

    codec: Codec
    kept: ErrorFeedback
    key: Hashable = None

    def takes(self, call: Call) -> bool:
        """Whether it counts for a call: sums, means and copies of float32 above SMALL_BYTES, among several ranks."""
        counts = call.problem.receive_counts or call.problem.counts
        adds = call.reduce_op in (ReduceOp.SUM, ReduceOp.MEAN)
        return (
            self.codec is not Codec.NONE
            and adds
            and call.dtype == "float32"
            and call.context.size > 1
            and (4 * sum(counts) > SMALL_BYTES)
        )


@dataclass(frozen=True)
class CallSignature:
    """A call in words. They are the same on every member, or the members do not call the same thing.

    Args:
        common: what all must agree on.
        sent, taken: elements to and from each rank, where a number concerns two ranks alone; () where it does not.
    """

    common: str
    sent: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()

    def to(self, rank: int) -> str:
        """What this rank says of the call in a message to a rank of the group."""
        return f"{self.common}, {self.sent[rank]} elements" if self.sent else self.common

    def of(self, rank: int) -> str:
        """What a message from a rank of the group must say."""
        return f"{self.common}, {self.taken[rank]} elements" if self.taken else self.common


@dataclass(frozen=True)
class Heard:
    """What another rank says of a call, in words as `CallSignature` has them; "" where it does not say.

    Args:
        called: what it called, as its messages say it.
        expects: what our messages to it have to say.
    """

    called: str
    expects: str = ""


@dataclass(frozen=True)
class Call:
    """One rank's part of a collective, ready to run.

    Args:
        problem: what a schedule is made for.
        buffers: what the schedule's regions refer to, in the order that `Problem` gives.
        words: what all members must agree on.
        dtype: element type of all regions.
        views: of all tensors that are lent, whether they are read or written.
        results: views to write back when all is done.
        ended_well: called after that.
        partial: what says how much of a tensor is there; None where all of them are.
    """

    context: CallContext
    problem: Problem
    signature: CallSignature
    buffers: tuple[memoryview, ...] = ()
    dtype: str = ""
    reduce_op: ReduceOp = ReduceOp.SUM
    views: tuple[TensorView, ...] = ()
    results: tuple[TensorView, ...] = ()
    ended_well: Callable[[], None] | None = None
    partial: PartialInput | None = None

    @property
    def operation(self) -> Operation:
        """What is called."""
        return self.problem.operation


def allreduce(context: CallContext, tensor: object, op: ReduceOp, compression: Compression | None = None) -> Call:
    view = TensorView.of(tensor, writable=True)
    check(view.dtype, op)

    words = f"allreduce {op.value} of {view.elems} {view.dtype}"
    call = _call(context, Operation.ALLREDUCE, [view.elems], [view], words=words, results=[view], op=op)
    return _encoded(call, compression)


def broadcast(context: CallContext, tensor: object, root: int) -> Call:
    check_rank(root, group=context.group, size=context.size)
    view = TensorView.of(tensor, writable=context.rank != root)
    words = f"broadcast from {root} of {view.elems} {view.dtype}"
    return _call(
        context,
        Operation.BROADCAST,
        [view.elems],
        [view],
        root=root,
        words=words,
        results=[view] if context.rank != root else [],
    )


def reduce(
    context: CallContext, tensor: object, root: int, op: ReduceOp, compression: Compression | None = None
) -> Call:
    check_rank(root, group=context.group, size=context.size)
    view = TensorView.of(tensor, writable=context.rank == root)
    check(view.dtype, op)
    words = f"reduce {op.value} to {root} of {view.elems} {view.dtype}"
    results = [view] if context.rank == root else []
    call = _call(context, Operation.REDUCE, [view.elems], [view], root=root, words=words, results=results, op=op)
    return _encoded(call, compression)


def reduce_scatter(
    context: CallContext, output: object, inputs: object, op: ReduceOp, compression: Compression | None = None
) -> Call:
    target = TensorView.of(output, writable=True)
    check(target.dtype, op)
    parts, _ = _parts(context, inputs, writable=False)
    own = parts[context.rank]
    if (own.elems, own.dtype) != (target.elems, target.dtype):
        raise MisuseError(f"reduce-scatter of {own} into {target}: they differ")
    elems = [part.elems for part in parts]
    parts = _apart(parts, [target], rank=context.rank)

    words = f"reduce-scatter {op.value} of {_sizes(elems)} {target.dtype}"
    call = _call(context, Operation.REDUCE_SCATTER, elems, [*parts, target], words=words, results=[target], op=op)
    return _encoded(call, compression)


def all_gather(context: CallContext, outputs: object, tensor: object, compression: Compression | None = None) -> Call:
    """What every rank has afterwards is what was decoded, its own part as well; there is no error feedback."""
    source = TensorView.of(tensor, writable=False)
    targets, results = _parts(context, outputs, writable=True)
    (source,) = _apart([source], targets, rank=context.rank)
    words = f"all-gather of {_sizes([target.elems for target in targets])} {source.dtype}"
    call = _exchange(context, Operation.ALL_GATHER, targets, [source] * context.size, results, words=words)
    return _encoded(call, compression)


def gather(context: CallContext, outputs: object, tensor: object, root: int) -> Call:
    check_rank(root, group=context.group, size=context.size)
    source = TensorView.of(tensor, writable=False)
    targets, results = _parts_of_root(context, outputs, root, like=source, writable=True)
    sources = [source if rank == root else _nothing(source.dtype) for rank in range(context.size)]
    words = f"gather to {root} of {source.dtype}"
    return _exchange(context, Operation.GATHER, targets, sources, results, words=words, pairs=True)


def scatter(context: CallContext, output: object, inputs: object, root: int) -> Call:
    check_rank(root, group=context.group, size=context.size)
    target = TensorView.of(output, writable=True)
    sources, _ = _parts_of_root(context, inputs, root, like=target, writable=False)
    targets = [target if rank == root else _nothing(target.dtype) for rank in range(context.size)]
    words = f"scatter from {root} of {target.dtype}"
    return _exchange(context, Operation.SCATTER, targets, sources, [target], words=words, pairs=True)


def all_to_all(context: CallContext, outputs: Sequence[object], inputs: Sequence[object]) -> Call:
    targets, results = _parts(context, list(outputs), writable=True)
    sources, _ = _parts(context, list(inputs), writable=False)
    words = f"all-to-all of {targets[0].dtype}"
    return _exchange(context, Operation.ALL_TO_ALL, targets, sources, results, words=words, pairs=True)


def barrier(context: CallContext) -> Call:
    return _call(context, Operation.BARRIER, [], [], words="barrier", results=[])


def _encoded(call: Call, compression: Compression | None) -> Call:
    if compression is None or not compression.takes(call):
        return call
    codec, key, kept = compression.codec, compression.key, compression.kept
    encoded = replace(
        call,
        problem=replace(call.problem, codec=codec),
        signature=CallSignature(f"{call.signature.common} as {codec.name.lower()}"),
    )
    if key is None or call.operation is Operation.ALL_GATHER:
        return encoded
    ends = list(itertools.accumulate(call.problem.counts))
    residual = kept.take(key, ends[-1])
    parts = np.split(residual.view("u1"), [4 * end for end in ends[:-1]])
    return replace(
        encoded,
        problem=replace(encoded.problem, feeds_back=True),
        buffers=(*call.buffers, *(part.data if part.size else memoryview(bytearray()) for part in parts)),
        ended_well=lambda: kept.keep(key, residual),
    )


def subgroup_name(parent: str, members: Sequence[int], count: int) -> str:
    """The same name on every member, short whatever the number of members."""
    ranks = ",".join(map(str, members))
    if len(ranks) > 24:
        ranks = hashlib.sha256(ranks.encode()).hexdigest()[:16]
    return f"{parent}/{ranks}.{count}"


def _call(
    context: CallContext,
    operation: Operation,
    counts: Sequence[int],
    views: Sequence[TensorView],
    *,
    receive_counts: Sequence[int] = (),
    root: int = 0,
    words: str | CallSignature,
    results: Sequence[TensorView],
    op: ReduceOp = ReduceOp.SUM,
) -> Call:
    dtypes = {view.dtype for view in views}
    if len(dtypes) > 1:
        raise MisuseError(f"the tensors of one {operation.name.lower()} have different dtypes: {sorted(dtypes)}")
    dtype = views[0].dtype if views else ""
    return Call(
        context=context,
        problem=Problem(
            operation=operation,
            rank=context.rank,
            size=context.size,
            item_bytes=views[0].item_bytes if views else 1,
            counts=tuple(counts),
            receive_counts=tuple(receive_counts),
            root=root,
            narrow=op in _NARROW and dtype in ("float16", "complex32"),
        ),
        signature=CallSignature(words) if isinstance(words, str) else words,
        buffers=tuple(view.data for view in views),
        dtype=dtype,
        reduce_op=op,
        views=tuple(views),
        results=tuple(results),
    )


def _exchange(
    context: CallContext,
    operation: Operation,
    targets: Sequence[TensorView],
    sources: Sequence[TensorView],
    results: Sequence[TensorView],
    *,
    words: str,
    pairs: bool = False,
) -> Call:
    own_in, own_out = sources[context.rank], targets[context.rank]
    if own_in.elems != own_out.elems:
        raise MisuseError(
            f"{operation.name.lower()}: what rank {context.rank} keeps is {own_in}, its place is {own_out}"
        )
    if pairs:
        sources = _apart(sources, targets, rank=context.rank)
    send_elems = [view.elems for view in sources]
    receive_elems = [view.elems for view in targets]

    agreed = CallSignature(words, tuple(send_elems), tuple(receive_elems)) if pairs else CallSignature(words)
    views = [*targets, *sources]
    return _call(context, operation, send_elems, views, receive_counts=receive_elems, words=agreed, results=results)


def _apart(sources: Sequence[TensorView], targets: Sequence[TensorView], *, rank: int) -> list[TensorView]:
    """The sources, copied where what arrives in the targets would change them before they are sent.

    A rank's own part may lie in its own place, as in FSDP: nothing arrives there from others.
    """
    arrive = [_extent(one) for one in targets]
    first, last = min(begin for begin, _ in arrive), max(end for _, end in arrive)
    kept, place = (rank if len(some) > 1 else 0 for some in (sources, targets))

    def is_changed(number: int, begin: int, end: int) -> bool:
        if end <= first or last <= begin:
            return False
        own = arrive[place] if number == kept else None
        return any(there[0] < end and begin < there[1] for there in arrive if not own == there == (begin, end))

    return [
        TensorView(memoryview(bytearray(one.data)), dtype=one.dtype, shape=one.shape)
        if is_changed(number, *_extent(one))
        else one
        for number, one in enumerate(sources)
    ]


def _extent(view: TensorView) -> tuple[int, int]:
    """Where its memory begins and ends; nowhere if it has none."""
    if not view.data.nbytes:
        return 0, 0
    begin: int = np.frombuffer(view.data, "u1").__array_interface__["data"][0]
    return begin, begin + view.data.nbytes


def _parts(context: CallContext, tensors: object, *, writable: bool) -> tuple[list[TensorView], list[TensorView]]:
    """One view for each rank from a list of tensors or from one that is cut, and the views to write back."""
    if isinstance(tensors, list | tuple):
        if len(tensors) != context.size:
            raise MisuseError(f"a group of {context.size} needs as many tensors, not {len(tensors)}")
        views = [TensorView.of(tensor, writable=writable) for tensor in tensors]
        return views, views
    whole = TensorView.of(tensors, writable=writable)
    return list(split(whole, context.size)), [whole]


def _parts_of_root(
    context: CallContext, tensors: object, root: int, *, like: TensorView, writable: bool
) -> tuple[list[TensorView], list[TensorView]]:
    if context.rank == root:
        if tensors is None:
            raise MisuseError("the root must pass the list of tensors")
        return _parts(context, tensors, writable=writable)
    if tensors is not None and not (isinstance(tensors, list | tuple) and not tensors):
        raise MisuseError(f"rank {context.rank} is not the root {root}: it passes None for the list of tensors")
    return [_nothing(like.dtype)] * context.size, []


def _sizes(elems: Sequence[int]) -> str:
    """Sizes in words that are short and differ when the sizes do."""
    listed = "+".join(map(str, elems))
    if len(listed) <= SIZES_CHARS_MAX:
        return listed
    digest = hashlib.sha256(listed.encode()).hexdigest()[:16]
    return f"{sum(elems)} in {len(elems)} parts ({digest})"


def _nothing(dtype: str) -> TensorView:
    return TensorView(memoryview(bytearray()), dtype=dtype, shape=(0,))

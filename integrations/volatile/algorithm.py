"""What all algorithms for members that come and go share: one interface, whatever happens between two steps.

    algorithm = DiLoCo(model.parameters(), every=100)      # or StreamingDiLoCo, AsyncDiLoCo, A2CiD2, PartialMean
    with algorithm.join(register, name="worker-7"):
        for batch, target in batches:
            loss(model(batch), target).backward()
            with algorithm.step():
                optimizer.step()
                optimizer.zero_grad()

Who writes one (NoLoCo, SparseLoCo, a parameter server) fills in what happens before and after an inner step, and the
state that a member begins with. `GlobalAlgorithm` is for those whose members hold global parameters in common.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import statistics
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from hive_qos.errors import MisuseError, PeerError
from integrations.volatile.fragments import cut, digest_of, trainable
from integrations.volatile.outer import nesterov
from transport.arguments import check_count
from transport.settings import Settings
from transport.volatile import interrupts
from transport.volatile.group import EVERYBODY, JOIN_S, STEP_S, VolatileGroup
from transport.volatile.register.register import Register
from transport.volatile.steps import Committed

_log = logging.getLogger("integrations.volatile")
STATE_BYTES_MAX, STATE_BYTES_A_VALUE_MAX = 2**26, 64
"""Of a state that is taken: so many, and so many a trained value. A DiLoCo's has 8 of those, Adam's 12."""
Layout = tuple[tuple[int, torch.dtype], ...]
"""How many values each tensor of a step has, and of which dtype. No compression touches those that are not float32."""


_here = threading.local()  # `groups`: that this thread trains in


@contextlib.contextmanager
def _trained_here(group: VolatileGroup) -> Iterator[None]:
    before = getattr(_here, "groups", ())
    _here.groups = (*before, group)
    try:
        yield
    finally:
        _here.groups = before


def _require_other_job(register: Register) -> None:
    """Raises: MisuseError: this thread trains in that job, and the other members would wait for it as it joins."""
    groups = getattr(_here, "groups", ())
    view = register.view() if groups else None
    for one in groups:
        if view is not None and one.member in view.members:
            reason = f"this thread has joined the job {register.job!r} as {one.member}, and would wait for itself"
            raise MisuseError(f"{reason}: take a register of another job, or one algorithm for all parameters")


def weighted(values: torch.Tensor, weight: float) -> list[torch.Tensor]:
    """What a member gives to a weighted mean. `values` are multiplied in place."""
    return [values.mul_(weight), torch.tensor([weight], dtype=torch.float64, device="cpu")]


def weighted_layout(elems: int) -> Layout:
    """Of what `weighted` gives."""
    return (elems, torch.float32), (1, torch.float64)


def weighted_mean(result: Sequence[torch.Tensor]) -> torch.Tensor:
    """The weighted mean, of the members' mean of what `weighted` gives."""
    values, weight = result
    return values / float(weight)


class Algorithm:
    """One member's part in training. All methods belong to the thread that trains.

    Args:
        parameters: of the model, on any device, of float32 or 16-bit floats. What is exchanged is float32 on the host.
            Those that require no gradient now are left alone, and never may; all members have to have the same ones. To
            train some of them later, freeze them when this is made.

    Attributes:
        parameters: those of them that are trained.
        last: the last step of the group that this member took part in; None before the first.
        quorum: of its steps, as of `VolatileGroup.all_reduce`; 0 waits for all.
    """

    quorum = 0
    _counted = ""  # what `_made` counts

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters, self._frozen = trainable(parameters, user=type(self).__name__)
        self._frozen_as = ""
        self._gradient_bytes = sum(one.numel() * one.element_size() for one in self.parameters)
        self._inner = 0
        self._joined: VolatileGroup | None = None
        self._trains = 0  # the thread that has joined
        self._loaded = False  # a checkpoint, and has not joined since
        self.last: Committed | None = None

    @contextlib.contextmanager
    def join(
        self,
        register: Register,
        *,
        name: str,
        members_min: int = 1,
        settings: Settings | None = None,
        timeout_s: float = STEP_S,
        join_timeout_s: float = JOIN_S,
    ) -> Iterator[VolatileGroup]:
        """Be a member inside this block. Who comes later begins with the others' state.

        A member that the others have left out, as a laptop that slept, joins again by itself, and waits for
        `join_timeout_s` at most.

        Args: as of `transport.volatile.group.VolatileGroup`.

        Raises: as it, and
            MisuseError: this algorithm has joined already, or another one in this thread the same job.
        """
        if self._joined is not None:
            raise MisuseError("this algorithm has joined already: another member in this process needs one of its own")
        _require_other_job(register)
        self._frozen_as = digest_of(self._frozen, values=True)
        try:
            with VolatileGroup(
                register,
                name=name,
                get_state=self._state_bytes,
                set_state=self._take_state_bytes,
                apply_result=self._take_result,
                members_min=members_min,
                settings=settings,
                state_bytes_max=STATE_BYTES_MAX + STATE_BYTES_A_VALUE_MAX * sum(one.numel() for one in self.parameters),
                timeout_s=timeout_s,
                join_timeout_s=join_timeout_s,
            ) as group:
                with group.unbroken():
                    self._joined, self._inner, self._trains = group, 0, threading.get_ident()
                    self._loaded = False
                    self._begin()
                with _trained_here(group):
                    yield group
        finally:
            with interrupts.put_off(lambda: None):
                self._joined = None
                self._end()

    @contextlib.contextmanager
    def step(self, *, tokens: int = 1) -> Iterator[None]:
        """One inner step: the optimiser steps inside the block.

        The first Ctrl-C in it has a meeting end soon. It raises KeyboardInterrupt once the model has the result, or no
        other member has this one's part. A second one raises at once: a part may count twice then.

        Args:
            tokens: how many tokens or examples it learns from. All algorithms but `A2CiD2` weigh members by it.

        Raises:
            EvictedError: the others went on without this member, and have all left.
            TimedOutError: a member that lives did not come in time, or nobody has let this one in again.
        """
        if tokens < 1:
            raise MisuseError(f"a step learns from one token at least, not from {tokens}")
        if any(one.requires_grad for one in self._frozen):
            name = type(self).__name__
            reason = f"required no gradient when this {name} was made, so it is exchanged with nobody"
            raise MisuseError(f"a parameter that is trained {reason}: make it of parameters that all require one")
        with self._unbroken():
            try:
                self._before(tokens)
                yield
            except BaseException:
                self._interrupted()
                raise
            self._inner += 1
            if self._joined is not None:
                self._joined.stepped(self._gradient_bytes)
            self._after(tokens)

    def finish(self) -> None:
        """Have the model hold what all members agree on. Those that end together call it, inside `join`."""
        with self._unbroken():
            self._finish()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the inner optimiser; a run of another size can go on from it."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state, and put its parameters into the model.

        Raises:
            MisuseError: it is of another model; or this member has joined, and holds what all members hold.
        """
        raise NotImplementedError

    # What an algorithm fills in.

    def _begin(self) -> None:
        """This member has joined."""

    def _before(self, tokens: int) -> None:
        """An inner step begins."""

    def _after(self, tokens: int) -> None:
        """An inner step has ended; `_inner` counts it."""

    def _finish(self) -> None:
        """See `finish`."""

    def _unbroken(self) -> contextlib.AbstractContextManager[None]:
        """As of the group; a step without one is refused later."""
        return contextlib.nullcontext() if self._joined is None else self._joined.unbroken()

    def _interrupted(self) -> None:
        """An inner step ends with an error, of the caller's or of `_before`."""

    def _end(self) -> None:
        """This member has left; the group is closed."""

    def _apply(self, result: Sequence[torch.Tensor]) -> None:
        """Do what all members do alike with the result of a step."""

    def _apply_committed(self, result: Sequence[torch.Tensor]) -> None:
        """`_apply`, as the others do; where it fails, this member has to join again."""
        try:
            self._apply(result)
        except BaseException as error:
            self._group.lose_state(f"{type(error).__name__} came between what the members have committed and its use")
            raise

    def _result_layout(self) -> Layout:
        """Of the next step; () for an algorithm without steps."""
        return ()

    def _alike(self) -> dict[str, Any]:
        """Settings, by name, that all members have to have alike; who joins with others is refused."""
        shapes = digest_of(self.parameters, values=False)
        return {"quorum": self.quorum, "shapes": shapes, "frozen": self._frozen_as}

    def _shared_state(self) -> dict[str, Any]:
        """What a member that joins begins with: tensors on the host, so that its bytes name no member's GPU."""
        return self.state_dict()

    def _take_shared_state(self, state: Mapping[str, Any]) -> None:
        """Begin with another member's `_shared_state`; or go on with it, where this member was left out meanwhile."""
        raise NotImplementedError

    @property
    def _made(self) -> int:
        """How far this member's state has come: what of two states tells the newer one."""
        return 0

    @property
    def _group(self) -> VolatileGroup:
        if self._joined is None:
            raise MisuseError("join a register first: `with algorithm.join(register, name=...):`")
        return self._joined

    def _require_apart(self) -> None:
        if self._joined is not None:
            raise MisuseError("load a state before you join: inside, all members have the same")
        self._loaded = True

    def _quorum(self, *, with_all: bool) -> int:
        """Of a step of an algorithm with `quorum`; `with_all` where it is to wait for all whatever that is."""
        return EVERYBODY if with_all and self.quorum else self.quorum

    def _under_way(self) -> Future[Any] | None:
        """What a thread of the algorithm makes steps of the group in, and applies them; None without one."""
        return None

    def _state_bytes(self) -> bytes | None:
        under_way = self._under_way()
        if under_way is not None and not under_way.done() and threading.get_ident() == self._trains:
            return None  # that thread may be about to apply a step; it gives the state itself between two
        file = io.BytesIO()
        torch.save({"trained_by": self._described(), "made": self._made, "state": self._shared_state()}, file)
        return file.getvalue()

    def _described(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._alike().items())
        return f"{type(self).__name__}({settings})"

    def _take_result(self, _step: int, tensors: Sequence[memoryview]) -> None:
        """Take in a step that the others have made. One of other sizes is a caller's own, and nothing to us."""
        layout = self._result_layout()
        if [len(one) for one in tensors] == [elems * dtype.itemsize for elems, dtype in layout]:
            parts = zip(tensors, layout, strict=True)
            self._apply([torch.frombuffer(bytearray(one), dtype=dtype) for one, (_, dtype) in parts])

    def _take_state_bytes(self, data: bytes) -> None:
        shared, own = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), self._described()
        if shared["trained_by"] != own:
            raise PeerError("the group", f"it trains by {shared['trained_by']}, and this member by {own}")
        if self._loaded and not self._counted:
            _log.warning("the checkpoint that was loaded is not used: this member begins with what the others hold")
        if self._loaded and self._made > shared["made"]:
            reason = (
                f"it is at {self._counted} {shared['made']}, and the checkpoint that this member has loaded at "
                f"{self._made}: start first who has the newest one, or join without a checkpoint"
            )
            raise PeerError("the group", reason)
        try:
            self._take_shared_state(shared["state"])
        except MisuseError as error:
            raise PeerError("the group", f"it trains another model: {error}") from error


class GlobalAlgorithm(Algorithm):
    """Members train apart on copies of global parameters, whose changes an outer optimiser takes in by fragments.

    The outer optimiser is SGD with Nesterov momentum. All members carry it out alike, so they hold the same global
    parameters and momentum: float32, on the host, one vector a fragment.

    Args:
        parameters: of a model that has its first values.
        every: inner steps between two exchanges of the same parameter.
        fragments: into how many bins the model is cut, or the parameters of each (`fragments.strided`).
        outer_rate, outer_momentum: of the outer optimiser.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        every: int,
        fragments: int | Iterable[Iterable[torch.nn.Parameter]],
        outer_rate: float,
        outer_momentum: float,
    ) -> None:
        super().__init__(parameters)
        self._fragments = cut(self.parameters, fragments)
        check_count("every", every)
        if every % len(self._fragments):
            raise MisuseError(f"every is {every}: it is a positive multiple of the {len(self._fragments)} fragments")
        self.every, self._rate, self._momentum = every, outer_rate, outer_momentum
        self._interval = every // len(self._fragments)
        self._global = [one.read() for one in self._fragments]
        self._held = list(self._global)  # what the model's fragments have received, and learn from
        self._means: dict[int, torch.Tensor] = {}  # of the rounds since the last inner step
        self._buffers = [torch.zeros_like(one) for one in self._global]
        self._batches: deque[int] = deque(maxlen=every)  # of the last inner steps
        self._rounds = 0
        self._was_member = False
        self._lock = threading.Condition()  # of global parameters and momentum, which a thread may step

    _counted = "round"

    @property
    def _made(self) -> int:
        return self._rounds

    def _begin(self) -> None:
        """A member that joins once more adds what it has learned since it was away to what the others have.

        So nothing that it learned is lost, and it takes no more memory: the model itself holds it. What the first
        member of a run has loaded into its model before that is no learning, but what the run begins with.
        """
        for place, fragment in enumerate(self._fragments):
            if self._held[place] is not self._global[place]:
                self._receive(place, keep=self._was_member)
            elif not self._was_member and not torch.equal(own := fragment.read(), fragment.rounded(self._held[place])):
                if self._rounds:
                    self._receive(place, keep=False)  # it goes on from a checkpoint
                else:
                    self._global[place] = self._held[place] = own
        self._was_member = True

    def _alike(self) -> dict[str, Any]:
        numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        cut_as = repr([[numbers[parameter] for parameter in one.parameters] for one in self._fragments])
        return {
            "fragments": [one.elems for one in self._fragments],
            "cut": hashlib.sha256(cut_as.encode()).hexdigest()[:8],
            "outer_rate": float(self._rate),
            "outer_momentum": float(self._momentum),
            **super()._alike(),
        }

    @property
    def _place(self) -> int:
        """The fragment of the next round: all members have committed the same number."""
        return self._rounds % len(self._fragments)

    def _before(self, tokens: int) -> None:
        self._means.clear()

    def _after(self, tokens: int) -> None:
        self._batches.append(tokens)

    @property
    def _weight(self) -> float:
        """Of this member in a mean: tokens a step. Who made more steps has moved farther, and counts no more for it."""
        return statistics.fmean(self._batches or (1,))

    def _result_layout(self) -> Layout:
        return weighted_layout(self._fragments[self._place].elems)

    def _step(self, mean: torch.Tensor, gradient: torch.Tensor) -> None:
        """The outer step of the next fragment. Its old global values stay as they were, for who still reads them."""
        place = self._place
        buffer = self._buffers[place].numpy()
        with self._lock:
            stepped = nesterov(mean.numpy(), gradient.numpy(), buffer, rate=self._rate, momentum=self._momentum)
            self._global[place] = torch.from_numpy(stepped)
            self._rounds += 1
            self._means[place] = mean

    def _receive(self, place: int, *, keep: bool) -> None:
        """Move a fragment of the model to its global values; to keep what it learned, only as far as they moved."""
        fragment, merged = self._fragments[place], self._global[place]
        change = fragment.read() - fragment.rounded(self._held[place]) if keep else 0.0
        fragment.write(merged + change)
        self._held[place] = merged

    def _end_with_means(self) -> None:
        """Have the model hold the means of the exchanges since the last inner step.

        The outer step goes on from a mean in the direction of the steps before, for members that train on from there.
        Nobody does. Where they do later, the next exchange moves the model to the global values.
        """
        for place, merged in enumerate(self._global):
            self._held[place] = self._means.get(place, merged)
            self._fragments[place].write(self._held[place])

    def state_dict(self) -> dict[str, Any]:
        """See `Algorithm`. Vectors are in the model's order, so another number of fragments may go on from it."""
        with self._lock:
            held = {"global": self._ordered(self._global), "buffer": self._ordered(self._buffers)}
            return {**held, "rounds": self._rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._require_apart()
        self._take_shared_state(state)
        self._write_global()

    def _take_shared_state(self, state: Mapping[str, Any]) -> None:
        elems = sum(one.elems for one in self._fragments)
        for name in ("global", "buffer"):
            if name not in state or state[name].shape != (elems,):
                raise MisuseError(f"this state is of another model: {name} does not have {elems} values")
        with self._lock:
            self._global = self._by_fragment(state["global"])
            self._buffers = self._by_fragment(state["buffer"])
            self._means.clear()
            self._rounds = int(state["rounds"])

    def _write_global(self) -> None:
        for place in range(len(self._fragments)):
            self._receive(place, keep=False)

    def _ordered(self, vectors: Iterable[torch.Tensor]) -> torch.Tensor:
        """One vector in the model's order, of one a fragment."""
        parts = {
            parameter: part
            for one, values in zip(self._fragments, vectors, strict=True)
            for parameter, part in zip(one.parameters, one.split(values), strict=True)
        }
        return torch.cat([parts[one] for one in self.parameters])

    def _by_fragment(self, ordered: torch.Tensor) -> list[torch.Tensor]:
        """One vector a fragment, of one in the model's order."""
        parts = torch.split(ordered.to("cpu", torch.float32), [one.numel() for one in self.parameters])
        found = dict(zip(self.parameters, parts, strict=True))
        return [torch.cat([found[parameter] for parameter in one.parameters]) for one in self._fragments]

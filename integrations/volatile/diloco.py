"""DiLoCo and local SGD: members train apart, and meet once in many steps (arXiv 2311.08105).

    algorithm = DiLoCo(model.parameters(), every=100)
    with algorithm.join(register, name="worker-7"):
        for batch, target in batches:
            loss(model(batch), target).backward()
            with algorithm.step():
                optimizer.step()
                optimizer.zero_grad()

Each member has an optimiser and data of its own. After `every` steps the members average their parameters. The change
of that average is the gradient of an outer optimiser, SGD with Nesterov momentum, which all of them carry out alike.
A member that is lost, comes or goes between two meetings changes only how many are averaged.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hive_qos.errors import MisuseError, PeerError
from transport.settings import Settings
from transport.volatile.group import JOIN_S, Committed, VolatileGroup
from transport.volatile.register import Register


class DiLoCo:
    """The outer optimiser of this member. Parameters are float32 on the CPU.

    Args:
        parameters: of the model; after each meeting they hold the global ones.
        every: inner steps between two meetings.
        outer_rate, outer_momentum: of SGD with Nesterov momentum. The paper's are 0.7 and 0.9.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        every: int = 100,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:
        if every < 1:
            raise MisuseError(f"every is {every}: at least one step lies between two meetings")
        self._parameters = [one for one in parameters if one.requires_grad]
        wrong = [one for one in self._parameters if one.dtype != torch.float32 or one.device.type != "cpu"]
        if not self._parameters or wrong:
            found = f"{wrong[0].dtype} on {wrong[0].device}" if wrong else "none"
            raise MisuseError(f"DiLoCo averages float32 parameters on the CPU, and found {found}")
        self.every, self._rate, self._momentum = every, outer_rate, outer_momentum
        self._global = self._flat()
        self._buffer = torch.zeros_like(self._global)
        self._inner = 0
        self._group: VolatileGroup | None = None
        self.last: Committed | None = None

    @contextlib.contextmanager
    def join(
        self,
        register: Register,
        *,
        name: str,
        members_min: int = 1,
        settings: Settings | None = None,
        join_timeout_s: float = JOIN_S,
    ) -> Iterator[VolatileGroup]:
        """Be a member inside this block. Who comes later begins with the global parameters and momentum.

        Args: as of `transport.VolatileGroup`.
        """
        with VolatileGroup(
            register,
            name=name,
            get_state=self._state_bytes,
            set_state=self._take_state_bytes,
            apply_result=self._take_result,
            members_min=members_min,
            settings=settings,
            join_timeout_s=join_timeout_s,
        ) as group:
            self._group = group
            try:
                yield group
            finally:
                self._group = None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One inner step; the last one of `every` ends with a meeting.

        Raises:
            EvictedError: the others have gone on without this member.
        """
        yield
        self._inner += 1
        if self._inner % self.every == 0:
            self.meet()

    @torch.no_grad()
    def meet(self) -> Committed:
        """Average the parameters now, and let the outer optimiser step."""
        if self._group is None:
            raise MisuseError("join a register first: `with algorithm.join(register, name=...):`")
        mean = self._flat()
        self.last = self._group.all_reduce(mean)
        self._outer_step(mean)
        return self.last

    @torch.no_grad()
    def _outer_step(self, mean: torch.Tensor) -> None:
        """Go on from the members' mean.

        The new parameters are mean + (1 - rate) * gradient - rate * momentum * buffer, which is what torch's SGD does
        with the gradient (global - mean). In this form a rate of 1 without momentum gives the mean itself, to the bit.
        """
        gradient = self._global - mean
        self._buffer.mul_(self._momentum).add_(gradient)
        torch.add(mean, gradient, alpha=1.0 - self._rate, out=self._global)
        self._global.sub_(self._buffer, alpha=self._rate * self._momentum)
        self._spread()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the inner optimiser; a run of another size can go on from it."""
        return {"global": self._global.clone(), "buffer": self._buffer.clone(), "inner": self._inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state, and put the global parameters into the model.

        Raises:
            MisuseError: it is of another model.
        """
        for name in ("global", "buffer"):
            if name not in state or state[name].shape != self._global.shape:
                raise MisuseError(f"this state is of another model: {name} does not have {self._global.numel()} values")
        self._global.copy_(state["global"])
        self._buffer.copy_(state["buffer"])
        self._inner = int(state["inner"])
        self._spread()

    def _flat(self) -> torch.Tensor:
        return torch.cat([one.detach().reshape(-1) for one in self._parameters])

    @torch.no_grad()
    def _spread(self) -> None:
        sizes = [one.numel() for one in self._parameters]
        for parameter, values in zip(self._parameters, torch.split(self._global, sizes), strict=True):
            parameter.copy_(values.view_as(parameter))

    def _state_bytes(self) -> bytes:
        file = io.BytesIO()
        torch.save({**self.state_dict(), "inner": 0}, file)
        return file.getvalue()

    def _take_result(self, _step: int, tensors: Sequence[memoryview]) -> None:
        self._outer_step(torch.frombuffer(tensors[0], dtype=torch.float32))

    def _take_state_bytes(self, data: bytes) -> None:
        try:
            self.load_state_dict(torch.load(io.BytesIO(data), weights_only=True))
        except MisuseError as error:
            raise PeerError("the group", f"it trains another model: {error}") from error


class LocalSGD(DiLoCo):
    """Members average their parameters after `every` steps, and that is all (arXiv 1805.09767)."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, every: int = 8) -> None:
        super().__init__(parameters, every=every, outer_rate=1.0, outer_momentum=0.0)

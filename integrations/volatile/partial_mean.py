"""Synchronous training with whoever is there: each step takes the mean gradient of the members that took part.

It is what DDP does with `find_unused_parameters`, but for three things. A lost member costs a retry of the step, not
the run. Members may take batches of unequal sizes: each counts by the `tokens` of its step. A member that was late is
left out of a step's mean. Its gradient counts in the next step, while it waits there for the others. Where the members
change just then, or it only follows, it counts in none.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch

from hive_qos.errors import MisuseError
from integrations.volatile.algorithm import Algorithm, Layout, weighted, weighted_mean
from integrations.volatile.fragments import Fragment

_log = logging.getLogger("integrations.volatile")


class Stateful(Protocol):
    """Such as a learning-rate scheduler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


class PartialMean(Algorithm):
    """See the module. Gradients are averaged when `step` begins, and the optimiser steps alike on all members.

    A step that the caller leaves out, or that ends with an error before the optimiser's, is made all the same: the
    others make it. Where that fails this member joins again with its next step.

    Args:
        parameters: of the model.
        optimizer: of the same parameters. A member that joins begins with the others' state of it, and repeats steps of
            theirs by its `step()` alone. So what else is done to gradients or the rate belongs into a hook of it
            (`register_step_pre_hook`), such as clipping, or a step of a learning-rate scheduler. Gradients that
            anything else has changed since they were averaged are refused. It steps without a closure, which would
            compute this member's own gradients again. `GradScaler`, which skips steps whose gradients are not finite,
            is not supported: train in bfloat16.
        also: what those hooks use that has a state of its own (`state_dict`), such as the scheduler. All members have
            it alike, and who joins begins with the others'.
        compression: of the gradients: "int4", "int8", "bfloat16" or "" for none; what it leaves out is sent later.
        quorum: with so many gradients, and more than half of all, a step does not wait for a late one; 0 waits for all.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        optimizer: torch.optim.Optimizer,
        also: Iterable[Stateful] = (),
        compression: str = "",
        quorum: int = 0,
    ) -> None:
        super().__init__(parameters)
        self._known = {*self.parameters, *self._frozen}
        self._optimizer, self._also = optimizer, list(also)
        self._steps_made = 0
        self._kept: list[Any] | None = None
        """What hooks change in a step of the caller's that is none: this member holds the others' state already."""
        self._steps = False
        """The optimiser has begun a step, and not ended it."""
        begins = optimizer.register_step_pre_hook(self._step_begins)
        hooks = cast("OrderedDict[int, Any]", optimizer._optimizer_step_pre_hooks)
        hooks.move_to_end(begins.id, last=False)  # the others may change gradients
        optimizer.register_step_post_hook(self._step_ends)
        self.compression, self.quorum = compression, quorum
        self._all = Fragment(self.parameters)
        self._due: list[torch.Tensor] | None = None
        """The result of a step that the others have made, and that the optimiser here is about to."""
        self._warned = False
        self._averaged: list[tuple[int, int] | None] = []
        """The versions of the gradients when they were last averaged."""

    @property
    def _is_within_a_step(self) -> bool:
        """Between the mean and the end of the caller's block: this member holds neither state."""
        return self._due is not None or self._kept is not None

    def _step_begins(self, _optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        closure = kwargs.get("closure") or any(map(callable, args[1:]))  # behind the optimizer itself
        if closure and self._is_within_a_step:
            reason = "a closure computes this member's own gradients again, after PartialMean has averaged them"
            raise MisuseError(f"{reason}: compute them before `algorithm.step()`, and step the optimizer without one")
        changed = self._due is not None and self._all.gradient_versions() != self._averaged
        if changed and not self._steps:  # a class whose `step` calls its parent's begins twice
            reason = "gradients were changed after PartialMean has averaged them, which who joins could not repeat"
            raise MisuseError(f"{reason}: clip them in a hook of this optimizer (`optimizer.register_step_pre_hook`)")
        self._steps = True

    def _step_ends(self, *_: object) -> None:
        self._steps, self._due = False, None
        self._steps_made += 1

    def _before(self, tokens: int) -> None:
        if any(one.requires_grad and one not in self._known for one in _parameters(self._optimizer)):
            reason = "the optimizer has a parameter that PartialMean was not given, and would train it here alone"
            raise MisuseError(f"{reason}: make both of the same parameters")
        self._steps = False
        values, weight = weighted(self._all.read_gradients(), tokens)
        own = [values, torch.cat([weight, weight.new_tensor([one.grad is not None for one in self.parameters])])]
        how: dict[str, Any] = {"quorum": self.quorum, "compression": self.compression, "feedback": "gradients"}
        result = [one.clone() for one in own]
        try:
            self.last = self._group.all_reduce(result, **how)
        except MisuseError as error:
            if values.isfinite().all():
                raise
            reason = (
                "a gradient is not finite, and nothing of it was sent: train in bfloat16 or float32, at another rate"
            )
            raise MisuseError(reason) from error
        self._due = None if self.last.applied else result
        if self._due is not None and not self.last.contributed:
            made_up = self._group.make_up(own, **how)
            if made_up is not None:
                self._make_due_step()
                self.last, self._due = made_up, None if made_up.applied else own
        if self._due is None:  # this member was left out, and holds the others' state: nothing to do for the optimizer
            self._all.clear_gradients()
            rates = [{name: one[name] for name in one if name != "params"} for one in self._optimizer.param_groups]
            self._kept = copy.deepcopy([rates, [one.state_dict() for one in self._also], self._steps_made])
        else:
            self._write_mean(self._due)

    def _make_due_step(self) -> None:
        if self._due is not None:
            self._make_step(self._due)

    def _make_step(self, result: Sequence[torch.Tensor]) -> None:
        self._write_mean(result)
        self._optimizer.step()
        self._all.clear_gradients()  # a caller's next ones would be added to them

    def _write_mean(self, result: Sequence[torch.Tensor]) -> None:
        """The mean of the gradients; where no member has one of a parameter, it has none here either."""
        values, said = result
        self._all.write_gradients(weighted_mean([values, said[:1]]), has=(said[1:] > 0).tolist())
        self._averaged = self._all.gradient_versions()

    def _result_layout(self) -> Layout:
        return (self._all.elems, torch.float32), (1 + len(self.parameters), torch.float64)

    def _apply(self, result: Sequence[torch.Tensor]) -> None:
        """A step that the others have made, as this member catches up."""
        self._make_due_step()
        self._make_step(result)

    def _after(self, tokens: int) -> None:
        if self._due is not None and not self._warned:
            self._warned = True
            text = "the optimizer did not step in `algorithm.step()`: as the others do, so it does here"
            _log.warning("%s; gradients of several batches are accumulated before", text)
        self._interrupted()

    def _interrupted(self) -> None:
        """The others make a step that this member was about to make: it makes it all the same.

        Where the optimiser itself raised, nobody knows how far it came.
        """
        self._undo_hooks()
        try:
            if not self._steps:
                with contextlib.suppress(Exception):
                    self._make_due_step()
        finally:
            if self._steps or self._due is not None:
                self._steps, self._due = False, None
                self._group.lose_state("a committed step was not made here: an error came in between")

    def _undo_hooks(self) -> None:
        """The caller's `optimizer.step()` had no gradients to step with, and its hooks were called all the same."""
        if self._kept is not None:
            (rates, also, self._steps_made), self._kept = self._kept, None
            for one, held in zip(self._also, also, strict=True):
                one.load_state_dict(held)
            for group, before in zip(self._optimizer.param_groups, rates, strict=True):
                group.update(before)

    def state_dict(self) -> dict[str, Any]:
        """See `Algorithm`. It has the optimiser's state, which all members share, on the host."""
        return {
            "parameters": self._all.read(),
            "optimizer": _on_host(self._optimizer.state_dict()),
            "also": [_on_host(one.state_dict()) for one in self._also],
            "steps": self._steps_made,
        }

    _counted = "step"

    @property
    def _made(self) -> int:
        return self._steps_made

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._require_apart()
        self._take_shared_state(state)

    def _alike(self) -> dict[str, Any]:
        optimizer, also = type(self._optimizer).__name__, [type(one).__name__ for one in self._also]
        own = {
            "optimizer": optimizer,
            "also": also,
            "compression": self.compression,
            "dtypes": hashlib.sha256(repr([one.dtype for one in self.parameters]).encode()).hexdigest()[:8],
            "torch": torch.__version__.partition("+")[0],
        }
        return {**super()._alike(), **own}  # in another dtype, or torch, a step gives other bits of the same gradients

    def _take_shared_state(self, state: Mapping[str, Any]) -> None:
        if "parameters" not in state or state["parameters"].shape != (self._all.elems,):
            raise MisuseError(f"this state is of another model: it does not have {self._all.elems} values")
        also = state.get("also", ())
        if len(also) != len(self._also):
            raise MisuseError(f"this state has {len(also)} objects beside the optimizer, and `also` {len(self._also)}")
        try:
            self._optimizer.load_state_dict(dict(state["optimizer"]))
        except ValueError as error:  # parameters in other groups
            raise MisuseError(f"this state is of another optimizer: {error}") from error
        for one, held in zip(self._also, also, strict=True):
            one.load_state_dict(held)
        self._all.write(state["parameters"])
        self._due, self._steps_made = None, int(state.get("steps", 0))

    def _state_bytes(self) -> bytes | None:
        return None if self._is_within_a_step else super()._state_bytes()


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


def _on_host(state: Any) -> Any:
    """The same with all tensors on the CPU. An optimiser that loads it moves them to its parameters."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: _on_host(value) for key, value in state.items()}
    return type(state)(map(_on_host, state)) if isinstance(state, list | tuple) else state

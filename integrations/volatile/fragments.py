"""Which parameters are exchanged together: a fragment, as one float32 vector on the host, whatever the model's dtype.

Three ways to cut a model: all of it; layers in strides, as Streaming DiLoCo has it (arXiv 2501.18512, section 2.1);
bins of about equally many values, for a model whose layers nobody names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from hive_qos.errors import MisuseError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What float32 holds exactly, so that a parameter that nobody changes comes back as it went."""


class Fragment:
    """Some parameters of a model, in a fixed order.

    Args:
        parameters: at least one; they stay the model's.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = tuple(parameters)
        self._sizes = [one.numel() for one in self.parameters]
        self.elems = sum(self._sizes)

    def read(self) -> torch.Tensor:
        """A copy of their values: float32, on the CPU, of shape (elems,)."""
        return torch.cat([one.detach().reshape(-1).to("cpu", torch.float32) for one in self.parameters])

    def read_gradients(self) -> torch.Tensor:
        """The same of their gradients; zeros where a parameter has none."""
        found = [torch.zeros_like(one) if one.grad is None else _dense(one.grad) for one in self.parameters]
        return torch.cat([one.detach().reshape(-1).to("cpu", torch.float32) for one in found])

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Put `values` into the parameters, rounded to their dtypes."""
        for parameter, part in zip(self.parameters, self.split(values), strict=True):
            parameter.copy_(part.view_as(parameter))

    @torch.no_grad()
    def add(self, values: torch.Tensor) -> None:
        """Add `values` to the parameters."""
        for parameter, part in zip(self.parameters, self.split(values), strict=True):
            parameter.add_(part.view_as(parameter).to(parameter.device))

    @torch.no_grad()
    def write_gradients(self, values: torch.Tensor, *, has: Sequence[bool]) -> None:
        """Put `values` into the gradients of those parameters that have one; the others have none then."""
        for parameter, part, has_one in zip(self.parameters, self.split(values), has, strict=True):
            if not has_one:
                parameter.grad = None
                continue
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))

    def gradient_versions(self) -> list[tuple[int, int] | None]:
        """Which gradients there are, and how often each was written to."""
        return [None if one.grad is None else (id(one.grad), one.grad._version) for one in self.parameters]

    def clear_gradients(self) -> None:
        """Leave them without gradients: an optimiser's step passes them over."""
        for parameter in self.parameters:
            parameter.grad = None

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """What `read` returns after `write(values)`."""
        parts = zip(self.parameters, self.split(values), strict=True)
        return torch.cat([part.to(one.dtype).to(torch.float32) for one, part in parts])

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of `values`, one a parameter."""
        return torch.split(values, self._sizes)


def trainable(
    parameters: Iterable[torch.nn.Parameter], *, user: str
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Those that are trained, each once, and those that are not.

    Raises:
        MisuseError: there are none, one is of a dtype that float32 does not hold, or they are something else.
    """
    if isinstance(parameters, torch.nn.Module):
        raise MisuseError(f"{user} takes `model.parameters()`, and was given a {type(parameters).__name__}")
    given = list(parameters)
    if other := [one for one in given if not isinstance(one, torch.Tensor)]:
        raise MisuseError(f"{user} takes `model.parameters()`, and was given a {type(other[0]).__name__} in them")
    if any(hasattr(one, "device_mesh") for one in given):
        raise MisuseError(f"{user} trains whole parameters, and was given parts of them (DTensor, as FSDP makes them)")
    found = list(dict.fromkeys(one for one in given if one.requires_grad))
    wrong = [one for one in found if one.dtype not in DTYPES]
    if not found or wrong:
        what = f"one of {wrong[0].dtype}" if wrong else "none"
        raise MisuseError(f"{user} trains parameters of float32, bfloat16 and float16, and found {what}")
    return found, [one for one in given if not one.requires_grad]


def digest_of(parameters: Iterable[torch.Tensor], *, values: bool) -> str:
    """Tells models apart by the shapes of these parameters, and by their bytes where `values` count."""
    hashed = hashlib.sha256()
    for one in parameters:
        hashed.update(repr((tuple(one.shape), one.dtype)).encode() if values else repr(tuple(one.shape)).encode())
        plain = type(one.data) is torch.Tensor and one.layout is torch.strided and not one.is_meta
        if values and plain:  # who quantises may have kinds of its own, without such bytes
            bits = one.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            hashed.update(bits.numpy().data)
    return hashed.hexdigest()[:8]


def cut(
    parameters: Sequence[torch.nn.Parameter], fragments: int | Iterable[Iterable[torch.nn.Parameter]]
) -> tuple[Fragment, ...]:
    """The fragments of a model: so many balanced bins, or those that are given and one of all that they leave.

    Raises:
        MisuseError: a parameter is in two fragments, or is not the model's; or there are more fragments than tensors.
    """
    if isinstance(fragments, int):
        if not 1 <= fragments <= len(parameters):
            raise MisuseError(f"{len(parameters)} tensors cannot be cut into {fragments} fragments")
        return tuple(Fragment([parameters[place] for place in one]) for one in balanced(_sizes(parameters), fragments))
    left = dict.fromkeys(parameters)
    given: list[list[torch.nn.Parameter]] = []
    for one in fragments:
        given.append([parameter for parameter in one if parameter.requires_grad])
        for parameter in given[-1]:
            if parameter not in left:
                raise MisuseError("a fragment names a parameter twice, or one that is not trained here")
            del left[parameter]
    return tuple(Fragment(one) for one in [*given, list(left)] if one)


def strided(layers: Sequence[torch.nn.Module], count: int) -> list[list[torch.nn.Parameter]]:
    """The parameters of every `count`-th layer together: each fragment has layers of all depths.

    What is in no layer, such as embeddings, is a fragment of its own (`cut`).
    """
    return [[one for layer in layers[first::count] for one in layer.parameters()] for first in range(count)]


def balanced(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Put each size, the largest first, where the least is. In each bin the places are in order."""
    bins: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for place in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        least = min(range(count), key=lambda one: (filled[one], len(bins[one])))
        bins[least].append(place)
        filled[least] += sizes[place]
    return [sorted(one) for one in bins]


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _sizes(parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    return [one.numel() for one in parameters]

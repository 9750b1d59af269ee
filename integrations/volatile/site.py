"""Several ranks as one member: DistributedDataParallel inside a site, where links are fast, an algorithm between sites.

    dist.init_process_group("hive")                             # the ranks of this site
    model = DistributedDataParallel(model)
    algorithm = Site(StreamingDiLoCo(model.parameters()))
    with algorithm.join(register, name="site-a"):               # the rest is as with one process

The first rank of the site joins and exchanges. What that changes in its model, it hands to the other ranks when the
step ends. Their gradients are averaged by DDP, so all of them train the same model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from hive_qos.errors import MisuseError
from integrations.volatile.algorithm import Algorithm
from integrations.volatile.partial_mean import PartialMean
from transport.volatile.group import VolatileGroup
from transport.volatile.register.register import Register


class Site:
    """See the module. Where the first rank fails, the others see that rank lost.

    Args:
        algorithm: made alike on all ranks; only the first one's is used. `PartialMean` is none for it: it changes
            gradients, and its optimisers would differ.
        group: of the ranks; None: of all.
    """

    def __init__(self, algorithm: Algorithm, *, group: dist.ProcessGroup | None = None) -> None:
        if isinstance(algorithm, PartialMean):
            raise MisuseError("PartialMean is for single processes: between sites take an algorithm that meets less")
        self.algorithm = algorithm
        self._group = group
        self._leads = dist.get_rank(group) == 0
        self._first = dist.get_global_rank(group, 0) if group is not None else 0
        self._parameters = algorithm.parameters

    @contextlib.contextmanager
    def join(self, register: Register, *, name: str, **options: Any) -> Iterator[VolatileGroup | None]:
        """As `Algorithm.join`. Only the first rank has a group."""
        with contextlib.ExitStack() as stack:
            joined = stack.enter_context(self.algorithm.join(register, name=name, **options)) if self._leads else None
            self._hand_over([True] * len(self._parameters))
            yield joined
        self._hand_over([True] * len(self._parameters))  # what was under way may have come with the end

    @contextlib.contextmanager
    def step(self, *, tokens: int = 1) -> Iterator[None]:
        """As `Algorithm.step`; `tokens` are the whole site's."""
        if self._leads:
            with self.algorithm.step(tokens=tokens):
                yield
                before = self._versions()
            self._hand_over([now != then for now, then in zip(self._versions(), before, strict=True)])
        else:
            yield
            self._hand_over([False] * len(self._parameters))

    def finish(self) -> None:
        """As `Algorithm.finish`."""
        if self._leads:
            self.algorithm.finish()
        self._hand_over([True] * len(self._parameters))

    def state_dict(self) -> dict[str, Any]:
        """As `Algorithm.state_dict`: the first rank's is the one to keep."""
        return self.algorithm.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Algorithm.load_state_dict`. The first rank's counts: `join` hands it to the others."""
        self.algorithm.load_state_dict(state)

    def _versions(self) -> list[int]:
        """How often each parameter was written to."""
        return [one._version for one in self._parameters]

    @torch.no_grad()
    def _hand_over(self, changed: list[bool]) -> None:
        """Give the other ranks what has changed here; the first rank says what."""
        said = torch.tensor(changed, dtype=torch.uint8, device=self._parameters[0].device)
        dist.broadcast(said, self._first, group=self._group)
        for one, is_new in zip(self._parameters, said.tolist(), strict=True):
            if is_new:
                dist.broadcast(one, self._first, group=self._group)

"""What encoding has left out of a group's tensors so far, and adds to them the next time they are reduced."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Residual: TypeAlias = npt.NDArray[np.float32]

KEPT_BYTES_MAX = 4 * 2**30
"""Of one group: the gradients of a thousand million parameters. The ones not used for longest are dropped."""


class ErrorFeedback:
    """The residuals of one group's tensors, by what the caller calls them. From any thread.

    A residual belongs to the operation that has taken it, until that has ended well. One that fails leaves none, nor
    does one that another of the same key overtakes: values that were not sent are owed to nobody.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Residual] = OrderedDict()
        self._kept_bytes = 0

    def take(self, key: Hashable, elems: int) -> Residual:
        """Float32 of shape (elems,): what was kept, or zeros where there is none of that size."""
        with self._lock:
            kept = self._kept.pop(key, None)
            self._kept_bytes -= 0 if kept is None else kept.nbytes
        return kept if kept is not None and len(kept) == elems else np.zeros(elems, dtype=np.float32)

    def drop(self, is_gone: Callable[[Any], bool]) -> None:
        """Keep nothing of tensors that are no more, by what the caller calls them."""
        with self._lock:
            for key in [one for one in self._kept if is_gone(one)]:
                self._kept_bytes -= self._kept.pop(key).nbytes

    def keep(self, key: Hashable, residual: Residual) -> None:
        """Its operation has ended well."""
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._kept[key] = residual
            self._kept_bytes += residual.nbytes - (0 if replaced is None else replaced.nbytes)
            while self._kept_bytes > KEPT_BYTES_MAX:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.nbytes

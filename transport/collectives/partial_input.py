"""Input that is still on its way into memory, as from a GPU, when its collective begins: copying and sending overlap.

An executor holds back every step that touches what is not there yet. What ranks send each other is the same, so that
this is a rank's own business: the others may have their tensors elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable


class PartialInput:
    """Contiguous memory of which a first part is there, and more from time to time. One thread says how much.

    Args:
        address: of the memory, in which one or several of a call's buffers lie.
        nbytes: its length.
        ready_bytes: what is there of it.
    """

    def __init__(self, address: int, nbytes: int, *, ready_bytes: int) -> None:
        self._address = address
        self._nbytes = nbytes
        self._ready_bytes = ready_bytes
        self._tell: Callable[[], None] | None = None
        self.failure: Exception | None = None

    @property
    def missing(self) -> tuple[int, int]:
        """The first address that may not be touched yet, and the one behind the last."""
        return self._address + self._ready_bytes, self._address + self._nbytes

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there."""
        return self._ready_bytes >= self._nbytes

    def reached(self, ready_bytes: int) -> None:
        """So much of it is there."""
        self._ready_bytes = ready_bytes
        self._say()

    def failed(self, error: Exception) -> None:
        """The rest of it will never be there."""
        self.failure = error
        self._say()

    def tell(self, callback: Callable[[], None]) -> None:
        """Call `callback` from now on when there is more. What came before has to be looked at after this call."""
        self._tell = callback

    def _say(self) -> None:
        if self._tell is not None:
            self._tell()

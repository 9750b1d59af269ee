"""What an adapter knows of one storage program: the interface that every kind fills in.

The kernel's tree enforces, always. An adapter reads what the program still has to send, and sets the program's own
limit a little above what its class may use, so that queues stay in the program and not in the kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from msgspec import Struct, field

from hive_qos.errors import HiveError

Settings = Mapping[str, int | bool]
"""The program's own settings that hold its rate, in its own units; plain values, which are kept in a file."""


class ProgramError(HiveError):
    """The storage program cannot be asked or does not answer as it should. The text says what to do.

    Args:
        state: `unreachable`, `refused` (its key) or `unexpected` (an answer that is none).
    """

    code = "storage-program"

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state, self.text = state, text


class Backlog(Struct, frozen=True):
    """What a program has to do now.

    Fields: `upload_bytes` it can send now, with the part of each `peers` address where that is known;
    `waiting_bytes` for peers that are not connected; `download_bytes` that others owe it; `objects_at_risk` how many
    objects have too few copies.
    """

    upload_bytes: int = 0
    download_bytes: int = 0
    waiting_bytes: int = 0
    objects_at_risk: int = 0
    peers: Mapping[str, int] = field(default_factory=dict)


class StorageAdapter(ABC):
    """One storage program. Every call is bounded in time and size, and raises `ProgramError` alone."""

    limits = False
    """Whether the program's rate can be set while it runs."""
    runs_alike = False
    """Whether two runs of the program may have one name, so that the limit of before us tells that it has restarted."""
    limit_keys: tuple[str, ...] = ()
    """The settings that hold its rate: those that `limited` changes. The operator's other ones may change meanwhile."""

    @abstractmethod
    def read(self) -> Backlog:
        """Ask what it has to do."""

    def settings(self) -> tuple[str, Settings]:
        """Its settings as they are now, after a name of this run of the program.

        The name changes when the program restarts, unless `runs_alike`.
        """
        raise NotImplementedError

    def limited(self, found: Settings, rate_bits_per_s: int) -> Settings | None:
        """The settings for a rate, at most what the operator's own (`found`) allow; None to leave these alone."""
        raise NotImplementedError

    def write(self, settings: Settings) -> None:
        """Put settings in force."""
        raise NotImplementedError

    def rate_bits_per_s(self, settings: Settings) -> int | None:
        """The sending rate that settings allow; None without a limit."""
        raise NotImplementedError


def number(answer: object, *keys: str) -> int:
    """A count of an answer, by its path.

    Raises:
        ProgramError: it is not there, or is no count.
    """
    value = answer
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**62:
        raise ProgramError("unexpected", f"its answer has no number {'.'.join(keys)}; is this the right address?")
    return int(value)

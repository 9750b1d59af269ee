"""The groups of one rank: their members, and how many operations of each have a number and have begun.

A group that was closed stays known by name for a while, because late messages may still carry it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hive_qos.errors import MisuseError
from transport.collectives.planning.planner import Planner

GROUP_BYTES_MAX = 96
CLOSED_MAX = 64
"""Groups that are closed and still known by name. What is late comes within seconds, or at a reconnect."""


def agreement_group(name: str) -> str:
    """The group in which the ranks of a group agree on their links. No user's group can have that name."""
    return f"{name}|links"


def agreeing_group(name: str) -> str:
    """The group that a group of agreements is for; "" of another one."""
    return name.rpartition("|")[0]


def check_group_name(name: str) -> None:
    """Raises: MisuseError: no group can have this name."""
    if not isinstance(name, str) or len(name.encode()) > GROUP_BYTES_MAX or "|" in name:
        raise MisuseError(f"a group's name has at most {GROUP_BYTES_MAX} bytes and no '|': {name!r}")


@dataclass
class Membership:
    """A group: its members, the number of its next operation, and how many of them have begun here.

    Args:
        planner: chooses its algorithms; None for a group of agreements.
    """

    ranks: tuple[int, ...]
    planner: Planner | None = None
    next_number: int = 0
    begun: int = 0
    closed: bool = False


class Memberships:
    """All groups by name, those of agreements among them. Callers hold the runtime's lock to change it.

    Args:
        rank: this one, of the endpoint. site: the name of its site, "" for none. host: as of `Planner`.
    """

    def __init__(self, *, rank: int, site: str, host: str) -> None:
        self._rank = rank
        self._site, self._host = site, host
        self.by_name: dict[str, Membership] = {}
        self._retired: deque[str] = deque()

    def add(self, name: str, ranks: tuple[int, ...], *, algorithm: str) -> None:
        """Begin numbering operations of a group.

        Args:
            algorithm: to use wherever it can be; "" for the best.

        Raises:
            MisuseError: the name is taken or cannot be one.
        """
        check_group_name(name)
        if name in self.by_name:
            raise MisuseError(f"there is a group {name!r} already")
        planner = Planner(ranks=ranks, rank=ranks.index(self._rank), forced=algorithm, site=self._site, host=self._host)
        if planner.agrees:
            self.by_name[agreement_group(name)] = Membership(ranks)
        self.by_name[name] = Membership(ranks, planner)

    def open(self, name: str) -> Membership:
        """The group of this name.

        Raises:
            MisuseError: it has been closed.
        """
        membership = self.by_name.get(name)
        if membership is None or membership.planner is None or membership.closed:
            raise MisuseError(f"group {name} has been closed")
        return membership

    def close(self, name: str) -> bool:
        """Let nothing begin in a group any more; whether it was open."""
        membership = self.by_name.get(name)
        if membership is None or membership.closed:
            return False
        membership.closed = True
        return True

    def retire(self, name: str, *, is_busy: Callable[[str], bool]) -> Iterator[str]:
        """Count a group that was closed as old; the names that are forgotten for it, oldest first.

        Args:
            is_busy: whether the engine still holds tensors of a group, which then stays known.
        """
        self._retired.append(name)
        for _ in range(len(self._retired) - CLOSED_MAX):
            oldest = self._retired.popleft()
            if is_busy(oldest):
                self._retired.append(oldest)
                continue
            for one in (oldest, agreement_group(oldest)):
                yield one
                self.by_name.pop(one, None)

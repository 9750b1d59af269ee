"""The view of a job: who its members are, which step they all have committed, and the state that follows from it.

Views form one chain. Each has the epoch after its predecessor's, and the register (`register.register`)
accepts one successor of each. So a member that holds an old view can do no harm: nobody else takes part in it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hive_qos.errors import PeerError
from transport.wire import cbor
from transport.wire.error_codes import WireError

MEMBERS_MAX = 1024
NAME_BYTES_MAX = 64
DIGEST_BYTES = 16


@dataclass(frozen=True, order=True)
class Member:
    """One process of a job.

    Args:
        name: chosen by its user, unique in the job, at most 64 bytes of UTF-8.
        incarnation: random; tells a process from the one that had its name before.
    """

    name: str
    incarnation: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class View:
    """What all members of an epoch agree on.

    Args:
        epoch: 1 for the first view, one more for each that follows.
        members: sorted; their places here are their ranks in this epoch. None where the last one has left: whoever
            comes then begins anew.
        base_step: the last step that is committed. 0 before the first.
        digest: of the results of all steps up to that one, 16 bytes.
        joining: those of the members that learn: they take no part in steps, and fetch the state and what follows it.
        asked: how many requests to join have been looked at.
        mesh: the number of the connections on which this view works; a view that only loses members keeps them.
        pause: no step begins until those who learn hold the state after `base_step`.
        run: the incarnation of who began the job, which may be anew: steps count from there.
    """

    epoch: int
    members: tuple[Member, ...]
    base_step: int
    digest: bytes
    joining: tuple[Member, ...] = ()
    asked: int = 0
    mesh: int = 1
    pause: bool = False
    run: int = 0

    @functools.cached_property
    def workers(self) -> tuple[Member, ...]:
        """Those of the members that take part in steps."""
        return tuple(one for one in self.members if one not in self.joining)

    def described(self) -> str:
        """Who works, who learns, and who is waited for."""
        working = ", ".join(map(str, self.workers))
        if not self.joining:
            return working
        return f"{working}; {', '.join(map(str, self.joining))} {'is waited for' if self.pause else 'learns'}"


def encode(view: View) -> bytes:
    """The view as it stands in the register."""
    return cbor.encode_map(
        {
            0: view.epoch,
            1: [[one.name, one.incarnation] for one in view.members],
            2: view.base_step,
            3: view.digest,
            4: [view.members.index(one) for one in view.joining],
            5: view.asked,
            6: view.mesh,
            7: view.pause,
            8: view.run,
        }
    )


def decode(data: bytes) -> View:
    """The view that a register holds.

    Raises:
        PeerError: those are not the bytes of a view.
    """
    try:
        value = cbor.decode_map(data)
        pairs = [_list(one) for one in _list(value[1])]
        members = tuple(Member(_text(name), _number(incarnation)) for name, incarnation in pairs)
        joining = tuple(members[_number(place)] for place in _list(value[4]))
        asked, mesh, pause = _number(value[5]), _number(value[6]), value[7] is True
        run = _number(value[8])
        view = View(_number(value[0]), members, _number(value[2]), _bytes(value[3]), joining, asked, mesh, pause, run)
        if (members and not view.workers) or list(members) != sorted(set(members)):
            raise ValueError("members that are not sorted or all learn")
        if len(members) > MEMBERS_MAX or view.epoch < 1:
            raise ValueError("too many members, or no epoch")
    except (KeyError, IndexError, TypeError, ValueError, WireError) as error:
        raise PeerError("register", f"it holds no view ({error}): another program may write to it") from error
    return view


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= NAME_BYTES_MAX:
        raise TypeError("no name")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != DIGEST_BYTES:
        raise TypeError("no digest")
    return value

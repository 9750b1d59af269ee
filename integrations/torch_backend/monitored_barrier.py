"""`monitored_barrier`: a barrier that says which ranks did not come, although they are alive.

Rank 0 hears from every other rank in turn, then tells all of them to go on, or that it has given up. What it does not
hear in time it names, in the words that Gloo uses, because scripts look for them.

Every word carries the number of its call, below zero where that was given up. One that came too late for its barrier
must not pass for the next one's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from hive_qos.errors import HiveError, PeerError, TimedOutError, TransportError
from transport import Priority, Work

if TYPE_CHECKING:
    from integrations.torch_backend.collectives import Collectives

TAG = 2**40 - 1
"""The transport's last tag; torch's are 32 bits, so that nobody else has it."""
_GRACE_S = 5.0
"""How much longer the others wait for rank 0's word, so that it is rank 0 that reports who is missing."""


def barrier(collectives: Collectives, *, timeout_s: float | None, wait_all_ranks: bool) -> None:
    """Block until all ranks have called this.

    Args:
        timeout_s: how long rank 0 waits, over all ranks; None for the group's.
        wait_all_ranks: name all ranks that are missing, rather than the first.

    Raises:
        TimedOutError: on rank 0, with the missing ranks; on the others, that rank 0 has not let them go.
        ConnectionLostError: a rank is gone.
    """
    limit_s = collectives.timeout_s if timeout_s is None else timeout_s
    group = collectives.group
    if group.rank != 0:
        _report(collectives, limit_s)
        return
    give_up_s = time.monotonic() + limit_s
    number = collectives.next_monitored_barrier()
    missing: list[int] = []
    lost: HiveError | None = None
    for rank in range(1, group.size):
        left_s = give_up_s - time.monotonic()
        if left_s <= 0 and not missing:
            _tell(collectives, -number)
            raise TimedOutError("Rank 0 timed out in monitoredBarrier", timeout_s=limit_s)
        left_s = max(left_s, 0.001)
        try:
            _hear(collectives, rank, number, give_up_s=time.monotonic() + left_s)
        except HiveError as error:
            missing.append(rank)
            if not isinstance(error, TimedOutError):
                lost = error
            if not wait_all_ranks:
                break
    words = _tell(collectives, -number if missing else number)
    if lost is not None and len(missing) == 1:
        raise lost
    if missing:
        names = f"Ranks {', '.join(map(str, missing))}" if len(missing) > 1 else f"Rank {missing[0]}"
        raise TimedOutError(f"{names} failed to pass monitoredBarrier", timeout_s=limit_s)
    for word in words:
        word.wait()


def _tell(collectives: Collectives, word: int) -> list[Work]:
    """Send rank 0's word to all others; one that is lost does not keep it from the rest."""
    group, said = collectives.group, torch.tensor([word], device="cpu")
    words = []
    for rank in range(1, group.size):
        try:
            words.append(group.send(said, rank, TAG, priority=Priority.CONTROL))
        except HiveError:
            if word > 0:
                raise
    return words


def _report(collectives: Collectives, limit_s: float) -> None:
    group = collectives.group
    number = collectives.next_monitored_barrier()
    give_up_s = time.monotonic() + limit_s + _GRACE_S
    try:
        group.send(torch.tensor([number], device="cpu"), 0, TAG, timeout_s=limit_s, priority=Priority.CONTROL).wait()
        given_up = not _hear(collectives, 0, number, give_up_s=give_up_s)
        why: HiveError | None = None
    except TimedOutError as error:
        given_up, why = True, error
    if given_up:
        raise TransportError(
            f"Rank {group.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv"
            f" from rank 0; see rank 0 for the ranks that are missing ({why or 'it has given up'})"
        ) from why


def _hear(collectives: Collectives, rank: int, number: int, *, give_up_s: float) -> bool:
    """Take a rank's word for this call, and drop those for earlier ones that failed; False where it has given up.

    Raises:
        PeerError: it has called this more often.
        HiveError: nothing came.
    """
    word = torch.zeros(1, dtype=torch.int64, device="cpu")
    while int(word) < number:
        collectives.group.recv(word, rank, TAG, timeout_s=max(give_up_s - time.monotonic(), 0.001)).wait()
        if int(word) == -number:
            return False
    if int(word) > number:
        raise PeerError(f"rank {rank}", f"it is at its monitored barrier {int(word)}, this rank at {number}")
    return True

"""A member of a volatile group in a process of its own, or the register of its job.

The member writes a line of JSON for each step. It may be told to stand still at a point of the protocol: it then says
so, and the test kills it there.

    python volatile_member.py ADDRESS
    python volatile_member.py ADDRESS '{"name": "a", "stop": "reduced"}'

ADDRESS is the register's: a Unix socket's path, or HOST:PORT.
"""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from multiprocessing.managers import BaseManager
from types import FrameType
from typing import Any

import numpy as np

from hive_qos.errors import HiveError
from transport.bootstrap.rendezvous import host_and_port
from transport.group import Group
from transport.settings import Settings
from transport.volatile import group as volatile
from transport.volatile.control import Control
from transport.volatile.following import Follower
from transport.volatile.membership.succession import Succession
from transport.volatile.protocol.arrivals import Deadlines
from transport.volatile.register.register import MemoryStore, Register, Store
from transport.volatile.steps import Steps
from transport.volatile.transfer.fetch import Fetch

SECRET = b"0123456789abcdef"
PARAMETERS = 20_000


class StoreServer(BaseManager):
    """Serves one `MemoryStore` to other processes."""

    @classmethod
    def at(cls, address: str) -> StoreServer:
        return cls(address=address if "/" in address else host_and_port("ADDRESS", address), authkey=SECRET)


def serve(address: str) -> None:
    """Serve a store, for ever."""
    store = MemoryStore()
    StoreServer.register("store", callable=lambda: store)
    server = StoreServer.at(address).get_server()
    tell(serving=address)
    server.serve_forever()


def reach(address: str) -> Store:
    """The store that is served there."""
    StoreServer.register("store")
    client = StoreServer.at(address)
    client.connect()
    return Served(client.store())  # type: ignore[attr-defined]


class Served:
    """A store in another process. Its connection is not made anew."""

    def __init__(self, store: Any) -> None:
        self.get, self.set, self.compare_set, self.add = store.get, store.set, store.compare_set, store.add

    def renew(self) -> bool:
        return False


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Stop:
    """Stands still at a named point, from SIGUSR1 on and until SIGUSR2.

    - `reducing`: before its part of a step leaves. `reduced`: it holds the result, and has not said so.
    - `prepared`: it has said so to all, and heard of none. `committed`: it has committed, and not applied.
    - `deciding`: it writes the next view. `decided`: it has, and has told nobody.
    - `fetching`: it has some pieces of the state. `ready`: it is about to say that it has learnt.
    - With a quorum, `arriving`: its part is ready, which it has not said. `arrived`: it has. `choosing`: it is about to
      say whose parts count. `chosen`: it has.
    """

    def __init__(self, point: str, *, armed: bool) -> None:
        self._point, self._armed = point, armed
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._arm())
        signal.signal(signal.SIGUSR2, lambda _number, _frame: self._disarm())
        places: Mapping[str, tuple[Any, str, bool]] = {
            "reducing": (Group, "allreduce", True),
            "reduced": (Steps, "_exchange", True),
            "committed": (Steps, "_exchange", False),
            "deciding": (Succession, "_advance", True),
            "decided": (Register, "advance", False),
            "fetching": (Fetch, "_take", False),
            "ready": (Follower, "_tell_ready", True),
            "arriving": (Control, "tell_first", True),
            "arrived": (Control, "tell_first", False),
            "choosing": (Deadlines, "take", True),
            "chosen": (Deadlines, "chose", False),
        }
        if point == "prepared":
            self._after_gather()
            return
        owner, name, before = places[point]
        call = getattr(owner, name)

        def wrapped(*arguments: object, **named: object) -> object:
            if before:
                self._here()
            result = call(*arguments, **named)
            if not before:
                self._here()
            return result

        setattr(owner, name, wrapped)

    def _after_gather(self) -> None:
        gather = Group.all_gather

        def wrapped(*arguments: Any, **named: Any) -> object:
            work = gather(*arguments, **named)
            time.sleep(0.05)  # its part leaves
            self._here()
            return work

        Group.all_gather = wrapped  # type: ignore[method-assign, assignment]

    def _arm(self) -> None:
        self._armed = True

    def _disarm(self) -> None:
        self._armed = False

    def _here(self) -> None:
        if self._armed:
            tell(at=self._point)
            until_s = time.monotonic() + 600.0
            while self._armed and time.monotonic() < until_s:
                time.sleep(0.1)  # stands still, until the test lets it go


def main(address: str, wishes: Mapping[str, Any]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    name = wishes["name"]
    weights = np.zeros(wishes.get("parameters", PARAMETERS), np.float32)
    random = np.random.default_rng(sum(name.encode()))
    if "stop" in wishes:
        Stop(wishes["stop"], armed=wishes.get("armed", False))

    def set_state(data: bytes) -> None:
        if len(data) != weights.nbytes:
            raise HiveError(f"a state of {len(data)} bytes is of another model")
        weights[:] = np.frombuffer(data, np.float32)
        tell(state=len(data))

    def apply_result(step: int, tensors: Sequence[memoryview]) -> None:
        weights[:] += np.frombuffer(tensors[0], np.float32)
        tell_step(step, [], None)

    def tell_step(step: int, members: Sequence[str], contributed: bool | None) -> None:
        digest = hashlib.blake2b(weights.tobytes(), digest_size=16).hexdigest()
        tell(step=step, members=members, digest=digest, contributed=contributed, at_s=time.monotonic())

    came_s: list[float] = []
    try:
        register = Register(
            reach(address), job=wishes.get("job", "test"), secret=SECRET, timeout_s=wishes.get("store_s", 10.0)
        )
        begin_s = time.monotonic()
        register.store.set(f"tried/{name}", b"")
        tell(write_s=time.monotonic() - begin_s)
        with volatile.VolatileGroup(
            register,
            name=name,
            get_state=weights.tobytes,
            set_state=set_state,
            apply_result=apply_result,
            settings=Settings(
                listen=wishes.get("listen", "127.0.0.1"),
                broker=wishes.get("broker", "off"),
                receive_bytes_max=wishes.get("bytes_max", 2**30),
                tape=wishes.get("tape", ""),
            ),
            join_timeout_s=wishes.get("join_s", 60.0),
        ) as group:
            leave_at = datetime.now() + timedelta(seconds=wishes.get("leave_in_s", 0.0))
            group.leave_on(
                signal.SIGTERM,
                at=leave_at.time().isoformat() if "leave_in_s" in wishes else "",
                schedule=wishes.get("schedule", ""),
            )
            leave = signal.getsignal(signal.SIGTERM)
            assert callable(leave)

            def leaves(number: int, frame: FrameType | None) -> None:
                came_s.append(time.monotonic())
                leave(number, frame)

            signal.signal(signal.SIGTERM, leaves)
            tell(joined=group.step, at_s=time.monotonic())
            while group.step < wishes.get("steps", 10**9):
                time.sleep(wishes.get("pause_s", 0.02))
                change = random.standard_normal(weights.size, np.float32)
                met = group.all_reduce(change, quorum=wishes.get("quorum", 0))
                if not met.applied:
                    weights += change
                    tell_step(met.step, [one.name for one in met.members], met.contributed)
                elif not met.members:
                    tell(left_out_after=met.step, contributed=met.contributed)
    except HiveError as error:
        tell(error=error.code, text=str(error))
        return 1
    finally:
        if came_s:  # the signal; the group is closed
            tell(left_in_s=time.monotonic() - came_s[0])
    tell(left=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))

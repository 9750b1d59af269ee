"""What ranks tell each other beside tensors: who is gone, who leaves, which operation was given up, where a rank moved.

Runs in the transport's thread. What another rank says of a third one is held against our own connection to it
(`transport.mesh.liveness`). Anything malformed is ignored, and logged.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from hive_qos.errors import TransportError
from transport.collectives.aborts import RemoteAbort, sent_reason
from transport.collectives.calls import Heard
from transport.collectives.in_flight import InFlight
from transport.inspection.survey import Survey
from transport.mesh.endpoint import Endpoint
from transport.mesh.one_way_delay import OneWayDelay
from transport.mesh.paths import read_locations
from transport.mesh.peers import Gone, Phase
from transport.wire.header import NAME_BYTES_MAX

_log = logging.getLogger("transport.runtime")


class ControlMessages:
    """See the module.

    Args:
        lost: ranks that are gone, and why; this adds to it.
        on_gone: called when a rank was found to be gone and the others were told.
        on_abort: called when a rank has aborted a group, with that rank, the group's name and why.
        on_moved: called with a rank that has said that its address is another one.
        on_taken: called with a rank, a group, and how many bytes of this rank's messages in it that rank has taken.
        survey: answers who asks what this rank says of itself, and takes the answers of others.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        in_flight: InFlight,
        delays: OneWayDelay,
        lost: dict[int, str],
        on_gone: Callable[[], None],
        on_abort: Callable[[int, str, str], None],
        on_moved: Callable[[int], None],
        on_taken: Callable[[int, str, int], None],
        survey: Survey,
    ) -> None:
        self._endpoint = endpoint
        self._in_flight = in_flight
        self._delays = delays
        self._lost = lost
        self._on_gone = on_gone
        self._on_abort = on_abort
        self._on_moved = on_moved
        self._on_taken = on_taken
        self._survey = survey
        self._disbelieved: set[tuple[int, int]] = set()

    def gone(self, gone: Gone) -> None:
        """A rank is gone: tell the others, unless it said so itself."""
        self._lost[gone.rank] = gone.error.reason
        self._delays.forget(gone.rank)
        if self._endpoint.peers.peers[gone.rank].phase is Phase.DEAD:
            _log.warning("lost rank %d: %s", gone.rank, gone.error.reason)
            message = {"op": "dead", "rank": gone.rank, "reason": sent_reason(gone.error.reason)}
            for rank in self._reachable():
                self._endpoint.control(rank, message)
        self._on_gone()

    def received(self, rank: int, message: Mapping[str, object]) -> None:
        """What another rank tells us."""
        match message:
            case {"op": "when", "at": float(at)}:
                self._delays.asked(rank, at, time.monotonic())
            case {"op": "then", "at": float(at), "here": float(here)}:
                self._delays.answered(rank, at, here, time.monotonic())
            case {"op": "moved", "number": int(number), "addresses": list(addresses)}:
                try:
                    locations = read_locations(addresses)
                except (ValueError, KeyError) as error:
                    _log.warning("rank %d says that it has moved, but not where: %s", rank, error)
                else:
                    self._endpoint.peer_moved(rank, number=number, locations=locations)
                    self._on_moved(rank)
            case {"op": "bulk"}:
                self._endpoint.peers.asked_for_bulk(rank, time.monotonic())
            case {"op": "where", "rank": int(other), "bulk": bool(bulk)} if other in self._endpoint.peers.peers:
                self._endpoint.introductions.asked(rank, other, bulk=bulk)
            case {"op": "seen", "rank": int(other), "bulk": bool(bulk)}:
                self._endpoint.introductions.told(rank, other, message, bulk=bulk, now_s=time.monotonic())
            case {"op": "alive"}:
                pass  # its acknowledgement is the answer
            case {"op": "leave"}:
                self._endpoint.report_gone(self._endpoint.peers.left(rank))
            case {"op": "dead", "rank": int(dead), "reason": str(reason)} if dead in self._endpoint.peers.peers:
                self._endpoint.liveness.check(
                    dead, functools.partial(self._heard_dead, dead, reason, rank), now_s=time.monotonic()
                )
            case {
                "op": "called", "group": str(group), "step": int(number), "call": str(called), "expects": str(expects)
            }:  # fmt: skip
                said = Heard(called[:NAME_BYTES_MAX], expects[:NAME_BYTES_MAX])
                self._in_flight.heard_call(rank, (group, number), said)
            case {"op": "abort", "group": str(group), "step": int(number), "reason": str(reason)}:
                lost = message.get("lost")
                abort = RemoteAbort(rank, reason, disagrees=message.get("disagrees") is True)
                if isinstance(lost, int) and lost in self._endpoint.peers.peers:
                    abort = replace(abort, lost=lost)
                    heard = functools.partial(self._heard_abort, (group, number), abort)
                    self._endpoint.liveness.check(lost, heard, now_s=time.monotonic())
                else:
                    self._in_flight.given_up_by((group, number), abort)
            case {"op": "abort", "group": str(group), "reason": str(reason)} if "step" not in message:
                self._on_abort(rank, group, reason)
            case {"op": "taken", "group": str(group), "bytes": int(total)}:
                self._on_taken(rank, group, total)
            case {"op": "describe", "number": int(number)}:
                self._survey.describe_to(rank, number)
            case {
                "op": "described", "number": int(number), "part": int(part), "parts": int(parts), "text": str(text)
            }:  # fmt: skip
                self._survey.described(rank, number, part=part, parts=parts, text=text)
            case _:
                _log.warning("rank %d sent a control message that is not understood: %.64r", rank, message.get("op"))

    def say_goodbye(self, said: threading.Event) -> None:
        """Tell everybody that we leave. Its acknowledgement proves that ours of their messages have arrived too."""
        waiting = set(self._reachable())
        if not waiting:
            said.set()

        def acknowledged(rank: int, _error: TransportError | None) -> None:
            waiting.discard(rank)
            if not waiting:
                said.set()

        for rank in tuple(waiting):
            self._endpoint.leave(rank, functools.partial(acknowledged, rank))

    def _heard_dead(self, rank: int, reason: str, by: int, lost: bool) -> None:
        """Another rank says that a rank is dead, and whether it is lost to us is known."""
        if lost:
            self._endpoint.report_gone(self._endpoint.peers.dead(rank, f"{reason} (noticed by rank {by})"))
        elif (by, rank) not in self._disbelieved:
            self._disbelieved.add((by, rank))
            _log.warning("rank %d says that it lost rank %d, which still answers this rank: %s", by, rank, reason)

    def _heard_abort(self, key: tuple[str, int], abort: RemoteAbort, lost: bool) -> None:
        """Another rank has given an operation up for the loss of one, and whether that is lost to us is known."""
        self._in_flight.given_up_by(key, abort if lost else replace(abort, answers=True))

    def _reachable(self) -> list[int]:
        return [rank for rank, peer in self._endpoint.peers.peers.items() if peer.phase is Phase.UP]

"""Keep how many segments TCP hands to a device in one piece (`gso_max_segs`), and put back what the device had.

A super-frame (GSO) passes HTB whole, up to 64 KiB, and whoever comes next waits for all of it. What is there decides:

    what the driver started with             journal it, set
    another limit: somebody set it           leave it, or with `take_over` journal it, set
    what we left there                       change it; the old journal entry stays
    what we left, changed by somebody        his from now on: forget the entry, and leave it as above
    journalled, after a crash                ours
    what we left on a device that had gone   ours; on any other device forget the entry, and leave it as above

A limit is only ever lowered below what the device had. None of it keeps the rates from being shaped: what could not be
done is a note.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hive_qos.errors import HiveError, ShapingError
from shaping.journal import Journal
from shaping.kernel_api import Kernel
from shaping.model.observations import DeviceSegments, SegmentState


@dataclass(frozen=True)
class _Held:
    """What was wanted last, what came of it, and whether that still has to be looked at."""

    wanted: int | None
    take_over: bool
    state: SegmentState
    settled: bool = True


class Segments:
    """The segment limits of all attached interfaces; a part of `Shaper`."""

    def __init__(self, kernel: Kernel, journal: Journal) -> None:
        self._kernel, self._journal = kernel, journal
        self._held: dict[str, _Held] = {}

    def attach(self, interface: str, wanted: int | None, *, take_over: bool) -> str | None:
        """Bring a device to `wanted` (None: its own), whatever is known of it; returns why it is not so, or None."""
        held = self._held.get(interface)
        before = held.state if held is not None else SegmentState(limit=None)
        try:
            state = self._settle(interface, wanted, left=before.limit, take_over=take_over)
        except (ShapingError, OSError) as error:
            state = SegmentState(limit=before.limit, note=f"gso_max_segs stays as it is: {error}")
        self._held[interface] = _Held(wanted, take_over, state)
        return state.note

    def apply(self, interface: str, wanted: int | None) -> None:
        """Bring an attached device to `wanted`, if that is another than last time or somebody has changed it."""
        held = self._held[interface]
        if not held.settled or held.wanted != wanted:
            self.attach(interface, wanted, take_over=held.take_over)

    def verify(self, interface: str) -> bool:
        """Whether the device still has what we left there; if not, the next `apply` looks at it."""
        held = self._held[interface]
        if held.state.limit is None or self._kernel.segments(interface).limit == held.state.limit:
            return True
        self._held[interface] = replace(held, settled=False)
        return False

    def state(self, interface: str) -> SegmentState:
        """What came of it at an attached interface."""
        return self._held[interface].state

    def release(self, interface: str) -> None:
        """Know an interface no more, and leave it as it is."""
        self._held.pop(interface, None)

    def put_back(self, interface: str) -> tuple[str, ...]:
        """Give a device its own limit back, also after a crash; returns sentences on what could not be put back."""
        held = self._held.pop(interface, None)
        try:
            own = self._journal.read_segments(interface)
            if own is None:
                return ()
            notes: tuple[str, ...] = ()
            if interface in self._kernel.interfaces():
                device = self._kernel.segments(interface)
                left, lent = held.state.limit if held is not None else None, self._journal.read_lent_segments(interface)
                if _is_foreign(device, left=left, lent=lent, own=own):
                    if device.limit != device.default:
                        notes = (f"{interface}: somebody set gso_max_segs {device.limit}; it stays",)
                elif device.limit != own:
                    self._kernel.set_segments(interface, own)
            else:  # it may be another namespace's, and come back with our limit
                if held is not None:
                    self._journal.lend_segments(interface, held.state.limit)
                return ()
            self._journal.forget_segments(interface)
        except (HiveError, OSError) as error:
            return (f"{interface}: gso_max_segs was not put back: {error}",)
        return notes

    def _settle(self, interface: str, wanted: int | None, *, left: int | None, take_over: bool) -> SegmentState:
        device = self._kernel.segments(interface)
        own, lent = self._journal.read_segments(interface), self._journal.read_lent_segments(interface)
        if own is not None and _is_foreign(device, left=left, lent=lent, own=own):
            self._journal.forget_segments(interface)
            own = None
        elif own is not None and lent is not None:
            self._journal.write_segments(interface, own)
        if own is None:
            if wanted is None or wanted == device.limit:
                return SegmentState(device.limit)
            if wanted > device.limit:
                return SegmentState(device.limit, f"gso_max_segs is {device.limit} without us, and not raised")
            if device.limit != device.default and not take_over:
                return SegmentState(
                    device.limit, f"somebody set gso_max_segs {device.limit}; it stays unless we may take over"
                )
            self._journal.write_segments(interface, device.limit)
            own = device.limit
        target = own if wanted is None else min(wanted, own)
        if target != device.limit:
            self._kernel.set_segments(interface, target)
        if target == own:
            self._journal.forget_segments(interface)
        return SegmentState(target)


def _is_foreign(device: DeviceSegments, *, left: int | None, lent: int | None, own: int) -> bool:
    """Neither what we left there nor what was there before us. Before our first look everything journalled is ours,
    but on a device that comes by a name that had gone: that one has to have what we lent."""
    if lent is not None:
        return device.limit != lent or lent == device.default
    return left is not None and device.limit not in (left, own)

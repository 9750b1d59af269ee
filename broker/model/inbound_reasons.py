"""Why storage is held back on its way in, by us or by the sender's broker. As `broker.model.reasons`, shown beside
them."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hive_qos.units import format_rate


class NothingToProtect(Struct, frozen=True):
    """No training has been announced or seen lately, so nobody is asked to hold anything back."""

    code: ClassVar[str] = "nothing-to-protect"

    def text(self) -> str:
        return "no training was announced or seen lately: nobody is asked to hold storage back"


class LeavesRoom(Struct, frozen=True):
    """Storage may send what the link towards us has left, and a little less, so that no queue stands there."""

    code: ClassVar[str] = "leaves-room"
    rate_bits_per_s: int
    capacity_bits_per_s: int

    def text(self) -> str:
        return (
            f"may send {format_rate(self.rate_bits_per_s)} towards us, what others leave of "
            f"{format_rate(self.capacity_bits_per_s)}: so no queue stands there when a burst begins"
        )


class BurstComes(Struct, frozen=True):
    """A burst of training comes in; storage keeps its floor, or what that training has never used."""

    code: ClassVar[str] = "burst-comes"
    job: str
    step: int
    rate_bits_per_s: int

    def text(self) -> str:
        return (
            f"step {self.step} of job {self.job} comes in: storage sends us at most {format_rate(self.rate_bits_per_s)}"
        )


class BurstSeen(Struct, frozen=True):
    """Training comes in that announced nothing; storage keeps its guarantee, or what that training does not use."""

    code: ClassVar[str] = "burst-seen"
    rate_bits_per_s: int

    def text(self) -> str:
        return f"training that announces nothing comes in: storage sends us at most {format_rate(self.rate_bits_per_s)}"


class OwedInbound(Struct, frozen=True):
    """Storage got less than its guarantee of the way in over its window, so it yields less."""

    code: ClassVar[str] = "owed-on-the-way-in"
    rate_bits_per_s: int
    window_s: float

    def text(self) -> str:
        return (
            f"got less than its guarantee over {self.window_s:g} s on the way to us, so it may send "
            f"{format_rate(self.rate_bits_per_s)} until that is made good"
        )


class IngressUnknown(Struct, frozen=True):
    """Nobody says what the way in carries, and no queue has shown it yet."""

    code: ClassVar[str] = "ingress-unknown"

    def text(self) -> str:
        return "the driver names no speed of the way in, and none was measured; write `ingress` with a rate"


class InboundSignalsMissing(Struct, frozen=True):
    """Fewer than two senders tell how long their packets take to us, so what is configured counts."""

    code: ClassVar[str] = "way-in-unheard"
    rate_bits_per_s: int
    source: str
    heard: int

    def text(self) -> str:
        where = {"configured": "the configured rate", "link": "the link's own speed"}.get(self.source, "a guess")
        return (
            f"{format_rate(self.rate_bits_per_s)}: {where}, less headroom; not measured: {self.heard} of the 2 senders "
            "needed report how long their packets take to us"
        )


class InboundQueue(Struct, frozen=True):
    """Packets waited in front of our link, by several senders' word: what came meanwhile is what it carries."""

    code: ClassVar[str] = "queue-on-the-way-in"
    rate_bits_per_s: int
    excess_s: float
    senders: int

    def text(self) -> str:
        return (
            f"{format_rate(self.rate_bits_per_s)}, less headroom, came in while packets of {self.senders} senders "
            f"waited {self.excess_s * 1000:.0f} ms in front of our link"
        )


class DrainsInboundQueue(Struct, frozen=True):
    """Storage is held to half for a moment, so that a queue in front of our link goes away."""

    code: ClassVar[str] = "way-in-draining"
    rate_bits_per_s: int
    excess_s: float

    def text(self) -> str:
        return (
            f"half of {format_rate(self.rate_bits_per_s)}, until a queue of {self.excess_s * 1000:.0f} ms in front of "
            "our link is empty"
        )


class ProbesInbound(Struct, frozen=True):
    """The way in was found to carry less; more is let in as long as no queue shows."""

    code: ClassVar[str] = "way-in-probing"
    rate_bits_per_s: int
    base_bits_per_s: int

    def text(self) -> str:
        return (
            f"{format_rate(self.rate_bits_per_s)}: more is let in, up to "
            f"{format_rate(self.base_bits_per_s)}, as long as nobody sees a queue"
        )


class HeldForPeer(Struct, frozen=True):
    """Another broker has asked us to hold storage back towards it, and we do."""

    code: ClassVar[str] = "held-for-peer"
    peer: str
    rate_bits_per_s: int

    def text(self) -> str:
        return f"{self.peer} asked for at most {format_rate(self.rate_bits_per_s)} towards it"


class HeldAtFloor(Struct, frozen=True):
    """Another broker has asked for less than the floor; the floor holds at every moment."""

    code: ClassVar[str] = "held-at-floor"
    peer: str
    asked_bits_per_s: int
    floor_bits_per_s: int

    def text(self) -> str:
        return (
            f"{self.peer} asked for at most {format_rate(self.asked_bits_per_s)} towards it; the floor of "
            f"{format_rate(self.floor_bits_per_s)} holds"
        )


class HoldRaised(Struct, frozen=True):
    """A hold that would break storage's guarantee over its window: more is sent than was asked for."""

    code: ClassVar[str] = "hold-raised"
    peer: str
    asked_bits_per_s: int
    promise_bits_per_s: int
    window_s: float

    def text(self) -> str:
        return (
            f"{self.peer} asked for at most {format_rate(self.asked_bits_per_s)}, but storage is owed "
            f"{format_rate(self.promise_bits_per_s)} there over {self.window_s:g} s"
        )


class HoldRaisedAtRisk(Struct, frozen=True):
    """Storage has objects with too few copies: it keeps its guarantee at every moment, whoever asks."""

    code: ClassVar[str] = "hold-raised-at-risk"
    peer: str
    asked_bits_per_s: int
    promise_bits_per_s: int
    replicas: int

    def text(self) -> str:
        return (
            f"{self.peer} asked for at most {format_rate(self.asked_bits_per_s)}, but {self.replicas} objects have too "
            f"few copies, and storage keeps its guarantee of {format_rate(self.promise_bits_per_s)} there meanwhile"
        )


class HoldRefused(Struct, frozen=True):
    """A hold that is not kept at all."""

    code: ClassVar[str] = "hold-refused"
    why: str

    def text(self) -> str:
        return self.why


class HoldOver(Struct, frozen=True):
    """The lease has ended; its leaf is kept for a moment, so that what waits there keeps its order."""

    code: ClassVar[str] = "hold-over"

    def text(self) -> str:
        return "nobody holds it back any more"

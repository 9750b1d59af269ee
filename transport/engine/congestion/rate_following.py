"""The controller that follows a rate given from outside, as arithmetic on packets and times.

`native/src/congestion/rate_law.rs` has it with the same numbers. Somebody who sees the whole link (the broker) says how
much this endpoint may send. `EndpointRate` divides that among the endpoint's connections; `RateFollower` paces one
connection at its part, and watches whether the path carries it:

- Pace: 0.95 of the part (`HEADROOM`). Acknowledgements of what comes the other way take up to 2.7 % of it (one of 82
  bytes for two packets of 1494 each), and with the rest a queue that stands somewhere drains.
- In flight: at most pace * (base round trip + `SLACK_S`). So a queue of our own holds 10 ms, and where somebody else's
  queue stands on the path we get base + 10 ms over the present round trip of our rate: less, and never nothing.
- A queue: the least round trip of a whole round (100 ms, or one round trip) more than max(5 ms, base / 8) over the
  base. Then the pace falls to 0.8 of what is delivered until a queue of ours must be gone (its length / 0.2, and a
  round trip; at most 0.8 s). If it is gone it was ours, and the path gives what was delivered: on with 0.95 of that.
  If not, the path may have become slower meanwhile: once more, with what is delivered now. If it still stands, it is
  somebody else's, and yielding would only give our part to whoever makes it: the pace is taken back, and delay is not
  believed for 10 s or until the queue has gone.
- Loss: surely more than 2 % (BBRv3's threshold; three standard deviations above it) of what was sent in the last second
  at most: the pace falls to 0.95 of what is delivered. Random loss below that is not a queue, and changes nothing.
- The pace that is kept falls at most by half at once. A round in which the application sent less than it might, and
  less than half of the pace arrived, says nothing; losses are judged only where the application was not the limit
  (after BBR's rule).
- Recovery: 1 % a round, doubling to 5 %, up to the rate and never beyond. Within 4 % of where it had to yield last
  (for 10 s) only 1 %: there the next queue is expected, and it is a short one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from transport.engine.congestion.cubic import WINDOW_PACKETS_INITIAL, Cubic
from transport.engine.congestion.pacer import RATE_VALID_S
from transport.engine.congestion.path_estimates import BASE_SPAN_S, RttWindow

HEADROOM = 0.95
HEADER_BYTES = 62
"""Ethernet, IPv6 and UDP of a datagram: the rate is one of the wire, and so HTB counts."""
SLACK_S = 0.010
ROUND_S = 0.1
QUEUE_S_MIN, QUEUE_BASE_DIVISOR = 0.005, 8
DRAIN_SHARE, YIELD_SHARE, CUT_MOST = 0.8, 0.95, 0.5
DRAIN_S_MAX, DRAINS_MAX = 0.8, 2
ROUND_PACKETS_MIN = 2
"""The pace is never less than this: what is acknowledged twice a round still shows the path."""
LOSS_SHARE, LOSS_DEVIATIONS, LOSS_SPAN_S = 0.02, 3.0, 1.0
STEP_MIN, STEP_MAX, NEAR_BOUND = 0.01, 0.05, 1.04
BUSY_SPAN_S, BUSY_BYTES = 0.1, 3000
"""Two packets in a tenth of a second are data; what is less is keep-alives and questions of the transport's own."""
WANT = 1.3
"""A connection that yields is given so much more than it uses, so that it can recover; the others have the rest."""
SHARES_S = 0.005


@dataclass
class _Drain:
    """Until when less is sent than the path gives, the pace before, the queue that has to go, and the how manieth."""

    until_s: float
    before_bytes_per_s: float
    queue_s: float
    number: int


@dataclass
class _Member:
    span_s: float = -math.inf
    span_bytes: int = 0
    busy_s: float = -math.inf
    want_bytes_per_s: float = math.inf


class EndpointRate:
    """One endpoint's rate, divided among its connections that have data. Members are known by any hashable name.

    They have equal parts, and what one does not want goes to the others. Each is told the level of the water (as in
    `broker.law.sharing.water_filling`) and may go up to that: as long as nobody sends more than he says that he wants,
    all together send the rate.
    """

    def __init__(self) -> None:
        self._rate_bytes_per_s: float | None = None
        self._until_s = -math.inf
        self._members: dict[object, _Member] = {}
        self._level_bytes_per_s = 0.0
        self._divided_s = -math.inf

    def give(self, bits_per_s: int | None, *, now_s: float) -> None:
        """Set the rate for `RATE_VALID_S`, or take it away."""
        self._rate_bytes_per_s = None if bits_per_s is None else bits_per_s / 8
        self._until_s = now_s + RATE_VALID_S
        self._divided_s = -math.inf

    def forget(self, name: object) -> None:
        """A connection has ended."""
        if self._members.pop(name, None) is not None:
            self._divided_s = -math.inf

    def on_sent(self, name: object, sent_bytes: int, *, now_s: float) -> None:
        """Note what a connection sends: whether it has data is seen by that."""
        member = self._members.setdefault(name, _Member())
        if now_s - member.span_s > BUSY_SPAN_S:
            member.span_s, member.span_bytes = now_s, 0
        member.span_bytes += sent_bytes
        if member.span_bytes >= BUSY_BYTES:
            if now_s - member.busy_s > BUSY_SPAN_S:
                self._divided_s = -math.inf
            member.busy_s = now_s

    def share_bytes_per_s(self, name: object, *, want_bytes_per_s: float, now_s: float) -> float | None:
        """The part of a connection that is about to send; None while no rate is known."""
        if self._rate_bytes_per_s is None or now_s > self._until_s:
            return None
        member = self._members.setdefault(name, _Member())
        member.want_bytes_per_s = want_bytes_per_s
        if now_s - self._divided_s >= SHARES_S:
            self._divided_s = now_s
            self._divide(self._rate_bytes_per_s, now_s)
        if now_s - member.busy_s <= BUSY_SPAN_S:
            return self._level_bytes_per_s
        busy = sum(now_s - other.busy_s <= BUSY_SPAN_S for other in self._members.values())
        return self._rate_bytes_per_s / (busy + 1)

    def _divide(self, rate_bytes_per_s: float, now_s: float) -> None:
        busy = [member for member in self._members.values() if now_s - member.busy_s <= BUSY_SPAN_S]
        wants = sorted(member.want_bytes_per_s for member in busy)
        left_bytes_per_s = self._level_bytes_per_s = rate_bytes_per_s
        for place, want_bytes_per_s in enumerate(wants):
            equal_bytes_per_s = left_bytes_per_s / (len(wants) - place)
            if want_bytes_per_s >= equal_bytes_per_s:
                self._level_bytes_per_s = equal_bytes_per_s
                return
            left_bytes_per_s -= want_bytes_per_s


class RateFollower:
    """Pace and window of one connection while a rate is known. See the top of this file."""

    def __init__(self, *, packet_bytes: int) -> None:
        self.packet_bytes = packet_bytes
        self.target_bytes_per_s = 0.0
        self.pace_bytes_per_s = 0.0
        self.queue_s = 0.0
        self._base = RttWindow()
        self._latest_s = 0.0
        self._round_s: float | None = None
        self._round_least_s = math.inf
        self._round_acked = 0
        self._round_limited = 0
        self._step = STEP_MIN
        self._bound_bytes_per_s = math.inf
        self._bound_until_s = -math.inf
        self._drain: _Drain | None = None
        self._foreign_until_s = -math.inf
        self._loss_s = -math.inf
        self._loss_acked = 0
        self._loss_lost = 0

    @property
    def base_s(self) -> float:
        """The round trip without a queue; infinite where none was measured."""
        return self._base.least_s

    @property
    def yielding(self) -> bool:
        """Whether the path carries less than the rate."""
        return self.pace_bytes_per_s < self.target_bytes_per_s

    def follow(self, share_bytes_per_s: float, *, datagram_bytes: int) -> None:
        """Take this connection's part of the rate; it is believed at once, upwards and downwards.

        Args:
            share_bytes_per_s: on the wire, headers included.
            datagram_bytes: UDP payload of a full packet.
        """
        target = HEADROOM * share_bytes_per_s * datagram_bytes / (datagram_bytes + HEADER_BYTES)
        if not self.yielding or self.pace_bytes_per_s > target:
            self.pace_bytes_per_s = target
        self.target_bytes_per_s = target

    def on_rtt(self, rtt_s: float, *, now_s: float) -> None:
        """Take a round trip, without the peer's acknowledgement delay."""
        self._base.add(rtt_s, now_s=now_s)
        self._latest_s = rtt_s
        self._round_least_s = min(self._round_least_s, rtt_s)

    def on_progress(self, *, acked_bytes: int, lost_bytes: int, limited: bool, now_s: float) -> None:
        """Take what an acknowledgement told.

        Args:
            limited: the application has nothing more to send.
        """
        if now_s - self._loss_s > LOSS_SPAN_S:
            self._loss_s, self._loss_acked, self._loss_lost = now_s, 0, 0
        self._loss_acked += acked_bytes
        self._loss_lost += lost_bytes
        if self._round_s is None:
            self._begin_round(now_s)
        assert self._round_s is not None
        self._round_acked += acked_bytes
        self._round_limited += acked_bytes if limited else 0
        length_s = now_s - self._round_s
        over = length_s >= max(ROUND_S, self._latest_s) if self._drain is None else now_s >= self._drain.until_s
        if not over or self._round_least_s == math.inf:
            return
        delivered_bytes_per_s = self._round_acked / length_s
        limited_round = 2 * self._round_limited > self._round_acked
        self.queue_s = self._round_least_s - self.base_s
        if not limited_round or delivered_bytes_per_s >= CUT_MOST * self.pace_bytes_per_s:
            self._judge(delivered_bytes_per_s, limited=limited_round, now_s=now_s)
        self._begin_round(now_s)

    def window_bytes(self) -> int:
        """What may be in flight."""
        least = WINDOW_PACKETS_INITIAL * self.packet_bytes
        if self.base_s == math.inf:
            return least
        return max(least, int(self.target_bytes_per_s * (self.base_s + SLACK_S)))

    def _begin_round(self, now_s: float) -> None:
        self._round_s, self._round_least_s = now_s, math.inf
        self._round_acked = self._round_limited = 0

    def _judge(self, delivered_bytes_per_s: float, *, limited: bool, now_s: float) -> None:
        """End a round: yield, wait, or recover."""
        standing_s = max(QUEUE_S_MIN, self.base_s / QUEUE_BASE_DIVISOR)
        if self.queue_s < standing_s / 2:
            self._foreign_until_s = -math.inf
        if self._drain is not None:
            drain, self._drain = self._drain, None
            if self.queue_s <= max(standing_s, drain.queue_s / 2):
                self.pace_bytes_per_s = min(self._bound_bytes_per_s, self.target_bytes_per_s)
            elif drain.number < DRAINS_MAX:
                self._begin_drain(delivered_bytes_per_s, drain.before_bytes_per_s, drain.number + 1, now_s)
            else:
                self._foreign_until_s = now_s + BASE_SPAN_S
                self.pace_bytes_per_s = min(drain.before_bytes_per_s, self.target_bytes_per_s)
        elif self._loses() and not limited:
            self._yield_to(delivered_bytes_per_s, now_s)
            self.pace_bytes_per_s = self._bound_bytes_per_s
            self._loss_s = -math.inf
        elif self.queue_s > standing_s and now_s > self._foreign_until_s:
            self._begin_drain(delivered_bytes_per_s, self.pace_bytes_per_s, 1, now_s)
        else:
            self._recover(now_s)

    def _begin_drain(self, delivered_bytes_per_s: float, before_bytes_per_s: float, number: int, now_s: float) -> None:
        self.pace_bytes_per_s = before_bytes_per_s
        self._yield_to(delivered_bytes_per_s, now_s)
        self.pace_bytes_per_s = min(self._bound_bytes_per_s, max(DRAIN_SHARE * delivered_bytes_per_s, self._least))
        queue_s = max(self.queue_s, self._latest_s - self.base_s)  # it has grown since the round's least
        length_s = min(queue_s / (1 - DRAIN_SHARE) + self._latest_s, DRAIN_S_MAX)
        self._drain = _Drain(now_s + length_s, before_bytes_per_s, queue_s, number)

    @property
    def _least(self) -> float:
        return ROUND_PACKETS_MIN * self.packet_bytes / ROUND_S

    def _yield_to(self, delivered_bytes_per_s: float, now_s: float) -> None:
        bound = max(YIELD_SHARE * delivered_bytes_per_s, CUT_MOST * self.pace_bytes_per_s, self._least)
        self._bound_bytes_per_s = min(bound, self.pace_bytes_per_s)
        self._bound_until_s = now_s + BASE_SPAN_S
        self._step = STEP_MIN

    def on_persistent_congestion(self) -> None:
        """Nothing arrived for so long that nothing is known of the path (RFC 9002, 7.6)."""
        least = max(CUT_MOST * self.pace_bytes_per_s, self._least)
        self.pace_bytes_per_s = min(self.target_bytes_per_s, least)
        self._step = STEP_MIN

    def _recover(self, now_s: float) -> None:
        pace = min(self.pace_bytes_per_s * (1 + self._step), self.target_bytes_per_s)
        near = pace < NEAR_BOUND * self._bound_bytes_per_s / YIELD_SHARE and now_s < self._bound_until_s
        self._step = STEP_MIN if near else min(2 * self._step, STEP_MAX)
        self.pace_bytes_per_s = pace

    def _loses(self) -> bool:
        lost, sent = self._loss_lost / self.packet_bytes, (self._loss_lost + self._loss_acked) / self.packet_bytes
        return lost > LOSS_SHARE * sent + LOSS_DEVIATIONS * math.sqrt(LOSS_SHARE * sent)


class FollowsRate:
    """`RateFollower` while the endpoint has a rate, `Cubic` while it has none, for one connection.

    Where a rate is given, it is followed from the next packet or acknowledgement on. Where it ends, CUBIC goes on in
    congestion avoidance from what was in use: pace * base round trip.
    """

    def __init__(self, *, packet_bytes: int) -> None:
        self.packet_bytes = packet_bytes
        self.endpoint = EndpointRate()
        self.follower = RateFollower(packet_bytes=packet_bytes)
        self.cubic = Cubic(packet_bytes=packet_bytes)
        self.following = False

    @property
    def pace_bytes_per_s(self) -> float | None:
        """The exact pace; None where CUBIC decides."""
        return self.follower.pace_bytes_per_s if self.following else None

    @property
    def slow_start(self) -> bool:
        """As `Cubic`."""
        return not self.following and self.cubic.slow_start

    def look(self, *, now_s: float) -> None:
        """See what the endpoint's rate is now."""
        follower = self.follower
        want = WANT * follower.pace_bytes_per_s if self.following and follower.yielding else math.inf
        share = self.endpoint.share_bytes_per_s(self, want_bytes_per_s=want, now_s=now_s)
        if share is not None:
            if not self.following:
                follower.pace_bytes_per_s = follower.target_bytes_per_s = 0.0
            self.following = True
            follower.follow(share, datagram_bytes=self.packet_bytes)
        elif self.following:
            self.following = False
            self.cubic = Cubic(packet_bytes=self.packet_bytes)
            if follower.base_s < math.inf:
                in_use = follower.pace_bytes_per_s * follower.base_s
                self.cubic.window_bytes = max(self.cubic.window_bytes, in_use)
                self.cubic.threshold_bytes = self.cubic.window_bytes

    def on_sent(self, sent_bytes: int, *, now_s: float) -> None:
        """A packet goes out."""
        self.endpoint.on_sent(self, sent_bytes, now_s=now_s)
        self.look(now_s=now_s)
        if not self.following:
            self.cubic.on_sent(now_s=now_s)

    def on_rtt(self, rtt_s: float, *, now_s: float) -> None:
        """Take a round trip, without the peer's acknowledgement delay."""
        self.follower.on_rtt(rtt_s, now_s=now_s)
        self.cubic.on_rtt(rtt_s, now_s=now_s)

    def on_acked(self, acked_bytes: int, *, now_s: float) -> None:
        """Grow by `acked_bytes` of a full window."""
        if not self.following:
            self.cubic.on_acked(acked_bytes, now_s=now_s)

    def on_progress(self, *, acked_bytes: int, lost_bytes: int, limited: bool, now_s: float) -> None:
        """As `RateFollower`."""
        self.look(now_s=now_s)
        if self.following:
            self.follower.on_progress(acked_bytes=acked_bytes, lost_bytes=lost_bytes, limited=limited, now_s=now_s)

    def on_loss(self, *, now_s: float, sent_at_s: float) -> None:
        """As `Cubic`; while a rate is followed, `on_progress` judges losses."""
        if not self.following:
            self.cubic.on_loss(now_s=now_s, sent_at_s=sent_at_s)

    def on_persistent_congestion(self) -> None:
        """As `Cubic`; a rate that is followed halves."""
        if self.following:
            self.follower.on_persistent_congestion()
        else:
            self.cubic.on_persistent_congestion()

    def allowed_bytes(self) -> int:
        """What may be in flight now."""
        return self.follower.window_bytes() if self.following else self.cubic.allowed_bytes()

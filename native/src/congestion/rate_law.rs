//! How a connection follows its part of a rate, paces at it, and watches whether the path carries it. Somebody who sees
//! the whole link (the broker) says how much this endpoint may send; `EndpointRate` divides that among its connections.
//!
//! - Pace: 0.95 of the part (`HEADROOM`). Acknowledgements of what comes the other way take up to 2.7 % of it (one of 82
//!   bytes for two packets of 1494 each), and with the rest a queue that stands somewhere drains.
//! - In flight: at most pace * (base round trip + `SLACK_S`). So a queue of our own holds 10 ms, and where somebody else's
//!   queue stands on the path we get base + 10 ms over the present round trip of our rate: less, and never nothing.
//! - A queue: the least round trip of a whole round (100 ms, or one round trip) more than max(5 ms, base / 8) over the
//!   base. Then the pace falls to 0.8 of what is delivered until a queue of ours must be gone (its length / 0.2, and a
//!   round trip; at most 0.8 s). If it is gone it was ours, and the path gives what was delivered: on with 0.95 of that.
//!   If not, the path may have become slower meanwhile: once more, with what is delivered now. If it still stands, it is
//!   somebody else's, and yielding would only give our part to whoever makes it: the pace is taken back, and delay is not
//!   believed for 10 s or until the queue has gone.
//! - Loss: surely more than 2 % (BBRv3's threshold; three standard deviations above it) of what was sent in the last second
//!   at most: the pace falls to 0.95 of what is delivered. Random loss below that is not a queue, and changes nothing.
//! - The pace that is kept falls at most by half at once. A round in which the application sent less than it might, and
//!   less than half of the pace arrived, says nothing; losses are judged only where the application was not the limit
//!   (after BBR's rule).
//! - Recovery: 1 % a round, doubling to 5 %, up to the rate and never beyond. Within 4 % of where it had to yield last
//!   (for 10 s) only 1 %: there the next queue is expected, and it is a short one.

use std::time::{Duration, Instant};

use super::min_rtt::{MIN_RTT_WINDOW, MinRtt};

pub(super) const HEADROOM: f64 = 0.95;
/// Ethernet, IPv6 and UDP of a datagram: the rate is one of the wire, and so HTB counts.
pub(super) const HEADER_BYTES: f64 = 62.0;
pub(super) const SLACK_S: f64 = 0.010;
const ROUND_S: f64 = 0.1;
const QUEUE_S_MIN: f64 = 0.005;
const QUEUE_BASE_DIVISOR: f64 = 8.0;
const DRAIN_SHARE: f64 = 0.8;
const YIELD_SHARE: f64 = 0.95;
const CUT_MOST: f64 = 0.5;
const DRAIN_S_MAX: f64 = 0.8;
const DRAINS_MAX: u32 = 2;
/// The pace is never less than this: what is acknowledged twice a round still shows the path.
const ROUND_PACKETS_MIN: f64 = 2.0;
const LOSS_SHARE: f64 = 0.02;
const LOSS_DEVIATIONS: f64 = 3.0;
const LOSS_SPAN: Duration = Duration::from_secs(1);
const STEP_MIN: f64 = 0.01;
const STEP_MAX: f64 = 0.05;
const NEAR_BOUND: f64 = 1.04;
pub(super) const WINDOW_PACKETS_MIN: f64 = 10.0;

/// Until when less is sent than the path gives, the pace before, the queue that has to go, and the how manieth.
#[derive(Clone)]
struct Drain {
    until: Instant,
    before: f64,
    queue_s: f64,
    number: u32,
}

/// Pacer and window of one connection while a rate is known. Rates in bytes of UDP payload a second.
#[derive(Clone)]
pub(super) struct RateFollower {
    pub(super) packet_bytes: f64,
    pub(super) target: f64,
    pub(super) pace: f64,
    queue_s: f64,
    pub(super) base: MinRtt,
    latest_s: f64,
    round_at: Option<Instant>,
    round_least_s: f64,
    round_acked: f64,
    round_limited: f64,
    step: f64,
    bound: f64,
    bound_until: Option<Instant>,
    drain: Option<Drain>,
    foreign_until: Option<Instant>,
    loss_at: Option<Instant>,
    loss_acked: f64,
    loss_lost: f64,
    pub(super) marked: bool,
}

impl RateFollower {
    pub(super) fn new(packet_bytes: f64) -> Self {
        Self {
            packet_bytes,
            target: 0.0,
            pace: 0.0,
            queue_s: 0.0,
            base: MinRtt::default(),
            latest_s: 0.0,
            round_at: None,
            round_least_s: f64::INFINITY,
            round_acked: 0.0,
            round_limited: 0.0,
            step: STEP_MIN,
            bound: f64::INFINITY,
            bound_until: None,
            drain: None,
            foreign_until: None,
            loss_at: None,
            loss_acked: 0.0,
            loss_lost: 0.0,
            marked: false,
        }
    }

    pub(super) fn yielding(&self) -> bool {
        self.pace < self.target
    }

    /// Take this connection's part of the rate (of the wire); it is believed at once, upwards and downwards.
    pub(super) fn follow(&mut self, share: f64) {
        let target = HEADROOM * share * self.packet_bytes / (self.packet_bytes + HEADER_BYTES);
        if !self.yielding() || self.pace > target {
            self.pace = target;
        }
        self.target = target;
    }

    pub(super) fn on_rtt(&mut self, rtt_s: f64, now: Instant) {
        self.base.add(rtt_s, now, MIN_RTT_WINDOW);
        self.latest_s = rtt_s;
        self.round_least_s = self.round_least_s.min(rtt_s);
    }

    pub(super) fn on_lost(&mut self, bytes: f64) {
        self.loss_lost += bytes;
    }

    /// Take what an acknowledgement told: bytes, and how many of them were sent while the application had no more.
    pub(super) fn on_progress(&mut self, acked: f64, limited: f64, now: Instant) {
        let old = |at: Instant| now.saturating_duration_since(at) > LOSS_SPAN;
        if self.loss_at.is_none_or(old) {
            (self.loss_at, self.loss_acked, self.loss_lost) = (Some(now), 0.0, 0.0);
        }
        self.loss_acked += acked;
        self.round_acked += acked;
        self.round_limited += limited;
        let round_at = *self.round_at.get_or_insert(now);
        let length_s = now.saturating_duration_since(round_at).as_secs_f64();
        let over = match &self.drain {
            None => length_s >= ROUND_S.max(self.latest_s),
            Some(drain) => now >= drain.until,
        };
        if !over || self.round_least_s.is_infinite() {
            return;
        }
        self.queue_s = self.round_least_s - self.base.least_s();
        let limited = 2.0 * self.round_limited > self.round_acked;
        let delivered = self.round_acked / length_s;
        if !limited || delivered >= CUT_MOST * self.pace {
            self.judge(delivered, limited, now);
        }
        self.round_at = Some(now);
        self.round_least_s = f64::INFINITY;
        (self.round_acked, self.round_limited) = (0.0, 0.0);
    }

    pub(super) fn window(&self) -> f64 {
        let least = WINDOW_PACKETS_MIN * self.packet_bytes;
        let base_s = self.base.least_s();
        if base_s.is_infinite() {
            return least;
        }
        least.max(self.target * (base_s + SLACK_S))
    }

    /// End a round: yield, wait, or recover.
    fn judge(&mut self, delivered: f64, limited: bool, now: Instant) {
        let standing_s = QUEUE_S_MIN.max(self.base.least_s() / QUEUE_BASE_DIVISOR);
        if self.queue_s < standing_s / 2.0 {
            self.foreign_until = None;
        }
        if let Some(drain) = self.drain.take() {
            if self.queue_s <= standing_s.max(drain.queue_s / 2.0) {
                self.pace = self.bound.min(self.target);
            } else if drain.number < DRAINS_MAX {
                self.begin_drain(delivered, drain.before, drain.number + 1, now);
            } else {
                self.foreign_until = Some(now + MIN_RTT_WINDOW);
                self.pace = drain.before.min(self.target);
            }
        } else if (self.loses() || std::mem::take(&mut self.marked)) && !limited {
            self.yield_to(delivered, now);
            self.pace = self.bound;
            self.loss_at = None;
        } else if self.queue_s > standing_s && self.foreign_until.is_none_or(|until| now > until) {
            self.begin_drain(delivered, self.pace, 1, now);
        } else {
            self.recover(now);
        }
    }

    fn begin_drain(&mut self, delivered: f64, before: f64, number: u32, now: Instant) {
        self.pace = before;
        self.yield_to(delivered, now);
        self.pace = (DRAIN_SHARE * delivered).max(self.least()).min(self.bound);
        let queue_s = self.queue_s.max(self.latest_s - self.base.least_s()); // it has grown since the round's least
        let length_s = DRAIN_S_MAX.min(queue_s / (1.0 - DRAIN_SHARE) + self.latest_s);
        self.drain = Some(Drain {
            until: now + Duration::from_secs_f64(length_s),
            before,
            queue_s,
            number,
        });
    }

    fn least(&self) -> f64 {
        ROUND_PACKETS_MIN * self.packet_bytes / ROUND_S
    }

    fn yield_to(&mut self, delivered: f64, now: Instant) {
        let bound = (YIELD_SHARE * delivered).max(CUT_MOST * self.pace).max(self.least());
        self.bound = bound.min(self.pace);
        self.bound_until = Some(now + MIN_RTT_WINDOW);
        self.step = STEP_MIN;
    }

    /// Nothing arrived for so long that nothing is known of the path (RFC 9002, 7.6).
    pub(super) fn on_persistent_congestion(&mut self) {
        self.pace = (CUT_MOST * self.pace).max(self.least()).min(self.target);
        self.step = STEP_MIN;
    }

    fn recover(&mut self, now: Instant) {
        self.pace = (self.pace * (1.0 + self.step)).min(self.target);
        let near = self.pace < NEAR_BOUND * self.bound / YIELD_SHARE && self.bound_until.is_some_and(|at| now < at);
        self.step = if near { STEP_MIN } else { STEP_MAX.min(2.0 * self.step) };
    }

    fn loses(&self) -> bool {
        let lost = self.loss_lost / self.packet_bytes;
        let sent = (self.loss_lost + self.loss_acked) / self.packet_bytes;
        lost > LOSS_SHARE * sent + LOSS_DEVIATIONS * (LOSS_SHARE * sent).sqrt()
    }
}

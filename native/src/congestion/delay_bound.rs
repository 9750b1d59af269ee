//! The control of bulk state, which yields to everything else on its path.
//!
//! It keeps the queue that it makes itself near `max(0.25 ms, base / 4)` (after LEDBAT, RFC 6817, and LEDBAT++), so that a
//! small message to the same peer does not wait behind it.
//! - A round is a round trip, and at least `ROUND_SAMPLES` acknowledgements, which in slow start are enough. Its queue is
//!   the least round trip in it less the base: what passes within a round (somebody's message of 64 KB is 5 ms at
//!   100 Mbit/s, a late wake-up) is not ours, and to give way to each of them left a third of the link unused.
//! - Below the target the window grows, by up to an eighth a round, above it shrinks by an eighth for each target that the
//!   queue is too long, at most by half. The target is a quarter of the base or more, so that what was decided on before
//!   the last round showed overshoots by less than a target, and it settles.
//! - The base is the mean round trip of a round, the least of two spans. The least of all their ten thousand round trips is a
//!   freak that the least of a round's dozen does not come near: where round trips vary by a quarter of themselves (radio,
//!   processors that are full) the difference passed for a queue, and bulk stood nearly still beside an empty link. In slow
//!   start, which is short and makes bursts, it is the least of the round.
//! - Once a span the window is cut for a moment, lest a queue of our own become part of the base.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

use super::acked_packets::AckedPackets;
use super::recent_least::{MIN_RTT_WINDOW, RecentLeast};

const WINDOW_PACKETS_MIN: f64 = 4.0;
const WINDOW_PACKETS_INITIAL: f64 = 10.0;
/// A batch of bulk at 1 Gbit/s. A small message that takes 0.5 ms on an idle link took four times that behind 2 ms, and 2.4
/// times behind 0.5 ms.
const TARGET_S_MIN: f64 = 0.00025;
const ROUND_SAMPLES: u32 = 6;
/// The part of the window that a round adds or takes for each target that the queue is off.
const GAIN: f64 = 1.0 / 8.0;
const CUT_MOST: f64 = 0.5;
/// Slow start doubles in a round trip, and what it has sent shows one later.
const SLOW_START_TARGETS: f64 = 0.75;
const DRAIN: Duration = Duration::from_millis(200);

pub struct DelayBoundConfig;

impl ControllerFactory for DelayBoundConfig {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(DelayBound::new(f64::from(current_mtu)))
    }
}

/// What a round has shown so far.
#[derive(Clone)]
struct Round {
    began: Option<Instant>,
    least_s: f64,
    sum_s: f64,
    samples: u32,
    /// It began while the window was cut for the base.
    drains: bool,
    acked: f64,
    /// Of those: while the application had no more.
    limited: f64,
}

impl Round {
    const NEW: Self = Self {
        began: None,
        least_s: f64::INFINITY,
        sum_s: 0.0,
        samples: 0,
        drains: false,
        acked: 0.0,
        limited: 0.0,
    };
}

#[derive(Clone)]
struct DelayBound {
    packet_bytes: f64,
    window_bytes: f64,
    slow_start: bool,
    base: RecentLeast,
    round: Round,
    drain_until: Option<Instant>,
    drained_at: Option<Instant>,
    reduced_at: Option<Instant>,
    acks: AckedPackets,
}

impl DelayBound {
    fn new(packet_bytes: f64) -> Self {
        Self {
            packet_bytes,
            window_bytes: WINDOW_PACKETS_INITIAL * packet_bytes,
            slow_start: true,
            base: RecentLeast::default(),
            round: Round::NEW,
            drain_until: None,
            drained_at: None,
            reduced_at: None,
            acks: AckedPackets::default(),
        }
    }

    fn target_s(&self) -> f64 {
        TARGET_S_MIN.max(self.base.least() / 4.0)
    }

    /// Take what an acknowledgement told: the round trip, bytes, and how many of them the application limited.
    fn on_progress(&mut self, rtt_s: f64, acked: f64, limited: f64, now: Instant) {
        self.keep_base(rtt_s, now);
        let round = &mut self.round;
        if round.began.is_none() {
            round.drains = self.drain_until.is_some();
        }
        let began = *round.began.get_or_insert(now);
        round.least_s = round.least_s.min(rtt_s);
        round.sum_s += rtt_s;
        round.samples += 1;
        round.acked += acked;
        round.limited += limited;
        // With a window that is cut there may be two in a round trip.
        let enough = round.samples >= ROUND_SAMPLES || round.drains;
        let whole = now.saturating_duration_since(began).as_secs_f64() >= rtt_s;
        if enough && (self.slow_start || whole) {
            let round = std::mem::replace(&mut self.round, Round::NEW);
            self.end(&round, now);
        }
        if self.slow_start && self.drain_until.is_none() {
            self.window_bytes += acked - limited;
        }
    }

    /// A round is over: what it tells of the base, and of the queue.
    fn end(&mut self, round: &Round, now: Instant) {
        let mean_s = round.sum_s / f64::from(round.samples);
        let sample_s = if self.slow_start { round.least_s } else { mean_s };
        self.base.add(sample_s, now, MIN_RTT_WINDOW);
        if round.drains {
            return;
        }
        let queue_s = (round.least_s - self.base.least()).max(0.0);
        if self.slow_start {
            self.slow_start = queue_s < SLOW_START_TARGETS * self.target_s();
        } else {
            self.judge(queue_s, 2.0 * round.limited > round.acked);
        }
    }

    /// Once a span, have no queue of our own for a moment.
    fn keep_base(&mut self, rtt_s: f64, now: Instant) {
        let drained_at = *self.drained_at.get_or_insert(now);
        if now.saturating_duration_since(drained_at) > MIN_RTT_WINDOW {
            self.drained_at = Some(now);
            self.drain_until = Some(now + DRAIN.max(Duration::from_secs_f64(2.0 * rtt_s)));
            self.round = Round::NEW;
        }
        self.drain_until = self.drain_until.filter(|until| now < *until);
    }

    /// The window does not grow while the application is what limits it (RFC 9002 7.8).
    fn judge(&mut self, queue_s: f64, limited: bool) {
        let off_target = 1.0 - queue_s / self.target_s();
        if off_target < 0.0 {
            self.window_bytes *= 1.0 - (-GAIN * off_target).min(CUT_MOST);
        } else if !limited {
            self.window_bytes += off_target * self.packet_bytes.max(GAIN * self.window_bytes);
        }
        self.window_bytes = self.window_bytes.max(self.window_min());
    }

    fn window_min(&self) -> f64 {
        WINDOW_PACKETS_MIN * self.packet_bytes
    }
}

impl Controller for DelayBound {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        self.acks.add(now, sent, bytes, app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, _in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        let acks = std::mem::take(&mut self.acks);
        if let Some(rtt_s) = acks.rtt_s {
            self.on_progress(rtt_s, acks.bytes as f64, acks.limited_bytes as f64, now);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, _lost_bytes: u64) {
        if !persistent && self.reduced_at.is_some_and(|at| sent <= at) {
            return;
        }
        if persistent {
            (self.base, self.round) = (RecentLeast::default(), Round::NEW); // the route may be another one (RFC 9002 5.2)
        }
        self.reduced_at = Some(now);
        self.slow_start = false;
        self.window_bytes = (self.window_bytes / 2.0).max(self.window_min());
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet_bytes = f64::from(new_mtu);
        self.window_bytes = self.window_bytes.max(self.window_min());
    }

    fn window(&self) -> u64 {
        if self.drain_until.is_some() {
            return self.window_min() as u64;
        }
        self.window_bytes as u64
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        (WINDOW_PACKETS_INITIAL * self.packet_bytes) as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
#[path = "delay_bound_tests.rs"]
mod tests;

//! The controllers by name, and the delay-bounded one for bulk state; its law and its numbers are those of
//! `transport/engine/congestion.py`, but for the least queue: Python cannot tell half a millisecond from its own pauses.
//!
//! It keeps the queue that it makes itself near `max(0.5 ms, base / 4)` (after LEDBAT, RFC 6817, and LEDBAT++), so that a
//! small message to the same peer does not wait behind it. Below the target the window grows, above it shrinks in
//! proportion; the base is the least round trip of two spans, and once a span the window is cut for a moment, lest a
//! queue of our own become part of the base.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, CubicConfig, NewRenoConfig};

use crate::bbr::SpannedBbrConfig;
use crate::rate::{EndpointRate, FollowsRateConfig, Pace};

const WINDOW_PACKETS_MIN: f64 = 4.0;
const WINDOW_PACKETS_INITIAL: f64 = 10.0;
/// A lump at 1 Gbit/s. On a link of 0.6 ms a small message took four times its idle time behind 2 ms.
const TARGET_S_MIN: f64 = 0.0005;
const FILTER_SAMPLES: usize = 6;
const BASE_SPAN: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_millis(200);

/// The controllers that a configuration can name.
pub const NAMES: [&str; 4] = ["cubic", "reno", "bbr", RATE];
pub const RATE: &str = "rate";

/// The factory for a name of `NAMES`, or for bulk.
///
/// `rate` is what `rate` follows, `pace` what it holds a connection's packets back by.
pub fn factory(
    name: &str,
    bulk: bool,
    rate: &Arc<EndpointRate>,
    pace: &Arc<Pace>,
) -> Option<Arc<dyn ControllerFactory + Send + Sync>> {
    if bulk {
        return Some(Arc::new(DelayBoundConfig));
    }
    match name {
        "cubic" => Some(Arc::new(CubicConfig::default())),
        "reno" => Some(Arc::new(NewRenoConfig::default())),
        "bbr" => Some(Arc::new(SpannedBbrConfig::default())),
        RATE => Some(Arc::new(FollowsRateConfig {
            rate: rate.clone(),
            pace: pace.clone(),
        })),
        _ => None,
    }
}

struct DelayBoundConfig;

impl ControllerFactory for DelayBoundConfig {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(DelayBound::new(f64::from(current_mtu)))
    }
}

#[derive(Clone)]
struct DelayBound {
    packet_bytes: f64,
    window_bytes: f64,
    slow_start: bool,
    queue_s: f64,
    base_previous_s: f64,
    base_current_s: f64,
    base_since: Option<Instant>,
    recent_s: VecDeque<f64>,
    drain_until: Option<Instant>,
    drained_at: Option<Instant>,
    reduced_at: Option<Instant>,
    latest_s: Option<f64>,
}

impl DelayBound {
    fn new(packet_bytes: f64) -> Self {
        Self {
            packet_bytes,
            window_bytes: WINDOW_PACKETS_INITIAL * packet_bytes,
            slow_start: true,
            queue_s: 0.0,
            base_previous_s: f64::INFINITY,
            base_current_s: f64::INFINITY,
            base_since: None,
            recent_s: VecDeque::with_capacity(FILTER_SAMPLES),
            drain_until: None,
            drained_at: None,
            reduced_at: None,
            latest_s: None,
        }
    }

    fn base_s(&self) -> f64 {
        self.base_previous_s.min(self.base_current_s)
    }

    fn target_s(&self) -> f64 {
        let base_s = self.base_s();
        if base_s.is_finite() {
            TARGET_S_MIN.max(base_s / 4.0)
        } else {
            TARGET_S_MIN
        }
    }

    fn on_rtt(&mut self, rtt_s: f64, now: Instant) {
        let drained_at = *self.drained_at.get_or_insert(now);
        let age = self.base_since.map(|since| now.saturating_duration_since(since));
        if age.is_none_or(|age| age > BASE_SPAN) {
            self.base_previous_s = match age {
                Some(age) if age <= 2 * BASE_SPAN => self.base_current_s,
                _ => f64::INFINITY,
            };
            self.base_current_s = f64::INFINITY;
            self.base_since = Some(now);
        }
        self.base_current_s = self.base_current_s.min(rtt_s);
        if self.recent_s.len() == FILTER_SAMPLES {
            self.recent_s.pop_front();
        }
        self.recent_s.push_back(rtt_s);
        let least_s = self.recent_s.iter().copied().fold(f64::INFINITY, f64::min);
        self.queue_s = least_s - self.base_s();
        if now.saturating_duration_since(drained_at) > BASE_SPAN {
            self.drained_at = Some(now);
            self.drain_until = Some(now + DRAIN.max(Duration::from_secs_f64(2.0 * rtt_s)));
        }
        if self.drain_until.is_some_and(|until| now >= until) {
            self.drain_until = None;
        }
    }

    fn on_acked(&mut self, acked_bytes: f64) {
        if self.drain_until.is_some() || self.recent_s.len() < FILTER_SAMPLES {
            if self.slow_start {
                self.window_bytes += acked_bytes;
            }
            return;
        }
        let target_s = self.target_s();
        if self.slow_start {
            if self.queue_s < 0.75 * target_s {
                self.window_bytes += acked_bytes;
                return;
            }
            self.slow_start = false;
        }
        let share = acked_bytes / self.window_bytes;
        if self.queue_s <= target_s {
            let off_target = 1.0 - self.queue_s / target_s;
            // At most one packet a round trip, or a 32nd of the window where that is more: links differ by 1000.
            self.window_bytes += share * off_target * self.packet_bytes.max(self.window_bytes / 32.0);
        } else {
            let excess = (self.queue_s / target_s - 1.0).min(1.0);
            self.window_bytes -= share * excess * self.window_bytes / 2.0;
        }
        self.window_bytes = self.window_bytes.max(self.window_min());
    }

    fn window_min(&self) -> f64 {
        WINDOW_PACKETS_MIN * self.packet_bytes
    }
}

impl Controller for DelayBound {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        let rtt_s = now.saturating_duration_since(sent).as_secs_f64();
        self.latest_s = Some(self.latest_s.map_or(rtt_s, |latest_s| latest_s.min(rtt_s)));
        // The window does not grow while the application is what limits it (RFC 9002 7.8).
        if !app_limited || self.queue_s > self.target_s() {
            self.on_acked(bytes as f64);
        }
    }

    fn on_end_acks(&mut self, now: Instant, _in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        if let Some(rtt_s) = self.latest_s.take() {
            self.on_rtt(rtt_s, now);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, _lost_bytes: u64) {
        if !persistent && self.reduced_at.is_some_and(|at| sent <= at) {
            return;
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
mod tests {
    use super::*;

    /// A path of `rate` bytes a second whose queue holds everything: how long a round trip takes with `window` in it.
    fn round_trip(window: f64, rate: f64, base_s: f64) -> f64 {
        base_s.max(window / rate)
    }

    #[test]
    fn the_queue_of_its_own_settles_near_the_target() {
        let (rate, base_s) = (5e6, 0.010); // 40 Mbit/s, 10 ms: 50 kB in flight
        let mut control = DelayBound::new(1452.0);
        let began = Instant::now();
        let mut now_s = 0.0;
        let mut queues_s = Vec::new();
        while now_s < 9.0 {
            let window = control.window() as f64;
            let rtt_s = round_trip(window, rate, base_s);
            let packets = (window / 1452.0) as usize;
            for _ in 0..packets {
                now_s += rtt_s / packets as f64;
                control.on_rtt(rtt_s, began + Duration::from_secs_f64(now_s));
                control.on_acked(1452.0);
            }
            if now_s > 4.0 {
                queues_s.push(rtt_s - base_s);
            }
        }
        let most_s = queues_s.iter().copied().fold(0.0, f64::max);
        let mean_s = queues_s.iter().sum::<f64>() / queues_s.len() as f64;
        assert!(most_s < 0.005, "a queue of {most_s} s where 2.5 ms are allowed");
        assert!(mean_s > 0.001, "a queue of {mean_s} s: the link is not full");
    }

    #[test]
    fn losses_of_one_round_trip_halve_it_once() {
        let mut control = DelayBound::new(1000.0);
        control.window_bytes = 80_000.0;
        let sent = Instant::now();
        let now = sent + Duration::from_millis(10);
        control.on_congestion_event(now, sent, false, 1000);
        control.on_congestion_event(now, sent, false, 1000);
        assert_eq!(control.window(), 40_000);
        for _ in 0..10 {
            let later = now + Duration::from_secs(1);
            control.on_congestion_event(later, later, true, 1000);
        }
        assert_eq!(control.window(), 4_000);
    }
}

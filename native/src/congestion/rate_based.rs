//! The controller that follows a rate given from outside, by the law of `rate_law`.
//!
//! Pacing: the stack's own pacer sends 1.25 windows a round trip, and a window of 0.8 of what has to be in flight for a
//! rate would carry 0.8 of the rate. So the window is what may be in flight, and a bucket of our own (`Pacer`) opens and
//! shuts it: while the bucket is empty the controller's window is nothing. The stack asks again when an acknowledgement
//! comes, and where none does, a task of the connection wakes it when the bucket is half full (`Pacer::next`).

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use super::acked_packets::AckedPackets;
use super::loss_tolerant_cubic::LossTolerantCubic;
use super::pacer::Pacer;
use super::rate_law::{RateFollower, WINDOW_PACKETS_MIN};
use super::rate_share::EndpointRate;

/// A connection that yields is given so much more than it uses, so that it can recover; the others have the rest.
const WANT: f64 = 1.3;

pub struct RateBasedConfig {
    pub rate: Arc<EndpointRate>,
    pub pace: Arc<Pacer>,
}

impl ControllerFactory for RateBasedConfig {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(RateBased::new(&self, current_mtu))
    }
}

/// `RateFollower` while the endpoint has a rate, `LossTolerantCubic` while it has none.
///
/// Where a rate ends, it goes on in congestion avoidance from what was in use: pace * base round trip.
struct RateBased {
    cubic: LossTolerantCubic,
    follower: RateFollower,
    following: bool,
    current_mtu: u16,
    member: u64,
    rate: Arc<EndpointRate>,
    pace: Arc<Pacer>,
    acks: AckedPackets,
}

impl RateBased {
    fn new(config: &RateBasedConfig, current_mtu: u16) -> Self {
        Self {
            cubic: LossTolerantCubic::new(current_mtu),
            follower: RateFollower::new(f64::from(current_mtu)),
            following: false,
            current_mtu,
            member: config.rate.member(),
            rate: config.rate.clone(),
            pace: config.pace.clone(),
            acks: AckedPackets::default(),
        }
    }

    /// See what the endpoint's rate is now.
    fn look(&mut self, now: Instant) {
        let want = if self.following && self.follower.yielding() {
            WANT * self.follower.pace
        } else {
            f64::INFINITY
        };
        match self.rate.share(self.member, want, now) {
            Some(share) => {
                if !self.following {
                    self.following = true;
                    (self.follower.target, self.follower.pace) = (0.0, 0.0);
                }
                self.follower.follow(share);
                self.pace.set(self.follower.pace, self.follower.packet_bytes, now);
            }
            None if self.following => {
                self.following = false;
                self.cubic = self.cubic_from_here(now);
                self.pace.set(f64::INFINITY, self.follower.packet_bytes, now);
            }
            None => {}
        }
    }

    fn cubic_from_here(&self, now: Instant) -> LossTolerantCubic {
        let base_s = self.follower.base.least_s();
        if base_s.is_infinite() {
            return LossTolerantCubic::new(self.current_mtu);
        }
        let in_use = (self.follower.pace * base_s).max(WINDOW_PACKETS_MIN * self.follower.packet_bytes);
        LossTolerantCubic::in_avoidance(in_use, self.follower.base.clone(), self.current_mtu, now)
    }

    fn in_flight_max(&self) -> u64 {
        if self.following {
            self.follower.window() as u64
        } else {
            self.cubic.window_bytes() as u64
        }
    }
}

impl Controller for RateBased {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.rate.on_sent(self.member, bytes, now);
        self.look(now);
        self.pace.spend(bytes, now);
        self.cubic.on_sent(now);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        self.acks.add(now, sent, bytes, app_limited);
        if !self.following {
            self.cubic.on_ack(now, sent, bytes, app_limited);
        }
    }

    fn on_end_acks(&mut self, now: Instant, _in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        let acks = std::mem::take(&mut self.acks);
        if let Some(rtt_s) = acks.rtt_s {
            self.follower.on_rtt(rtt_s, now);
        }
        self.look(now);
        if self.following {
            let (bytes, limited_bytes) = (acks.bytes as f64, acks.limited_bytes as f64);
            self.follower.on_progress(bytes, limited_bytes, now);
            self.pace.set(self.follower.pace, self.follower.packet_bytes, now);
        } else {
            self.cubic.on_end_acks(now);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        if !self.following {
            return self.cubic.on_congestion_event(now, sent, persistent, lost_bytes);
        }
        self.follower.on_lost(lost_bytes as f64);
        self.follower.marked |= lost_bytes == 0; // so the stack tells of ECN's marks
        if persistent {
            self.follower.on_persistent_congestion();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.current_mtu = new_mtu;
        self.follower.packet_bytes = f64::from(new_mtu);
        self.cubic.set_packet_bytes(f64::from(new_mtu));
    }

    /// What may be in flight, or nothing while the bucket is empty.
    fn window(&self) -> u64 {
        if !self.following || self.pace.open(Instant::now()) {
            self.in_flight_max()
        } else {
            0
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.in_flight_max();
        metrics.pacing_rate = self.following.then_some((8.0 * self.follower.pace) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            cubic: self.cubic.clone(),
            follower: self.follower.clone(),
            following: self.following,
            current_mtu: self.current_mtu,
            member: self.rate.member(),
            rate: self.rate.clone(),
            pace: self.pace.clone(),
            acks: self.acks.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        LossTolerantCubic::new(self.current_mtu).window_bytes() as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Drop for RateBased {
    fn drop(&mut self) {
        self.rate.forget(self.member);
    }
}

#[cfg(test)]
#[path = "rate_based_tests.rs"]
mod tests;

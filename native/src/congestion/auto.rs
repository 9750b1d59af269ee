//! The control `auto`: one window law, `LossTolerantCubic`, below the rate that somebody who sees the whole link (the
//! broker) gave this endpoint. `EndpointRate` divides it among the endpoint's connections.
//!
//! The rate is a ceiling. It says what may be sent, not what the path carries now, which the window goes by. Packets are
//! paced at 0.95 of the part (`HEADROOM`): acknowledgements of what comes the other way take up to 2.7 % of it (one of 82
//! bytes for two packets of 1494 each), and with the rest a queue that stands somewhere drains.
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

use super::loss_tolerant_cubic::LossTolerantCubic;
use super::pacer::Pacer;
use super::rate_share::EndpointRate;

const HEADROOM: f64 = 0.95;
/// Ethernet, IPv6 and UDP of a datagram: the rate is one of the wire, and so HTB counts.
const HEADER_BYTES: f64 = 62.0;
/// A connection that cannot use its part is given so much more than it uses; the others have the rest.
const WANT: f64 = 1.3;

pub struct AutoConfig {
    pub rate: Arc<EndpointRate>,
    pub pace: Arc<Pacer>,
}

impl ControllerFactory for AutoConfig {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Auto::new(&self, current_mtu))
    }
}

struct Auto {
    law: LossTolerantCubic,
    packet_bytes: f64,
    /// In bytes of UDP payload a second; infinite while no rate is known.
    ceiling: f64,
    member: u64,
    rate: Arc<EndpointRate>,
    pace: Arc<Pacer>,
}

impl Auto {
    fn new(config: &AutoConfig, current_mtu: u16) -> Self {
        Self {
            law: LossTolerantCubic::new(current_mtu),
            packet_bytes: f64::from(current_mtu),
            ceiling: f64::INFINITY,
            member: config.rate.member(),
            rate: config.rate.clone(),
            pace: config.pace.clone(),
        }
    }

    /// See what the endpoint's rate is now.
    fn look(&mut self, now: Instant) {
        let uses = self.law.rate();
        let want = if uses < self.ceiling {
            WANT * uses
        } else {
            f64::INFINITY
        };
        let part = self.rate.share(self.member, want, now);
        self.ceiling = part.map_or(f64::INFINITY, |part| {
            HEADROOM * part * self.packet_bytes / (self.packet_bytes + HEADER_BYTES)
        });
        self.law.pace(self.ceiling);
        self.pace.set(self.ceiling, self.packet_bytes, now);
    }

    fn window_at(&self, now: Instant) -> u64 {
        if self.pace.open(now) {
            self.law.window_bytes() as u64
        } else {
            0
        }
    }
}

impl Controller for Auto {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.rate.on_sent(self.member, bytes, now);
        self.look(now);
        self.pace.spend(bytes, now);
        self.law.on_sent(now);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        self.law.on_ack(now, sent, bytes, app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, _in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        self.law.on_end_acks(now);
        self.look(now);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.law.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet_bytes = f64::from(new_mtu);
        self.law.set_packet_bytes(self.packet_bytes);
    }

    /// What may be in flight, or nothing while the bucket is empty.
    fn window(&self) -> u64 {
        self.window_at(Instant::now())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.law.window_bytes() as u64;
        metrics.pacing_rate = self.ceiling.is_finite().then_some((8.0 * self.ceiling) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            law: self.law.clone(),
            packet_bytes: self.packet_bytes,
            ceiling: self.ceiling,
            member: self.rate.member(),
            rate: self.rate.clone(),
            pace: self.pace.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        LossTolerantCubic::new(self.packet_bytes as u16).window_bytes() as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Drop for Auto {
    fn drop(&mut self) {
        self.rate.forget(self.member);
    }
}

#[cfg(test)]
#[path = "auto_tests.rs"]
mod tests;

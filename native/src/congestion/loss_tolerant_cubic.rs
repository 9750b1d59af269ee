//! CUBIC (RFC 9438) that tells random loss from congestion: the law of `auto` where no broker's rate is known.
//!
//! A loss lowers the window only where it is a sign of congestion:
//! - A queue stands. The recent least round trip exceeds the path's least by `QUEUE_SHARE` of it (TCP Veno, Fu and Liew,
//!   IEEE JSAC 21(2), 2003). A full buffer drops behind a queue; radio and bad cables drop without one.
//! - More than `LOSS_SHARE` of a round is lost, queue or not (LossThresh of draft-ietf-ccwg-bbr). A buffer too short to
//!   show a queue, or a policer, drops so.
//! - The peer reports ECN marks, or congestion persists (RFC 9002 7.6).
//!
//! All else is CUBIC. Beside CUBIC both see the same queue and the same losses, so both have the same share. Alone on a
//! path with random loss, the window swings between 0.7 and 1 of the path and the queue that counts as one: at a
//! threshold of an eighth that is 0.79 to 1.125 of the path, mostly near the upper end.
//!
//! The path's least is remembered for a minute at least. Where it is too low, for the route became longer, this is plain
//! CUBIC. Where it is too high, for others' queue never ends, losses up to `LOSS_SHARE` pass for random.

use std::any::Any;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerMetrics, Cubic};

use super::acked_packets::AckedPackets;
use super::min_rtt::MinRtt;

/// Of the least round trip. CUBIC's swing of 0.3 changes the round trip by more where a queue stands.
const QUEUE_SHARE: f64 = 1.0 / 8.0;
/// Below 4 ms of round trip: less is a sender's own burst.
const QUEUE_S_MIN: f64 = 0.0005;
const LEAST_SPAN: Duration = Duration::from_secs(60);
/// Of a round trip. The least of so long outlasts a late wake-up, and is younger than what a cut changed.
const RECENT_SHARE: f64 = 1.0 / 4.0;
const LOSS_SHARE: f64 = 0.02;
/// What chance adds to it: at 1 % of random loss, 1 round of 10,000 is above.
const LOSS_DEVIATIONS: f64 = 3.0;
const ROUND_PACKETS_MIN: f64 = 100.0;

/// Bytes since `began`; it ends with the first acknowledgement of a packet that was sent after that.
#[derive(Clone, Debug, Default)]
struct Round {
    began: Option<Instant>,
    acked: f64,
    lost: f64,
    lost_sent: Option<Instant>,
}

impl Round {
    /// Whether more was lost than `LOSS_SHARE` and chance explain.
    fn loses(&self, packet_bytes: f64) -> bool {
        let tolerated = LOSS_SHARE * (self.acked + self.lost) / packet_bytes;
        self.lost / packet_bytes > tolerated + LOSS_DEVIATIONS * tolerated.sqrt()
    }
}

#[derive(Clone, Debug)]
pub(super) struct LossTolerantCubic {
    cubic: Cubic,
    packet_bytes: f64,
    least: MinRtt,
    recent: MinRtt,
    round: Round,
    acks: AckedPackets,
    /// When the last packet was sent that this batch of acknowledgements names.
    acked_sent: Option<Instant>,
}

impl LossTolerantCubic {
    /// `least`: what is known of the path's least round trip.
    pub(super) fn new(cubic: Cubic, current_mtu: u16, least: MinRtt) -> Self {
        Self {
            cubic,
            packet_bytes: f64::from(current_mtu),
            least,
            recent: MinRtt::default(),
            round: Round::default(),
            acks: AckedPackets::default(),
            acked_sent: None,
        }
    }

    fn queue_stands(&self) -> bool {
        let least_s = self.least.least_s();
        self.recent.least_s() > least_s + QUEUE_S_MIN.max(QUEUE_SHARE * least_s)
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::take(&mut self.round);
        if round.loses(self.packet_bytes)
            && let Some(sent) = round.lost_sent
        {
            self.cubic.on_congestion_event(now, sent, false, round.lost as u64);
        }
    }
}

impl Controller for LossTolerantCubic {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.round.began.get_or_insert(now);
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acks.add(now, sent, bytes, app_limited);
        self.acked_sent = self.acked_sent.max(Some(sent));
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        let acks = std::mem::take(&mut self.acks);
        if let Some(rtt_s) = acks.rtt_s {
            self.least.add(rtt_s, now, LEAST_SPAN);
            let span_s = RECENT_SHARE * self.least.least_s();
            self.recent.add(rtt_s, now, Duration::from_secs_f64(span_s));
        }
        self.round.acked += acks.bytes as f64;
        let enough = self.round.acked + self.round.lost >= ROUND_PACKETS_MIN * self.packet_bytes;
        if enough
            && self
                .round
                .began
                .is_some_and(|began| self.acked_sent.take() >= Some(began))
        {
            self.end_round(now);
        }
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.round.lost += lost_bytes as f64;
        self.round.lost_sent = self.round.lost_sent.max(Some(sent));
        let marked = lost_bytes == 0; // so the stack reports ECN marks
        if marked || persistent || self.queue_stands() {
            self.cubic.on_congestion_event(now, sent, persistent, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet_bytes = f64::from(new_mtu);
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

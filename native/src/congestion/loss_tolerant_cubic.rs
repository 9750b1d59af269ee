//! The control `auto`: CUBIC (RFC 9438) that tells random loss from congestion.
//!
//! A loss lowers the window, to 0.7, only where it is a sign of congestion:
//! - A queue stands: for a round trip after it, every acknowledgement shows the path's least round trip and `QUEUE_SHARE`
//!   of it, or more (TCP Veno, Fu and Liew, IEEE JSAC 21(2), 2003). A full buffer drops behind a queue; radio and bad
//!   cables drop without one. One acknowledgement on time tells a busy host's late wake-up from a queue. And the window
//!   exceeds, by `EMPTY_SHARE`, what a least round trip delivered at most in the last second or two. After a cut it does
//!   not: acknowledgements may wait behind the peer's data alone then, for both ends of a collective send at once.
//! - More than `LOSS_SHARE` of a round is lost, queue or not (LossThresh of draft-ietf-ccwg-bbr). A buffer too short to
//!   show a queue, or a policer, drops so.
//! - The peer reports ECN marks, or congestion persists (RFC 9002 7.6).
//!
//! Slow start ends with the first round that shows a queue. Where `EMPTY_ROUNDS` rounds in turn show none, the window grows
//! by `EMPTY_SHARE` a round, until one does: CUBIC's own growth takes seconds to fill a path after a cut too many, or
//! where a busy host's first acknowledgements were late. It ends below the window that lost too much, for a policer or a
//! short buffer never shows a queue.
//!
//! Beside CUBIC, where the buffer holds 0.43 of the path or more, both cut by the same 0.7 at the same losses, so both
//! have the same share: 1 / 1.43 is what 0.7 leaves of a full path and its queue. A shorter buffer favours this law.
//! Alone on a path with random loss, the window stays between 0.875 and 1.25 of the path.
//!
//! The path's least is remembered for ten minutes at least, but not beyond persistent congestion, after which the route may
//! be another one (RFC 9002 5.2). Where it is too low, for the route became longer, this is plain CUBIC. Where it is too
//! high, for others' queue never ends, losses up to `LOSS_SHARE` pass for random.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

use super::acked_packets::AckedPackets;
use super::recent_least::RecentLeast;

const BETA: f64 = 0.7;
/// Packets a second cubed.
const C: f64 = 0.4;
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// CUBIC's window grows at most by this in a round trip (RFC 9438 4.2).
const GROWTH_MAX: f64 = 1.5;
const WINDOW_PACKETS_INITIAL: f64 = 10.0;
const WINDOW_PACKETS_MIN: f64 = 2.0;
/// Of the least round trip. CUBIC's cut to 0.7 changes the round trip by more where a queue stands.
const QUEUE_SHARE: f64 = 1.0 / 4.0;
/// How long what was delivered in a round is remembered: once to twice as long. Newcomers are yielded to after it.
const RATES_SPAN: Duration = Duration::from_secs(1);
/// Of the least round trip, and of what it delivers: less is no queue.
const EMPTY_SHARE: f64 = 1.0 / 16.0;
const EMPTY_ROUNDS: u32 = 8;
/// Below 2 ms of round trip: less is a sender's own burst.
const QUEUE_S_MIN: f64 = 0.0005;
/// Longer than others' queue stands without a break.
const LEAST_SPAN: Duration = Duration::from_secs(600);
const LOSS_SHARE: f64 = 0.02;
/// What chance adds to it: at 1 % of random loss, 1 round of 10,000 is above.
const LOSS_DEVIATIONS: f64 = 3.0;
const LOSS_PACKETS_MIN: f64 = 100.0;

pub struct LossTolerantCubicConfig;

impl ControllerFactory for LossTolerantCubicConfig {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(LossTolerantCubic::new(f64::from(current_mtu)))
    }
}

/// Since `began`; it ends with the first acknowledgement of a packet that was sent after that.
#[derive(Clone, Debug, Default)]
struct Round {
    began: Option<Instant>,
    least_s: Option<f64>,
    acked: f64,
}

/// Losses of a round, or of as many as make `LOSS_PACKETS_MIN`.
#[derive(Clone, Debug, Default)]
struct Losses {
    acked: f64,
    lost: f64,
    sent: Option<Instant>,
}

impl Losses {
    /// Whether more was lost than `LOSS_SHARE` and chance explain.
    fn many(&self, packet_bytes: f64) -> bool {
        let tolerated = LOSS_SHARE * (self.acked + self.lost) / packet_bytes;
        self.lost / packet_bytes > tolerated + LOSS_DEVIATIONS * tolerated.sqrt()
    }
}

/// A loss that may be congestion, and the least round trip since it was noticed.
#[derive(Clone, Debug)]
struct Suspicion {
    at: Instant,
    sent: Instant,
    least_s: f64,
}

/// From one cut to the next (RFC 9438 4.2, 4.3). Windows in bytes.
#[derive(Clone, Debug)]
struct Epoch {
    began: Instant,
    window_max: f64,
    window_prior: f64,
    window_reno: f64,
    k_s: f64,
}

#[derive(Clone, Debug)]
struct LossTolerantCubic {
    packet_bytes: f64,
    window_bytes: f64,
    threshold_bytes: f64,
    window_max: f64,
    epoch: Option<Epoch>,
    /// Packets sent before have been answered by a cut.
    cut_at: Option<Instant>,
    least: RecentLeast,
    suspicion: Option<Suspicion>,
    round: Round,
    /// Rounds in turn without a queue.
    empty_rounds: u32,
    /// The window at which more was lost than chance explains; a larger one that does not forgets it.
    lossy_window: f64,
    /// Seconds that the path took for a byte, of each round: the least is its largest rate.
    byte_s: RecentLeast,
    losses: Losses,
    acks: AckedPackets,
    /// Of those: what makes the window grow.
    growing_bytes: f64,
    acked_at: Option<Instant>,
    acked_sent: Option<Instant>,
    /// Of the packets that are being acknowledged: when the first was sent.
    first_sent: Option<Instant>,
}

impl LossTolerantCubic {
    fn new(packet_bytes: f64) -> Self {
        Self {
            packet_bytes,
            window_bytes: WINDOW_PACKETS_INITIAL * packet_bytes,
            threshold_bytes: f64::INFINITY,
            window_max: 0.0,
            epoch: None,
            cut_at: None,
            least: RecentLeast::default(),
            suspicion: None,
            round: Round::default(),
            empty_rounds: 0,
            lossy_window: f64::INFINITY,
            byte_s: RecentLeast::default(),
            losses: Losses::default(),
            acks: AckedPackets::default(),
            growing_bytes: 0.0,
            acked_at: None,
            acked_sent: None,
            first_sent: None,
        }
    }

    fn note_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool) {
        self.acks.add(now, sent, bytes, app_limited);
        self.acked_sent = self.acked_sent.max(Some(sent));
        self.first_sent = Some(self.first_sent.map_or(sent, |first| first.min(sent)));
        if !app_limited && self.cut_at.is_none_or(|cut_at| sent > cut_at) {
            self.growing_bytes += bytes as f64;
        }
    }

    /// Cut where the loss that is suspected came with a queue, and one of our own.
    fn judge(&mut self, rtt_s: f64, now: Instant) {
        let least_s = self.least.least();
        let Some(suspicion) = &mut self.suspicion else {
            return;
        };
        suspicion.least_s = suspicion.least_s.min(rtt_s);
        let length_s = now.saturating_duration_since(suspicion.at).as_secs_f64();
        if length_s < least_s {
            return;
        }
        let (sent, queue_s) = (suspicion.sent, suspicion.least_s - least_s);
        self.suspicion = None;
        let own_min = (1.0 + EMPTY_SHARE) * least_s / self.byte_s.least();
        if queue_s > self.queue_s_max() && self.window_bytes >= own_min && !self.answered(sent) {
            self.cut(now);
        }
    }

    /// The queue from which a loss is congestion.
    fn queue_s_max(&self) -> f64 {
        QUEUE_S_MIN.max(QUEUE_SHARE * self.least.least())
    }

    fn answered(&self, sent: Instant) -> bool {
        self.cut_at.is_some_and(|cut_at| sent <= cut_at)
    }

    fn window_min(&self) -> f64 {
        WINDOW_PACKETS_MIN * self.packet_bytes
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::take(&mut self.round);
        if let (Some(began), Some(round_s)) = (round.began, round.least_s) {
            let least_s = self.least.least();
            let queue_s = round_s - least_s;
            let is_empty = queue_s <= QUEUE_S_MIN.max(EMPTY_SHARE * least_s);
            self.empty_rounds = if is_empty { self.empty_rounds + 1 } else { 0 };
            if self.window_bytes < self.threshold_bytes && queue_s > self.queue_s_max() {
                self.threshold_bytes = self.window_bytes;
            }
            let length_s = now.saturating_duration_since(began).as_secs_f64();
            self.byte_s.add(length_s.max(least_s) / round.acked, now, RATES_SPAN);
        }
        if self.losses.acked + self.losses.lost < LOSS_PACKETS_MIN * self.packet_bytes {
            return;
        }
        let losses = std::mem::take(&mut self.losses);
        if !losses.many(self.packet_bytes) {
            if self.window_bytes > self.lossy_window {
                self.lossy_window = f64::INFINITY;
            }
        } else if losses.sent.is_some_and(|sent| !self.answered(sent)) {
            self.lossy_window = self.window_bytes;
            self.cut(now);
        }
    }

    /// Lower the window to `BETA` of it (RFC 9438 4.6, 4.7).
    fn cut(&mut self, now: Instant) {
        let window = self.window_bytes;
        self.window_max = if window < self.window_max {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.window_bytes = (BETA * window).max(self.window_min());
        self.threshold_bytes = self.window_bytes;
        self.cut_at = Some(now);
        self.empty_rounds = 0;
        self.epoch = Some(self.epoch_from(window, now));
    }

    fn epoch_from(&self, window_prior: f64, now: Instant) -> Epoch {
        let window_max = self.window_max.max(self.window_bytes);
        Epoch {
            began: now,
            window_max,
            window_prior,
            window_reno: self.window_bytes,
            k_s: ((window_max - self.window_bytes) / self.packet_bytes / C).cbrt(),
        }
    }

    /// Take what was acknowledged: doubled in a round trip in slow start, by `EMPTY_SHARE` on an empty path, else by CUBIC.
    fn grow(&mut self, now: Instant) {
        let acked = std::mem::take(&mut self.growing_bytes);
        let since = self.acked_at.replace(now).unwrap_or(now);
        let first_sent = self.first_sent.take().unwrap_or(now);
        if self.window_bytes < self.threshold_bytes {
            self.window_bytes += acked;
            return;
        }
        let is_below_lossy = self.window_bytes < (1.0 + BETA) / 2.0 * self.lossy_window;
        if self.empty_rounds >= EMPTY_ROUNDS && is_below_lossy {
            self.window_bytes += EMPTY_SHARE * acked;
            self.epoch = None;
            return;
        }
        let mut epoch = match self.epoch.take() {
            Some(epoch) => epoch,
            None => self.epoch_from(self.window_bytes, now),
        };
        // Time in which nothing was asked of the window is not counted (RFC 9438 5.8), nor when nothing was under way.
        let idle_until = if acked == 0.0 { now } else { first_sent };
        epoch.began += idle_until.saturating_duration_since(since);
        if acked > 0.0 {
            let window = self.window_bytes;
            let cubic = |t_s: f64| C * (t_s - epoch.k_s).powi(3) * self.packet_bytes + epoch.window_max;
            let t_s = now.saturating_duration_since(epoch.began).as_secs_f64();
            let alpha = if epoch.window_reno < epoch.window_prior {
                RENO_ALPHA
            } else {
                1.0
            };
            epoch.window_reno += alpha * self.packet_bytes * acked / window;
            self.window_bytes = if cubic(t_s) < epoch.window_reno {
                window.max(epoch.window_reno)
            } else {
                let target = cubic(t_s + self.least.least()).clamp(window, GROWTH_MAX * window);
                window + (target - window) * acked / window
            };
        }
        self.epoch = Some(epoch);
    }
}

impl Controller for LossTolerantCubic {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        self.round.began.get_or_insert(now);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        self.note_ack(now, sent, bytes, app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, _in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        let acks = std::mem::take(&mut self.acks);
        if let Some(rtt_s) = acks.rtt_s {
            self.least.add(rtt_s, now, LEAST_SPAN);
            self.round.least_s = Some(self.round.least_s.map_or(rtt_s, |least_s| least_s.min(rtt_s)));
            self.judge(rtt_s, now);
        }
        self.grow(now);
        self.losses.acked += acks.bytes as f64;
        if let Some(began) = self.round.began {
            self.round.acked += acks.bytes as f64;
            if self.acked_sent >= Some(began) {
                self.end_round(now);
            }
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.losses.lost += lost_bytes as f64;
        self.losses.sent = self.losses.sent.max(Some(sent));
        if self.answered(sent) {
            return;
        }
        if persistent {
            self.cut(now);
            self.window_max = self.window_bytes;
            self.window_bytes = self.window_min();
            self.epoch = None;
            self.least = RecentLeast::default();
            (self.byte_s, self.lossy_window) = (RecentLeast::default(), f64::INFINITY);
            // What was lost has been answered, and what is sent from now on has a round of its own.
            (self.suspicion, self.round, self.losses) = (None, Round::default(), Losses::default());
        } else if lost_bytes == 0 {
            self.cut(now); // so the stack reports ECN marks
        } else {
            let least_s = f64::INFINITY;
            self.suspicion.get_or_insert(Suspicion { at: now, sent, least_s });
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet_bytes = f64::from(new_mtu);
        self.window_bytes = self.window_bytes.max(self.window_min());
    }

    fn window(&self) -> u64 {
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
#[path = "loss_tolerant_cubic_tests.rs"]
mod tests;

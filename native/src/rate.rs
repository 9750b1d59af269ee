//! The controller that follows a rate given from outside; its law and its numbers are those of
//! `transport/engine/rate_following.py`, where the law is explained.
//!
//! Pacing: the stack's own pacer sends 1.25 windows a round trip, and a window of 0.8 of what has to be in flight for a
//! rate would carry 0.8 of the rate. So the window is what may be in flight, and a bucket of our own (`Pace`) opens and
//! shuts it: while the bucket is empty the controller's window is nothing. The stack asks again when an acknowledgement
//! comes, and where none does, a task of the connection wakes it when the bucket is half full (`Pace::next`).

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use tokio::sync::Notify;

const HEADROOM: f64 = 0.95;
/// Ethernet, IPv6 and UDP of a datagram: the rate is one of the wire, and so HTB counts.
const HEADER_BYTES: f64 = 62.0;
const SLACK_S: f64 = 0.010;
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
const BASE_SPAN: Duration = Duration::from_secs(10);
const WINDOW_PACKETS_MIN: f64 = 10.0;
/// Two packets in a tenth of a second are data; what is less is keep-alives and questions of the transport's own.
const BUSY_BYTES: u64 = 3000;
const BUSY_SPAN: Duration = Duration::from_millis(100);
/// A connection that yields is given so much more than it uses, so that it can recover; the others have the rest.
const WANT: f64 = 1.3;
const SHARES_FRESH: Duration = Duration::from_millis(5);
/// As `RATE_VALID_S` of `transport/engine/base.py`.
const RATE_VALID: Duration = Duration::from_secs(3);
/// Of the bucket: wake-ups are 1 ms apart at best, so half of 4 ms keeps up with them.
const BURST_S: f64 = 0.004;
const BURST_PACKETS_MIN: f64 = 10.0;
/// Cubic's share of its window after a loss (RFC 9438): how its window is set to what is wanted.
const CUBIC_BETA: f64 = 0.7;

/// One endpoint's rate, divided among its connections that have data: equal parts, and what one does not want goes to
/// the others. Each is told the level up to which it may go; as long as nobody sends more than he says that he wants,
/// all together send the rate.
#[derive(Debug, Default)]
pub struct EndpointRate {
    state: Mutex<Division>,
    members: AtomicU64,
}

#[derive(Debug, Default)]
struct Division {
    given: Option<(f64, Instant)>,
    members: HashMap<u64, Member>,
    level: f64,
    divided_at: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    span_at: Instant,
    span_bytes: u64,
    busy_at: Option<Instant>,
    want: f64,
}

impl Member {
    fn new(now: Instant) -> Self {
        Self {
            span_at: now,
            span_bytes: 0,
            busy_at: None,
            want: f64::INFINITY,
        }
    }

    fn busy(&self, now: Instant) -> bool {
        self.busy_at
            .is_some_and(|at| now.saturating_duration_since(at) <= BUSY_SPAN)
    }
}

impl EndpointRate {
    /// Set the rate for `RATE_VALID`, or take it away.
    pub fn give(&self, bits_per_s: Option<u64>, now: Instant) {
        let mut state = self.lock();
        state.given = bits_per_s.map(|rate| (rate as f64 / 8.0, now + RATE_VALID));
        state.divided_at = None;
    }

    fn member(&self) -> u64 {
        self.members.fetch_add(1, Ordering::Relaxed)
    }

    fn forget(&self, member: u64) {
        let mut state = self.lock();
        state.members.remove(&member);
        state.divided_at = None;
    }

    fn lock(&self) -> MutexGuard<'_, Division> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Note what a connection sends: whether it has data is seen by that.
    fn on_sent(&self, member: u64, bytes: u64, now: Instant) {
        let state = &mut *self.lock();
        let one = state.members.entry(member).or_insert_with(|| Member::new(now));
        if now.saturating_duration_since(one.span_at) > BUSY_SPAN {
            (one.span_at, one.span_bytes) = (now, 0);
        }
        one.span_bytes += bytes;
        if one.span_bytes >= BUSY_BYTES {
            if !one.busy(now) {
                state.divided_at = None;
            }
            one.busy_at = Some(now);
        }
    }

    /// The part of a connection that is about to send, in bytes a second; None while no rate is known.
    fn share(&self, member: u64, want: f64, now: Instant) -> Option<f64> {
        let mut state = self.lock();
        let (rate, _) = state.given.filter(|(_, until)| now <= *until)?;
        state.members.entry(member).or_insert_with(|| Member::new(now)).want = want;
        let fresh = |at: Instant| now.saturating_duration_since(at) < SHARES_FRESH;
        if !state.divided_at.is_some_and(fresh) {
            state.divided_at = Some(now);
            state.divide(rate, now);
        }
        let one = &state.members[&member];
        if one.busy(now) {
            return Some(state.level);
        }
        let busy = state.members.values().filter(|other| other.busy(now)).count();
        Some(rate / (busy + 1) as f64)
    }
}

impl Division {
    fn divide(&mut self, rate: f64, now: Instant) {
        let busy = self.members.values().filter(|one| one.busy(now));
        let mut wants: Vec<f64> = busy.map(|one| one.want).collect();
        wants.sort_by(f64::total_cmp);
        let mut left = rate;
        self.level = rate;
        for (place, want) in wants.iter().enumerate() {
            let equal = left / (wants.len() - place) as f64;
            if *want >= equal {
                self.level = equal;
                return;
            }
            left -= want;
        }
    }
}

/// The bucket of one connection: open while there is something in it. Rates in bytes a second, infinite for no pacing.
#[derive(Debug)]
pub struct Pace {
    bucket: Mutex<Bucket>,
    shut: Notify,
}

#[derive(Debug)]
struct Bucket {
    rate: f64,
    least: f64,
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    fn size(&self) -> f64 {
        self.least.max(self.rate * BURST_S)
    }

    fn fill(&mut self, now: Instant) {
        let elapsed_s = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = self.filled_at.max(now);
        if self.rate.is_finite() {
            self.tokens = self.size().min(self.tokens + elapsed_s * self.rate);
        }
    }

    fn open(&self) -> bool {
        self.tokens > 0.0 || !self.rate.is_finite()
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            bucket: Mutex::new(Bucket {
                rate: f64::INFINITY,
                least: 0.0,
                tokens: 0.0,
                filled_at: Instant::now(),
            }),
            shut: Notify::new(),
        }
    }
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, rate: f64, packet_bytes: f64, now: Instant) {
        let mut bucket = self.lock();
        bucket.fill(now);
        bucket.rate = rate;
        bucket.least = BURST_PACKETS_MIN * packet_bytes;
    }

    /// Take bytes out; the bucket may go below zero by what the stack sends in one piece.
    fn spend(&self, bytes: u64, now: Instant) {
        let mut bucket = self.lock();
        bucket.fill(now);
        if bucket.rate.is_finite() {
            bucket.tokens -= bytes as f64;
        }
    }

    fn open(&self, now: Instant) -> bool {
        let open = {
            let mut bucket = self.lock();
            bucket.fill(now);
            bucket.open()
        };
        if !open {
            self.shut.notify_one();
        }
        open
    }

    /// Whether a rate is followed now.
    pub fn paced(&self) -> bool {
        self.lock().rate.is_finite()
    }

    /// Wait until the stack found the bucket empty and it is half full again.
    pub async fn next(&self) {
        self.shut.notified().await;
        let wait_s = {
            let mut bucket = self.lock();
            bucket.fill(Instant::now());
            if bucket.open() {
                return;
            }
            (bucket.size() / 2.0 - bucket.tokens) / bucket.rate
        };
        tokio::time::sleep(Duration::from_secs_f64(wait_s.min(1.0))).await;
    }
}

/// The least round trip of the last one to two spans of `BASE_SPAN`, in seconds.
#[derive(Clone)]
struct Base {
    previous_s: f64,
    current_s: f64,
    since: Option<Instant>,
}

impl Base {
    fn add(&mut self, rtt_s: f64, now: Instant) {
        let age = self.since.map(|since| now.saturating_duration_since(since));
        if age.is_none_or(|age| age > BASE_SPAN) {
            self.previous_s = match age {
                Some(age) if age <= 2 * BASE_SPAN => self.current_s,
                _ => f64::INFINITY,
            };
            self.current_s = f64::INFINITY;
            self.since = Some(now);
        }
        self.current_s = self.current_s.min(rtt_s);
    }

    fn least_s(&self) -> f64 {
        self.previous_s.min(self.current_s)
    }
}

/// Until when less is sent than the path gives, the pace before, the queue that has to go, and the how manieth.
#[derive(Clone)]
struct Drain {
    until: Instant,
    before: f64,
    queue_s: f64,
    number: u32,
}

/// Pace and window of one connection while a rate is known. Rates in bytes of UDP payload a second.
#[derive(Clone)]
struct RateFollower {
    packet_bytes: f64,
    target: f64,
    pace: f64,
    queue_s: f64,
    base: Base,
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
    marked: bool,
}

impl RateFollower {
    fn new(packet_bytes: f64) -> Self {
        Self {
            packet_bytes,
            target: 0.0,
            pace: 0.0,
            queue_s: 0.0,
            base: Base {
                previous_s: f64::INFINITY,
                current_s: f64::INFINITY,
                since: None,
            },
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

    fn yielding(&self) -> bool {
        self.pace < self.target
    }

    /// Take this connection's part of the rate (of the wire); it is believed at once, upwards and downwards.
    fn follow(&mut self, share: f64) {
        let target = HEADROOM * share * self.packet_bytes / (self.packet_bytes + HEADER_BYTES);
        if !self.yielding() || self.pace > target {
            self.pace = target;
        }
        self.target = target;
    }

    fn on_rtt(&mut self, rtt_s: f64, now: Instant) {
        self.base.add(rtt_s, now);
        self.latest_s = rtt_s;
        self.round_least_s = self.round_least_s.min(rtt_s);
    }

    fn on_lost(&mut self, bytes: f64) {
        self.loss_lost += bytes;
    }

    /// Take what an acknowledgement told: bytes, and how many of them were sent while the application had no more.
    fn on_progress(&mut self, acked: f64, limited: f64, now: Instant) {
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

    fn window(&self) -> f64 {
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
                self.foreign_until = Some(now + BASE_SPAN);
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
        self.bound_until = Some(now + BASE_SPAN);
        self.step = STEP_MIN;
    }

    /// Nothing arrived for so long that nothing is known of the path (RFC 9002, 7.6).
    fn on_persistent_congestion(&mut self) {
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

pub struct FollowsRateConfig {
    pub rate: Arc<EndpointRate>,
    pub pace: Arc<Pace>,
}

impl ControllerFactory for FollowsRateConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(FollowsRate::new(&self, now, current_mtu))
    }
}

/// `RateFollower` while the endpoint has a rate, CUBIC while it has none.
///
/// Where a rate ends, CUBIC goes on in congestion avoidance from what was in use: pace * base round trip.
struct FollowsRate {
    cubic: Cubic,
    follower: RateFollower,
    following: bool,
    current_mtu: u16,
    member: u64,
    rate: Arc<EndpointRate>,
    pace: Arc<Pace>,
    latest_s: Option<f64>,
    acked: u64,
    limited: u64,
}

impl FollowsRate {
    fn new(config: &FollowsRateConfig, now: Instant, current_mtu: u16) -> Self {
        Self {
            cubic: Cubic::new(Arc::new(CubicConfig::default()), now, current_mtu),
            follower: RateFollower::new(f64::from(current_mtu)),
            following: false,
            current_mtu,
            member: config.rate.member(),
            rate: config.rate.clone(),
            pace: config.pace.clone(),
            latest_s: None,
            acked: 0,
            limited: 0,
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

    /// A loss makes CUBIC leave its slow start with `CUBIC_BETA` of its window; so much larger it begins.
    fn cubic_from_here(&self, now: Instant) -> Cubic {
        let base_s = self.follower.base.least_s();
        if base_s.is_infinite() {
            return Cubic::new(Arc::new(CubicConfig::default()), now, self.current_mtu);
        }
        let in_use = (self.follower.pace * base_s).max(WINDOW_PACKETS_MIN * self.follower.packet_bytes);
        let mut config = CubicConfig::default();
        config.initial_window((in_use / CUBIC_BETA) as u64);
        let mut cubic = Cubic::new(Arc::new(config), now, self.current_mtu);
        cubic.on_congestion_event(now, now, false, 0);
        cubic
    }

    fn in_flight_max(&self) -> u64 {
        if self.following {
            self.follower.window() as u64
        } else {
            self.cubic.window()
        }
    }
}

impl Controller for FollowsRate {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.rate.on_sent(self.member, bytes, now);
        self.look(now);
        self.pace.spend(bytes, now);
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        // The stack takes `now` before it reads a batch, so that a packet may seem to have been acknowledged at once.
        let rtt_s = now.saturating_duration_since(sent).as_secs_f64();
        if rtt_s > 0.0 {
            self.latest_s = Some(self.latest_s.map_or(rtt_s, |latest_s| latest_s.min(rtt_s)));
        }
        self.acked += bytes;
        self.limited += if app_limited { bytes } else { 0 };
        if !self.following {
            self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        if let Some(rtt_s) = self.latest_s.take() {
            self.follower.on_rtt(rtt_s, now);
        }
        let (acked, limited) = (std::mem::take(&mut self.acked), std::mem::take(&mut self.limited));
        self.look(now);
        if self.following {
            self.follower.on_progress(acked as f64, limited as f64, now);
            self.pace.set(self.follower.pace, self.follower.packet_bytes, now);
        } else {
            self.cubic.on_end_acks(now, in_flight, app_limited, largest);
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
        self.cubic.on_mtu_update(new_mtu);
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
            latest_s: self.latest_s,
            acked: self.acked,
            limited: self.limited,
        })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Drop for FollowsRate {
    fn drop(&mut self) {
        self.rate.forget(self.member);
    }
}

#[cfg(test)]
#[path = "rate_tests.rs"]
mod tests;

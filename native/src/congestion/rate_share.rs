//! An endpoint's rate, divided among its connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::runtime::locks::locked;

/// Two packets in a tenth of a second are data; what is less is keep-alives and questions of the transport's own.
pub(super) const BUSY_BYTES: u64 = 3000;
const BUSY_SPAN: Duration = Duration::from_millis(100);
const SHARES_FRESH: Duration = Duration::from_millis(5);
/// As `RATE_VALID_S` of `transport/engine/congestion/pacer.py`.
pub(super) const RATE_VALID: Duration = Duration::from_secs(3);

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

    pub(super) fn member(&self) -> u64 {
        self.members.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn forget(&self, member: u64) {
        let mut state = self.lock();
        state.members.remove(&member);
        state.divided_at = None;
    }

    fn lock(&self) -> MutexGuard<'_, Division> {
        locked(&self.state)
    }

    /// Note what a connection sends: whether it has data is seen by that.
    pub(super) fn on_sent(&self, member: u64, bytes: u64, now: Instant) {
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
    pub(super) fn share(&self, member: u64, want: f64, now: Instant) -> Option<f64> {
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

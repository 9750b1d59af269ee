//! The pace of one connection: a bucket of its own, for the stack's pacer cannot be given a rate.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::runtime::locks::locked;

/// Of the bucket: wake-ups are 1 ms apart at best, so half of 4 ms keeps up with them.
const BURST_S: f64 = 0.004;
const BURST_PACKETS_MIN: f64 = 10.0;

/// The bucket of one connection: open while there is something in it. Rates in bytes a second, infinite for no pacing.
#[derive(Debug)]
pub struct Pacer {
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

impl Default for Pacer {
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

impl Pacer {
    fn lock(&self) -> MutexGuard<'_, Bucket> {
        locked(&self.bucket)
    }

    pub(super) fn set(&self, rate: f64, packet_bytes: f64, now: Instant) {
        let mut bucket = self.lock();
        bucket.fill(now);
        bucket.rate = rate;
        bucket.least = BURST_PACKETS_MIN * packet_bytes;
    }

    /// Take bytes out; the bucket may go below zero by what the stack sends in one piece.
    pub(super) fn spend(&self, bytes: u64, now: Instant) {
        let mut bucket = self.lock();
        bucket.fill(now);
        if bucket.rate.is_finite() {
            bucket.tokens -= bytes as f64;
        }
    }

    pub(super) fn open(&self, now: Instant) -> bool {
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

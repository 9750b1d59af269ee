//! The controller that follows a rate, on a link that is reckoned.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::rate_law::{HEADER_BYTES, HEADROOM, SLACK_S};
use super::super::rate_share::{BUSY_BYTES, RATE_VALID};
use super::*;

const SIZE: f64 = 1452.0;
const WIRE: f64 = (SIZE + HEADER_BYTES) / SIZE;
const LINK: f64 = 2_500_000.0; // bytes a second: 20 Mbit/s
const BASE_S: f64 = 0.040;

fn following(share_of_link: f64) -> RateFollower {
    let mut follower = RateFollower::new(SIZE);
    follower.follow(share_of_link * LINK * WIRE / HEADROOM);
    follower
}

/// A FIFO with one sender behind a follower, looked at every millisecond.
struct Path {
    follower: RateFollower,
    began: Instant,
    now_s: f64,
    free_s: f64,
    tokens: f64,
    flight: VecDeque<(f64, f64, bool)>,
    lose_every: usize,
    sent: usize,
    delivered: f64,
    queues_s: Vec<f64>,
}

impl Path {
    fn new(follower: RateFollower, lose_every: usize) -> Self {
        Self {
            follower,
            began: Instant::now(),
            now_s: 0.0,
            free_s: 0.0,
            tokens: 0.0,
            flight: VecDeque::new(),
            lose_every,
            sent: 0,
            delivered: 0.0,
            queues_s: Vec::new(),
        }
    }

    fn run(&mut self, seconds: f64, link: f64) {
        (self.delivered, self.queues_s) = (0.0, Vec::new());
        let end_s = self.now_s + seconds;
        while self.now_s < end_s {
            self.now_s += 0.001;
            let now = self.began + Duration::from_secs_f64(self.now_s);
            let (mut acked, mut lost_any) = (0.0, false);
            while let Some((through_s, sent_s, lost)) = self.flight.front().copied() {
                if through_s > self.now_s {
                    break;
                }
                self.flight.pop_front();
                if lost {
                    self.follower.on_lost(SIZE);
                    lost_any = true;
                } else {
                    self.follower.on_rtt(through_s - sent_s, now);
                    acked += SIZE;
                }
            }
            self.delivered += acked;
            if acked > 0.0 || lost_any {
                self.follower.on_progress(acked, 0.0, now);
            }
            let pace = self.follower.pace;
            self.tokens = (self.tokens + pace * 0.001).min(SIZE.max(pace * 0.004));
            while self.tokens >= SIZE && (self.flight.len() + 1) as f64 * SIZE <= self.follower.window() {
                self.tokens -= SIZE;
                self.sent += 1;
                let lost = self.lose_every > 0 && self.sent.is_multiple_of(self.lose_every);
                if !lost {
                    self.free_s = self.free_s.max(self.now_s) + SIZE / link;
                }
                let through_s = self.free_s.max(self.now_s) + BASE_S;
                self.flight.push_back((through_s, self.now_s, lost));
            }
            self.queues_s.push((self.free_s - self.now_s).max(0.0));
        }
    }

    fn late_queue_s(&mut self) -> f64 {
        self.queues_s.sort_by(f64::total_cmp);
        self.queues_s[self.queues_s.len() * 95 / 100]
    }
}

#[test]
fn a_rate_that_the_path_carries_is_followed_and_random_loss_changes_nothing() {
    for lose_every in [0, 100] {
        let mut path = Path::new(following(0.9), lose_every);
        path.run(10.0, LINK);
        assert!(!path.follower.yielding());
        assert!(path.delivered / 10.0 > 0.96 * 0.9 * LINK);
        assert!(path.late_queue_s() < 0.005);
    }
}

#[test]
fn a_rate_beyond_the_path_fills_it_with_a_short_queue() {
    for share in [1.1, 1.5, 4.0] {
        let mut path = Path::new(following(share), 0);
        path.run(3.0, LINK);
        path.run(10.0, LINK);
        assert!(path.delivered / 10.0 > 0.88 * LINK, "{share}: {}", path.delivered);
        assert!(path.late_queue_s() < 0.030, "{share}: {} s", path.late_queue_s());
    }
}

#[test]
fn a_path_that_falls_to_half_and_comes_back_is_followed_both_ways() {
    let mut path = Path::new(following(0.95), 0);
    path.run(3.0, LINK);
    path.run(2.0, LINK / 2.0);
    path.run(3.0, LINK / 2.0);
    assert!(path.delivered / 3.0 > 0.42 * LINK);
    assert!(path.late_queue_s() < 0.040);
    path.run(6.0, LINK);
    assert!(!path.follower.yielding());
}

#[test]
fn losses_beyond_the_threshold_are_yielded_to_and_so_are_marks() {
    let mut path = Path::new(following(0.9), 10);
    path.run(1.0, LINK);
    assert!(path.follower.pace < 0.8 * LINK);
    let mut path = Path::new(following(0.9), 0);
    path.run(1.0, LINK);
    path.follower.marked = true;
    path.run(0.2, LINK);
    assert!(path.follower.yielding());
}

#[test]
fn a_rate_is_divided_by_who_has_data_and_ends_with_time() {
    let rate = EndpointRate::default();
    let now = Instant::now();
    let (one, other) = (rate.member(), rate.member());
    assert_eq!(rate.share(one, f64::INFINITY, now), None);
    rate.give(Some(80_000_000), now);
    assert_eq!(rate.share(one, f64::INFINITY, now), Some(10e6));
    for member in [one, other] {
        rate.on_sent(member, BUSY_BYTES, now);
    }
    assert_eq!(rate.share(one, f64::INFINITY, now), Some(5e6));
    let later = now + Duration::from_millis(10);
    assert_eq!(rate.share(one, 1e6, later), Some(9e6)); // what it may recover to
    assert_eq!(rate.share(other, f64::INFINITY, later), Some(9e6));
    let idle = now + Duration::from_millis(200);
    rate.on_sent(one, BUSY_BYTES, idle);
    assert_eq!(rate.share(one, f64::INFINITY, idle), Some(10e6));
    rate.on_sent(other, BUSY_BYTES, idle);
    rate.forget(other);
    assert_eq!(rate.share(one, f64::INFINITY, idle), Some(10e6));
    assert_eq!(rate.share(one, f64::INFINITY, now + 2 * RATE_VALID), None);
}

#[test]
fn the_bucket_gives_its_rate_and_no_more_however_it_is_asked() {
    let pace = Pacer::default();
    let began = Instant::now();
    assert!(pace.open(began));
    pace.set(1e6, 1000.0, began);
    let (mut sent, mut now) = (0u64, began);
    while now < began + Duration::from_secs(1) {
        now += Duration::from_micros(700);
        while pace.open(now) {
            pace.spend(1000, now);
            sent += 1000;
        }
    }
    assert!((995_000..=1_011_000).contains(&sent), "{sent} bytes of a million");
    pace.set(f64::INFINITY, 1000.0, now);
    assert!(pace.open(now));
}

#[test]
fn cubic_goes_on_from_what_was_in_use_when_a_rate_ends() {
    let config = Arc::new(RateBasedConfig {
        rate: Arc::default(),
        pace: Arc::default(),
    });
    let now = Instant::now();
    let mut control = RateBased::new(&config, 1452);
    assert_eq!(control.metrics().pacing_rate, None);
    config.rate.give(Some(80_000_000), now);
    control.follower.on_rtt(0.040, now);
    control.on_sent(now, 1452, 0);
    let pace = HEADROOM * 10e6 / WIRE;
    assert_eq!(control.metrics().pacing_rate, Some((8.0 * pace) as u64));
    assert_eq!(control.in_flight_max(), (pace * (0.040 + SLACK_S)) as u64);
    control.on_sent(now + RATE_VALID + Duration::from_millis(1), 1452, 1);
    assert_eq!(control.metrics().pacing_rate, None);
    let window = control.window() as f64;
    assert!((window / (pace * 0.040) - 1.0).abs() < 0.01, "{window}");
}

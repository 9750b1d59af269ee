//! The control `auto` on a link that is reckoned.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::rate_share::{BUSY_BYTES, RATE_VALID};
use super::*;

const SIZE: u64 = 1452;
const WIRE: f64 = (SIZE as f64 + HEADER_BYTES) / SIZE as f64;
const LINK: f64 = 2_500_000.0; // bytes a second: 20 Mbit/s
const BASE_S: f64 = 0.040;
const BUFFER_S: f64 = 0.040;

fn auto() -> (Auto, Arc<EndpointRate>) {
    let rate = Arc::<EndpointRate>::default();
    let config = AutoConfig {
        rate: rate.clone(),
        pace: Arc::default(),
    };
    (Auto::new(&config, SIZE as u16), rate)
}

/// A FIFO with one sender, looked at every millisecond.
struct Path {
    control: Auto,
    rate: Arc<EndpointRate>,
    began: Instant,
    now_s: f64,
    free_s: f64,
    /// When each packet is acknowledged, or found lost, and when it was sent.
    flight: VecDeque<(f64, f64, bool)>,
    lose_every: usize,
    sent: usize,
    delivered: f64,
    queues_s: Vec<f64>,
}

impl Path {
    fn new(lose_every: usize) -> Self {
        let (control, rate) = auto();
        Self {
            control,
            rate,
            began: Instant::now(),
            now_s: 0.0,
            free_s: 0.0,
            flight: VecDeque::new(),
            lose_every,
            sent: 0,
            delivered: 0.0,
            queues_s: Vec::new(),
        }
    }

    fn at(&self, at_s: f64) -> Instant {
        self.began + Duration::from_secs_f64(at_s)
    }

    /// Send what may be sent over a link, which the endpoint is told to be of `told` bytes a second.
    fn run(&mut self, seconds: f64, link: f64, told: f64) {
        (self.delivered, self.queues_s) = (0.0, Vec::new());
        let end_s = self.now_s + seconds;
        while self.now_s < end_s {
            self.now_s += 0.001;
            let now = self.at(self.now_s);
            self.rate.give(Some((8.0 * told * WIRE / HEADROOM) as u64), now);
            self.hear(now);
            while self.flight.len() as u64 * SIZE < self.control.window_at(now) {
                self.send(now, link);
            }
            self.queues_s.push((self.free_s - self.now_s).max(0.0));
        }
    }

    fn hear(&mut self, now: Instant) {
        let mut acked = false;
        while let Some((through_s, sent_s, lost)) = self.flight.front().copied() {
            if through_s > self.now_s {
                break;
            }
            self.flight.pop_front();
            let sent = self.at(sent_s);
            if lost {
                self.control.on_congestion_event(now, sent, false, SIZE);
            } else {
                self.control.law.on_ack(now, sent, SIZE, false);
                self.delivered += SIZE as f64;
                acked = true;
            }
        }
        if acked {
            self.control.on_end_acks(now, 0, false, None);
        }
    }

    fn send(&mut self, now: Instant, link: f64) {
        self.sent += 1;
        let random = self.lose_every > 0 && self.sent.is_multiple_of(self.lose_every);
        let waits_s = (self.free_s - self.now_s).max(0.0);
        let lost = random || waits_s > BUFFER_S;
        if !lost {
            self.free_s = self.free_s.max(self.now_s) + SIZE as f64 / link;
        }
        let through_s = self.free_s.max(self.now_s) + BASE_S;
        self.flight.push_back((through_s, self.now_s, lost));
        self.control.on_sent(now, SIZE, 0);
    }

    fn late_queue_s(&mut self) -> f64 {
        self.queues_s.sort_by(f64::total_cmp);
        self.queues_s[self.queues_s.len() * 95 / 100]
    }
}

#[test]
fn a_rate_that_the_path_carries_is_followed_and_random_loss_changes_nothing() {
    for lose_every in [0, 100] {
        let mut path = Path::new(lose_every);
        path.run(10.0, LINK, 0.9 * LINK);
        let share = path.delivered / 10.0 / LINK;
        assert!(share > 0.96 * 0.9, "{lose_every}: {share}");
        assert!(path.late_queue_s() < 0.005, "{lose_every}: {} s", path.late_queue_s());
    }
}

#[test]
fn a_rate_beyond_the_path_fills_it() {
    for beyond in [1.1, 1.5, 4.0] {
        let mut path = Path::new(0);
        path.run(3.0, LINK, beyond * LINK);
        path.run(10.0, LINK, beyond * LINK);
        let share = path.delivered / 10.0 / LINK;
        assert!(share > 0.95, "{beyond}: {share}");
    }
}

#[test]
fn a_path_that_falls_to_half_and_comes_back_is_followed_both_ways() {
    let mut path = Path::new(0);
    for link in [LINK, LINK / 2.0, LINK] {
        path.run(2.0, link, 0.95 * LINK);
        path.run(3.0, link, 0.95 * LINK);
        let share = path.delivered / 3.0 / link;
        assert!(share > 0.93, "{link}: {share}");
    }
}

#[test]
fn losses_beyond_the_threshold_are_yielded_to_and_so_are_marks() {
    let mut path = Path::new(10);
    path.run(2.0, LINK, 0.9 * LINK);
    assert!(path.delivered / 2.0 < 0.7 * LINK);
    let mut path = Path::new(0);
    path.run(1.0, LINK, 0.9 * LINK);
    let before = path.control.law.window_bytes();
    path.control
        .on_congestion_event(path.at(path.now_s), path.at(path.now_s), false, 0);
    assert!(path.control.law.window_bytes() < 0.71 * before);
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
fn the_window_goes_on_from_what_was_in_use_when_a_rate_ends() {
    let (mut control, rate) = auto();
    let now = Instant::now();
    assert_eq!(control.metrics().pacing_rate, None);
    rate.give(Some(80_000_000), now);
    let later = now + Duration::from_millis(40);
    control.on_sent(now, SIZE, 0);
    control.law.on_ack(later, now, SIZE, false);
    control.on_end_acks(later, 0, false, None);
    let pace = HEADROOM * 10e6 / WIRE;
    assert_eq!(control.metrics().pacing_rate, Some((8.0 * pace) as u64));
    for _ in 0..10_000 {
        control.law.on_ack(later, now, SIZE, false);
    }
    control.on_end_acks(later, 0, false, None);
    assert!(control.law.rate() > 10.0 * pace);
    control.on_sent(now + RATE_VALID + Duration::from_millis(1), SIZE, 1);
    assert_eq!(control.metrics().pacing_rate, None);
    assert_eq!(control.metrics().congestion_window, (pace * 0.040) as u64);
}

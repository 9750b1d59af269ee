//! The control `auto` on a link that is reckoned.

use std::collections::VecDeque;

use super::*;

const SIZE: u64 = 1452;
const LINK: f64 = 2_500_000.0; // bytes a second: 20 Mbit/s
const BASE_S: f64 = 0.040;
const BUFFER_S: f64 = 0.040;

/// A FIFO with one sender, looked at every millisecond.
struct Path {
    control: LossTolerantCubic,
    base_s: f64,
    began: Instant,
    now_s: f64,
    free_s: f64,
    /// When each packet is acknowledged, or found lost, and when it was sent.
    flight: VecDeque<(f64, f64, bool)>,
    delivered: f64,
    /// What acknowledgements wait for, behind the peer's own data.
    behind_s: f64,
    /// One packet in so many is lost, whatever waits; 0: none.
    lost_each: u64,
    sent: u64,
}

impl Path {
    fn new() -> Self {
        Self {
            control: LossTolerantCubic::new(SIZE as f64),
            base_s: BASE_S,
            began: Instant::now(),
            now_s: 0.0,
            free_s: 0.0,
            flight: VecDeque::new(),
            delivered: 0.0,
            behind_s: 0.0,
            lost_each: 0,
            sent: 0,
        }
    }

    fn at(&self, at_s: f64) -> Instant {
        self.began + Duration::from_secs_f64(at_s)
    }

    /// Send what may be sent over a link of so many bytes a second; gives the part of it that was delivered.
    fn run(&mut self, seconds: f64, link: f64) -> f64 {
        self.delivered = 0.0;
        let end_s = self.now_s + seconds;
        while self.now_s < end_s {
            self.now_s += 0.001;
            let now = self.at(self.now_s);
            self.hear(now);
            while (self.flight.len() as u64 + 1) * SIZE <= self.control.window() {
                self.send(now, link);
            }
        }
        self.delivered / seconds / link
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
                self.control.note_ack(now, sent, SIZE, false);
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
        let by_chance = self.lost_each > 0 && self.sent.is_multiple_of(self.lost_each);
        let lost = self.free_s - self.now_s > BUFFER_S || by_chance;
        if !lost {
            self.free_s = self.free_s.max(self.now_s) + SIZE as f64 / link;
        }
        let through_s = self.free_s.max(self.now_s) + self.base_s + self.behind_s;
        self.flight.push_back((through_s, self.now_s, lost));
        self.control.on_sent(now, SIZE, 0);
    }
}

#[test]
fn a_path_that_falls_to_half_and_comes_back_is_followed_both_ways() {
    let mut path = Path::new();
    for link in [LINK, LINK / 2.0, LINK] {
        path.run(2.0, link);
        let share = path.run(3.0, link);
        assert!(share > 0.93, "{link}: {share}");
    }
}

#[test]
fn losses_while_acknowledgements_wait_behind_the_peers_data_lower_the_window_once() {
    let mut path = Path::new();
    path.run(3.0, LINK);
    path.lost_each = 200;
    path.run(2.0, LINK);
    let before = path.control.window_bytes;
    path.behind_s = 0.3 * BASE_S;
    path.run(0.8, LINK);
    assert!(path.control.window_bytes > BETA * before);
}

#[test]
fn a_window_that_is_far_too_small_for_an_empty_path_is_not_for_long() {
    let mut path = Path::new();
    path.run(1.0, 10.0 * LINK);
    let now = path.at(path.now_s);
    path.control.window_bytes = 4.0 * SIZE as f64;
    path.control.cut(now);
    path.run(4.0, 10.0 * LINK);
    let share = path.run(1.0, 10.0 * LINK);
    assert!(share > 0.95, "{share}");
}

/// The window, as a multiple of what a cut left, after five round trips of sending, with pauses in between.
fn grown(pauses: u32) -> f64 {
    let mut path = Path::new();
    path.run(0.25, 100.0 * LINK);
    let cut_at = path.at(path.now_s);
    path.control.cut(cut_at);
    let left = path.control.window_bytes;
    for _ in 0..=pauses {
        path.run(5.0 * BASE_S / f64::from(pauses + 1), 100.0 * LINK);
        for _ in 0..2000 {
            path.now_s += 0.001;
            path.hear(path.at(path.now_s));
        }
    }
    path.control.window_bytes / left
}

#[test]
fn a_pause_between_two_bursts_is_no_time_to_grow_in() {
    let (without, with) = (grown(0), grown(1));
    assert!(with < 1.02 * without && without > 1.02, "{with} and {without}");
}

#[test]
fn marks_are_yielded_to_without_a_loss_once_for_what_was_sent_before() {
    let mut path = Path::new();
    path.run(1.0, LINK);
    let before = path.control.window_bytes;
    let now = path.at(path.now_s);
    for _ in 0..2 {
        path.control.on_congestion_event(now, now, false, 0);
    }
    assert!((0.69..0.71).contains(&(path.control.window_bytes / before)));
}

/// A path on which nothing arrives for a while, and what was under way is lost: as the stack tells it, in one piece.
fn fails(path: &mut Path) -> f64 {
    path.run(3.0, LINK);
    let before = path.control.window_bytes;
    let lost_bytes = path.flight.len() as u64 * SIZE;
    path.flight.clear();
    path.now_s += 0.6;
    path.free_s = path.now_s;
    let now = path.at(path.now_s);
    path.control.on_congestion_event(now, now, true, lost_bytes);
    assert_eq!(path.control.window(), 2 * SIZE);
    before
}

#[test]
fn persistent_congestion_leaves_the_least_window_and_slow_start_brings_the_rate_back() {
    let mut path = Path::new();
    let before = fails(&mut path);
    path.run(10.0 * BASE_S, LINK);
    assert!(path.control.window_bytes > 0.6 * before);
}

#[test]
fn so_it_does_where_the_route_is_longer_afterwards() {
    let mut path = Path::new();
    let before = fails(&mut path);
    path.base_s = 3.0 * BASE_S;
    path.run(10.0 * path.base_s, LINK);
    assert!(path.control.window_bytes > 0.6 * before);
}

use std::collections::VecDeque;

use super::*;

const PACKET: f64 = 1452.0;
/// Seconds: when it has settled, and when that has shown long enough.
const SETTLED: (f64, f64) = (2.0, 8.0);

/// What a link with bulk on it showed, once that had settled; parts are of its rate.
struct Found {
    bulk: f64,
    others: f64,
    /// Behind how much others' messages and bulk's own packets waited: the median.
    queue_s: f64,
}

/// A link with a queue that holds everything.
#[derive(Clone, Copy)]
struct Path {
    /// Bytes a second.
    rate: f64,
    base_s: f64,
    /// So much later acknowledgements may be told.
    jitter_s: f64,
    /// Every 500th round trip looks so much shorter than it was.
    freak_s: f64,
    /// Every `every_s` somebody else sends so many bytes at once.
    message: f64,
    every_s: f64,
}

impl Path {
    fn new((rate, base_s): (f64, f64)) -> Self {
        Self {
            rate,
            base_s,
            jitter_s: base_s / 20.0,
            freak_s: 0.0,
            message: 0.0,
            every_s: 1.0,
        }
    }
}

/// Bulk on a path, and what that shows from one time to another. Pairs of packets are acknowledged together.
fn run(path: Path, (from_s, until_s): (f64, f64)) -> Found {
    let Path { rate, base_s, .. } = path;
    let mut control = DelayBound::new(PACKET);
    let began = Instant::now();
    let mut under_way: VecDeque<(f64, f64, f64)> = VecDeque::new(); // told at, sent at, bytes
    let (mut now_s, mut free_s, mut in_flight, mut next_s) = (0.0_f64, 0.0_f64, 0.0, 0.5);
    let (mut bulk, mut others, mut queues_s, mut told) = (0.0, 0.0, Vec::new(), 0_u32);
    let mut seed = 1_u64;
    while now_s < until_s {
        while next_s <= now_s {
            free_s = free_s.max(next_s) + path.message / rate;
            others += if next_s > from_s { path.message } else { 0.0 };
            next_s += path.every_s;
        }
        while in_flight + 2.0 * PACKET <= control.window() as f64 {
            free_s = free_s.max(now_s) + 2.0 * PACKET / rate;
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let late_s = (seed >> 40) as f64 / (1 << 24) as f64 * path.jitter_s;
            let told_s = under_way.back().map_or(0.0, |(told_s, _, _)| *told_s);
            under_way.push_back((told_s.max(free_s + base_s + late_s), now_s, 2.0 * PACKET));
            in_flight += 2.0 * PACKET;
            queues_s.extend((now_s > from_s).then_some(free_s - now_s));
        }
        let (told_s, sent_s, bytes) = under_way.pop_front().unwrap();
        now_s = told_s;
        in_flight -= bytes;
        bulk += if now_s > from_s { bytes } else { 0.0 };
        told += 1;
        let short_s = if told.is_multiple_of(500) { path.freak_s } else { 0.0 };
        control.on_progress(
            now_s - sent_s - short_s,
            bytes,
            0.0,
            began + Duration::from_secs_f64(now_s),
        );
    }
    queues_s.sort_by(f64::total_cmp);
    let whole = rate * (until_s - from_s);
    Found {
        bulk: bulk / whole,
        others: others / whole,
        queue_s: queues_s[queues_s.len() / 2],
    }
}

/// Bytes a second and least round trips: 1 Gbit/s and 1 ms, 100 Mbit/s and 4 ms, 20 Mbit/s and 20 ms.
const PATHS: [(f64, f64); 3] = [(125e6, 0.001), (12.5e6, 0.004), (2.5e6, 0.020)];

/// What of our own may stand on a path.
fn longest_s(path: Path) -> f64 {
    TARGET_S_MIN.max(path.base_s / 4.0) + path.base_s / 10.0 + 4.0 * PACKET / path.rate
}

/// Bulk has the link to itself, or nearly, from the first to the second of `seconds`.
fn fills_with_a_short_queue(path: Path, seconds: (f64, f64)) {
    let (rate, found) = (path.rate, run(path, seconds));
    assert!(found.bulk > 0.95, "{} of {rate} bytes a second", found.bulk);
    assert!(
        found.queue_s < longest_s(path),
        "a queue of {} s at {rate}",
        found.queue_s
    );
}

#[test]
fn alone_it_fills_a_link_with_a_short_queue() {
    for path in PATHS.map(Path::new) {
        fills_with_a_short_queue(path, SETTLED);
    }
}

#[test]
fn its_own_queue_does_not_become_part_of_the_base() {
    for path in PATHS.map(Path::new) {
        fills_with_a_short_queue(path, (35.0, 45.0));
    }
}

#[test]
fn a_round_trip_now_and_then_that_looks_shorter_than_the_path_does_not_stop_it() {
    for mut path in PATHS.map(Path::new) {
        path.freak_s = 0.4 * path.base_s;
        fills_with_a_short_queue(path, SETTLED);
    }
}

#[test]
fn messages_of_others_that_pass_within_a_round_trip_leave_it_the_rest_of_the_link() {
    for mut path in PATHS.map(Path::new) {
        // Once in ten round trips a message that takes one to pass.
        (path.message, path.every_s) = (path.rate * path.base_s, 10.0 * path.base_s);
        let (rate, found) = (path.rate, run(path, SETTLED));
        let used = found.bulk + found.others;
        assert!(used > 0.95, "{used} of {rate} bytes a second");
        assert!(found.queue_s < path.base_s, "a queue of {} s at {rate}", found.queue_s);
    }
}

#[test]
fn to_a_queue_that_stays_it_gives_way() {
    let mut control = DelayBound::new(PACKET);
    control.slow_start = false;
    control.window_bytes = 100.0 * PACKET;
    let began = Instant::now();
    for milliseconds in 0..1000 {
        let rtt_s = if milliseconds < 50 { 0.010 } else { 0.060 };
        control.on_progress(rtt_s, PACKET, 0.0, began + Duration::from_millis(milliseconds));
    }
    assert_eq!(control.window(), 4 * PACKET as u64);
}

#[test]
fn a_window_that_the_application_does_not_use_does_not_grow() {
    for slow_start in [true, false] {
        let mut control = DelayBound::new(PACKET);
        control.slow_start = slow_start;
        let (window, began) = (control.window(), Instant::now());
        for milliseconds in 0..100 {
            control.on_progress(0.010, PACKET, PACKET, began + Duration::from_millis(milliseconds));
        }
        assert_eq!(control.window(), window);
    }
}

#[test]
fn losses_of_one_round_trip_halve_it_once() {
    let mut control = DelayBound::new(1000.0);
    control.window_bytes = 80_000.0;
    let sent = Instant::now();
    let now = sent + Duration::from_millis(10);
    control.on_congestion_event(now, sent, false, 1000);
    control.on_congestion_event(now, sent, false, 1000);
    assert_eq!(control.window(), 40_000);
    for _ in 0..10 {
        let later = now + Duration::from_secs(1);
        control.on_congestion_event(later, later, true, 1000);
    }
    assert_eq!(control.window(), 4_000);
}

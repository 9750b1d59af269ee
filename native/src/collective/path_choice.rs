//! Over which of several connections to a rank the next message goes: the one over which it is through first.
//!
//! That is the earliest completion first (Lim et al., CoNEXT 2017): what is under way there and the message, at the rate
//! that was measured, and half a round trip. Links of different rates are then all busy, each with its part, and end
//! together; one that has become slow gets less with the next message. `transport/mesh/path_choice.py` does the same.
//!
//! A rate is that of whole messages: the bytes of one over the time in which none was before it. A path of which nothing
//! is known is tried, with two chunks at most.

use std::time::{Duration, Instant};

/// So that one chunk follows the other.
const UNKNOWN_BYTES_MAX: u64 = 1 << 20;
/// What is smaller says more of the round trip than of the rate.
const MEASURED_BYTES_MIN: u64 = 64 << 10;
/// A chunk counts for a quarter of the estimate.
const REMEMBERED_BYTES: f64 = 1.5 * 1024.0 * 1024.0;
/// A rate that was not seen for so long counts as twice what it was, so that a link which has recovered is tried again.
const DOUBLES_AFTER_S: f64 = 30.0;

/// What is known of a connection's path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathLoad {
    under_way: u64,
    s_per_byte: Option<f64>,
    landed: Option<Instant>,
}

impl PathLoad {
    pub fn sent(&mut self, bytes: u64) {
        self.under_way += bytes;
    }

    /// A message that was sent at a time is through, or it failed.
    pub fn landed(&mut self, bytes: u64, sent: Instant, rtt: Duration, now: Instant, well: bool) {
        self.under_way -= bytes;
        if !well || bytes < MEASURED_BYTES_MIN {
            return;
        }
        let began = self.landed.map_or(sent + rtt, |landed| landed.max(sent + rtt));
        let took = now.saturating_duration_since(began).as_secs_f64() / bytes as f64;
        let weight = bytes as f64 / (bytes as f64 + REMEMBERED_BYTES);
        self.s_per_byte = Some(self.s_per_byte.map_or(took, |before| before + weight * (took - before)));
        self.landed = Some(now);
    }

    pub fn idle(&self) -> bool {
        self.under_way == 0
    }

    /// Not for much where nothing is known; what is small waits for nothing.
    fn has_room(&self, bytes: u64) -> bool {
        let free = self.s_per_byte.is_some() || self.under_way == 0 || bytes < MEASURED_BYTES_MIN;
        free || self.under_way + bytes <= UNKNOWN_BYTES_MAX
    }

    fn through_after_s(&self, bytes: u64, rtt: Duration, now: Instant) -> f64 {
        let unseen = self
            .landed
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let s_per_byte = self.s_per_byte.unwrap_or_default() / (unseen.as_secs_f64() / DOUBLES_AFTER_S).exp2();
        (self.under_way + bytes) as f64 * s_per_byte + rtt.as_secs_f64() / 2.0
    }
}

/// The connection for a message, or None where it has to wait for room. Each comes with its shortest round trip.
pub fn choose(paths: impl Iterator<Item = (u64, PathLoad, Duration)>, bytes: u64, now: Instant) -> Option<u64> {
    paths
        .filter(|(_, load, _)| load.has_room(bytes))
        .map(|(connection, load, rtt)| (load.through_after_s(bytes, rtt, now), connection))
        .min_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, connection)| connection)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What Python's `PathLoads` has to do as well; the file says how it is read.
    const VECTORS: &str = include_str!("../../../tests/unit/transport/mesh/path_choice_vectors.txt");
    const CHUNK: u64 = 512 << 10;
    const RTT: Duration = Duration::from_millis(10);

    /// A path over which messages of a chunk went at a rate for a while.
    fn measured(bytes_per_s: f64, began: Instant) -> (PathLoad, Instant) {
        let (mut load, mut now) = (PathLoad::default(), began + RTT);
        for _ in 0..20 {
            load.sent(CHUNK);
            now += Duration::from_secs_f64(CHUNK as f64 / bytes_per_s);
            load.landed(CHUNK, began, RTT, now, true);
        }
        (load, now)
    }

    /// How many chunks each path has under way when so many were put there.
    fn spread(mut loads: Vec<PathLoad>, chunks: u32, now: Instant) -> Vec<u64> {
        for _ in 0..chunks {
            let paths = loads.iter().enumerate().map(|(place, load)| (place as u64, *load, RTT));
            let Some(chosen) = choose(paths, CHUNK, now) else {
                break;
            };
            loads[chosen as usize].sent(CHUNK);
        }
        loads.iter().map(|load| load.under_way / CHUNK).collect()
    }

    #[test]
    fn both_languages_choose_the_same() {
        let began = Instant::now();
        let at = |ms: &str| began + Duration::from_millis(ms.parse().unwrap());
        let (mut now, mut case) = (began, "");
        let mut paths = BTreeMap::<u64, (PathLoad, Duration)>::new();
        for line in VECTORS
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |place: usize| words[place].parse::<u64>().unwrap();
            match words[0] {
                "case" => {
                    (now, case) = (began, line);
                    paths.clear();
                }
                "rtt" => drop(paths.insert(number(1), (PathLoad::default(), Duration::from_millis(number(2))))),
                "at" => now = at(words[1]),
                "choose" => {
                    let known = paths.iter().map(|(connection, (load, rtt))| (*connection, *load, *rtt));
                    let chosen = choose(known, number(1), now);
                    assert_eq!(chosen, words[2].parse().ok(), "{case}: {line}");
                }
                "send" => paths.get_mut(&number(1)).unwrap().0.sent(number(2)),
                "land" | "fail" => {
                    let (load, rtt) = paths.get_mut(&number(1)).unwrap();
                    load.landed(number(2), at(words[3]), *rtt, now, words[0] == "land");
                }
                _ => panic!("what is {line}?"),
            }
        }
    }

    #[test]
    fn every_link_gets_as_much_as_it_carries_in_the_same_time() {
        let began = Instant::now();
        let (fast, now) = measured(12.5e6, began);
        let (slow, later) = measured(2.5e6, began);
        assert!((fast.s_per_byte.unwrap() * 12.5e6 - 1.0).abs() < 0.01);
        assert_eq!(spread(vec![fast, fast], 16, now), [8, 8]);
        assert_eq!(spread(vec![fast, slow], 12, later), [10, 2]);
        assert_eq!(
            spread(vec![fast, slow], 4, later),
            [4, 0],
            "what the fast one carries sooner alone"
        );
    }

    #[test]
    fn a_path_that_was_never_measured_is_tried_but_not_with_much() {
        let (known, now) = measured(12.5e6, Instant::now());
        let unknown = PathLoad::default();
        assert_eq!(spread(vec![known, unknown], 12, now), [10, 2]);
        assert_eq!(spread(vec![unknown, unknown], 12, now), [2, 2]);
        let huge = choose([(7, unknown, RTT)].into_iter(), 1 << 30, now);
        assert_eq!(huge, Some(7), "one message always has room");
    }

    #[test]
    fn a_small_message_takes_the_shorter_way_and_says_nothing_of_the_rate() {
        let (near, far, now) = (PathLoad::default(), PathLoad::default(), Instant::now());
        assert_eq!(
            choose([(1, far, 9 * RTT), (2, near, RTT)].into_iter(), 100, now),
            Some(2)
        );
        let mut small = near;
        small.sent(100);
        small.landed(100, now, RTT, now + 2 * RTT, true);
        assert_eq!((small.s_per_byte, small.idle()), (None, true));
    }

    #[test]
    fn a_link_that_has_become_slow_is_left_within_some_messages_and_tried_again_after_a_while() {
        let (fast, now) = measured(12.5e6, Instant::now());
        let (mut worse, mut then) = (fast, now);
        for _ in 0..8 {
            worse.sent(CHUNK);
            then += Duration::from_secs_f64(CHUNK as f64 / 1.25e6);
            worse.landed(CHUNK, now, RTT, then, true);
        }
        assert_eq!(spread(vec![fast, worse], 5, then), [5, 0]);
        let mut used = fast;
        let later = then + Duration::from_secs(120);
        used.sent(CHUNK);
        used.landed(CHUNK, later, RTT, later + RTT + Duration::from_millis(42), true);
        assert_eq!(spread(vec![used, worse], 2, later), [1, 1]);
    }

    #[test]
    fn messages_that_failed_are_no_longer_under_way_and_say_nothing() {
        let (mut load, now) = (PathLoad::default(), Instant::now());
        load.sent(CHUNK);
        load.landed(CHUNK, now, RTT, now + RTT, false);
        assert_eq!((load.s_per_byte, load.idle()), (None, true));
    }
}

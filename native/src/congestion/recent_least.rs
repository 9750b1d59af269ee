//! The least of what was measured of late, such as the round trip of a path without a queue.

use std::time::{Duration, Instant};

/// So long a controller's least round trip is believed at least, and at most twice as long: the path may have changed.
pub const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);

/// The least value of the last one to two spans; infinite while there is none.
#[derive(Clone, Debug)]
pub struct RecentLeast {
    previous: f64,
    current: f64,
    since: Option<Instant>,
}

impl Default for RecentLeast {
    fn default() -> Self {
        Self {
            previous: f64::INFINITY,
            current: f64::INFINITY,
            since: None,
        }
    }
}

impl RecentLeast {
    pub fn add(&mut self, value: f64, now: Instant, span: Duration) {
        let age = self.since.map(|since| now.saturating_duration_since(since));
        if age.is_none_or(|age| age > span) {
            self.previous = match age {
                Some(age) if age <= 2 * span => self.current,
                _ => f64::INFINITY,
            };
            self.current = f64::INFINITY;
            self.since = Some(now);
        }
        self.current = self.current.min(value);
    }

    pub fn least(&self) -> f64 {
        self.previous.min(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_forgotten_after_two_spans_at_the_latest() {
        let began = Instant::now();
        let mut base = RecentLeast::default();
        assert!(base.least().is_infinite());
        for (at_s, rtt_s, least_s) in [
            (0.0, 0.010, 0.010),
            (9.0, 0.004, 0.004),
            (10.5, 0.020, 0.004), // the second span
            (20.0, 0.015, 0.004),
            (21.0, 0.030, 0.015), // the third
            (60.0, 0.050, 0.050), // nothing was heard for more than two
        ] {
            base.add(rtt_s, began + Duration::from_secs_f64(at_s), MIN_RTT_WINDOW);
            assert_eq!(base.least(), least_s, "after {at_s} s");
        }
    }
}

//! The round trip of a path without a queue.

use std::time::{Duration, Instant};

/// So long a controller's least round trip is believed at least, and at most twice as long: the path may have changed.
pub const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);

/// The least round trip of the last one to two spans, in seconds; infinite while there is none.
#[derive(Clone, Debug)]
pub struct MinRtt {
    previous_s: f64,
    current_s: f64,
    since: Option<Instant>,
}

impl Default for MinRtt {
    fn default() -> Self {
        Self {
            previous_s: f64::INFINITY,
            current_s: f64::INFINITY,
            since: None,
        }
    }
}

impl MinRtt {
    pub fn add(&mut self, rtt_s: f64, now: Instant, span: Duration) {
        let age = self.since.map(|since| now.saturating_duration_since(since));
        if age.is_none_or(|age| age > span) {
            self.previous_s = match age {
                Some(age) if age <= 2 * span => self.current_s,
                _ => f64::INFINITY,
            };
            self.current_s = f64::INFINITY;
            self.since = Some(now);
        }
        self.current_s = self.current_s.min(rtt_s);
    }

    pub fn least_s(&self) -> f64 {
        self.previous_s.min(self.current_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_forgotten_after_two_spans_at_the_latest() {
        let began = Instant::now();
        let mut base = MinRtt::default();
        assert!(base.least_s().is_infinite());
        for (at_s, rtt_s, least_s) in [
            (0.0, 0.010, 0.010),
            (9.0, 0.004, 0.004),
            (10.5, 0.020, 0.004), // the second span
            (20.0, 0.015, 0.004),
            (21.0, 0.030, 0.015), // the third
            (60.0, 0.050, 0.050), // nothing was heard for more than two
        ] {
            base.add(rtt_s, began + Duration::from_secs_f64(at_s), MIN_RTT_WINDOW);
            assert_eq!(base.least_s(), least_s, "after {at_s} s");
        }
    }
}

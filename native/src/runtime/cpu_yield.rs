//! A thread of bulk lets others have its processor between two turns.
//!
//! The kernel looks whether a running thread has had its slice where that thread sleeps or gives way, and else at the
//! timer's tick, every 4 ms at 250 Hz. Who becomes ready meanwhile waits so long, even where another processor has become
//! idle, and a thread of bulk hardly sleeps: one small message in a hundred met that wait.
//!
//! Where other work keeps the processors full, giving way lets it run for a tick each time, which cost bulk a third of its
//! rate and helped no small message. Who was away for long does not give way again for a multiple of that.

use std::time::{Duration, Instant};

/// The threads of a small message are done sooner.
const LONG: Duration = Duration::from_millis(1);
/// So many times as long as it was away: a twentieth of the time at most is given to others' work.
const REST: u32 = 20;

#[derive(Default)]
pub struct GivingWay {
    not_before: Option<Instant>,
}

impl GivingWay {
    pub fn turn_ended(&mut self) {
        let before = Instant::now();
        if self.not_before.is_some_and(|at| before < at) {
            return;
        }
        std::thread::yield_now();
        self.was_away(before, Instant::now());
    }

    fn was_away(&mut self, from: Instant, until: Instant) {
        let away = until.saturating_duration_since(from);
        self.not_before = (away > LONG).then(|| until + away * REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_away_for_long_stays_for_a_multiple_of_that() {
        let (mut giving_way, from) = (GivingWay::default(), Instant::now());
        giving_way.was_away(from, from + Duration::from_micros(200));
        assert_eq!(giving_way.not_before, None);
        let until = from + Duration::from_millis(4);
        giving_way.was_away(from, until);
        assert_eq!(giving_way.not_before, Some(until + Duration::from_millis(80)));
        giving_way.was_away(until, until + LONG);
        assert_eq!(giving_way.not_before, None);
    }
}

//! Panics on demand, for the tests of what becomes of them. Without the feature `faults` there is nothing of it.

#[cfg(feature = "faults")]
use std::sync::Mutex;

#[cfg(feature = "faults")]
use super::locks::locked;

/// Places at which to panic once.
#[derive(Default)]
pub struct Faults {
    #[cfg(feature = "faults")]
    asked: Mutex<Vec<String>>,
}

impl Faults {
    /// Have the next visit to a place panic.
    #[cfg(feature = "faults")]
    pub fn ask(&self, place: String) {
        locked(&self.asked).push(place);
    }

    /// A place at which tests may have asked for a panic.
    #[cfg(feature = "faults")]
    pub fn here(&self, place: &'static str) {
        let due = {
            let mut asked = locked(&self.asked);
            let at = asked.iter().position(|one| one == place);
            at.map(|at| asked.swap_remove(at)).is_some()
        };
        assert!(!due, "a fault was asked for: {place}");
    }

    #[cfg(not(feature = "faults"))]
    pub fn here(&self, _place: &'static str) {}
}

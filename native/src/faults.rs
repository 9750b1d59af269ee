//! Panics on demand, for the tests of what becomes of them. Only with the feature `faults`.

use std::sync::{Mutex, PoisonError};

/// Places at which to panic once.
#[derive(Default)]
pub struct Faults(Mutex<Vec<String>>);

impl Faults {
    pub fn ask(&self, place: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(place);
    }

    pub fn here(&self, place: &str) {
        let due = {
            let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = asked.iter().position(|one| one == place);
            at.map(|at| asked.swap_remove(at)).is_some()
        };
        assert!(!due, "a fault was asked for: {place}");
    }
}

//! Panics on demand, for the tests of what becomes of them. Only with the feature `faults`.

use std::sync::Mutex;

use super::locks::locked;

/// Places at which to panic once.
#[derive(Default)]
pub struct Faults(Mutex<Vec<String>>);

impl Faults {
    pub fn ask(&self, place: String) {
        locked(&self.0).push(place);
    }

    pub fn here(&self, place: &str) {
        let due = {
            let mut asked = locked(&self.0);
            let at = asked.iter().position(|one| one == place);
            at.map(|at| asked.swap_remove(at)).is_some()
        };
        assert!(!due, "a fault was asked for: {place}");
    }
}

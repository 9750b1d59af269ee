//! What peers asked to have held back: by the connection over which they said so, with which it ends.

use std::collections::{HashMap, HashSet};

use crate::matching::holds::HOLDS_MAX;
use crate::wire::Hold;

#[derive(Default)]
pub struct Holds(HashMap<u64, HashSet<(String, u64)>>);

impl Holds {
    /// Whether that changes anything.
    pub fn heard(&mut self, connection: u64, hold: Hold) -> bool {
        let held = self.0.entry(connection).or_default();
        if hold.waits {
            held.len() < HOLDS_MAX && held.insert((hold.group, hold.step))
        } else {
            held.remove(&(hold.group, hold.step))
        }
    }

    /// Forget those of connections that have ended.
    pub fn retain(&mut self, lives: impl Fn(u64) -> bool) {
        self.0.retain(|connection, held| lives(*connection) && !held.is_empty());
    }

    /// How many there are over these connections.
    pub fn count(&self, connections: &[u64]) -> usize {
        connections
            .iter()
            .filter_map(|one| self.0.get(one))
            .map(HashSet::len)
            .sum()
    }

    /// Whether an operation's messages wait that could go over these connections.
    pub fn hold(&self, connections: &[u64], group: &str, step: u64) -> bool {
        !self.0.is_empty()
            && connections
                .iter()
                .filter_map(|one| self.0.get(one))
                .flatten()
                .any(|(held, first)| held == group && *first <= step)
    }
}

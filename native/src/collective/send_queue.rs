//! What collectives have to send to one rank over one kind of connection: what waits, in its order, and how much is under way.
//!
//! As `transport/mesh/outbox.py`: a send waits until less than `IN_FLIGHT_BYTES_MAX` of its priority and of more urgent
//! ones is under way. So the later chunks of an earlier collective still overtake a later collective's. What the rank asked
//! to have held back is set aside, and what is under way of it does not count: its room there may be the last. Each hold lowers
//! the bound for others, because what is under way when a hold is said has a place in the receiver's store all the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::quic::send_scheduler::LEVELS;

/// To one peer: a round trip of 64 ms at 1 Gbit/s.
const IN_FLIGHT_BYTES_MAX: u64 = 8 << 20;

/// A step that sends. The least leaves first: by priority, then what is sent again, then by collective and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sending {
    pub level: usize,
    pub fresh: bool,
    /// The collective's order among all of this rank.
    pub order: u64,
    pub step: u32,
    pub collective: u64,
    pub bytes: u64,
}

#[derive(Default)]
pub struct SendQueue {
    waiting: BinaryHeap<Reverse<Sending>>,
    held: Vec<Sending>,
    under_way: [u64; LEVELS],
    holds: u64,
}

impl SendQueue {
    pub fn push(&mut self, sending: Sending, held: bool) {
        if held {
            self.held.push(sending);
        } else {
            self.waiting.push(Reverse(sending));
        }
    }

    /// What is held back has changed: it is so much.
    pub fn sort_out(&mut self, holds: usize, is_held: impl Fn(&Sending) -> bool) {
        self.holds = holds as u64;
        for sending in self.withdraw(None) {
            self.push(sending, is_held(&sending));
        }
    }

    /// The next that may go out now.
    pub fn next(&self) -> Option<&Sending> {
        let Reverse(next) = self.waiting.peek()?;
        let ahead: u64 = self.under_way[..=next.level].iter().sum();
        (ahead == 0 || ahead + next.bytes <= IN_FLIGHT_BYTES_MAX / (1 + self.holds)).then_some(next)
    }

    /// Take that out; it is under way from here on.
    pub fn pop(&mut self) -> Option<Sending> {
        self.next()?;
        let Reverse(next) = self.waiting.pop()?;
        self.under_way[next.level] += next.bytes;
        Some(next)
    }

    /// What was under way has come to its end, well or not, or is held back.
    pub fn landed(&mut self, sending: &Sending) {
        self.under_way[sending.level] -= sending.bytes;
    }

    /// Take out what waits of one collective, or of all.
    pub fn withdraw(&mut self, collective: Option<u64>) -> Vec<Sending> {
        let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|Reverse(one)| collective.is_none_or(|number| one.collective == number));
        self.waiting = left.into();
        let (mut withdrawn, held): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|one| collective.is_none_or(|number| one.collective == number));
        self.held = held;
        withdrawn.extend(taken.into_iter().map(|Reverse(one)| one));
        withdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Sending = Sending {
        level: 4,
        fresh: true,
        order: 0,
        step: 0,
        collective: 7,
        bytes: 1 << 20,
    };

    #[test]
    fn the_urgent_then_what_is_sent_again_then_the_earlier_goes_first() {
        let mut queue = SendQueue::default();
        let ordered = [
            Sending {
                level: 2,
                order: 9,
                ..CHUNK
            },
            Sending {
                fresh: false,
                order: 8,
                ..CHUNK
            },
            Sending {
                order: 1,
                step: 5,
                ..CHUNK
            },
            Sending {
                order: 2,
                step: 0,
                ..CHUNK
            },
            Sending {
                order: 2,
                step: 1,
                ..CHUNK
            },
        ];
        for i in [3, 0, 4, 2, 1] {
            queue.push(ordered[i], false);
        }
        let popped: Vec<Sending> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, ordered);
    }

    #[test]
    fn no_more_than_the_bound_is_under_way_but_the_urgent_does_not_wait_for_it() {
        let mut queue = SendQueue::default();
        for step in 0..12 {
            queue.push(Sending { step, ..CHUNK }, false);
        }
        let under_way: Vec<Sending> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(under_way.len(), 8);
        queue.push(Sending { level: 1, ..CHUNK }, false);
        assert_eq!(queue.pop().map(|one| one.level), Some(1));
        queue.landed(&Sending { level: 1, ..CHUNK });
        queue.landed(&under_way[0]);
        assert_eq!(queue.pop().map(|one| one.step), Some(8));
        assert_eq!(queue.pop(), None);
        let huge = Sending {
            bytes: IN_FLIGHT_BYTES_MAX + 1,
            ..CHUNK
        };
        let mut empty = SendQueue::default();
        empty.push(huge, false);
        assert_eq!(empty.pop(), Some(huge));
    }

    #[test]
    fn what_is_held_back_is_set_aside_in_its_order_and_can_be_withdrawn() {
        let mut queue = SendQueue::default();
        for step in [1, 0] {
            queue.push(Sending { step, ..CHUNK }, true);
        }
        queue.push(Sending { step: 2, ..CHUNK }, false);
        queue.push(Sending { collective: 8, ..CHUNK }, true);
        assert_eq!(queue.pop().map(|one| one.step), Some(2));
        assert_eq!(queue.pop(), None);
        queue.sort_out(1, |one| one.collective == 8);
        assert_eq!(queue.pop().map(|one| one.step), Some(0));
        assert_eq!(queue.withdraw(Some(8)).len(), 1);
        queue.sort_out(1, |_| true);
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.withdraw(None).len(), 1);
        queue.sort_out(3, |_| false);
        for step in 0..12 {
            queue.push(Sending { step, ..CHUNK }, false);
        }
        let before = CHUNK.bytes * 2; // are under way still
        let more = std::iter::from_fn(|| queue.pop()).count() as u64 * CHUNK.bytes;
        assert_eq!(before + more, IN_FLIGHT_BYTES_MAX / 4);
    }

    #[test]
    fn what_waits_of_a_collective_is_withdrawn_and_no_other() {
        let mut queue = SendQueue::default();
        queue.push(CHUNK, false);
        queue.push(Sending { collective: 8, ..CHUNK }, false);
        assert_eq!(queue.withdraw(Some(7)), [CHUNK]);
        assert_eq!(queue.pop().map(|one| one.collective), Some(8));
        queue.push(CHUNK, false);
        assert_eq!(queue.withdraw(None), [CHUNK]);
    }
}

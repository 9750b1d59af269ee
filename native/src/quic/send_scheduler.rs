//! Who may hand bytes to the stack next: strictly by priority, equals in turns, and no more in all than is useful.
//!
//! What the stack holds has used up credit and memory, so at most three times what is in flight waits inside it. The stack
//! serves its streams by priority, too: for a message count only the bytes inside that are as urgent as its own, or more.
//! It waits for no others, which would take a chunk's time on the link, for memory comes back chunk by chunk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::runtime::locks::locked;

/// The control stream's level, then the five priorities.
pub const LEVELS: usize = 6;

pub struct SendScheduler {
    least: u64,
    used: Arc<AtomicU64>,
    state: Mutex<State>,
}

struct State {
    ended: bool,
    taken: [u64; LEVELS],
    waiting: [VecDeque<(u64, oneshot::Sender<Permit>)>; LEVELS],
}

impl State {
    /// What is inside and not behind a message of this level.
    fn ahead(&self, level: usize) -> u64 {
        self.taken[..=level].iter().sum()
    }
}

/// Leave to hand over some bytes; what is not used goes back when it is dropped.
pub struct Permit {
    scheduler: Arc<SendScheduler>,
    level: usize,
    amount: u64,
}

impl Permit {
    /// `used` bytes were handed over; whoever owns them gives them back.
    pub fn spend(mut self, used: u64) {
        debug_assert!(used <= self.amount);
        self.amount -= used.min(self.amount);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.scheduler.give_back(self.level, self.amount);
    }
}

impl SendScheduler {
    /// At most half as much again as `used` (twice what is in flight, which others keep up to date) may be inside, or `least`.
    pub fn new(least: u64, used: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            least,
            used,
            state: Mutex::new(State {
                ended: false,
                taken: [0; LEVELS],
                waiting: Default::default(),
            }),
        })
    }

    fn limit(&self) -> u64 {
        let used = self.used.load(Ordering::Relaxed);
        self.least.max(used + used / 2)
    }

    /// Wait for leave to hand over `amount`; `urgent` does not wait.
    pub async fn enter(self: &Arc<Self>, level: usize, amount: u64, urgent: bool) -> Permit {
        let waiting = {
            let mut state = self.lock();
            let free = state.ahead(level) < self.limit() && state.waiting[..=level].iter().all(VecDeque::is_empty);
            if urgent || free || state.ended {
                state.taken[level] += amount;
                return Permit {
                    scheduler: self.clone(),
                    level,
                    amount,
                };
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting[level].push_back((amount, sender));
            receiver
        };
        // Without an answer the scheduler has ended, and what is handed over now is refused by the stack.
        waiting.await.unwrap_or_else(|_| Permit {
            scheduler: self.clone(),
            level,
            amount: 0,
        })
    }

    /// The connection has ended: nobody waits any more, for nothing that is inside will leave.
    pub fn end(self: &Arc<Self>) {
        let waiting = {
            let mut state = self.lock();
            state.ended = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting); // which tells those who wait
    }

    /// Bytes of a level have left the stack.
    pub fn give_back(self: &Arc<Self>, level: usize, amount: u64) {
        let (mut level, mut amount) = (level, amount);
        loop {
            let (permit, sender) = {
                let mut state = self.lock();
                state.taken[level] -= amount.min(state.taken[level]);
                let Some(next) = state.waiting.iter().position(|queue| !queue.is_empty()) else {
                    return;
                };
                if state.ahead(next) >= self.limit() {
                    return; // and the less urgent have no less ahead of them
                }
                let (wanted, sender) = state.waiting[next].pop_front().expect("it is not empty");
                state.taken[next] += wanted;
                let permit = Permit {
                    scheduler: self.clone(),
                    level: next,
                    amount: wanted,
                };
                (permit, sender)
            };
            (level, amount) = (permit.level, 0);
            if let Err(mut unwanted) = sender.send(permit) {
                // Whoever waited has gone: take the amount back here rather than by dropping, which would recurse.
                amount = std::mem::take(&mut unwanted.amount);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        locked(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_more_urgent_goes_first_and_equals_in_order() {
        let scheduler = SendScheduler::new(10, Arc::default());
        let first = scheduler.enter(3, 10, false).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = [(3, "c"), (4, "d"), (2, "a"), (2, "b")]
            .into_iter()
            .map(|(level, name)| {
                let (scheduler, order) = (scheduler.clone(), order.clone());
                tokio::spawn(async move {
                    let permit = scheduler.enter(level, 10, false).await;
                    order.lock().unwrap().push(name);
                    drop(permit);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["a", "b", "c", "d"]);
    }

    #[tokio::test]
    async fn the_urgent_waits_for_nothing_that_is_less_urgent() {
        let scheduler = SendScheduler::new(10, Arc::default());
        let gradients = scheduler.enter(4, 10, false).await;
        let urgent = scheduler.enter(2, 10, false).await;
        drop(gradients);
        let later = tokio::spawn({
            let scheduler = scheduler.clone();
            async move { drop(scheduler.enter(4, 10, false).await) }
        });
        tokio::task::yield_now().await;
        assert!(!later.is_finished(), "what is more urgent fills the stack");
        drop(urgent);
        later.await.unwrap();
    }

    #[tokio::test]
    async fn one_that_stopped_waiting_keeps_nothing() {
        let scheduler = SendScheduler::new(1, Arc::default());
        let held = scheduler.enter(1, 5, false).await;
        {
            let gone = scheduler.enter(1, 5, false);
            tokio::pin!(gone);
            tokio::select! { biased; _ = &mut gone => unreachable!(), () = std::future::ready(()) => {} }
        }
        drop(held);
        scheduler.enter(1, 5, false).await.spend(5);
        scheduler.give_back(1, 5);
        assert_eq!(scheduler.lock().ahead(LEVELS - 1), 0);
    }
}

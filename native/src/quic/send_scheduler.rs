//! Who may hand bytes to the stack next: strictly by priority, equals in turns, and no more in all than is useful.
//!
//! The stack serves its streams by priority too, but what it holds has used up credit and memory. So little more than
//! what is in flight waits inside it, and a message of higher priority is never behind more than that.

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
    taken: u64,
    waiting: [VecDeque<(u64, oneshot::Sender<Permit>)>; LEVELS],
}

/// Leave to hand over some bytes; what is not used goes back when it is dropped.
pub struct Permit {
    scheduler: Arc<SendScheduler>,
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
        self.scheduler.give_back(self.amount);
    }
}

impl SendScheduler {
    /// At most half as much again as `used` (bytes in flight, which others keep up to date) may be inside, or `least`.
    pub fn new(least: u64, used: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            least,
            used,
            state: Mutex::new(State {
                ended: false,
                taken: 0,
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
            let free = state.taken < self.limit() && state.waiting[..=level].iter().all(VecDeque::is_empty);
            if urgent || free || state.ended {
                state.taken += amount;
                return Permit {
                    scheduler: self.clone(),
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

    /// Bytes have left the stack.
    pub fn give_back(self: &Arc<Self>, amount: u64) {
        let mut amount = amount;
        loop {
            let (permit, sender) = {
                let mut state = self.lock();
                state.taken -= amount.min(state.taken);
                if state.taken >= self.limit() {
                    return;
                }
                let Some((wanted, sender)) = state.waiting.iter_mut().find_map(VecDeque::pop_front) else {
                    return;
                };
                state.taken += wanted;
                let permit = Permit {
                    scheduler: self.clone(),
                    amount: wanted,
                };
                (permit, sender)
            };
            amount = 0;
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
        scheduler.give_back(5);
        assert_eq!(scheduler.lock().taken, 0);
    }
}

//! How many tasks of a kind there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many tasks of a kind there are, for who has to wait until there is none.
#[derive(Default)]
pub struct TaskTracker {
    count: AtomicUsize,
    ended: Notify,
}

impl TaskTracker {
    /// Count one for as long as what this gives lives.
    pub fn enter(self: &Arc<Self>) -> Tracked {
        self.count.fetch_add(1, Ordering::SeqCst);
        Tracked(self.clone())
    }

    /// Whether there is one.
    pub fn some(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Wait until there is none. One task waits at a time.
    pub async fn none(&self) {
        while self.some() {
            self.ended.notified().await;
        }
    }
}

pub struct Tracked(Arc<TaskTracker>);

impl Drop for Tracked {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify_one();
        }
    }
}

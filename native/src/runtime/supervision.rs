//! Where a panic ends: with the connection whose task it was, or with the engine, and never with the process.
//!
//! What tasks share is behind locks that forgive a panic. Where one left such a lock in the middle of something (the
//! lock is poisoned) what it guards may be half done, and then the engine ends rather than the connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::locks::words_of;

/// Whose a task is, and so what ends when it panics.
pub trait OnPanic: Send + Sync {
    /// The task panicked, and said this: end what it belongs to.
    fn panicked(&self, words: &str);

    /// To do that panicked too: end everything.
    fn end_all(&self, words: &str);
}

impl<T: OnPanic + ?Sized> OnPanic for Arc<T> {
    fn panicked(&self, words: &str) {
        (**self).panicked(words);
    }

    fn end_all(&self, words: &str) {
        (**self).end_all(words);
    }
}

/// Run a task, which may panic, on a thread.
pub fn spawn(thread: &Handle, owner: impl OnPanic + Unpin + 'static, task: impl Future<Output = ()> + Send + 'static) {
    thread.spawn(Guarded {
        owner,
        task: Box::pin(task),
    });
}

struct Guarded<O> {
    owner: O,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<O: OnPanic + Unpin> Future for Guarded<O> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let panic = match catch_unwind(AssertUnwindSafe(|| self.task.as_mut().poll(cx))) {
            Ok(polled) => return polled,
            Err(panic) => panic,
        };
        // The task has let go of what it held, and is not polled again.
        let words = words_of(&*panic);
        let ended = catch_unwind(AssertUnwindSafe(|| self.owner.panicked(&words)));
        if ended.is_err() {
            self.owner.end_all(&words);
        }
        Poll::Ready(())
    }
}

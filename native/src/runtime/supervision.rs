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
use crate::session::engine::Engine;
use crate::session::peer_session::Link;

/// Whose a task is, and so what ends when it panics.
pub enum Task {
    /// The engine.
    Engine(Arc<Engine>),
    /// The connection.
    Link(Arc<Link>),
    /// The connection, and the send with this number.
    Send(Arc<Link>, u64),
    /// The connection, which this task would have seen to its end.
    Course(Arc<Link>),
}

impl Task {
    fn engine(&self) -> &Arc<Engine> {
        match self {
            Self::Engine(engine) => engine,
            Self::Link(link) | Self::Send(link, _) | Self::Course(link) => &link.engine,
        }
    }

    fn panicked(&self, words: &str) {
        let engine = self.engine();
        if let Self::Send(link, operation) = self {
            // To tell its end is the last thing that its task would have done, so it has not been told.
            engine.fail_send(*operation, link.broken(words));
        }
        if engine.half_done() {
            return engine.broke(words);
        }
        match self {
            Self::Engine(engine) => engine.broke(words),
            Self::Link(link) | Self::Send(link, _) => link.broke(words),
            Self::Course(link) => {
                link.broke(words);
                if !link.finish_again() {
                    engine.broke(words);
                }
            }
        }
    }
}

/// Run a task, which may panic, on a thread.
pub fn spawn(thread: &Handle, task: Task, future: impl Future<Output = ()> + Send + 'static) {
    thread.spawn(Guarded {
        task,
        future: Box::pin(future),
    });
}

struct Guarded {
    task: Task,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Guarded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let panic = match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(cx))) {
            Ok(polled) => return polled,
            Err(panic) => panic,
        };
        // The future has let go of what it held, and is not polled again.
        let words = words_of(&*panic);
        let ended = catch_unwind(AssertUnwindSafe(|| self.task.panicked(&words)));
        if ended.is_err() {
            self.task.engine().broke(&words);
        }
        Poll::Ready(())
    }
}

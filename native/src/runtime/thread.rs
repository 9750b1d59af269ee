//! Threads that run tasks, without the GIL.

use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs tasks, until it is told to end.
pub struct Thread {
    pub handle: Handle,
    end: oneshot::Sender<()>,
    running: thread::JoinHandle<()>,
}

impl Thread {
    pub fn start() -> std::io::Result<Self> {
        // A driver that is busy is always ready: what Python asks for must not wait until it has had many turns.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .global_queue_interval(1)
            .event_interval(8)
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let running = thread::Builder::new().name("hive-quic".to_owned()).spawn(move || {
            let _ = runtime.block_on(ended); // told, or given up
        })?;
        Ok(Self { handle, end, running })
    }

    /// End it; its tasks are dropped where they wait. What it returns is done then.
    pub fn end(self) -> thread::JoinHandle<()> {
        let _ = self.end.send(()); // it may have failed
        self.running
    }
}

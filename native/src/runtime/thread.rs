//! Threads that run tasks, without the GIL.

use std::os::unix::thread::JoinHandleExt;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs tasks, until it is told to end.
pub struct Thread {
    pub handle: Handle,
    /// The time that it has used on a processor.
    pub clock: libc::clockid_t,
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
        let mut clock = 0;
        // SAFETY: the thread may have ended, but was neither joined nor detached, for `running` has not been dropped: what
        // it is known by is still its own.
        let failed = unsafe { libc::pthread_getcpuclockid(running.as_pthread_t(), &mut clock) };
        if failed != 0 {
            return Err(std::io::Error::from_raw_os_error(failed));
        }
        Ok(Self {
            handle,
            clock,
            end,
            running,
        })
    }

    /// End it; its tasks are dropped where they wait. What it returns is done then.
    pub fn end(self) -> thread::JoinHandle<()> {
        let _ = self.end.send(()); // it may have failed
        self.running
    }
}

/// What a thread's clock shows; None where the thread has ended.
pub fn cpu_seconds(clock: libc::clockid_t) -> Option<f64> {
    // SAFETY: all zeroes are a valid `timespec`, which consists of plain numbers.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `time` is there to be written.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) } != 0;
    (!failed).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

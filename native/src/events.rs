//! What the engine tells its caller, in the order in which it happened.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::runtime::locks::locked;
use crate::wire::{Header, Hold};

/// Operations from this number on are the engine's own: their ends are told to it and not to Python.
pub const OWN_OPERATION: u64 = 1 << 63;

/// Why an operation or a connection ended.
#[derive(Clone, Debug)]
pub enum Failure {
    Lost {
        peer: String,
        reason: String,
    },
    /// Lost, as nothing was heard of the peer.
    Silent {
        peer: String,
        reason: String,
    },
    /// Lost, and there is no process any more that could connect again.
    Gone {
        peer: String,
        reason: String,
    },
    Peer {
        peer: String,
        reason: String,
        code: u64,
    },
    Cancelled(String),
    /// The peer has ended what the message is of.
    Discarded(String),
}

impl Failure {
    /// Why, in words.
    pub fn reason(&self) -> &str {
        match self {
            Self::Lost { reason, .. }
            | Self::Silent { reason, .. }
            | Self::Gone { reason, .. }
            | Self::Peer { reason, .. }
            | Self::Cancelled(reason)
            | Self::Discarded(reason) => reason,
        }
    }

    /// Whether another connection to the same peer may do.
    pub fn of_one_connection(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Silent { .. })
    }
}

/// A message's payload on its way to Python.
pub enum Arrived {
    /// It is in the buffer that was posted.
    Posted,
    Own(Vec<u8>),
}

pub enum Event {
    /// Not told: a buffer to let go of, for which the GIL is needed.
    Release(PyBuffer<u8>),
    /// Something of the caller's own, given back in its place in the order.
    Echo(Py<PyAny>),
    /// The handshake is complete; who the peer is has to be judged.
    Chain {
        connection: u64,
        certificates: Vec<Vec<u8>>,
    },
    /// The peer said hello.
    Hello {
        connection: u64,
        body: Vec<u8>,
    },
    Down {
        connection: u64,
        peer: String,
        failure: Option<Failure>,
    },
    Accepted {
        connection: u64,
        endpoint: u64,
        remote: (String, u16),
    },
    /// The connection's messages go through shared memory, or why they cannot.
    SharedMemory {
        connection: u64,
        failure: Option<String>,
    },
    SendDone(u64),
    Received {
        operation: u64,
        peer: Arc<str>,
        header: Header,
        payload: Arrived,
        connection: u64,
    },
    Failed {
        operation: u64,
        failure: Failure,
    },
    Announced {
        peer: Arc<str>,
        header: Header,
    },
    /// A message of a collective, of `bytes` bytes to or from a rank of its group, failed, or another one came.
    StepFailed {
        collective: u64,
        peer: u32,
        bytes: u64,
        failure: Option<Failure>,
        header: Option<Header>,
    },
    /// The peer asks that a collective's messages to it wait, or go on.
    Hold {
        connection: u64,
        hold: Hold,
    },
    /// Nothing here touches a collective's memory any more.
    CollectiveEnded {
        collective: u64,
        complete: bool,
        bytes_done: u64,
    },
}

impl Event {
    /// The operation that ends with it.
    pub(crate) fn operation(&self) -> Option<u64> {
        match self {
            Self::SendDone(operation) | Self::Received { operation, .. } | Self::Failed { operation, .. } => {
                Some(*operation)
            }
            _ => None,
        }
    }
}

#[derive(Default)]
struct Waiting {
    events: Vec<Event>,
    /// The event thread was woken for these, or need not be.
    called: bool,
    ended: bool,
    chains: usize,
    holds: usize,
}

/// Events in the order in which they happened. Until the end pushing never blocks and never needs the GIL.
#[derive(Default)]
pub struct EventQueue {
    waiting: Mutex<Waiting>,
    some: Condvar,
    /// Takes the ends of the engine's own operations, and holds.
    own: OnceLock<Box<dyn Fn(Event) + Send + Sync>>,
}

impl EventQueue {
    /// A buffer that is to be let go of wakes nobody: what ends the operation that it was lent to mostly follows at once.
    ///
    /// False after `end`: nobody is told of it, and what it holds of Python's is let go of here.
    pub fn push(&self, event: Event) -> bool {
        if event.operation().is_some_and(|operation| operation >= OWN_OPERATION) {
            if let Some(own) = self.own.get() {
                own(event);
            }
            return true;
        }
        let mut waiting = self.lock();
        if waiting.ended {
            drop(waiting); // who has the GIL must not wait for it
            drop(event);
            return false;
        }
        waiting.chains += usize::from(matches!(event, Event::Chain { .. }));
        waiting.holds += usize::from(matches!(event, Event::Hold { .. }));
        let call = !matches!(event, Event::Release(_)) && !std::mem::replace(&mut waiting.called, true);
        waiting.events.push(event);
        drop(waiting); // who is woken takes it
        if call {
            self.some.notify_one();
        }
        true
    }

    /// Tell it to both, who carries out collectives here and Python, whose messages of collectives wait there.
    pub fn push_hold(&self, connection: u64, hold: Hold) {
        if let Some(own) = self.own.get() {
            let hold = hold.clone();
            own(Event::Hold { connection, hold });
        }
        self.push(Event::Hold { connection, hold });
    }

    /// Say who takes the ends of the engine's own operations, once; `take` does not block.
    pub fn tell_own(&self, take: impl Fn(Event) + Send + Sync + 'static) {
        assert!(
            self.own.set(Box::new(take)).is_ok(),
            "the engine's own operations are one's"
        );
    }

    /// Have delivered what waits, where nothing followed it: to be called now and then.
    pub fn flush(&self) {
        let mut waiting = self.lock();
        let call = !waiting.events.is_empty() && !std::mem::replace(&mut waiting.called, true);
        drop(waiting);
        if call {
            self.some.notify_one();
        }
    }

    /// Certificates that nobody has looked at yet.
    pub fn chains(&self) -> usize {
        self.lock().chains
    }

    /// Holds that Python has not been told yet.
    pub fn holds(&self) -> usize {
        self.lock().holds
    }

    /// No more will be delivered after what waits now.
    pub fn end(&self) {
        self.lock().ended = true;
        self.some.notify_one();
    }

    /// Wait for a batch; None when it has ended and nothing is left.
    pub(crate) fn take(&self) -> Option<Vec<Event>> {
        let mut waiting = self.lock();
        while !waiting.called && !waiting.ended {
            waiting = self.some.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        (waiting.called, waiting.chains, waiting.holds) = (false, 0, 0);
        let batch = std::mem::take(&mut waiting.events);
        (!batch.is_empty()).then_some(batch)
    }

    /// What waits, for tests without Python.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn drain(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().events)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        locked(&self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use pyo3::types::PyByteArray;

    use super::*;

    #[test]
    fn a_buffer_is_let_go_of_with_what_follows_it_or_when_the_queue_is_flushed() {
        let queue = Arc::new(EventQueue::default());
        let (told, batches) = mpsc::channel();
        let events = thread::spawn({
            let queue = queue.clone();
            move || {
                while let Some(batch) = queue.take() {
                    told.send(batch.len()).unwrap();
                }
            }
        });
        Python::initialize();
        let release = |queue: &EventQueue| {
            let lent = Python::attach(|py| PyBuffer::get(&PyByteArray::new(py, b"lent")));
            queue.push(Event::Release(lent.unwrap()));
        };
        let patience = Duration::from_secs(20);
        for _ in 0..3 {
            release(&queue);
            queue.push(Event::SendDone(1));
            assert_eq!(batches.recv_timeout(patience), Ok(2));
            release(&queue);
            assert!(batches.recv_timeout(Duration::from_millis(20)).is_err());
            queue.flush();
            queue.flush();
            assert_eq!(batches.recv_timeout(patience), Ok(1));
        }
        release(&queue);
        queue.end();
        assert_eq!(batches.recv_timeout(patience), Ok(1));
        events.join().unwrap();
    }

    #[test]
    fn what_comes_after_the_end_is_refused_and_what_it_holds_let_go_of() {
        Python::initialize();
        let queue = EventQueue::default();
        assert!(queue.push(Event::SendDone(1)));
        queue.end();
        let lent = Python::attach(|py| PyByteArray::new(py, b"lent").unbind());
        let buffer = Python::attach(|py| PyBuffer::get(lent.bind(py)).unwrap());
        assert!(Python::attach(|py| lent.bind(py).resize(5)).is_err());
        assert!(!queue.push(Event::Release(buffer)));
        Python::attach(|py| lent.bind(py).resize(5)).unwrap();
        assert!(!queue.push(Event::SendDone(2)));
        assert_eq!(queue.take().map(|batch| batch.len()), Some(1));
        assert!(queue.take().is_none());
    }

    #[test]
    fn certificates_that_nobody_has_looked_at_are_counted() {
        let queue = EventQueue::default();
        for connection in 0..3 {
            queue.push(Event::Chain {
                connection,
                certificates: Vec::new(),
            });
            queue.push(Event::SendDone(connection));
        }
        assert_eq!(queue.chains(), 3);
        assert_eq!(queue.take().map(|batch| batch.len()), Some(6));
        assert_eq!(queue.chains(), 0);
    }
}

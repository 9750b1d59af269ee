//! What the engine tells its caller: a queue, and the one thread that takes the GIL, once for each batch.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::memory::Memory;
use crate::wire::Header;

/// Why an operation or a connection ended.
#[derive(Clone, Debug)]
pub enum Failure {
    Lost {
        peer: String,
        reason: String,
    },
    Peer {
        peer: String,
        reason: String,
        code: u64,
    },
    TimedOut {
        peer: String,
        timeout_s: f64,
        bytes_done: u64,
        bytes_total: u64,
    },
    Cancelled(String),
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
        link: u64,
        certificates: Vec<Vec<u8>>,
    },
    /// The peer said hello.
    Hello {
        link: u64,
        body: Vec<u8>,
    },
    Down {
        link: u64,
        peer: String,
        failure: Option<Failure>,
    },
    Accepted {
        link: u64,
        endpoint: u64,
        remote: (String, u16),
    },
    SendDone(u64),
    Received {
        operation: u64,
        peer: Arc<str>,
        header: Header,
        payload: Arrived,
    },
    Failed {
        operation: u64,
        failure: Failure,
    },
    Announced {
        peer: Arc<str>,
        header: Header,
    },
}

#[derive(Default)]
struct Waiting {
    events: Vec<Event>,
    ended: bool,
}

/// Events in the order in which they happened. Pushing never blocks and never needs the GIL.
#[derive(Default)]
pub struct EventQueue {
    waiting: Mutex<Waiting>,
    some: Condvar,
}

impl EventQueue {
    pub fn push(&self, event: Event) {
        let mut waiting = self.lock();
        waiting.events.push(event);
        if waiting.events.len() == 1 {
            self.some.notify_one();
        }
    }

    /// No more will be delivered after what waits now.
    pub fn end(&self) {
        self.lock().ended = true;
        self.some.notify_one();
    }

    /// Wait for a batch; None when it has ended and nothing is left.
    fn take(&self) -> Option<Vec<Event>> {
        let mut waiting = self.lock();
        while waiting.events.is_empty() {
            if waiting.ended {
                return None;
            }
            waiting = self.some.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut waiting.events))
    }

    /// What waits, for tests without Python.
    #[cfg(test)]
    pub fn drain(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().events)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event thread: hand every batch to `deliver`, a callable that takes a list of tuples and does not raise.
pub fn deliver_all(queue: &EventQueue, deliver: Py<PyAny>) {
    let mut deliver = Some(deliver);
    while let Some(batch) = queue.take() {
        let attached = Python::try_attach(|py| {
            let mut told = Vec::with_capacity(batch.len());
            for event in batch {
                match tell(py, event) {
                    Ok(Some(item)) => told.push(item),
                    Ok(None) => {}
                    Err(error) => error.write_unraisable(py, None),
                }
            }
            let called = deliver.as_ref().map(|deliver| {
                let told = PyList::new(py, told)?;
                deliver.call1(py, (told,))
            });
            if let Some(Err(error)) = called {
                error.write_unraisable(py, None);
            }
        });
        if attached.is_none() {
            // The interpreter is going away: nobody listens any more, and what is Python's must not be touched.
            std::mem::forget(deliver.take());
            return;
        }
    }
    if Python::try_attach(|_| drop(deliver.take())).is_none() {
        std::mem::forget(deliver);
    }
}

/// An event as a tuple whose first item says what it is.
fn tell(py: Python<'_>, event: Event) -> PyResult<Option<Bound<'_, PyTuple>>> {
    let told = match event {
        Event::Release(buffer) => {
            drop(buffer);
            return Ok(None);
        }
        Event::Echo(object) => ("echo", object).into_pyobject(py)?,
        Event::Chain { link, certificates } => {
            let certificates: Vec<_> = certificates.iter().map(|one| PyBytes::new(py, one)).collect();
            ("chain", link, certificates).into_pyobject(py)?
        }
        Event::Hello { link, body } => ("hello", link, PyBytes::new(py, &body)).into_pyobject(py)?,
        Event::Down { link, peer, failure } => {
            let failure = failure.map(|failure| tell_failure(py, failure)).transpose()?;
            ("down", link, peer, failure).into_pyobject(py)?
        }
        Event::Accepted { link, endpoint, remote } => ("accepted", link, endpoint, remote).into_pyobject(py)?,
        Event::SendDone(operation) => ("sent", operation).into_pyobject(py)?,
        Event::Received {
            operation,
            peer,
            header,
            payload,
        } => {
            let payload = match payload {
                Arrived::Posted => None,
                Arrived::Own(bytes) => Some(Memory::view(py, bytes)?),
            };
            let header = tell_header(py, header)?;
            ("received", operation, &*peer, header, payload).into_pyobject(py)?
        }
        Event::Failed { operation, failure } => ("failed", operation, tell_failure(py, failure)?).into_pyobject(py)?,
        Event::Announced { peer, header } => ("announced", &*peer, tell_header(py, header)?).into_pyobject(py)?,
    };
    Ok(Some(told))
}

fn tell_failure(py: Python<'_>, failure: Failure) -> PyResult<Bound<'_, PyTuple>> {
    match failure {
        Failure::Lost { peer, reason } => ("lost", peer, reason).into_pyobject(py),
        Failure::Peer { peer, reason, code } => ("peer", peer, reason, code).into_pyobject(py),
        Failure::TimedOut {
            peer,
            timeout_s,
            bytes_done,
            bytes_total,
        } => ("timed-out", peer, timeout_s, bytes_done, bytes_total).into_pyobject(py),
        Failure::Cancelled(reason) => ("cancelled", reason).into_pyobject(py),
    }
}

/// A header's fields in the order of `transport.wire.header.Header`; the first is the kind's number.
fn tell_header(py: Python<'_>, header: Header) -> PyResult<Bound<'_, PyTuple>> {
    let key = header.key;
    let fields: [Bound<'_, PyAny>; 15] = [
        key.kind.into_pyobject(py)?.into_any(),
        header.job.into_pyobject(py)?.into_any(),
        key.group.into_pyobject(py)?.into_any(),
        key.epoch.into_pyobject(py)?.into_any(),
        key.step.into_pyobject(py)?.into_any(),
        key.bucket.into_pyobject(py)?.into_any(),
        key.attempt.into_pyobject(py)?.into_any(),
        key.tag.into_pyobject(py)?.into_any(),
        header.dtype.into_pyobject(py)?.into_any(),
        PyTuple::new(py, header.shape)?.into_any(),
        0u8.into_pyobject(py)?.into_any(), // codec: others than raw are refused
        header.length.into_pyobject(py)?.into_any(),
        header.weight.into_pyobject(py)?.into_any(),
        PyBytes::new(py, &header.contributors).into_any(),
        header.call.into_pyobject(py)?.into_any(),
    ];
    PyTuple::new(py, fields)
}

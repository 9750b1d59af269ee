//! What the engine tells its caller: a queue, and the one thread that takes the GIL, once for each batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::guard::{locked, words_of};
use crate::memory::Memory;
use crate::wire::{self, Header, Key};

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
        link: u64,
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

impl Event {
    /// The operation that ends with it.
    fn operation(&self) -> Option<u64> {
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
}

/// Events in the order in which they happened. Until the end pushing never blocks and never needs the GIL.
#[derive(Default)]
pub struct EventQueue {
    waiting: Mutex<Waiting>,
    some: Condvar,
    #[cfg(feature = "faults")]
    faults: crate::faults::Faults,
}

impl EventQueue {
    /// A buffer that is to be let go of wakes nobody: what ends the operation that it was lent to mostly follows at once.
    ///
    /// False after `end`: nobody is told of it, and what it holds of Python's is let go of here.
    pub fn push(&self, event: Event) -> bool {
        let mut waiting = self.lock();
        if waiting.ended {
            drop(waiting); // who has the GIL must not wait for it
            drop(event);
            return false;
        }
        waiting.chains += usize::from(matches!(event, Event::Chain { .. }));
        let call = !matches!(event, Event::Release(_)) && !std::mem::replace(&mut waiting.called, true);
        waiting.events.push(event);
        drop(waiting); // who is woken takes it
        if call {
            self.some.notify_one();
        }
        true
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

    /// No more will be delivered after what waits now.
    pub fn end(&self) {
        self.lock().ended = true;
        self.some.notify_one();
    }

    /// Wait for a batch; None when it has ended and nothing is left.
    fn take(&self) -> Option<Vec<Event>> {
        let mut waiting = self.lock();
        while !waiting.called && !waiting.ended {
            waiting = self.some.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        (waiting.called, waiting.chains) = (false, 0);
        let batch = std::mem::take(&mut waiting.events);
        (!batch.is_empty()).then_some(batch)
    }

    /// Where tests may have asked for a panic; nothing in an ordinary build.
    pub fn fault(&self, place: &'static str) {
        #[cfg(feature = "faults")]
        self.faults.here(place);
        let _ = place;
    }

    /// Have the engine panic when it next comes to a place.
    #[cfg(feature = "faults")]
    pub fn ask_for_fault(&self, place: String) {
        self.faults.ask(place);
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

/// The event thread: hand every batch to `deliver`, a callable that takes a list of tuples and does not raise.
///
/// `broke`: something failed here, and the engine has to end. Whatever fails, this thread goes on, for nobody else tells
/// how things end.
pub fn deliver_all(queue: &EventQueue, deliver: Py<PyAny>, broke: impl Fn(&str)) {
    let mut deliver = Some(deliver);
    // Python keeps the state of a thread as long as one of these is not released. Without, every batch would make one: its
    // stack is mapped and unmapped, which stops the other threads for a moment.
    // SAFETY: the interpreter is there while this thread is attached. What this counts is given back below, and keeps
    // only the state of this thread: between batches it is not attached, and holds nobody up.
    let kept = Python::try_attach(|_| unsafe { ffi::PyGILState_Ensure() });
    while let Some(batch) = queue.take() {
        let attached = Python::try_attach(|py| {
            let delivered = catch_unwind(AssertUnwindSafe(|| deliver_batch(py, queue, batch, deliver.as_ref())));
            delivered.unwrap_or_else(|panic| Err(words_of(&*panic)))
        });
        match attached {
            Some(Ok(())) => {}
            Some(Err(why)) => broke(&why),
            None => {
                // The interpreter is going away, with this thread's state: nobody listens any more, and what is Python's
                // must not be touched. Buffers and objects of the batch notice that by themselves.
                std::mem::forget(deliver.take());
                return;
            }
        }
    }
    let released = Python::try_attach(|_| {
        drop(deliver.take());
        if let Some(kept) = kept {
            // SAFETY: it is this thread's, was taken while attached, and is released once, while attached.
            unsafe { ffi::PyGILState_Release(kept) };
        }
    });
    if released.is_none() {
        std::mem::forget(deliver);
    }
}

/// Hand over one batch. An event that cannot be told fails its operation; where it has none, or something panicked, the
/// error says why the engine has to end.
fn deliver_batch(
    py: Python<'_>,
    queue: &EventQueue,
    batch: Vec<Event>,
    deliver: Option<&Py<PyAny>>,
) -> Result<(), String> {
    let mut outcome = Ok(());
    let mut told = Vec::with_capacity(batch.len());
    for event in batch {
        let operation = event.operation();
        let item = catch_unwind(AssertUnwindSafe(|| {
            queue.fault("tell");
            tell(py, event)
        }));
        let why = match item {
            Ok(Ok(item)) => {
                told.extend(item);
                continue;
            }
            Ok(Err(error)) => {
                let why = error.to_string();
                if operation.is_none() {
                    outcome = Err(why.clone());
                }
                why
            }
            Err(panic) => {
                let why = words_of(&*panic);
                outcome = Err(why.clone());
                why
            }
        };
        if let Some(operation) = operation {
            let failure = Failure::Lost {
                peer: "everybody".to_owned(),
                reason: format!("its end could not be told: {why}"),
            };
            match tell(py, Event::Failed { operation, failure }) {
                Ok(item) => told.extend(item),
                Err(error) => outcome = Err(error.to_string()),
            }
        }
    }
    if let Some(deliver) = deliver {
        let called = PyList::new(py, told).and_then(|told| deliver.call1(py, (told,)));
        if let Err(error) = called {
            outcome = Err(error.to_string());
            error.write_unraisable(py, None);
        }
    }
    outcome
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
            link,
        } => {
            let payload = match payload {
                Arrived::Posted => None,
                Arrived::Own(bytes) => Some(Memory::view(py, bytes)?),
            };
            let header = tell_header(py, header)?;
            ("received", operation, &*peer, header, payload, link).into_pyobject(py)?
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

/// Write a `transport.wire.header.Header` as a stream begins with one; None where Python's own writer has to.
#[pyfunction]
pub fn write_header<'py>(py: Python<'py>, header: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let header = hear_header(header).ok()??;
    wire::encode_header(&header).map(|written| PyBytes::new(py, &written))
}

/// None where it says something that this engine's headers have no field for.
fn hear_header(header: &Bound<'_, PyAny>) -> PyResult<Option<Header>> {
    let py = header.py();
    let key = Key {
        kind: header.getattr(intern!(py, "kind"))?.extract()?,
        group: header.getattr(intern!(py, "group"))?.extract()?,
        step: header.getattr(intern!(py, "step"))?.extract()?,
        bucket: header.getattr(intern!(py, "bucket"))?.extract()?,
        attempt: header.getattr(intern!(py, "attempt"))?.extract()?,
        epoch: header.getattr(intern!(py, "epoch"))?.extract()?,
        tag: header.getattr(intern!(py, "tag"))?.extract()?,
    };
    let codec: u64 = header.getattr(intern!(py, "codec"))?.extract()?;
    let header = Header {
        key,
        job: header.getattr(intern!(py, "job"))?.extract()?,
        dtype: header.getattr(intern!(py, "dtype"))?.extract()?,
        shape: header.getattr(intern!(py, "shape"))?.extract()?,
        length: header.getattr(intern!(py, "length"))?.extract()?,
        weight: header.getattr(intern!(py, "weight"))?.extract()?,
        contributors: header.getattr(intern!(py, "contributors"))?.extract()?,
        call: header.getattr(intern!(py, "call"))?.extract()?,
    };
    Ok((codec == 0).then_some(header))
}

/// Read a header as a stream begins with one, for tests that hold this reader against the one in Python.
///
/// Gives None while bytes are missing, (fields, where the payload begins), or (code, reason) where it is refused.
#[pyfunction]
pub fn read_header<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let read = wire::split_header(data).and_then(|found| {
        let Some((start, end)) = found else {
            return Ok(None);
        };
        Ok(Some((wire::decode_header(&data[start..end])?, end)))
    });
    match read {
        Ok(None) => Ok(None),
        Ok(Some((header, end))) => Ok(Some((tell_header(py, header)?, end).into_pyobject(py)?)),
        Err(violation) => Ok(Some((violation.code as u64, violation.reason).into_pyobject(py)?)),
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
        for link in 0..3 {
            queue.push(Event::Chain {
                link,
                certificates: Vec::new(),
            });
            queue.push(Event::SendDone(link));
        }
        assert_eq!(queue.chains(), 3);
        assert_eq!(queue.take().map(|batch| batch.len()), Some(6));
        assert_eq!(queue.chains(), 0);
    }
}

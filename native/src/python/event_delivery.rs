//! The event thread: the one thread that takes the GIL, once for each batch of events.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::header_tuples::tell_header;
use super::received_buffer::Memory;
use crate::events::{Arrived, Event, EventQueue, Failure};
use crate::runtime::fault_injection::Faults;
use crate::runtime::locks::words_of;

/// The event thread: hand every batch to `deliver`, a callable that takes a list of tuples and does not raise.
///
/// `broke`: something failed here, and the engine has to end. Whatever fails, this thread goes on, for nobody else tells
/// how things end.
pub fn deliver_all(queue: &EventQueue, faults: &Faults, deliver: Py<PyAny>, broke: impl Fn(&str)) {
    let mut deliver = Some(deliver);
    // Python keeps the state of a thread as long as one of these is not released. Without, every batch would make one: its
    // stack is mapped and unmapped, which stops the other threads for a moment.
    // SAFETY: the interpreter is there while this thread is attached. What this counts is given back below, and keeps
    // only the state of this thread: between batches it is not attached, and holds nobody up.
    let kept = Python::try_attach(|_| unsafe { ffi::PyGILState_Ensure() });
    while let Some(batch) = queue.take() {
        let attached = Python::try_attach(|py| {
            let delivered = catch_unwind(AssertUnwindSafe(|| deliver_batch(py, faults, batch, deliver.as_ref())));
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
    faults: &Faults,
    batch: Vec<Event>,
    deliver: Option<&Py<PyAny>>,
) -> Result<(), String> {
    let mut outcome = Ok(());
    let mut told = Vec::with_capacity(batch.len());
    for event in batch {
        let operation = event.operation();
        let item = catch_unwind(AssertUnwindSafe(|| {
            faults.here("tell");
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
        Event::Chain {
            connection,
            certificates,
        } => {
            let certificates: Vec<_> = certificates.iter().map(|one| PyBytes::new(py, one)).collect();
            ("chain", connection, certificates).into_pyobject(py)?
        }
        Event::Hello { connection, body } => ("hello", connection, PyBytes::new(py, &body)).into_pyobject(py)?,
        Event::Down {
            connection,
            peer,
            failure,
        } => {
            let failure = failure.map(|failure| tell_failure(py, failure)).transpose()?;
            ("down", connection, peer, failure).into_pyobject(py)?
        }
        Event::Accepted {
            connection,
            endpoint,
            remote,
        } => ("accepted", connection, endpoint, remote).into_pyobject(py)?,
        Event::SharedMemory { connection, failure } => ("shared-memory", connection, failure).into_pyobject(py)?,
        Event::SendDone(operation) => ("sent", operation).into_pyobject(py)?,
        Event::Received {
            operation,
            peer,
            header,
            payload,
            connection,
        } => {
            let payload = match payload {
                Arrived::Posted => None,
                Arrived::Own(bytes) => Some(Memory::view(py, bytes)?),
            };
            let header = tell_header(py, header)?;
            ("received", operation, &*peer, header, payload, connection).into_pyobject(py)?
        }
        Event::Failed { operation, failure } => ("failed", operation, tell_failure(py, failure)?).into_pyobject(py)?,
        Event::Announced { peer, header } => ("announced", &*peer, tell_header(py, header)?).into_pyobject(py)?,
        Event::StepFailed {
            collective,
            peer,
            bytes,
            failure,
            header,
        } => {
            let failure = failure.map(|failure| tell_failure(py, failure)).transpose()?;
            let header = header.map(|header| tell_header(py, header)).transpose()?;
            ("step-failed", collective, peer, bytes, failure, header).into_pyobject(py)?
        }
        Event::Hold { connection, hold } => {
            ("hold", connection, hold.group, hold.step, hold.waits).into_pyobject(py)?
        }
        Event::CollectiveEnded {
            collective,
            complete,
            bytes_done,
        } => ("collective", collective, complete, bytes_done).into_pyobject(py)?,
    };
    Ok(Some(told))
}

fn tell_failure(py: Python<'_>, failure: Failure) -> PyResult<Bound<'_, PyTuple>> {
    match failure {
        Failure::Lost { peer, reason } => ("lost", peer, reason).into_pyobject(py),
        Failure::Silent { peer, reason } => ("silent", peer, reason).into_pyobject(py),
        Failure::Gone { peer, reason } => ("gone", peer, reason).into_pyobject(py),
        Failure::Peer { peer, reason, code } => ("peer", peer, reason, code).into_pyobject(py),
        Failure::Cancelled(reason) | Failure::Discarded(reason) => ("cancelled", reason).into_pyobject(py),
    }
}

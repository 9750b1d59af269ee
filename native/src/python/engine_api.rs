//! The engine as Python calls it: plain arguments, checked in `transport/engine/native.py`; nothing here waits for the network.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::collective_api::CollectiveApi;
use super::event_delivery::deliver_all;
use crate::borrowed_buffers::{Payload, Posted};
use crate::collective::in_flight;
use crate::events::{Event, EventQueue};
use crate::matching::queues::Post;
use crate::quic::tls::Identity;
use crate::runtime::locks::locked;
use crate::runtime::thread::Thread;
use crate::session::context::Registry;
use crate::session::engine::Engine;
use crate::session::memory_sharing;
use crate::session::tick;
use crate::session::transmit::Message;
use crate::settings::Settings;
use crate::wire::Key;

#[pyclass(module = "hive_qos_native", frozen)]
pub struct Core {
    engine: Arc<Engine>,
    meeting_place: Option<String>,
    collectives: Py<CollectiveApi>,
    process: u32,
    running: Mutex<Option<Running>>,
}

/// The threads, until they are joined.
struct Running {
    /// One for each endpoint; the first also does what belongs to none.
    threads: Vec<Thread>,
    endpoints: usize,
    events: JoinHandle<()>,
}

impl Drop for Core {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            if std::process::id() == self.process {
                for thread in running.threads {
                    thread.end();
                }
            } else {
                std::mem::forget(running); // a forked child has none of these threads
            }
        }
    }
}

#[pymethods]
impl Core {
    /// Start an engine. `deliver` is called with lists of tuples, from one thread of the engine's own.
    #[new]
    #[pyo3(signature = (*, deliver, unexpected_bytes_max, message_bytes_max, streams_max, keep_alive_s, dead_after_s,
                        handshake_timeout_s, datagram_bytes, congestion, protocol, shared_memory))]
    #[expect(clippy::too_many_arguments, reason = "the settings, each by its name")]
    fn new(
        py: Python<'_>,
        deliver: Py<PyAny>,
        unexpected_bytes_max: u64,
        message_bytes_max: u64,
        streams_max: u32,
        keep_alive_s: f64,
        dead_after_s: f64,
        handshake_timeout_s: f64,
        datagram_bytes: u16,
        congestion: String,
        protocol: String,
        shared_memory: bool,
    ) -> PyResult<Self> {
        let settings = Settings {
            unexpected_bytes_max,
            message_bytes_max,
            streams_max,
            keep_alive: seconds(keep_alive_s)?,
            dead_after: seconds(dead_after_s)?,
            handshake_timeout: seconds(handshake_timeout_s)?,
            datagram_bytes,
            congestion,
            protocol,
            shared_memory,
        };
        let queue = Arc::new(EventQueue::default());
        let (engine, first) = Engine::start(settings, queue.clone()).map_err(os_error)?;
        tick::begin(&engine);
        let meeting_place = memory_sharing::begin(&engine);
        let faults = engine.context.faults.clone();
        let collectives = CollectiveApi {
            collectives: in_flight::begin(&engine),
            events: queue.clone(),
        };
        let collectives = Py::new(py, collectives)?;
        let events = thread::Builder::new().name("hive-events".to_owned()).spawn({
            let engine = Arc::downgrade(&engine);
            move || {
                let broke = |why: &str| {
                    if let Some(engine) = engine.upgrade() {
                        engine.broke(why);
                    }
                };
                deliver_all(&queue, &faults, deliver, broke);
            }
        })?;
        Ok(Self {
            engine,
            meeting_place,
            collectives,
            process: std::process::id(),
            running: Mutex::new(Some(Running {
                threads: vec![first],
                endpoints: 0,
                events,
            })),
        })
    }

    #[getter]
    fn collectives(&self, py: Python<'_>) -> Py<CollectiveApi> {
        self.collectives.clone_ref(py)
    }

    /// Where peers of this host ask for shared memory; None where there is none.
    #[getter]
    fn meeting_place(&self) -> Option<&str> {
        self.meeting_place.as_deref()
    }

    #[getter]
    fn over(&self) -> bool {
        self.engine.over()
    }

    /// A number for a connection that is going to be dialled.
    fn number(&self) -> u64 {
        self.engine.number()
    }

    /// Have an object delivered in its place among the events. False after the end: as of all that returns whether, what
    /// is not taken has no event.
    fn echo(&self, object: Py<PyAny>) -> bool {
        self.engine.context.events.push(Event::Echo(object))
    }

    /// Serve a UDP socket; the caller keeps it open until `close` has returned. Whether it is taken: not after that.
    #[expect(clippy::too_many_arguments, reason = "what an endpoint is, each by its name")]
    fn add_endpoint(
        &self,
        py: Python<'_>,
        number: u64,
        descriptor: RawFd,
        certificates: Vec<Vec<u8>>,
        key: Vec<u8>,
        hello: Vec<u8>,
        bulk: bool,
    ) -> PyResult<bool> {
        let identity =
            Identity::new(certificates, key, &self.engine.context.settings.protocol).map_err(PyValueError::new_err)?;
        let taken = py.detach(|| -> std::io::Result<bool> {
            let mut running = locked(&self.running);
            let Some(running) = running.as_mut() else {
                return Ok(false); // closed meanwhile
            };
            if running.endpoints == running.threads.len() {
                running.threads.push(Thread::start()?);
            }
            let thread = &running.threads[running.endpoints];
            // SAFETY: the Python side holds the socket object until `close` has returned, which lets go of the socket.
            unsafe {
                self.engine
                    .add_endpoint(thread, number, descriptor, identity, hello.into(), bulk)
            }?;
            running.endpoints += 1; // not before: the thread of one that is refused is the next one's
            Ok(true)
        });
        taken.map_err(os_error)
    }

    /// Go on with another UDP socket; the caller keeps both open until `close` has returned. Whether it is taken: not after
    /// that.
    ///
    /// `moving`: connections that live on at the new address; their path is a new one.
    fn rebind(&self, py: Python<'_>, endpoint: u64, descriptor: RawFd, moving: Vec<u64>) -> PyResult<bool> {
        let taken = py.detach(|| -> std::io::Result<bool> {
            // Held, so that `close` does not return while the socket is being taken.
            let running = locked(&self.running);
            if running.is_none() {
                return Ok(false); // closed meanwhile
            }
            // SAFETY: the Python side holds the socket object until `close` has returned.
            unsafe { self.engine.rebind(endpoint, descriptor, &moving) }
        })?;
        Ok(taken)
    }

    /// Dial; ends in "chain" or "down" with this number. Whether it is taken.
    #[pyo3(signature = (endpoint, number, host, port, scope, expected))]
    #[expect(clippy::too_many_arguments, reason = "an address has three parts")]
    fn connect(
        &self,
        py: Python<'_>,
        endpoint: u64,
        number: u64,
        host: &str,
        port: u16,
        scope: u32,
        expected: Option<&str>,
    ) -> PyResult<bool> {
        let remote = address(host, port, scope)?;
        Ok(py.detach(|| self.engine.connect(endpoint, number, remote, expected)))
    }

    /// The peer's certificate is good.
    fn verified(&self, py: Python<'_>, number: u64, peer: &str) {
        py.detach(|| {
            if let Some(session) = self.engine.session(number) {
                session.verified(peer);
            }
        });
    }

    /// The peer's hello is good: messages may go. False where the connection has ended.
    ///
    /// `dead_after_s`: patience with this peer, where it is not the engine's. `meeting_place`: the peer's, where it has one.
    #[pyo3(signature = (number, account, job, message_bytes_max, dead_after_s, meeting_place))]
    #[expect(clippy::too_many_arguments, reason = "what a hello says")]
    fn begin(
        &self,
        py: Python<'_>,
        number: u64,
        account: String,
        job: String,
        message_bytes_max: u64,
        dead_after_s: Option<f64>,
        meeting_place: Option<String>,
    ) -> PyResult<bool> {
        let dead_after = dead_after_s.map(seconds).transpose()?;
        Ok(py.detach(|| {
            let Some(session) = self.engine.session(number) else {
                return false;
            };
            let begun = session.begin(account, job, message_bytes_max, dead_after);
            if let Some(name) = meeting_place.filter(|_| begun) {
                memory_sharing::meet(&session, name);
            }
            begun
        }))
    }

    /// The peer broke the protocol, or is not who it should be.
    fn refuse(&self, py: Python<'_>, number: u64, code: u64, reason: String) {
        py.detach(|| {
            if let Some(session) = self.engine.session(number) {
                session.refuse(code, reason);
            }
        });
    }

    /// Whether it is taken.
    #[pyo3(signature = (operation, connection, header, payload, level))]
    fn send(
        &self,
        py: Python<'_>,
        operation: u64,
        connection: u64,
        header: Vec<u8>,
        payload: Option<PyBuffer<u8>>,
        level: usize,
    ) -> bool {
        let message = Message {
            operation,
            header: Bytes::from(header),
            payload: payload.map(|buffer| Payload::new(buffer, self.engine.context.events.clone())),
            level,
        };
        py.detach(|| self.engine.send(connection, message))
    }

    /// `key` is kind, group, step, bucket, tag. Whether it is taken.
    #[pyo3(signature = (operation, peer, key, buffer))]
    fn post(
        &self,
        py: Python<'_>,
        operation: u64,
        peer: &str,
        key: (u8, String, u64, u64, u64),
        buffer: Option<PyBuffer<u8>>,
    ) -> bool {
        let (kind, group, step, bucket, tag) = key;
        let post = Post {
            operation,
            key: Key {
                kind,
                group,
                step,
                bucket,
                tag,
            },
            buffer: buffer.map(|buffer| Posted::new(buffer, self.engine.context.events.clone())),
        };
        py.detach(|| self.engine.context.matcher.post(peer, post))
    }

    fn cancel(&self, py: Python<'_>, operation: u64) {
        py.detach(|| self.engine.cancel(operation));
    }

    fn discard(&self, py: Python<'_>, group: &str, before_step: u64) {
        py.detach(|| self.engine.context.matcher.discard(group, before_step));
    }

    /// Memory that waiting messages of a peer take.
    fn held(&self, py: Python<'_>, peer: &str) -> u64 {
        py.detach(|| self.engine.context.matcher.held(peer))
    }

    /// A tuple for each connection, its number first, then the fields of `ConnectionStatistics` in their order.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let snapshot = self.engine.statistics();
        let mut told = Vec::with_capacity(snapshot.len());
        for one in snapshot.iter() {
            let measured = &one.measured;
            let fields: [Bound<'py, PyAny>; 18] = [
                one.number.into_pyobject(py)?.into_any(),
                (&*one.peer).into_pyobject(py)?.into_any(),
                (one.remote.ip().to_string(), one.remote.port())
                    .into_pyobject(py)?
                    .into_any(),
                one.bulk.into_pyobject(py)?.to_owned().into_any(),
                one.rtt.as_secs_f64().into_pyobject(py)?.into_any(),
                measured.rtt_min.as_secs_f64().into_pyobject(py)?.into_any(),
                measured.rtt_latest.as_secs_f64().into_pyobject(py)?.into_any(),
                measured.window.into_pyobject(py)?.into_any(),
                one.sent_bytes.into_pyobject(py)?.into_any(),
                one.received_bytes.into_pyobject(py)?.into_any(),
                measured.delivered.into_pyobject(py)?.into_any(),
                one.lost_packets.into_pyobject(py)?.into_any(),
                one.sent_packets.into_pyobject(py)?.into_any(),
                measured.rate_bits_per_s.into_pyobject(py)?.into_any(),
                measured.application_limited.into_pyobject(py)?.to_owned().into_any(),
                one.path_mtu_bytes.into_pyobject(py)?.into_any(),
                one.shared_sent_bytes.into_pyobject(py)?.into_any(),
                one.shared_received_bytes.into_pyobject(py)?.into_any(),
            ];
            told.push(PyTuple::new(py, fields)?);
        }
        Ok(told)
    }

    fn disconnect(&self, py: Python<'_>, number: u64, code: u64, reason: &str) {
        py.detach(|| {
            if let Some(session) = self.engine.session(number) {
                session.disconnect(code, reason);
            }
        });
    }

    /// Panic at the next visit to a place (`Faults::here`): only in the builds that test it.
    #[cfg(feature = "faults")]
    fn fault(&self, place: String) {
        self.engine.context.faults.ask(place);
    }

    /// End everything because something of the caller's own broke.
    fn broke(&self, py: Python<'_>, what: &str) {
        py.detach(|| self.engine.broke(what));
    }

    /// Say goodbye, fail what is open, deliver what is left, end the threads.
    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let timeout = seconds(timeout_s.max(0.0))?;
        py.detach(|| {
            // Who calls this a second time waits here until the threads of the network have ended: the sockets are closed
            // after it. They never wait for the event thread, which may be that one.
            let mut running = locked(&self.running);
            let Some(Running { threads, events, .. }) = running.take() else {
                return Ok(());
            };
            let (finished, done) = mpsc::channel();
            let engine = self.engine.clone();
            self.engine.spawn(async move {
                engine.finish().await;
                let _ = finished.send(()); // nobody may wait any more
            });
            let _ = done.recv_timeout(timeout); // what takes longer is cut off: everything has been told to end
            let ending: Vec<_> = threads.into_iter().map(Thread::end).collect();
            let failed = ending.into_iter().filter_map(|thread| thread.join().err()).count();
            self.engine.let_go();
            drop(running);
            self.engine.context.events.end();
            if thread::current().id() != events.thread().id() {
                events
                    .join()
                    .map_err(|_| PyRuntimeError::new_err("the event thread failed"))?;
            }
            if failed > 0 {
                return Err(PyRuntimeError::new_err("a thread of the network failed"));
            }
            Ok(())
        })
    }
}

/// With its number, which PyO3 leaves out.
fn os_error(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => error.into(),
    }
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(format!("{value} s: {error}")))
}

fn address(host: &str, port: u16, scope: u32) -> PyResult<SocketAddr> {
    let host: IpAddr = host
        .parse()
        .map_err(|_| PyValueError::new_err(format!("{host:?} is not a literal address")))?;
    Ok(match host {
        IpAddr::V4(_) => SocketAddr::new(host, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

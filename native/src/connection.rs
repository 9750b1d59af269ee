//! A connection and its streams as tasks use them. The protocol is quinn-proto's; its packets are moved by the driver of
//! the endpoint (`endpoint`), on the one thread that all tasks of the connection run on.
//!
//! A task that changes what is to be sent marks the connection as touched, and the driver looks at it when the tasks that
//! were ready have run: what several of them did goes into the same packets.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{
    self as proto, ConnectionError, ConnectionEvent, ConnectionHandle, ConnectionStats, Dir, EndpointEvent,
    StreamEvent, StreamId, VarInt, Written,
};
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;

use crate::measure::Rate;

/// The connections of an endpoint that the driver has to look at.
#[derive(Default)]
pub struct Touched {
    list: Mutex<(Vec<ConnectionHandle>, Option<Waker>)>,
}

impl Touched {
    fn add(&self, handle: ConnectionHandle) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.0.push(handle);
        if let Some(driver) = &list.1 {
            driver.wake_by_ref();
        }
    }

    /// Wake the driver though no connection is touched.
    pub fn wake(&self) {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &list.1 {
            driver.wake_by_ref();
        }
    }

    /// Move what there is to the end of `into`; `driver` is woken when there is more.
    pub fn take(&self, driver: &Waker, into: &mut Vec<ConnectionHandle>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        into.append(&mut list.0);
        if !list.1.as_ref().is_some_and(|known| known.will_wake(driver)) {
            list.1 = Some(driver.clone());
        }
    }
}

/// A connection, shared by its tasks and the driver.
#[derive(Clone)]
pub struct Connection(Arc<Shared>);

struct Shared {
    handle: ConnectionHandle,
    touched: Arc<Touched>,
    state: Mutex<State>,
    /// It is up, or it has ended.
    changed: Notify,
    opened: Notify,
    allowed: Notify,
}

/// What the driver and the tasks share.
pub struct State {
    pub inner: proto::Connection,
    pub rate: Arc<Rate>,
    /// The driver knows that it has to look at this connection.
    pub listed: bool,
    /// It is in the driver's queue for sending.
    pub due: bool,
    /// When it wants to be looked at, as the driver knows it.
    pub deadline: Option<Instant>,
    established: bool,
    error: Option<ConnectionError>,
    writers: HashMap<StreamId, Waker>,
    readers: HashMap<StreamId, Waker>,
}

impl State {
    /// It has ended, and its tasks have not been told.
    pub fn broke(&self) -> bool {
        self.inner.is_closed() && self.error.is_none()
    }
}

impl Connection {
    pub fn new(handle: ConnectionHandle, inner: proto::Connection, rate: Arc<Rate>, touched: Arc<Touched>) -> Self {
        let state = State {
            inner,
            rate,
            listed: true,
            due: false,
            deadline: None,
            established: false,
            error: None,
            writers: HashMap::new(),
            readers: HashMap::new(),
        };
        touched.add(handle);
        Self(Arc::new(Shared {
            handle,
            touched,
            state: Mutex::new(state),
            changed: Notify::new(),
            opened: Notify::new(),
            allowed: Notify::new(),
        }))
    }

    /// For the driver; tasks have the methods below.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have the driver look at this connection.
    fn touch(&self, state: &mut State) {
        if !std::mem::replace(&mut state.listed, true) {
            self.0.touched.add(self.0.handle);
        }
    }

    /// Have the driver look whether something may be sent now.
    pub fn nudge(&self) {
        let mut state = self.lock();
        self.touch(&mut state);
    }

    /// This side has another address: say something from there.
    pub fn move_on(&self) {
        let mut state = self.lock();
        state.inner.local_address_changed();
        self.touch(&mut state);
    }

    /// Change the keys now; nothing happens while a change is under way.
    pub fn update_keys(&self) {
        let mut state = self.lock();
        state.inner.force_key_update();
        self.touch(&mut state);
    }

    /// Wake who waits for what has happened. `handle` answers what the connection tells its endpoint; it says whether
    /// this connection is gone for good. Whether somebody was woken.
    pub fn settle(&self, state: &mut State, mut handle: impl FnMut(EndpointEvent) -> Option<ConnectionEvent>) -> bool {
        while let Some(event) = state.inner.poll_endpoint_events() {
            if let Some(answer) = handle(event) {
                state.inner.handle_event(answer);
            }
        }
        let mut woken = false;
        while let Some(event) = state.inner.poll() {
            woken = true;
            match event {
                proto::Event::Connected => {
                    state.established = true;
                    self.0.changed.notify_waiters();
                }
                proto::Event::ConnectionLost { reason } => self.end(state, reason),
                proto::Event::Stream(event) => match event {
                    StreamEvent::Opened { .. } => self.0.opened.notify_waiters(),
                    StreamEvent::Available { .. } => self.0.allowed.notify_waiters(),
                    StreamEvent::Readable { id } => wake(&mut state.readers, id),
                    StreamEvent::Writable { id } | StreamEvent::Finished { id } | StreamEvent::Stopped { id, .. } => {
                        wake(&mut state.writers, id)
                    }
                },
                proto::Event::HandshakeDataReady
                | proto::Event::DatagramReceived
                | proto::Event::DatagramsUnblocked => {}
            }
        }
        woken
    }

    fn end(&self, state: &mut State, reason: ConnectionError) {
        state.error = Some(reason);
        for waker in state
            .writers
            .drain()
            .chain(state.readers.drain())
            .map(|(_, waker)| waker)
        {
            waker.wake();
        }
        self.0.changed.notify_waiters();
        self.0.opened.notify_waiters();
        self.0.allowed.notify_waiters();
    }

    /// Wait until the handshake is complete.
    pub async fn established(&self) -> Result<(), ConnectionError> {
        loop {
            let changed = self.0.changed.notified(); // hears of what happens from here on
            {
                let state = self.lock();
                if let Some(error) = &state.error {
                    return Err(error.clone());
                }
                if state.established {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Wait until it has ended, and tell why.
    pub async fn closed(&self) -> ConnectionError {
        loop {
            let changed = self.0.changed.notified();
            if let Some(error) = self.close_reason() {
                return error;
            }
            changed.await;
        }
    }

    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.lock().error.clone()
    }

    /// Close it now; the peer is told why.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let mut state = self.lock();
        if state.error.is_some() {
            return;
        }
        state.inner.close(Instant::now(), code, Bytes::copy_from_slice(reason));
        self.end(&mut state, ConnectionError::LocallyClosed);
        self.touch(&mut state);
    }

    /// Open a stream to send on, when the peer allows one.
    pub async fn open_uni(&self) -> Result<SendStream, ConnectionError> {
        loop {
            let allowed = self.0.allowed.notified();
            {
                let mut state = self.lock();
                if let Some(error) = &state.error {
                    return Err(error.clone());
                }
                if let Some(id) = state.inner.streams().open(Dir::Uni) {
                    return Ok(SendStream {
                        connection: self.clone(),
                        id,
                    });
                }
            }
            allowed.await;
        }
    }

    /// Take the next stream that the peer has opened. Those that came before the end are given out after it.
    pub async fn accept_uni(&self) -> Result<RecvStream, ConnectionError> {
        loop {
            let opened = self.0.opened.notified();
            {
                let mut state = self.lock();
                if let Some(id) = state.inner.streams().accept(Dir::Uni) {
                    self.touch(&mut state); // there may be credit for another stream to give
                    return Ok(RecvStream {
                        connection: self.clone(),
                        id,
                        over: false,
                        reset: None,
                    });
                }
                if let Some(error) = &state.error {
                    return Err(error.clone());
                }
            }
            opened.await;
        }
    }

    pub fn stats(&self) -> ConnectionStats {
        self.lock().inner.stats()
    }

    pub fn remote_address(&self) -> SocketAddr {
        self.lock().inner.remote_address()
    }

    /// The certificates that the peer showed, its own first.
    pub fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        let identity = self.lock().inner.crypto_session().peer_identity();
        let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        chain.map_or_else(Vec::new, |chain| *chain)
    }

    pub fn set_receive_window(&self, window: VarInt) {
        let mut state = self.lock();
        state.inner.set_receive_window(window);
        self.touch(&mut state);
    }

    pub fn set_max_concurrent_uni_streams(&self, count: VarInt) {
        let mut state = self.lock();
        state.inner.set_max_concurrent_streams(Dir::Uni, count);
        self.touch(&mut state);
    }
}

fn wake(waiting: &mut HashMap<StreamId, Waker>, id: StreamId) {
    if let Some(waker) = waiting.remove(&id) {
        waker.wake();
    }
}

/// Why nothing more can be written to a stream.
#[derive(Debug)]
pub enum WriteError {
    /// The peer wants no more of it.
    Stopped(VarInt),
    Lost,
}

/// A stream of ours. One task has it.
pub struct SendStream {
    connection: Connection,
    id: StreamId,
}

impl SendStream {
    /// The stack serves higher numbers first.
    pub fn set_priority(&self, priority: i32) {
        let _ = self.connection.lock().inner.send_stream(self.id).set_priority(priority); // it may have been stopped
    }

    /// Hand over as much as there is credit for; what is taken is cut off `chunks`.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut [Bytes]) -> Poll<Result<Written, WriteError>> {
        let mut state = self.connection.lock();
        if state.error.is_some() {
            return Poll::Ready(Err(WriteError::Lost));
        }
        match state.inner.send_stream(self.id).write_chunks(chunks) {
            Ok(written) => {
                self.connection.touch(&mut state);
                Poll::Ready(Ok(written))
            }
            Err(proto::WriteError::Blocked) => {
                state.writers.insert(self.id, cx.waker().clone());
                self.connection.touch(&mut state); // the peer may be told that it holds us up
                Poll::Pending
            }
            Err(proto::WriteError::Stopped(code)) => Poll::Ready(Err(WriteError::Stopped(code))),
            Err(proto::WriteError::ClosedStream) => Poll::Ready(Err(WriteError::Lost)),
        }
    }

    /// Hand over all of `chunk`.
    pub async fn write_all(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        let mut chunks = [chunk];
        while !chunks[0].is_empty() {
            poll_fn(|cx| self.poll_write(cx, &mut chunks)).await?;
        }
        Ok(())
    }

    /// There is no more to come. How that goes, `stopped` tells.
    pub fn finish(&mut self) {
        let mut state = self.connection.lock();
        let _ = state.inner.send_stream(self.id).finish();
        self.connection.touch(&mut state);
    }

    /// Give it up: what has not been sent is let go of.
    pub fn reset(&mut self, code: VarInt) {
        let mut state = self.connection.lock();
        let _ = state.inner.send_stream(self.id).reset(code); // it may be over
        self.connection.touch(&mut state);
    }

    /// Wait until the peer has acknowledged all of it (None), or wants no more of it.
    pub async fn stopped(&mut self) -> Result<Option<VarInt>, ConnectionError> {
        poll_fn(|cx| {
            let mut state = self.connection.lock();
            match state.inner.send_stream(self.id).stopped() {
                Err(_) => return Poll::Ready(Ok(None)),
                Ok(Some(code)) => return Poll::Ready(Ok(Some(code))),
                Ok(None) => {}
            }
            if let Some(error) = &state.error {
                return Poll::Ready(Err(error.clone()));
            }
            state.writers.insert(self.id, cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.connection.lock().writers.remove(&self.id);
        if std::thread::panicking() {
            // Its task will not: the stack must not keep what was lent beyond the end that is told.
            self.reset(VarInt::from_u32(0));
        }
    }
}

/// Why nothing more can be read from a stream.
#[derive(Debug)]
pub enum ReadError {
    /// The peer gave it up.
    Reset(VarInt),
    Lost,
}

/// A stream of the peer's. One task has it; dropped before its end it tells the peer to stop.
pub struct RecvStream {
    connection: Connection,
    id: StreamId,
    over: bool,
    reset: Option<VarInt>,
}

impl RecvStream {
    /// The next bytes, at most `length` of them; None at the end.
    pub async fn read_chunk(&mut self, length: usize) -> Result<Option<Bytes>, ReadError> {
        let mut chunk = [Bytes::new()];
        let read = poll_fn(|cx| self.poll_read(cx, length, &mut chunk)).await?;
        Ok(read.map(|_| std::mem::take(&mut chunk[0])))
    }

    /// What has come, as many chunks as `into` takes: how many there were, None at the end.
    pub async fn read_chunks(&mut self, into: &mut [Bytes]) -> Result<Option<usize>, ReadError> {
        poll_fn(|cx| self.poll_read(cx, usize::MAX, into)).await
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        length: usize,
        into: &mut [Bytes],
    ) -> Poll<Result<Option<usize>, ReadError>> {
        if let Some(code) = self.reset {
            return Poll::Ready(Err(ReadError::Reset(code)));
        }
        if self.over {
            return Poll::Ready(Ok(None));
        }
        let mut state = self.connection.lock();
        let mut stream = state.inner.recv_stream(self.id);
        let Ok(mut chunks) = stream.read(true) else {
            return Poll::Ready(Err(ReadError::Lost));
        };
        let mut count = 0;
        let mut blocked = false;
        while count < into.len() {
            match chunks.next(length) {
                Ok(Some(chunk)) => {
                    into[count] = chunk.bytes;
                    count += 1;
                }
                Ok(None) => {
                    self.over = true;
                    break;
                }
                Err(proto::ReadError::Reset(code)) => {
                    (self.over, self.reset) = (true, Some(code));
                    break;
                }
                Err(proto::ReadError::Blocked) => {
                    blocked = true;
                    break;
                }
            }
        }
        if chunks.finalize().should_transmit() {
            self.connection.touch(&mut state);
        }
        match self.reset {
            _ if count > 0 => Poll::Ready(Ok(Some(count))),
            Some(code) => Poll::Ready(Err(ReadError::Reset(code))),
            None if !blocked => Poll::Ready(Ok(None)),
            None if state.error.is_some() => Poll::Ready(Err(ReadError::Lost)),
            None => {
                state.readers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Tell the peer that no more of it is wanted.
    pub fn stop(&mut self, code: VarInt) {
        let mut state = self.connection.lock();
        let _ = state.inner.recv_stream(self.id).stop(code); // it may have ended
        self.over = true;
        self.connection.touch(&mut state);
    }

    /// Wait until the peer gives it up; None where it cannot any more.
    pub async fn received_reset(&mut self) -> Option<VarInt> {
        poll_fn(|cx| {
            if let Some(code) = self.reset {
                return Poll::Ready(Some(code));
            }
            let mut state = self.connection.lock();
            match state.inner.recv_stream(self.id).received_reset() {
                Err(_) => Poll::Ready(None),
                Ok(Some(code)) => {
                    self.over = true;
                    self.connection.touch(&mut state); // there may be credit for another stream to give
                    Poll::Ready(Some(code))
                }
                Ok(None) if state.error.is_some() => Poll::Ready(None),
                Ok(None) => {
                    state.readers.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        let mut state = self.connection.lock();
        state.readers.remove(&self.id);
        if !self.over && state.error.is_none() {
            let _ = state.inner.recv_stream(self.id).stop(VarInt::from_u32(0));
            self.connection.touch(&mut state);
        }
    }
}

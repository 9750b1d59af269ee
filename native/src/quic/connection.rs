//! A connection and its streams as tasks use them. The protocol is quinn-proto's; its packets are moved by the driver of
//! the endpoint (`endpoint`), on the one thread that all tasks of the connection run on.
//!
//! A task that changes what is to be sent marks the connection as dirty, and the driver looks at it when the tasks that
//! were ready have run: what several of them did goes into the same packets.
//!
//! The driver holds a connection nearly all the time while much is sent, and takes it again before anybody else is awake:
//! who waits for it on another thread waits for hundreds of milliseconds. So only tasks of its own thread take it. Others
//! read the driver's last snapshot (`stats`, `remote_address`), and leave commands to it (`close`, `move_on`,
//! `ping`, `set_receive_window`), which runs them when it looks next.
//!
//! A stack that panicked may be in the middle of anything. It is dropped, with all that was lent to it, and never looked
//! at again: the connection has ended, and the others of the endpoint go on.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{self as proto, ConnectionError, ConnectionHandle, ConnectionStats, StreamEvent, StreamId, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;

use super::ack_policy::AckPolicy;
use super::address_validation::Path;
use super::dirty_list::DirtyList;
use crate::congestion::path_measurement::DeliveryRate;
use crate::runtime::locks::{locked, words_of};

/// Why a connection ended.
#[derive(Clone, Debug)]
pub enum Ended {
    Quic(ConnectionError),
    /// Its stack panicked, with these words.
    Broke(String),
}

/// A connection, shared by its tasks and the driver.
#[derive(Clone)]
pub struct Connection(pub(super) Arc<Shared>);

pub(super) struct Shared {
    handle: ConnectionHandle,
    dirty: Arc<DirtyList>,
    state: Mutex<State>,
    snapshot: Mutex<StatsSnapshot>,
    pending: Mutex<PendingCommands>,
    /// It is up, or it has ended.
    changed: Notify,
    pub(super) opened: Notify,
    pub(super) allowed: Notify,
}

/// How a connection stood when the driver had looked at it last.
struct StatsSnapshot {
    remote: SocketAddr,
    /// None: there is no stack any more.
    stats: Option<ConnectionStats>,
    refused: Option<Instant>,
}

/// What others want of the stack: the driver does it when it looks next.
#[derive(Default, PartialEq)]
struct PendingCommands {
    receive_window: Option<VarInt>,
    /// This side has another address.
    moved: bool,
    ping: bool,
    close: Option<(VarInt, Bytes)>,
}

/// What the driver and the tasks share.
pub struct State {
    /// None: it panicked.
    pub stack: Option<Box<proto::Connection>>,
    pub path: Path,
    pub rate: Arc<DeliveryRate>,
    /// The driver knows that it has to look at this connection.
    pub listed: bool,
    /// It is in the driver's queue for sending.
    pub due: bool,
    pub ack_policy: AckPolicy,
    /// When it wants to be looked at, as the driver knows it.
    pub deadline: Option<Instant>,
    established: bool,
    pub ended: Option<Ended>,
    pub writers: HashMap<StreamId, Waker>,
    pub readers: HashMap<StreamId, Waker>,
}

impl State {
    /// It has ended, and its tasks have not been told.
    pub fn untold(&self) -> bool {
        self.ended.is_none() && self.stack.as_ref().is_none_or(|stack| stack.is_closed())
    }

    /// Whether the driver need not keep it any more.
    pub fn gone(&self) -> bool {
        self.stack.as_ref().is_none_or(|stack| stack.is_drained())
    }
}

impl Connection {
    pub fn new(
        handle: ConnectionHandle,
        stack: proto::Connection,
        rate: Arc<DeliveryRate>,
        dirty: Arc<DirtyList>,
    ) -> Self {
        let snapshot = StatsSnapshot {
            remote: stack.remote_address(),
            stats: Some(stack.stats()),
            refused: None,
        };
        let state = State {
            path: Path::new(stack.remote_address()),
            stack: Some(Box::new(stack)),
            rate,
            listed: true,
            due: false,
            ack_policy: AckPolicy::default(),
            deadline: None,
            established: false,
            ended: None,
            writers: HashMap::new(),
            readers: HashMap::new(),
        };
        dirty.add(handle);
        Self(Arc::new(Shared {
            handle,
            dirty,
            state: Mutex::new(state),
            snapshot: Mutex::new(snapshot),
            pending: Mutex::default(),
            changed: Notify::new(),
            opened: Notify::new(),
            allowed: Notify::new(),
        }))
    }

    /// For the driver and the streams; tasks have the methods below.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|poisoned| {
            self.0.state.clear_poison();
            let mut state = poisoned.into_inner();
            self.give_up(&mut state, "a panic in one of its tasks".to_owned());
            state
        })
    }

    /// Let the stack work. None where there is none any more, or where it has just panicked.
    pub fn with<T>(&self, state: &mut State, work: impl FnOnce(&mut State, &mut proto::Connection) -> T) -> Option<T> {
        let mut stack = state.stack.take()?;
        match catch_unwind(AssertUnwindSafe(|| work(state, &mut stack))) {
            Ok(result) => {
                state.stack = Some(stack);
                Some(result)
            }
            Err(panic) => {
                drop(stack);
                self.give_up(state, words_of(&*panic));
                None
            }
        }
    }

    fn give_up(&self, state: &mut State, words: String) {
        state.stack = None;
        if state.ended.is_none() {
            self.end(state, Ended::Broke(words));
        }
        self.mark_dirty(state);
    }

    /// It ends because its endpoint panicked.
    pub fn lose(&self, words: &str) {
        let mut state = self.0.state.lock().unwrap_or_else(|poisoned| {
            self.0.state.clear_poison(); // it was held when that happened
            poisoned.into_inner()
        });
        self.give_up(&mut state, words.to_owned());
        self.take_snapshot(&state);
    }

    /// Have the driver look at this connection.
    pub fn mark_dirty(&self, state: &mut State) {
        state.ack_policy.hurry();
        if !std::mem::replace(&mut state.listed, true) {
            self.0.dirty.add(self.0.handle);
        }
    }

    /// Wake who waits for what has happened. Whether somebody was woken.
    pub fn settle(&self, state: &mut State) -> bool {
        let mut woken = false;
        while let Some(event) = self.with(state, |_, stack| stack.poll()).flatten() {
            woken = true;
            match event {
                proto::Event::Connected => {
                    state.established = true;
                    self.0.changed.notify_waiters();
                }
                proto::Event::ConnectionLost { reason } => self.end(state, Ended::Quic(reason)),
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

    fn end(&self, state: &mut State, reason: Ended) {
        state.ended = Some(reason);
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
    pub async fn established(&self) -> Result<(), Ended> {
        loop {
            let changed = self.0.changed.notified(); // hears of what happens from here on
            {
                let state = self.lock();
                if let Some(ended) = &state.ended {
                    return Err(ended.clone());
                }
                if state.established {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Wait until it has ended, and tell why.
    pub async fn closed(&self) -> Ended {
        loop {
            let changed = self.0.changed.notified();
            if let Some(error) = self.close_reason() {
                return error;
            }
            changed.await;
        }
    }

    pub fn close_reason(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }

    /// As of the driver's last look; None where there is no stack any more.
    pub fn stats(&self) -> Option<ConnectionStats> {
        locked(&self.0.snapshot).stats
    }

    /// When the peer's host said last that nobody listens there any more.
    pub fn refused_at(&self) -> Option<Instant> {
        locked(&self.0.snapshot).refused
    }

    /// As of the driver's last look.
    pub fn remote_address(&self) -> SocketAddr {
        locked(&self.0.snapshot).remote
    }

    /// Have others see how it stands now.
    pub fn take_snapshot(&self, state: &State) {
        let stats = state.stack.as_ref().map(|stack| stack.stats());
        *locked(&self.0.snapshot) = StatsSnapshot {
            remote: state.path.remote(),
            stats,
            refused: state.path.refused_at(),
        };
    }

    /// The certificates that the peer showed, its own first.
    pub fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        let state = self.lock();
        let identity = state
            .stack
            .as_ref()
            .and_then(|stack| stack.crypto_session().peer_identity());
        let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        chain.map_or_else(Vec::new, |chain| *chain)
    }

    /// Bytes that only this side and the peer know, for a purpose (RFC 8446 7.5). For tasks of its thread, after the handshake.
    pub fn export_secret(&self, purpose: &[u8], secret: &mut [u8]) -> bool {
        let state = self.lock();
        let exported = state
            .stack
            .as_ref()
            .map(|stack| stack.crypto_session().export_keying_material(secret, purpose, b""));
        matches!(exported, Some(Ok(())))
    }

    /// Close it; the peer is told why. The first reason counts.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.command(|pending| {
            let reason = || (code, Bytes::copy_from_slice(reason));
            pending.close.get_or_insert_with(reason);
        });
    }

    /// This side has another address: say something from there.
    pub fn move_on(&self) {
        self.command(|pending| pending.moved = true);
    }

    /// Say that this side lives.
    pub fn ping(&self) {
        self.command(|pending| pending.ping = true);
    }

    pub fn set_receive_window(&self, window: VarInt) {
        self.command(|pending| pending.receive_window = Some(window));
    }

    fn command(&self, what: impl FnOnce(&mut PendingCommands)) {
        what(&mut locked(&self.0.pending));
        self.0.dirty.add(self.0.handle);
    }

    /// Acknowledge at once what a peer sends whose wish for that is not known.
    pub fn ack_unasked(&self, state: &mut State) {
        if state.ack_policy.is_asked() {
            return;
        }
        self.with(state, |state, stack| {
            let frames = stack.stats().frame_rx;
            if state.ack_policy.unasked(frames.ack_frequency, frames.stream) {
                stack.ping();
            }
        });
    }

    /// Run the commands that others left.
    pub fn run_pending(&self, state: &mut State) {
        let pending = std::mem::take(&mut *locked(&self.0.pending));
        if pending == PendingCommands::default() {
            return;
        }
        state.ack_policy.hurry();
        let close = pending.close.filter(|_| state.ended.is_none());
        let closing = close.is_some();
        self.with(state, |_, stack| {
            if let Some(window) = pending.receive_window {
                stack.set_receive_window(window);
            }
            if pending.moved {
                stack.local_address_changed();
            }
            if pending.ping {
                stack.ping();
            }
            if let Some((code, reason)) = close {
                stack.close(Instant::now(), code, reason);
            }
        });
        if closing && state.ended.is_none() {
            self.end(state, Ended::Quic(ConnectionError::LocallyClosed));
        }
    }
}

fn wake(waiting: &mut HashMap<StreamId, Waker>, id: StreamId) {
    if let Some(waker) = waiting.remove(&id) {
        waker.wake();
    }
}

//! One connection: who is at the other end, what is under way, and why it ended.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{ConnectionError, VarInt};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, timeout_at};

use crate::congestion::RATE;
use crate::connection::{Connection, Ended};
use crate::engine::Engine;
use crate::events::{Event, Failure};
use crate::gate::Gate;
use crate::guard::{self, Task};
use crate::incoming;
use crate::mail::Channel;
use crate::measure::Measure;
use crate::outgoing::{self, Message};
use crate::wire::{Code, Violation, code_name};

/// What may wait in the stack where half as much again as is in flight is less. More would fill the socket of a receiver
/// that is slower than the path at once, and an urgent message would wait there.
const INSIDE_BYTES_MIN: u64 = 1 << 20;
/// How long a dialling side waits for the word that its refusal will be understood.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
const REASON_BYTES_MAX: usize = 500;
/// What is in the stack is read in a moment; a task that does not come to its end is a mistake of ours.
const READ_OUT_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Handshaking,
    /// The peer's certificate was found good; our hello is on its way.
    Verified,
    /// The peer said hello too: messages may go.
    Up,
    Ended,
}

pub struct Link {
    pub number: u64,
    pub bulk: bool,
    pub dialled: bool,
    pub engine: Arc<Engine>,
    pub measure: Arc<Measure>,
    pub gate: Arc<Gate>,
    /// Streams are opened one by one, so that the most urgent message gets the next one that the peer allows.
    pub opener: Arc<Gate>,
    /// How many streams were opened for messages.
    pub opened: AtomicU32,
    pub stage: watch::Sender<Stage>,
    remote: SocketAddr,
    hello: Bytes,
    /// Of the thread that its endpoint lives on.
    thread: Handle,
    connection: OnceLock<Connection>,
    /// Told when the caller wants no connection any more before there is one.
    unwanted: Notify,
    state: Mutex<State>,
    /// Sends that may still tell of themselves.
    pub sends: Arc<Tally>,
    /// What listens for streams, and every stream that is being read.
    pub receives: Arc<Tally>,
}

struct State {
    peer: Arc<str>,
    account: String,
    job: String,
    message_bytes_max: u64,
    failure: Option<Failure>,
    closed_here: bool,
    reason: String,
    window: u64,
    widened: i64,
    doors_closed: bool,
    dead_after: Duration,
    frames_heard: u64,
    heard_at: Instant,
}

impl Link {
    #[expect(clippy::too_many_arguments, reason = "what a connection is, each by its name")]
    pub fn new(
        engine: Arc<Engine>,
        thread: Handle,
        number: u64,
        remote: SocketAddr,
        hello: Bytes,
        dialled: bool,
        bulk: bool,
        measure: Arc<Measure>,
    ) -> Arc<Self> {
        let state = State {
            peer: remote_name(remote).into(),
            account: String::new(),
            job: String::new(),
            message_bytes_max: u64::MAX,
            failure: None,
            closed_here: false,
            reason: String::new(),
            window: engine.settings.window_bytes(),
            widened: 0,
            doors_closed: false,
            dead_after: engine.settings.dead_after,
            frames_heard: 0,
            heard_at: Instant::now(),
        };
        Arc::new(Self {
            number,
            bulk,
            dialled,
            engine,
            gate: Gate::new(INSIDE_BYTES_MIN, measure.used.clone()),
            opener: Gate::new(1, Arc::default()),
            opened: AtomicU32::new(0),
            measure,
            stage: watch::channel(Stage::Handshaking).0,
            remote,
            hello,
            thread,
            connection: OnceLock::new(),
            unwanted: Notify::new(),
            state: Mutex::new(state),
            sends: Arc::default(),
            receives: Arc::default(),
        })
    }

    pub fn peer(&self) -> Arc<str> {
        self.lock().peer.clone()
    }

    /// Name the peer before it is known who it is: the one that is expected.
    pub fn set_peer(&self, peer: &str) {
        self.lock().peer = peer.into();
    }

    pub fn job(&self) -> String {
        self.lock().job.clone()
    }

    pub fn message_bytes_max(&self) -> u64 {
        self.lock().message_bytes_max
    }

    pub fn connection(&self) -> Option<&Connection> {
        self.connection.get()
    }

    pub fn remote(&self) -> SocketAddr {
        self.connection().map_or(self.remote, Connection::remote_address)
    }

    pub fn is(&self, stage: Stage) -> bool {
        *self.stage.borrow() == stage
    }

    /// Run a task beside the connection's others, which ends with it if it panics.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        guard::spawn(&self.thread, Task::Link(self.clone()), future);
    }

    /// See a connection through, as a task.
    pub fn begin_course(self: &Arc<Self>, connection: Connection) {
        guard::spawn(&self.thread, Task::Course(self.clone()), self.clone().run(connection));
    }

    /// Send a message, as a task; `abort` ends it early.
    pub fn send(self: &Arc<Self>, message: Message, abort: oneshot::Receiver<Failure>) {
        let task = Task::Send(self.clone(), message.operation);
        guard::spawn(&self.thread, task, outgoing::send(self.clone(), message, abort));
    }

    /// See a connection through, from its first packet to its last.
    pub async fn run(self: Arc<Self>, connection: Connection) {
        let settings = &self.engine.settings;
        let deadline = tokio::time::Instant::now() + settings.handshake_timeout;
        let connected = tokio::select! {
            connected = timeout_at(deadline, connection.established()) => Some(connected),
            () = self.unwanted.notified() => None,
        };
        let ended = match connected {
            None => {
                connection.close(VarInt::from_u32(Code::NoError as u32), b"");
                None
            }
            Some(Err(_)) => {
                self.note_failure(self.handshake_timed_out());
                connection.close(VarInt::from_u32(Code::HandshakeTimeout as u32), b"");
                None
            }
            Some(Ok(Err(error))) => Some(error),
            Some(Ok(Ok(()))) => {
                self.lock().heard_at = Instant::now();
                let connection = self.connection.get_or_init(|| connection);
                self.engine.events.push(Event::Chain {
                    link: self.number,
                    certificates: connection.peer_chain().iter().map(|one| one.to_vec()).collect(),
                });
                if settings.congestion == RATE && !self.bulk {
                    self.spawn(keep_pace(self.clone()));
                }
                let mut stage = self.stage.subscribe();
                let up = async {
                    timeout_at(deadline, stage.wait_for(|stage| *stage >= Stage::Up))
                        .await
                        .is_ok()
                };
                tokio::select! {
                    error = connection.closed() => Some(error),
                    up = up => {
                        self.engine.events.fault("course");
                        if !up {
                            self.close(Code::HandshakeTimeout as u64, self.handshake_timed_out());
                        }
                        Some(connection.closed().await)
                    }
                }
            }
        };
        self.finish(ended).await;
    }

    fn handshake_timed_out(&self) -> Failure {
        let seconds = self.engine.settings.handshake_timeout.as_secs_f64();
        self.lost(format!("no connection within {seconds} s"))
    }

    pub fn lost(&self, reason: String) -> Failure {
        Failure::Lost {
            peer: self.peer().to_string(),
            reason,
        }
    }

    /// The peer's certificate is good: say hello, and listen.
    pub fn verified(self: &Arc<Self>, peer: &str) {
        self.set_peer(peer);
        if !self.advance(Stage::Handshaking, Stage::Verified) {
            return;
        }
        self.spawn(outgoing::say_hello(self.clone(), self.hello.clone()));
        self.spawn(incoming::listen(self.clone()));
    }

    /// The peer's hello is good: messages may go. False where the connection has ended meanwhile.
    pub fn begin(&self, account: String, job: String, message_bytes_max: u64, dead_after: Option<Duration>) -> bool {
        let connections = self.engine.connections_to(&self.peer());
        {
            let mut state = self.lock();
            state.window = self.engine.settings.window_bytes_of(connections);
            state.dead_after = dead_after.unwrap_or(self.engine.settings.dead_after);
            state.account = account;
            state.job = job;
            state.message_bytes_max = message_bytes_max;
        }
        self.set_window();
        self.advance(Stage::Verified, Stage::Up)
    }

    fn advance(&self, from: Stage, to: Stage) -> bool {
        self.stage.send_if_modified(|stage| {
            let due = *stage == from;
            if due {
                *stage = to;
            }
            due
        })
    }

    /// Close for what the peer did. A dialling side does so once the other can read it: when it has confirmed.
    pub fn refuse(self: &Arc<Self>, code: u64, reason: String) {
        let failure = Failure::Peer {
            peer: self.peer().to_string(),
            reason: reason.clone(),
            code,
        };
        if !self.note_failure(failure) {
            return; // it is being closed
        }
        let link = self.clone();
        let confirmed = async move {
            let Some(connection) = link.connection() else {
                return;
            };
            let since = Instant::now();
            while link.dialled
                && connection.close_reason().is_none()
                && connection
                    .stats()
                    .is_some_and(|stats| stats.frame_rx.handshake_done == 0)
                && since.elapsed() < CONFIRMED_WITHIN
            {
                sleep(Duration::from_millis(1)).await;
            }
            connection.close(VarInt::from_u64(code).unwrap_or_default(), cut(&reason));
        };
        self.spawn(confirmed);
    }

    /// Close for bytes that break the protocol.
    pub fn violated(self: &Arc<Self>, violation: Violation) {
        self.refuse(violation.code as u64, violation.reason);
    }

    /// Close for a reason of ours.
    pub fn close(&self, code: u64, failure: Failure) {
        let reason = match &failure {
            Failure::Lost { reason, .. } | Failure::Peer { reason, .. } | Failure::Cancelled(reason) => reason.clone(),
            Failure::TimedOut { .. } => String::new(),
        };
        self.note_failure(failure);
        self.say_close(code, &reason);
    }

    /// A task of this connection's panicked: the connection ends, and others go on.
    pub fn broke(&self, words: &str) {
        self.close(Code::Internal as u64, self.broken(words));
    }

    pub fn broken(&self, words: &str) -> Failure {
        self.lost(broken(words))
    }

    /// See the connection to its end in place of the task that panicked. False where it was about to do just that.
    pub fn finish_again(self: &Arc<Self>) -> bool {
        let due = !self.is(Stage::Ended);
        if due {
            let link = self.clone();
            // If that panics too the engine ends.
            let task = Task::Engine(self.engine.clone());
            guard::spawn(&self.thread, task, async move { link.finish(None).await });
        }
        due
    }

    /// Close because the caller wants it.
    pub fn disconnect(&self, code: u64, reason: &str) {
        if code != Code::NoError as u64 {
            self.note_failure(self.lost(format!("closed here with {}: {reason}", code_name(code))));
        }
        self.lock().closed_here = true;
        self.unwanted.notify_one();
        self.say_close(code, reason);
    }

    fn say_close(&self, code: u64, reason: &str) {
        if let Some(connection) = self.connection() {
            connection.close(VarInt::from_u64(code).unwrap_or_default(), cut(reason));
        }
    }

    /// Whether this side has closed it, though it may not have ended yet.
    pub fn closing(&self) -> bool {
        let state = self.lock();
        state.closed_here || state.failure.is_some()
    }

    /// Whether it is the first.
    fn note_failure(&self, failure: Failure) -> bool {
        let mut state = self.lock();
        let first = state.failure.is_none();
        state.failure.get_or_insert(failure);
        first
    }

    async fn finish(self: &Arc<Self>, ended: Option<Ended>) {
        let closed_for_good = matches!(ended, Some(Ended::Quic(ConnectionError::LocallyClosed)))
            && (self.engine.over() || self.lock().failure.is_some());
        if self.is(Stage::Up) && !closed_for_good {
            // What had come whole was acknowledged, so the peer counts on it: it is told before the end is.
            let _ = tokio::time::timeout(READ_OUT_MAX, self.receives.none()).await;
        }
        let (failure, reason) = self.end_of(ended);
        self.lock().reason = reason.clone();
        let was = self.stage.send_replace(Stage::Ended);
        let peer = self.peer();
        let last = self.engine.forget(self, was == Stage::Up);
        self.gate.end();
        self.opener.end();
        self.sends.none().await;
        if was == Stage::Up {
            let failure = last.then(|| self.lost(reason));
            self.engine.mail.disconnected(&peer, self.number, failure);
        }
        self.engine.events.push(Event::Down {
            link: self.number,
            peer: peer.to_string(),
            failure,
        });
    }

    /// Why the connection is over (None for a goodbye), and in words for what was on it.
    fn end_of(&self, ended: Option<Ended>) -> (Option<Failure>, String) {
        let state = self.lock();
        let peer = state.peer.to_string();
        let lost = |reason: String| {
            Some(Failure::Lost {
                peer: peer.clone(),
                reason,
            })
        };
        let failure = match (state.failure.clone(), ended) {
            (Some(failure), _) => Some(failure),
            (None, Some(Ended::Broke(words))) => lost(broken(&words)),
            (None, Some(Ended::Quic(ConnectionError::ApplicationClosed(frame)))) => {
                let code = frame.error_code.into_inner();
                let said = String::from_utf8_lossy(&frame.reason);
                let said = format!("closed the connection with {}: {said}", code_name(code));
                match code {
                    0x00 => None,
                    0x01 | 0x42 => lost(said),
                    _ => Some(Failure::Peer {
                        peer: peer.clone(),
                        reason: said,
                        code,
                    }),
                }
            }
            (None, Some(Ended::Quic(ConnectionError::LocallyClosed)) | None) => None,
            (None, Some(Ended::Quic(ConnectionError::TimedOut))) => lost("nothing heard for too long".to_owned()),
            (None, Some(Ended::Quic(other))) => lost(format!("QUIC ended: {other}")),
        };
        let reason = match &failure {
            Some(Failure::Lost { reason, .. } | Failure::Peer { reason, .. } | Failure::Cancelled(reason)) => {
                reason.clone()
            }
            _ if state.closed_here => "the connection was closed here".to_owned(),
            _ => "the peer said goodbye".to_owned(),
        };
        (failure, reason)
    }

    /// The failure of a send that the connection's end has stopped.
    pub async fn ended(&self) -> Failure {
        // The sender of the stage lives as long as `self`.
        let _ = self.stage.subscribe().wait_for(|stage| *stage == Stage::Ended).await;
        let reason = self.lock().reason.clone();
        self.lost(reason)
    }

    /// Ten times a second: notice a silent peer, and let new streams come where they were held back.
    pub fn tick(&self, now: Instant, held_up: Duration) {
        let Some(connection) = self.connection() else {
            return;
        };
        if !self.is(Stage::Up) {
            return;
        }
        self.measure.tick(now);
        let Some(stats) = connection.stats() else {
            return; // its end is being told
        };
        let frames = &stats.frame_rx;
        // Only packets that are the peer's are taken apart into frames: a forged one proves nothing.
        let heard = frames.acks
            + frames.stream
            + frames.ping
            + frames.max_data
            + frames.max_stream_data
            + frames.max_streams_uni
            + frames.reset_stream
            + frames.stop_sending
            + frames.crypto
            + frames.data_blocked
            + frames.stream_data_blocked
            + frames.streams_blocked_uni
            + frames.new_connection_id
            + frames.retire_connection_id
            + frames.path_challenge
            + frames.path_response
            + frames.immediate_ack
            + frames.ack_frequency;
        let (silent, patience, doors_closed) = {
            let mut state = self.lock();
            if heard != state.frames_heard {
                state.frames_heard = heard;
                state.heard_at = now;
            } else {
                state.heard_at += held_up; // nobody could have been heard
            }
            (
                now.saturating_duration_since(state.heard_at),
                state.dead_after,
                state.doors_closed,
            )
        };
        if silent > patience {
            let (silent_s, patience_s) = (silent.as_secs_f64(), patience.as_secs_f64());
            let reason = format!("nothing heard for {silent_s:.1} s (dead after {patience_s} s)");
            self.close(Code::Dead as u64, self.lost(reason));
        } else if doors_closed && !self.engine.mail.full(&self.peer(), &self.account()) {
            self.lock().doors_closed = false;
            connection.set_max_concurrent_uni_streams(self.engine.settings.streams_max.into());
        }
    }

    /// Say how much the peer may have on this side that has no place of its own.
    fn set_window(&self) {
        if let Some(connection) = self.connection() {
            let state = self.lock();
            let window = state.window as i64 + state.widened;
            let window = VarInt::from_u64(window.max(0) as u64).unwrap_or(VarInt::MAX);
            connection.set_receive_window(window);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wake the stack when packets may go again that were held back by a rate, for as long as the connection lives.
async fn keep_pace(link: Arc<Link>) {
    let (Some(connection), measure) = (link.connection().cloned(), link.measure.clone()) else {
        return;
    };
    drop(link);
    loop {
        tokio::select! {
            _ = connection.closed() => return,
            () = measure.pace.next() => connection.nudge(),
        }
    }
}

impl Channel for Link {
    fn id(&self) -> u64 {
        self.number
    }

    fn account(&self) -> String {
        self.lock().account.clone()
    }

    fn stream_window(&self) -> u64 {
        u64::from(self.engine.settings.stream_window_bytes())
    }

    fn widen(&self, bytes: i64) {
        self.lock().widened += bytes;
        self.set_window();
    }

    fn close_doors(&self) {
        self.lock().doors_closed = true;
        if let Some(connection) = self.connection() {
            connection.set_max_concurrent_uni_streams(1u32.into()); // the control stream stays
        }
    }

    fn ended(&self) -> bool {
        self.is(Stage::Ended)
    }
}

/// How many tasks of a kind there are, for who has to wait until there is none.
#[derive(Default)]
pub struct Tally {
    count: AtomicUsize,
    ended: Notify,
}

impl Tally {
    /// Count one for as long as what this gives lives.
    pub fn enter(self: &Arc<Self>) -> Counted {
        self.count.fetch_add(1, Ordering::SeqCst);
        Counted(self.clone())
    }

    /// Wait until there is none. One task waits at a time.
    async fn none(&self) {
        while self.count.load(Ordering::SeqCst) > 0 {
            self.ended.notified().await;
        }
    }
}

pub struct Counted(Arc<Tally>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify_one();
        }
    }
}

/// An address as a name, until there is a better one.
pub fn remote_name(remote: SocketAddr) -> String {
    format!("{}:{}", remote.ip(), remote.port())
}

fn broken(words: &str) -> String {
    format!("the engine of this process failed on this connection: {words}")
}

fn cut(reason: &str) -> &[u8] {
    &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]
}

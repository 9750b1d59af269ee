//! One connection: who is at the other end, what is under way, and why it ended.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::VarInt;
use tokio::runtime::Handle;
use tokio::sync::{self, Notify, mpsc};

use super::context::{Context, Registry};
use crate::congestion::path_measurement::PathMeasurement;
use crate::events::Failure;
use crate::matching::holds::HOLDS_MAX;
use crate::matching::incoming_message::Channel;
use crate::quic::connection::Connection;
use crate::quic::send_scheduler::SendScheduler;
use crate::runtime::locks::locked;
use crate::runtime::supervision;
use crate::runtime::task_tracker::TaskTracker;
use crate::shared_memory::handshake::Tokens;
use crate::shared_memory::link::Link;

/// What may wait in the stack where half as much again as is in flight is less. More would fill the socket of a receiver
/// that is slower than the path at once, and an urgent message would wait there.
const INSIDE_BYTES_MIN: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Handshaking,
    /// The peer's certificate was found good; our hello is on its way.
    Verified,
    /// The peer said hello too: messages may go.
    Up,
    Ended,
}

/// What a connection is from its beginning.
pub struct Setup {
    pub number: u64,
    pub remote: SocketAddr,
    pub dialled: bool,
    pub bulk: bool,
    pub hello: Bytes,
    /// By then QUIC's handshake is complete, which proves the peer's address; what follows may wait for Python.
    pub patience: Duration,
    /// Of the thread that its endpoint lives on.
    pub thread: Handle,
    pub measure: Arc<PathMeasurement>,
}

pub struct PeerSession {
    pub number: u64,
    pub bulk: bool,
    pub dialled: bool,
    pub context: Arc<Context>,
    pub registry: Arc<dyn Registry>,
    pub measure: Arc<PathMeasurement>,
    pub scheduler: Arc<SendScheduler>,
    /// Streams are opened one by one, so that the most urgent message gets the next one that the peer allows.
    pub opener: Arc<SendScheduler>,
    /// How many turns messages have had.
    pub turns: AtomicU32,
    pub stage: sync::watch::Sender<Stage>,
    pub(super) remote: SocketAddr,
    pub(super) hello: Bytes,
    pub(super) patience: Duration,
    pub(super) thread: Handle,
    pub(super) connection: OnceLock<Connection>,
    /// What shows the peer that somebody on this host is the other end of this connection, and us that the peer is.
    pub(super) tokens: OnceLock<Tokens>,
    /// Told when the caller wants no connection any more before there is one.
    pub(super) unwanted: Notify,
    /// What is to go into the control stream behind the hello.
    says: mpsc::Sender<Vec<u8>>,
    pub(super) state: Mutex<State>,
    /// Sends that may still tell of themselves.
    pub sends: Arc<TaskTracker>,
    /// What listens for streams, and every stream that is being read.
    pub receives: Arc<TaskTracker>,
}

pub(super) struct State {
    pub(super) peer: Arc<str>,
    pub(super) account: String,
    pub(super) job: String,
    pub(super) message_bytes_max: u64,
    pub(super) failure: Option<Failure>,
    pub(super) closed_here: bool,
    pub(super) reason: String,
    pub(super) window: u64,
    pub(super) window_raise: u64,
    pub(super) dead_after: Duration,
    pub(super) link: Option<Arc<Link>>,
    /// Until the control stream is there.
    pub(super) to_say: Option<mpsc::Receiver<Vec<u8>>>,
    pub(super) frames_heard: u64,
    pub(super) heard_at: Instant,
    pub(super) datagrams_sent: u64,
    pub(super) sent_at: Instant,
}

impl PeerSession {
    pub fn new(context: Arc<Context>, registry: Arc<dyn Registry>, setup: Setup) -> Arc<Self> {
        let Setup {
            number,
            remote,
            dialled,
            bulk,
            hello,
            patience,
            thread,
            measure,
        } = setup;
        let (says, to_say) = mpsc::channel(HOLDS_MAX);
        let state = State {
            peer: remote_name(remote).into(),
            account: String::new(),
            job: String::new(),
            message_bytes_max: u64::MAX,
            failure: None,
            closed_here: false,
            reason: String::new(),
            window: context.settings.window_bytes(),
            window_raise: 0,
            dead_after: context.settings.dead_after,
            link: None,
            to_say: Some(to_say),
            frames_heard: 0,
            heard_at: Instant::now(),
            datagrams_sent: 0,
            sent_at: Instant::now(),
        };
        Arc::new(Self {
            number,
            bulk,
            dialled,
            context,
            registry,
            scheduler: SendScheduler::new(INSIDE_BYTES_MIN, measure.used.clone()),
            opener: SendScheduler::new(1, Arc::default()),
            turns: AtomicU32::new(0),
            measure,
            stage: sync::watch::channel(Stage::Handshaking).0,
            remote,
            hello,
            patience,
            thread,
            connection: OnceLock::new(),
            tokens: OnceLock::new(),
            unwanted: Notify::new(),
            says,
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

    /// Where its messages go through shared memory.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.lock().link.clone()
    }

    pub fn remote(&self) -> SocketAddr {
        self.connection().map_or(self.remote, Connection::remote_address)
    }

    pub fn is(&self, stage: Stage) -> bool {
        *self.stage.borrow() == stage
    }

    /// Run a task beside the connection's others, which ends with it if it panics.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        supervision::spawn(&self.thread, self.clone(), future);
    }

    pub fn lost(&self, reason: String) -> Failure {
        Failure::Lost {
            peer: self.peer().to_string(),
            reason,
        }
    }

    pub fn silent(&self, reason: String) -> Failure {
        Failure::Silent {
            peer: self.peer().to_string(),
            reason,
        }
    }

    /// Lost for good: its host says so.
    pub fn gone(&self, reason: String) -> Failure {
        Failure::Gone {
            peer: self.peer().to_string(),
            reason,
        }
    }

    /// The peer's hello is good: messages may go. False where the connection has ended meanwhile.
    pub fn begin(&self, account: String, job: String, message_bytes_max: u64, dead_after: Option<Duration>) -> bool {
        let connections = self.registry.connections_to(&self.peer());
        {
            let mut state = self.lock();
            state.window = self.context.settings.window_bytes_of(connections);
            state.dead_after = dead_after.unwrap_or(self.context.settings.dead_after);
            state.account = account;
            state.job = job;
            state.message_bytes_max = message_bytes_max;
        }
        self.set_window();
        self.advance(Stage::Verified, Stage::Up)
    }

    pub(super) fn advance(&self, from: Stage, to: Stage) -> bool {
        self.stage.send_if_modified(|stage| {
            let due = *stage == from;
            if due {
                *stage = to;
            }
            due
        })
    }

    /// Say how much the peer may have on this side that has no place of its own.
    fn set_window(&self) {
        if let Some(connection) = self.connection() {
            let state = self.lock();
            // `quinn_proto` announces credit by eighths of the window: where less is left, the peer is not told of it.
            let window = (state.window + state.window_raise) / 7 * 8;
            let window = VarInt::from_u64(window).unwrap_or(VarInt::MAX);
            connection.set_receive_window(window);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Channel for PeerSession {
    fn id(&self) -> u64 {
        self.number
    }

    fn account(&self) -> String {
        self.lock().account.clone()
    }

    fn stream_window(&self) -> u64 {
        u64::from(self.context.settings.stream_window_bytes())
    }

    fn raise_window(&self, bytes: u64) {
        {
            let mut state = self.lock();
            // A store for each connection would be 32 GiB for a name with 512, so of many each has its part (`begin`).
            state.window_raise = state.window_raise.max(bytes.min(2 * state.window));
        }
        self.set_window();
    }

    fn full(&self) {}

    fn says(&self) -> mpsc::Sender<Vec<u8>> {
        self.says.clone()
    }

    fn ended(&self) -> bool {
        self.is(Stage::Ended)
    }
}

/// An address as a name, until there is a better one.
pub fn remote_name(remote: SocketAddr) -> String {
    format!("{}:{}", remote.ip(), remote.port())
}

//! The engine: endpoints, connections, operations, and the runtime whose threads do the work without the GIL.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::context::{Context, Registry};
use super::peer_session::{PeerSession, Stage};
use super::served_endpoint::ServedEndpoint;
use super::statistics::ConnectionStatistics;
use super::transmit::Message;
use crate::events::{Event, EventQueue, Failure};
use crate::matching::matcher::Matcher;
use crate::runtime::fault_injection::Faults;
use crate::runtime::locks::locked;
use crate::runtime::supervision::{self, OnPanic};
use crate::runtime::thread::Thread;
use crate::settings::Settings;
use crate::shared_memory::handshake;
use crate::wire::Code;

const GOODBYE_WITHIN: Duration = Duration::from_millis(300);

/// A send whose end has not been told: over which connection, and how to end it, once.
type Sending = (Arc<PeerSession>, Option<oneshot::Sender<Failure>>);

pub struct Engine {
    pub context: Arc<Context>,
    /// Of the first thread; none after the end, for it keeps the thread's descriptors open.
    pub(super) first: Mutex<Option<Handle>>,
    pub(super) over: AtomicBool,
    pub(super) numbers: AtomicU64,
    pub(super) endpoints: Mutex<HashMap<u64, Arc<ServedEndpoint>>>,
    pub(super) sessions: Mutex<BTreeMap<u64, Arc<PeerSession>>>,
    pub(super) sends: Mutex<BTreeMap<u64, Sending>>,
    pub(super) snapshot: Mutex<Arc<Vec<ConnectionStatistics>>>,
}

impl Engine {
    /// Start, with the thread of the first endpoint. What is done now and then is begun by `tick`.
    pub fn start(settings: Settings, events: Arc<EventQueue>) -> std::io::Result<(Arc<Self>, Thread)> {
        let first = Thread::start()?;
        let faults = Arc::<Faults>::default();
        let context = Context {
            matcher: Matcher::new(settings.unexpected_bytes_max, events.clone(), faults.clone()),
            settings,
            events,
            faults,
        };
        let engine = Arc::new(Self {
            context: Arc::new(context),
            first: Mutex::new(Some(first.handle.clone())),
            over: AtomicBool::new(false),
            numbers: AtomicU64::new(1),
            endpoints: Mutex::default(),
            sessions: Mutex::default(),
            sends: Mutex::default(),
            snapshot: Mutex::default(),
        });
        Ok((engine, first))
    }

    /// Run a task that belongs to no connection: the engine ends if it panics. After the end nothing runs.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(first) = &*locked(&self.first) {
            supervision::spawn(first, self.clone(), future);
        }
    }

    /// Listen for peers of this host, on the first thread: the socket and its name.
    pub(super) fn listen(&self) -> std::io::Result<(UnixListener, String)> {
        let first = locked(&self.first);
        let _runtime = first.as_ref().map(Handle::enter);
        handshake::listen()
    }

    /// A number that no other connection has.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
    pub fn session(&self, number: u64) -> Option<Arc<PeerSession>> {
        locked(&self.sessions).get(&number).cloned()
    }

    /// Send one message over a connection. False where the engine has ended for good: nobody will be told how it ends.
    pub fn send(self: &Arc<Self>, connection: u64, message: Message) -> bool {
        let operation = message.operation;
        let fail = |message: Message, failure: Failure| {
            drop(message); // let go of the payload first
            self.context.events.push(Event::Failed { operation, failure })
        };
        // Held until the message is its task's, or gone: `let_go` takes the connections first, then tells the end of all that
        // is listed, and nothing of what was lent may be left then.
        let mut sends = locked(&self.sends);
        let session = self
            .session(connection)
            .filter(|session| session.is(Stage::Up) && !session.closing());
        let Some(session) = session else {
            let failure = Failure::Lost {
                peer: format!("connection {connection}"),
                reason: "it has ended or never was".to_owned(),
            };
            drop(sends);
            return fail(message, failure);
        };
        let (length, accepted) = (
            message.payload.as_ref().map_or(0, |payload| payload.len() as u64),
            session.message_bytes_max(),
        );
        if length > accepted {
            let failure = Failure::Peer {
                peer: session.peer().to_string(),
                reason: format!("accepts messages of {accepted} bytes; this has {length}"),
                code: 0,
            };
            drop(sends);
            return fail(message, failure);
        }
        let (abort, aborted) = oneshot::channel();
        sends.insert(operation, (session.clone(), Some(abort)));
        session.send(message, aborted);
        drop(sends);
        true
    }

    /// End a send or a post.
    pub fn cancel(&self, operation: u64) {
        let mut sends = locked(&self.sends);
        let Some((session, abort)) = sends.get_mut(&operation) else {
            drop(sends);
            self.context.matcher.cancel(operation);
            return;
        };
        if let Some(abort) = abort.take() {
            let text = format!("the send to {} was cancelled here", session.peer());
            let _ = abort.send(Failure::Cancelled(text)); // it may be about to end
        }
    }

    /// What every connection measured at the last tick.
    pub fn statistics(&self) -> Arc<Vec<ConnectionStatistics>> {
        locked(&self.snapshot).clone()
    }

    /// Fail every operation and close every connection.
    pub fn end(&self, code: Code, failure: Failure, say: &str) {
        self.over.store(true, Ordering::SeqCst);
        for abort in locked(&self.sends).values_mut().filter_map(|(_, abort)| abort.take()) {
            let _ = abort.send(failure.clone()); // it may be about to end
        }
        self.context.matcher.fail_all(&failure);
        let sessions: Vec<Arc<PeerSession>> = locked(&self.sessions).values().cloned().collect();
        for session in &sessions {
            // One that is broken itself must not keep the others from their end.
            let closed = catch_unwind(AssertUnwindSafe(|| {
                if code == Code::NoError {
                    session.disconnect(code as u64, say);
                } else {
                    session.close(code as u64, failure.clone());
                }
            }));
            drop(closed);
        }
    }

    /// Something in here broke: everything ends, and the caller is told why.
    pub fn broke(&self, what: &str) {
        let failure = Failure::Lost {
            peer: "everybody".to_owned(),
            reason: format!("the engine of this process failed: {what}"),
        };
        self.end(Code::Internal, failure, what);
    }

    /// Say goodbye and wait a moment until that has been sent and everything has told its end.
    pub async fn finish(&self) {
        let living: Vec<Arc<PeerSession>> = locked(&self.sessions).values().cloned().collect();
        self.end_for_good();
        let until = Instant::now() + GOODBYE_WITHIN;
        // One that the peer has closed has nothing to say any more.
        let said = |session: &Arc<PeerSession>| {
            let stats = session.connection().and_then(|connection| connection.stats());
            stats.is_none_or(|stats| stats.frame_tx.connection_close + stats.frame_rx.connection_close > 0)
        };
        while Instant::now() < until && !(living.iter().all(said) && locked(&self.sessions).is_empty()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for served in std::mem::take(&mut *locked(&self.endpoints)).into_values() {
            served.endpoint.close(0u32.into(), b"goodbye");
        }
    }

    /// The threads have ended, perhaps before `finish` had or had begun: what they have not told is told here, and the
    /// sockets are not ours any more.
    pub fn let_go(&self) {
        self.end_for_good();
        locked(&self.first).take();
        let sessions = std::mem::take(&mut *locked(&self.sessions));
        let mut down = Vec::with_capacity(sessions.len());
        for session in sessions.into_values() {
            let peer = session.peer();
            self.context.matcher.disconnected(&peer, session.number, None);
            down.push((session.number, peer));
        }
        self.context.matcher.clear();
        locked(&self.endpoints).clear();
        *locked(&self.snapshot) = Arc::default();
        // What is listed here was the last that knew the connections: with these goes what they have of payloads, before
        // its end is told.
        let operations: Vec<u64> = std::mem::take(&mut *locked(&self.sends)).into_keys().collect();
        for operation in operations {
            let failure = closed_here();
            self.context.events.push(Event::Failed { operation, failure });
        }
        for (connection, peer) in down {
            let (peer, failure) = (peer.to_string(), None);
            self.context.events.push(Event::Down {
                connection,
                peer,
                failure,
            });
        }
    }

    fn end_for_good(&self) {
        self.end(Code::NoError, closed_here(), "goodbye");
    }
}

impl Registry for Engine {
    fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn connections_to(&self, peer: &str) -> usize {
        locked(&self.sessions)
            .values()
            .filter(|session| &*session.peer() == peer)
            .count()
    }

    fn forget(&self, connection: u64, peer: &str, was_up: bool) -> bool {
        let mut sessions = locked(&self.sessions);
        sessions.remove(&connection);
        was_up
            && !sessions
                .values()
                .any(|other| other.is(Stage::Up) && &*other.peer() == peer)
    }

    fn forget_send(&self, operation: u64) {
        locked(&self.sends).remove(&operation);
    }

    fn fail_send(&self, operation: u64, failure: Failure) {
        self.forget_send(operation);
        self.context.events.push(Event::Failed { operation, failure });
    }

    fn half_done(&self) -> bool {
        self.context.matcher.half_done()
            || self.endpoints.is_poisoned()
            || self.sessions.is_poisoned()
            || self.sends.is_poisoned()
    }
}

impl OnPanic for Engine {
    fn panicked(&self, words: &str) {
        self.broke(words);
    }

    fn end_all(&self, words: &str) {
        self.broke(words);
    }
}

fn closed_here() -> Failure {
    Failure::Cancelled("the engine was closed here".to_owned())
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;

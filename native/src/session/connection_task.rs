//! A connection's task: it dials or is dialled, shakes hands, lives and ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::VarInt;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::peer_session::{PeerSession, Stage};
use super::transmit::{self, Message};
use super::{memory_sharing, receive};
use crate::events::{Event, Failure};
use crate::quic::connection::Connection;
use crate::runtime::supervision::{self, OnPanic};
use crate::wire::Code;

impl PeerSession {
    /// Dial, and see the connection through, as a task.
    pub fn dial(self: &Arc<Self>, dial: impl FnOnce() -> Result<Connection, String> + Send + 'static) {
        let session = self.clone();
        supervision::spawn(&self.thread, ConnectionTask(self.clone()), async move {
            match dial() {
                Ok(connection) => session.run(connection).await,
                Err(reason) => {
                    session.note_failure(session.lost(reason));
                    session.finish(None).await;
                }
            }
        });
    }

    /// See a connection through, as a task.
    pub fn start(self: &Arc<Self>, connection: Connection) {
        supervision::spawn(&self.thread, ConnectionTask(self.clone()), self.clone().run(connection));
    }

    /// Send a message, as a task; `abort` ends it early.
    pub fn send(self: &Arc<Self>, message: Message, abort: oneshot::Receiver<Failure>) {
        let owner = Sending {
            session: self.clone(),
            operation: message.operation,
        };
        supervision::spawn(&self.thread, owner, transmit::send(self.clone(), message, abort));
    }

    /// See a connection through, from its first packet to its last.
    pub async fn run(self: Arc<Self>, connection: Connection) {
        let settings = &self.context.settings;
        let began = tokio::time::Instant::now();
        let deadline = began + settings.handshake_timeout;
        let connected = tokio::select! {
            connected = timeout_at(began + self.patience, connection.established()) => Some(connected),
            () = self.unwanted.notified() => None,
        };
        let ended = match connected {
            None => {
                connection.close(VarInt::from_u32(Code::NoError as u32), b"");
                None
            }
            Some(Err(_)) => {
                self.note_failure(self.handshake_timed_out(self.patience));
                connection.close(VarInt::from_u32(Code::HandshakeTimeout as u32), b"");
                None
            }
            Some(Ok(Err(error))) => Some(error),
            Some(Ok(Ok(()))) => {
                self.lock().heard_at = Instant::now();
                memory_sharing::keep_tokens(&self, &connection);
                let connection = self.connection.get_or_init(|| connection);
                if self.closing() || self.registry.over() {
                    connection.close(VarInt::from_u32(Code::NoError as u32), b""); // nobody could before
                }
                self.context.events.push(Event::Chain {
                    connection: self.number,
                    certificates: connection.peer_chain().iter().map(|one| one.to_vec()).collect(),
                });
                let mut stage = self.stage.subscribe();
                let up = async {
                    timeout_at(deadline, stage.wait_for(|stage| *stage >= Stage::Up))
                        .await
                        .is_ok()
                };
                tokio::select! {
                    error = connection.closed() => Some(error),
                    up = up => {
                        self.context.faults.here("connection");
                        if !up {
                            self.close(Code::HandshakeTimeout as u64, self.handshake_timed_out(settings.handshake_timeout));
                        }
                        Some(connection.closed().await)
                    }
                }
            }
        };
        self.finish(ended).await;
    }

    fn handshake_timed_out(&self, patience: Duration) -> Failure {
        let seconds = patience.as_secs_f64();
        self.lost(format!("no connection within {seconds} s"))
    }

    /// The peer's certificate is good: say hello, and listen.
    pub fn verified(self: &Arc<Self>, peer: &str) {
        self.set_peer(peer);
        if !self.advance(Stage::Handshaking, Stage::Verified) {
            return;
        }
        self.spawn(transmit::say_hello(self.clone(), self.hello.clone()));
        self.spawn(receive::listen(self.clone()));
    }
}

/// The task that sees a connection to its end.
struct ConnectionTask(Arc<PeerSession>);

impl OnPanic for ConnectionTask {
    fn panicked(&self, words: &str) {
        let Self(session) = self;
        if session.broke(words) && !session.finish_again() {
            session.registry.end_all(words);
        }
    }

    fn end_all(&self, words: &str) {
        self.0.end_all(words);
    }
}

/// The task of one send.
struct Sending {
    session: Arc<PeerSession>,
    operation: u64,
}

impl OnPanic for Sending {
    fn panicked(&self, words: &str) {
        // To tell its end is the last thing that its task would have done, so it has not been told.
        let failure = self.session.broken(words);
        self.session.registry.fail_send(self.operation, failure);
        self.session.broke(words);
    }

    fn end_all(&self, words: &str) {
        self.session.end_all(words);
    }
}

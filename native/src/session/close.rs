//! How a connection ends, for whose fault, and what is told of that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionError, VarInt};
use tokio::time::sleep;

use super::peer_session::{PeerSession, Stage};
use crate::events::{Event, Failure};
use crate::quic::connection::Ended;
use crate::runtime::supervision::{self, OnPanic};
use crate::wire::{Code, Violation, code_name};

/// How long a dialling side waits for the word that its refusal will be understood.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
const REASON_BYTES_MAX: usize = 500;
/// What is in the stack is read in a moment; a task that does not come to its end is a mistake of ours.
const READ_OUT_MAX: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl PeerSession {
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
        let session = self.clone();
        let confirmed = async move {
            let Some(connection) = session.connection() else {
                return;
            };
            let since = Instant::now();
            while session.dialled
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
        let reason = failure.reason().to_owned();
        self.note_failure(failure);
        self.unwanted.notify_one(); // where it still shakes hands
        self.say_close(code, &reason);
    }

    /// A task of this connection's panicked: the connection ends, and others go on where nothing that they share is half done.
    ///
    /// False where the engine ends instead.
    pub(super) fn broke(&self, words: &str) -> bool {
        if self.registry.half_done() {
            self.registry.end_all(words);
            return false;
        }
        self.close(Code::Internal as u64, self.broken(words));
        true
    }

    pub fn broken(&self, words: &str) -> Failure {
        self.lost(broken(words))
    }

    /// See the connection to its end in place of the task that panicked. False where it was about to do just that.
    pub fn finish_again(self: &Arc<Self>) -> bool {
        let due = !self.is(Stage::Ended);
        if due {
            let session = self.clone();
            // If that panics too the engine ends.
            supervision::spawn(&self.thread, self.registry.clone(), async move {
                session.finish(None).await
            });
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
    pub(super) fn note_failure(&self, failure: Failure) -> bool {
        let mut state = self.lock();
        let first = state.failure.is_none();
        state.failure.get_or_insert(failure);
        first
    }

    pub(super) async fn finish(self: &Arc<Self>, ended: Option<Ended>) {
        self.judged().await;
        if self.is(Stage::Up) && !self.registry.over() {
            // What had come whole was acknowledged, so the peer counts on it: it is told before the end is.
            let _ = tokio::time::timeout(READ_OUT_MAX, self.receives.none()).await;
        }
        let (failure, reason) = self.end_of(ended);
        self.lock().reason = reason.clone();
        let was = self.stage.send_replace(Stage::Ended);
        let peer = self.peer();
        let last = self.registry.forget(self.number, &peer, was == Stage::Up);
        if let Some(link) = self.lock().link.take() {
            link.end();
        }
        self.scheduler.end();
        self.opener.end();
        self.sends.none().await;
        if was == Stage::Up {
            let failure = last.then(|| self.lost(reason));
            self.context.matcher.disconnected(&peer, self.number, failure);
        }
        self.context.events.push(Event::Down {
            connection: self.number,
            peer: peer.to_string(),
            failure,
        });
    }

    /// Wait until the peer's hello has been judged, where messages of its wait for that: they are told then.
    async fn judged(&self) {
        let until = Instant::now() + self.context.settings.handshake_timeout;
        let waits = || self.is(Stage::Verified) && !self.closing() && !self.registry.over();
        while waits() && self.receives.some() && Instant::now() < until {
            sleep(LOOK_AGAIN).await;
        }
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
        let reason = match failure.as_ref().map(Failure::reason) {
            Some(reason) => reason,
            None if state.closed_here => "the connection was closed here",
            None => "the peer said goodbye",
        };
        let reason = reason.to_owned();
        (failure, reason)
    }

    /// The failure of a send that the connection's end has stopped.
    pub async fn ended(&self) -> Failure {
        // The sender of the stage lives as long as `self`.
        let _ = self.stage.subscribe().wait_for(|stage| *stage == Stage::Ended).await;
        let reason = self.lock().reason.clone();
        self.lost(reason)
    }
}

impl OnPanic for PeerSession {
    fn panicked(&self, words: &str) {
        self.broke(words);
    }

    fn end_all(&self, words: &str) {
        self.registry.end_all(words);
    }
}

fn broken(words: &str) -> String {
    format!("the engine of this process failed on this connection: {words}")
}

fn cut(reason: &str) -> &[u8] {
    &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]
}

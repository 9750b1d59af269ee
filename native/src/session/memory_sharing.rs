//! How a connection comes to share memory: whoever dialled it meets the peer at the place that its hello names, where there
//! is one and it can be reached. Where anything is in the way, messages go over QUIC as before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::context::Registry;
use super::engine::Engine;
use super::peer_session::{PeerSession, Stage};
use super::shared_messages;
use crate::events::Event;
use crate::quic::connection::Connection;
use crate::runtime::locks::locked;
use crate::shared_memory::handshake::{self, TOKEN_BYTES, Token, Tokens};
use crate::shared_memory::link::Link;
use crate::shared_memory::region::{Region, Side};

/// A peer that is stopped must not keep the memory and the socket.
const MEET_WITHIN: Duration = Duration::from_secs(5);
/// Who dials a socket and shows nothing: ranks of a host are fewer.
const UNKNOWN_MAX: usize = 256;
const PURPOSE: &[u8] = b"hive-qos shared memory 1";

/// Listen for peers of this host. Where, if that is wanted and can be.
pub fn begin(engine: &Arc<Engine>) -> Option<String> {
    if !engine.context.settings.shared_memory {
        return None;
    }
    let (socket, name) = engine.listen().ok()?;
    engine.spawn(listen(engine.clone(), socket));
    Some(name)
}

/// What the two ends of a connection know each other by.
pub(super) fn keep_tokens(session: &PeerSession, connection: &Connection) {
    let mut secret = [0; 2 * TOKEN_BYTES];
    if session.context.settings.shared_memory && connection.export_secret(PURPOSE, &mut secret) {
        let (first, second) = secret.split_at(TOKEN_BYTES);
        let [dialler, dialled] = [first, second].map(|half| half.try_into().expect("it is half of both"));
        let _ = session.tokens.set(Tokens(dialler, dialled)); // once
    }
}

/// The peer's hello names its meeting place: go there, where this side dialled.
pub fn meet(session: &Arc<PeerSession>, name: String) {
    if let Some(tokens) = session.tokens.get().copied().filter(|_| session.dialled) {
        session.spawn(dial(session.clone(), name, tokens));
    }
}

async fn dial(session: Arc<PeerSession>, name: String, tokens: Tokens) {
    let eager_bytes = eager_bytes(&session);
    let met = within(handshake::dial(&name, &tokens, eager_bytes)).await;
    let joined = met.and_then(|(region, socket)| join(&session, region, Side::Dialler, socket, eager_bytes, None));
    tell(&session, joined.err());
}

async fn listen(engine: Arc<Engine>, listener: UnixListener) {
    let unknown = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await; // no descriptor is left
            continue;
        };
        if engine.over() || unknown.load(Ordering::Relaxed) >= UNKNOWN_MAX {
            continue;
        }
        let (engine, counted) = (engine.clone(), unknown.clone());
        counted.fetch_add(1, Ordering::Relaxed);
        engine.clone().spawn(async move {
            if let Ok((token, region)) = within(handshake::greet(&socket)).await {
                admit(&engine, &token, region, socket);
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Somebody has dialled with a token: it is the other end of the connection whose token that is.
fn admit(engine: &Engine, token: &Token, region: Region, socket: UnixStream) {
    let sessions: Vec<Arc<PeerSession>> = locked(&engine.sessions).values().cloned().collect();
    let of_token = |session: &&Arc<PeerSession>| {
        let tokens = session.tokens.get().filter(|_| !session.dialled);
        tokens.is_some_and(|tokens| handshake::same(&tokens.0, token))
    };
    let Some(session) = sessions.iter().find(of_token).cloned() else {
        return; // its connection has ended
    };
    let joining = session.clone();
    session.spawn(async move {
        let session = joining;
        let Some(tokens) = session.tokens.get() else { return };
        let eager_bytes = eager_bytes(&session);
        Link::allow_first(&region, Side::Dialled, eager_bytes);
        let joined = join(&session, region, Side::Dialled, socket, eager_bytes, Some(&tokens.1));
        tell(&session, joined.err());
    });
}

/// Messages go through this memory from here on. Who dialled is answered when nothing is in the way any more: it would
/// wait for ever for one that has let go.
fn join(
    session: &Arc<PeerSession>,
    region: Region,
    side: Side,
    socket: UnixStream,
    eager_bytes: u64,
    answer: Option<&Token>,
) -> io::Result<()> {
    let (link, reader) = Link::new(region, side, socket.into_std()?)?;
    {
        let mut state = session.lock();
        if state.link.is_some() || session.is(Stage::Ended) {
            return Err(io::Error::other("the connection has ended, or shares memory already"));
        }
        if let Some(token) = answer {
            link.welcome(token)?;
        }
        state.link = Some(link.clone());
    }
    let counted = session.receives.enter();
    session.spawn(shared_messages::read(
        session.clone(),
        link,
        reader,
        eager_bytes,
        counted,
    ));
    Ok(())
}

async fn within<T>(meeting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(MEET_WITHIN, meeting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn eager_bytes(session: &PeerSession) -> u64 {
    let connections = session.registry.connections_to(&session.peer());
    session.context.settings.eager_bytes_of(connections)
}

fn tell(session: &PeerSession, failure: Option<io::Error>) {
    let (connection, failure) = (session.number, failure.map(|error| error.to_string()));
    session.context.events.push(Event::SharedMemory { connection, failure });
}

#[cfg(test)]
#[path = "memory_sharing_tests.rs"]
mod tests;

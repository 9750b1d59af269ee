//! What one connection receives: the peer's control stream, and each message on a stream of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::VarInt;
use tokio::time::sleep;

use super::peer_session::{PeerSession, Stage};
use crate::events::Event;
use crate::matching::holds::HOLDS_MAX;
use crate::matching::incoming_message::{IncomingMessage, Next};
use crate::quic::streams::{ReadError, RecvStream};
use crate::runtime::task_tracker::Tracked;
use crate::wire::{Code, ControlFrame, ControlReader, HEADER_BYTES_MAX, Header, HeaderReader, Violation, code_name};

/// Read at once: about 45 KB of full packets, copied while they are in the cache.
const CHUNKS: usize = 32;

/// Between looks whether Python has been told what a peer said.
const HEARD_AGAIN: Duration = Duration::from_millis(1);

/// Take the peer's streams as they come. The first is its control stream.
pub async fn listen(session: Arc<PeerSession>) {
    let Some(connection) = session.connection() else {
        return;
    };
    let Ok(control) = connection.accept_uni().await else {
        return;
    };
    session.spawn(listen_to_control(session.clone(), control));
    let _listening = session.receives.enter();
    while let Ok(stream) = connection.accept_uni().await {
        session.spawn(receive(session.clone(), stream, session.receives.enter()));
    }
}

async fn listen_to_control(session: Arc<PeerSession>, mut stream: RecvStream) {
    let mut reader = ControlReader::default();
    let violation = loop {
        while session.context.events.holds() > HOLDS_MAX {
            sleep(HEARD_AGAIN).await; // a hold is three bytes on the wire, and a hundred times that until it is told
        }
        let piece = match stream.read_chunk(HEADER_BYTES_MAX).await {
            Ok(Some(piece)) => piece,
            Ok(None) => break Violation::new(Code::ProtocolViolation, "ended its control stream"),
            Err(ReadError::Reset(_)) => {
                break Violation::new(Code::ProtocolViolation, "reset its control stream");
            }
            Err(ReadError::Lost) => return,
        };
        let (events, connection) = (&session.context.events, session.number);
        let hear = |frame: ControlFrame<'_>| match frame {
            ControlFrame::Hello(body) => {
                let body = body.to_vec();
                events.push(Event::Hello { connection, body });
            }
            ControlFrame::Hold(hold) => events.push_hold(connection, hold),
        };
        if let Err(violation) = reader.take(&piece, hear) {
            break violation;
        }
    };
    session.violated(violation);
}

/// Receive one message.
async fn receive(session: Arc<PeerSession>, mut stream: RecvStream, _counted: Tracked) {
    let (header, first) = match read_header(&mut stream).await {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(violation) => return session.violated(violation),
    };
    let mut stage = session.stage.subscribe();
    match stage.wait_for(|stage| *stage >= Stage::Up).await {
        Ok(stage) if *stage == Stage::Up => {}
        _ => return,
    }
    if let Err(violation) = admit(&session, &header) {
        return session.violated(violation);
    }
    let message = session.context.matcher.arrived(&session.peer(), header, &*session);
    if let Err(violation) = read_payload(&session, &mut stream, &message, first).await {
        session.violated(violation);
    }
}

/// Hold a message's header against what was agreed with the peer.
pub(super) fn admit(session: &PeerSession, header: &Header) -> Result<(), Violation> {
    let accepted = session.context.settings.message_bytes_max;
    if header.length > accepted {
        let reason = format!("a message of {} bytes where {accepted} are accepted", header.length);
        return Err(Violation::new(Code::MessageTooLong, reason));
    }
    let job = session.job();
    if !header.job.is_empty() && !job.is_empty() && header.job != job {
        let reason = format!("a message of job {:?} from job {job:?}", header.job);
        return Err(Violation::new(Code::JobMismatch, reason));
    }
    Ok(())
}

/// A message's header and what came with it; None where the stream ended for no fault of the peer's.
async fn read_header(stream: &mut RecvStream) -> Result<Option<(Header, Bytes)>, Violation> {
    let mut reader = HeaderReader::default();
    loop {
        let piece = match stream.read_chunk(HEADER_BYTES_MAX).await {
            Ok(Some(piece)) => piece,
            Ok(None) => {
                return Err(Violation::new(Code::LengthMismatch, "a stream ended within its header"));
            }
            Err(_) => return Ok(None),
        };
        let found = reader.take(piece)?;
        if found.is_some() {
            return Ok(found);
        }
    }
}

async fn read_payload(
    session: &PeerSession,
    stream: &mut RecvStream,
    message: &Arc<IncomingMessage>,
    first: Bytes,
) -> Result<(), Violation> {
    let matcher = &session.context.matcher;
    if !message.write(&first) {
        return Err(too_much(message));
    }
    drop(first); // a few bytes of a message that waits must not keep a whole batch of datagrams
    session.context.faults.here("receive");
    let mut chunks: [Bytes; CHUNKS] = Default::default();
    loop {
        match message.next() {
            Next::Stop(code) => {
                stream.stop(VarInt::from_u32(code as u32));
                return Ok(());
            }
            Next::Wait => {
                tokio::select! {
                    () = message.changed.notified() => continue,
                    reset = stream.received_reset() => if let Some(code) = reset {
                        matcher.reset(message, &reason_of(code));
                        return Ok(());
                    }
                }
                // The connection has ended. What the stack has of the message was acknowledged: it is not sent again.
            }
            Next::Read => {}
        }
        let read = tokio::select! {
            biased;
            read = stream.read_chunks(&mut chunks) => read,
            () = message.changed.notified() => continue,
        };
        match read {
            Ok(Some(count)) => {
                let good = message.write_all(&chunks[..count]);
                chunks[..count].fill(Bytes::new());
                if !good {
                    return Err(too_much(message));
                }
            }
            Ok(None) if message.whole() => {
                matcher.completed(message);
                return Ok(());
            }
            Ok(None) => {
                let reason = format!("a stream ended short of its {} bytes", message.header.length);
                return Err(Violation::new(Code::LengthMismatch, reason));
            }
            Err(ReadError::Reset(code)) => {
                matcher.reset(message, &reason_of(code));
                return Ok(());
            }
            Err(ReadError::Lost) => return Ok(()), // with the connection, which the matcher is told
        }
    }
}

pub(super) fn too_much(message: &IncomingMessage) -> Violation {
    let reason = format!("more than the {} bytes that its header says", message.header.length);
    Violation::new(Code::LengthMismatch, reason)
}

fn reason_of(code: VarInt) -> String {
    format!("stream reset with {}", code_name(code.into_inner()))
}

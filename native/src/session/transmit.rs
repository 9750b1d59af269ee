//! What one connection sends: its hello, and each message on a stream of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::{Buf, Bytes};
use quinn_proto::VarInt;
use tokio::sync::oneshot;

use super::peer_session::PeerSession;
use crate::borrowed_buffers::Payload;
use crate::events::{Event, Failure};
use crate::quic::streams::{SendStream, WriteError};
use crate::shared_memory::link::{Link, Outgoing, Unsent};
use crate::wire::{Code, code_name};

/// A collective's chunk: chunks then arrive one after another, and the first is reduced while the next is on its way.
const TURN_BYTES: usize = 512 * 1024;
const CONTROL_LEVEL: usize = 1;
/// Numbers that the streams of a level have one after the other; who has so many open is out of order, and no worse.
const TURNS_OF_LEVEL: u32 = 1 << 28;

/// A message to send. The payload is lent until the event of its end.
pub struct Message {
    pub operation: u64,
    pub header: Bytes,
    pub payload: Option<Arc<Payload>>,
    pub level: usize,
}

/// How a send came to its end.
enum End {
    Done,
    Stopped(VarInt),
    Lost,
    Aborted(Failure),
}

/// Open the control stream and say hello, then what is to be said; it stays open as long as the connection.
pub async fn say_hello(session: Arc<PeerSession>, hello: Bytes) {
    let Some(connection) = session.connection() else {
        return;
    };
    // The first stream of all: nothing else is sent before the peer's answer.
    let Ok(mut stream) = connection.open_uni().await else {
        return;
    };
    stream.set_priority(rank(0, 0));
    let Some(mut to_say) = session.lock().to_say.take() else {
        return;
    };
    let mut next = Some(hello);
    while let Some(frame) = next {
        if stream.write_all(frame).await.is_err() {
            return;
        }
        next = tokio::select! {
            frame = to_say.recv() => frame.map(Bytes::from),
            _ = connection.closed() => None,
        };
    }
}

/// Send a message and tell how it ended; `abort` ends it early.
pub async fn send(session: Arc<PeerSession>, message: Message, abort: oneshot::Receiver<Failure>) {
    let _sending = session.sends.enter();
    let message = message; // let go of before `_sending`, also in a panic
    let mut way = None;
    let end = tokio::select! {
        biased;
        Ok(failure) = abort => End::Aborted(failure),
        end = drive(&session, &message, &mut way) => end,
    };
    let mut give_up = |code: VarInt| {
        match &mut way {
            Some(Way::Stream(stream)) => stream.reset(code), // the stack lets go of the payload here
            Some(Way::Shared(outgoing)) => outgoing.reset(code.into_inner() as u32),
            None => {}
        }
    };
    let failure = match end {
        End::Done => None,
        End::Stopped(code) => {
            give_up(code);
            Some(refused(&session, code.into_inner()))
        }
        End::Lost => {
            let failure = session.ended().await;
            give_up((Code::Cancelled as u32).into());
            Some(failure)
        }
        End::Aborted(failure) => {
            give_up((Code::Cancelled as u32).into());
            Some(failure)
        }
    };
    drop(way);
    let operation = message.operation;
    drop(message); // let go of the payload before its end is told
    session.registry.forget_send(operation);
    session.context.events.push(match failure {
        None => Event::SendDone(operation),
        Some(failure) => Event::Failed { operation, failure },
    });
}

fn refused(session: &PeerSession, code: u64) -> Failure {
    let reason = format!("refused the message with {}", code_name(code));
    if code == Code::Discarded as u64 {
        return Failure::Discarded(format!("{} {reason}", session.peer()));
    }
    if code == Code::Cancelled as u64 {
        return Failure::Cancelled(format!("{} {reason}", session.peer()));
    }
    Failure::Peer {
        peer: session.peer().to_string(),
        reason,
        code,
    }
}

/// What carries a message.
enum Way {
    Stream(SendStream),
    Shared(Outgoing),
}

/// Send it through shared memory, where there is some. What is urgent is short, and goes where nothing is in front of it.
async fn drive(session: &Arc<PeerSession>, message: &Message, way: &mut Option<Way>) -> End {
    match session.link().filter(|_| message.level > CONTROL_LEVEL) {
        Some(link) => share(session, message, link, way).await,
        None => stream(session, message, way).await,
    }
}

async fn share(session: &Arc<PeerSession>, message: &Message, link: Arc<Link>, way: &mut Option<Way>) -> End {
    let Way::Shared(outgoing) = way.insert(Way::Shared(Outgoing::new(link))) else {
        unreachable!("it was put there just now");
    };
    session.context.faults.here("send");
    let payload = message.payload.as_ref().map_or(&[][..], |payload| payload.bytes());
    match outgoing.send(message.level, &message.header, payload).await {
        Ok(()) => End::Done,
        Err(Unsent::Stopped(code)) => End::Stopped(code.into()),
        Err(Unsent::Lost) => End::Lost,
        Err(Unsent::Broken(violation)) => {
            session.violated(violation);
            End::Lost
        }
    }
}

/// Open a stream, hand everything to the stack in turns, and wait for the last acknowledgement.
async fn stream(session: &Arc<PeerSession>, message: &Message, way: &mut Option<Way>) -> End {
    let Some(connection) = session.connection() else {
        return End::Lost;
    };
    let turn = session.opener.enter(message.level, 1, false).await;
    let Ok(stream) = connection.open_uni().await else {
        return End::Lost;
    };
    drop(turn);
    let Way::Stream(stream) = way.insert(Way::Stream(stream)) else {
        unreachable!("it was put there just now");
    };
    session.context.faults.here("send");
    match write(session, message, stream).await {
        Ok(()) => {}
        Err(WriteError::Stopped(code)) => return End::Stopped(code),
        Err(WriteError::Lost) => return End::Lost,
    }
    stream.finish();
    match stream.stopped().await {
        Ok(None) => End::Done,
        Ok(Some(code)) => End::Stopped(code),
        Err(_) => End::Lost,
    }
}

/// Where a turn stands, which the stack serves highest first: by level (the control stream is level 0), and of one level
/// the oldest first, so that the first chunk is reduced while the next is on its way.
fn rank(level: usize, turns_before: u32) -> i32 {
    i32::MAX - (level as u32 * TURNS_OF_LEVEL + turns_before % TURNS_OF_LEVEL) as i32
}

async fn write(session: &Arc<PeerSession>, message: &Message, stream: &mut SendStream) -> Result<(), WriteError> {
    let mut header = message.header.clone();
    let total = message.payload.as_ref().map_or(0, |payload| payload.len());
    let (mut at, mut turn_end) = (0, 0);
    while at < total || !header.is_empty() {
        let length = TURN_BYTES.min(total - at);
        let urgent = message.level <= CONTROL_LEVEL;
        let permit = session.scheduler.enter(message.level, length as u64, urgent).await;
        if at >= turn_end {
            turn_end = at + TURN_BYTES; // what comes back for what a full window left of a turn keeps its place
            stream.set_priority(rank(message.level, session.turns.fetch_add(1, Ordering::Relaxed)));
        }
        let (piece, taken) = match &message.payload {
            Some(payload) => payload.piece(at, length, (&session.scheduler, message.level)),
            None => Default::default(),
        };
        let mut chunks = [header.clone(), piece];
        let written = poll_fn(|cx| match stream.poll_write(cx, &mut chunks) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => Poll::Ready(None), // and this task is woken when there is credit
        })
        .await;
        let count = match &written {
            Some(Ok(written)) => written.bytes,
            _ => 0,
        };
        let of_header = count.min(header.len());
        header.advance(of_header);
        at += count - of_header;
        taken.store((count - of_header) as u64, Ordering::Relaxed);
        permit.spend((count - of_header) as u64);
        drop(chunks);
        session.context.faults.here("written");
        match written {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => woken().await,
        }
    }
    Ok(())
}

/// Wait until this task is woken, by whatever.
async fn woken() {
    let mut waited = false;
    poll_fn(|_| {
        if std::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;

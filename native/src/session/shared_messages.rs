//! What one connection receives through shared memory: each frame goes from the ring to where its message's bytes belong.
//!
//! As over QUIC: a message that has a place is read, one that nobody takes waits at its sender but for what goes unasked, and
//! one that is not wanted is stopped. The ring is read on all the while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::peer_session::{PeerSession, Stage};
use super::receive::{admit, too_much};
use crate::matching::incoming_message::{Channel, IncomingMessage, Next};
use crate::runtime::task_tracker::Tracked;
use crate::settings::MESSAGES_AHEAD;
use crate::shared_memory::link::Link;
use crate::shared_memory::ring::{Frame, Kind, Reader, frame_bytes};
use crate::wire::{Code, HEADER_BYTES_MAX, Violation, code_name, decode_header, split_header};

/// Read at once before other tasks have their turn: a collective's chunk.
const READ_BYTES: usize = 512 * 1024;
/// How often to look for room while a full store keeps messages back.
const HELD_BACK: Duration = Duration::from_millis(10);
/// A peer that goes says why over QUIC, which takes a moment; one that was killed does not.
const LEFT_WITHIN: Duration = Duration::from_millis(500);

/// Read the ring until the connection has ended, and what came before that to its end.
///
/// `eager_bytes`: what the peer was told that it may send of each message unasked.
pub(super) async fn read(
    session: Arc<PeerSession>,
    link: Arc<Link>,
    reader: Reader,
    eager_bytes: u64,
    _counted: Tracked,
) {
    let mut stage = session.stage.subscribe();
    match stage.wait_for(|stage| *stage >= Stage::Up).await {
        Ok(stage) if *stage == Stage::Up => {}
        _ => return,
    }
    let inbound = Inbound::new(&session, link, eager_bytes);
    if let Err(violation) = inbound.run(&session, reader).await {
        session.violated(violation);
    }
}

/// A connection as messages see it that come through shared memory: QUIC's windows are not theirs.
struct SharedChannel {
    session: Arc<PeerSession>,
    eager_bytes: u64,
    /// The store has no room for messages that have not begun.
    full: AtomicBool,
}

impl Channel for SharedChannel {
    fn id(&self) -> u64 {
        self.session.id()
    }

    fn account(&self) -> String {
        self.session.account()
    }

    fn stream_window(&self) -> u64 {
        self.eager_bytes
    }

    fn raise_window(&self, _bytes: u64) {}

    fn full(&self) {
        self.full.store(true, SeqCst);
    }

    fn says(&self) -> mpsc::Sender<Vec<u8>> {
        self.session.says()
    }

    fn ended(&self) -> bool {
        self.session.is(Stage::Ended)
    }
}

struct Arriving {
    message: Arc<IncomingMessage>,
    received: u64,
    /// The peer was told that all of it may come.
    accepted: bool,
    /// The peer was told that no more of it is wanted.
    stopped: bool,
}

struct Inbound {
    link: Arc<Link>,
    channel: SharedChannel,
    begun: u64,
    allowed: u64,
    arriving: HashMap<u64, Arriving>,
    /// Those of which more can only come when they have a place.
    waiting: Vec<u64>,
}

impl Inbound {
    fn new(session: &Arc<PeerSession>, link: Arc<Link>, eager_bytes: u64) -> Self {
        let channel = SharedChannel {
            eager_bytes,
            session: session.clone(),
            full: AtomicBool::new(false),
        };
        Self {
            link,
            channel,
            begun: 0,
            allowed: MESSAGES_AHEAD,
            arriving: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    async fn run(mut self, session: &Arc<PeerSession>, mut reader: Reader) -> Result<(), Violation> {
        let Some(connection) = session.connection() else {
            return Ok(());
        };
        let mut over = false;
        loop {
            if session.is(Stage::Ended) {
                return Ok(()); // what is released counts as read, and nothing is taken any more
            }
            let mut bytes = 0;
            while bytes < READ_BYTES {
                let Some(frame) = reader.front()? else { break };
                self.take(session, frame, reader.content(frame))?;
                self.link.released(reader.release(frame));
                bytes += frame_bytes(frame.length); // one without content takes time, too
            }
            self.look()?;
            self.link.look()?;
            if bytes >= READ_BYTES {
                tokio::task::yield_now().await;
            } else if over {
                return Ok(());
            } else {
                let held_back = !self.waiting.is_empty() || self.allowed < self.begun + MESSAGES_AHEAD;
                tokio::select! {
                    there = self.link.woken(&reader) => if !there? {
                        tokio::select! {
                            _ = connection.closed() => {}
                            () = sleep(LEFT_WITHIN) => {
                                let failure = match self.link.process_ended() {
                                    true => session.gone("its process has ended".to_owned()),
                                    false => session.lost("it has let go of the shared memory".to_owned()),
                                };
                                session.close(Code::Dead as u64, failure);
                            }
                        }
                        over = true;
                    },
                    _ = connection.closed() => over = true,
                    () = sleep(HELD_BACK), if held_back => {}
                }
            }
        }
    }

    fn take(&mut self, session: &Arc<PeerSession>, frame: Frame, content: [&[u8]; 2]) -> Result<(), Violation> {
        match frame.kind {
            Kind::Begin => self.begin(session, frame.message, &content.concat()),
            Kind::Data => self.more(session, frame, content),
            Kind::Reset => {
                let code = code_of(content)?;
                if let Some(arriving) = self.arriving.remove(&frame.message) {
                    let reason = format!("stream reset with {}", code_name(code.into()));
                    session.context.matcher.reset(&arriving.message, &reason);
                }
                Ok(())
            }
            Kind::Stop | Kind::Accept => {
                self.link.answered(frame, code_of(content)?);
                Ok(())
            }
        }
    }

    fn begin(&mut self, session: &Arc<PeerSession>, number: u64, header: &[u8]) -> Result<(), Violation> {
        if number != self.begun || number >= self.allowed {
            let (begun, allowed) = (self.begun, self.allowed);
            return Err(broken(format!(
                "message {number} began behind {begun} of {allowed} allowed"
            )));
        }
        let Some((start, end)) = split_header(header)?.filter(|(_, end)| *end == header.len()) else {
            return Err(broken(format!(
                "a header of at most {HEADER_BYTES_MAX} bytes is not whole"
            )));
        };
        let header = decode_header(&header[start..end])?;
        admit(session, &header)?;
        self.begun += 1;
        let matcher = &session.context.matcher;
        let message = matcher.arrived(&session.peer(), header, &self.channel);
        let length = message.header.length;
        self.arriving.insert(
            number,
            Arriving {
                message,
                received: 0,
                accepted: length <= self.channel.eager_bytes,
                stopped: false,
            },
        );
        session.context.faults.here("receive");
        if length == 0 {
            self.end(session, number)
        } else {
            self.tend(number)
        }
    }

    fn more(&mut self, session: &PeerSession, frame: Frame, content: [&[u8]; 2]) -> Result<(), Violation> {
        let Some(arriving) = self.arriving.get_mut(&frame.message) else {
            return Err(broken(format!(
                "more of message {}, which is not on its way",
                frame.message
            )));
        };
        let length = arriving.message.header.length;
        arriving.received += frame.length as u64;
        self.link.received_bytes.fetch_add(frame.length as u64, Relaxed);
        if arriving.received > length {
            return Err(too_much(&arriving.message));
        }
        if !arriving.accepted && arriving.received > self.channel.eager_bytes {
            return Err(broken(format!("{} bytes of a message unasked", arriving.received)));
        }
        if !arriving.stopped && !content.iter().all(|piece| arriving.message.write(piece)) {
            return Err(too_much(&arriving.message));
        }
        if arriving.received == length {
            return self.end(session, frame.message);
        }
        self.tend(frame.message)
    }

    /// All of a message is there.
    fn end(&mut self, session: &PeerSession, number: u64) -> Result<(), Violation> {
        if let Some(arriving) = self.arriving.remove(&number)
            && arriving.message.whole()
        {
            session.context.matcher.completed(&arriving.message);
        }
        Ok(())
    }

    /// Tell the peer what becomes of a message of which there is more to come.
    fn tend(&mut self, number: u64) -> Result<(), Violation> {
        let Some(arriving) = self.arriving.get_mut(&number) else {
            return Ok(());
        };
        match arriving.message.next() {
            Next::Stop(code) if !arriving.stopped => {
                arriving.stopped = true;
                self.link.answer(Kind::Stop, number, code as u32)
            }
            Next::Read if !arriving.accepted => {
                arriving.accepted = true;
                self.link.answer(Kind::Accept, number, 0)
            }
            Next::Wait if !arriving.accepted && !self.waiting.contains(&number) => {
                self.waiting.push(number);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Look after messages that wait for a place, and let others begin where the store has room.
    fn look(&mut self) -> Result<(), Violation> {
        for number in std::mem::take(&mut self.waiting) {
            self.tend(number)?;
        }
        let session = &self.channel.session;
        let full = self.channel.full.load(SeqCst) && session.context.matcher.full(&session.peer(), &session.account());
        let open_max = session.context.settings.streams_max as usize;
        let crowded = self.arriving.len() >= open_max || self.link.is_behind();
        if !full && !crowded && self.allowed < self.begun + MESSAGES_AHEAD {
            self.channel.full.store(false, SeqCst);
            self.allowed = self.begun + MESSAGES_AHEAD;
            self.link.allow(self.allowed);
        }
        Ok(())
    }
}

fn code_of(content: [&[u8]; 2]) -> Result<u32, Violation> {
    let code = content
        .concat()
        .try_into()
        .map_err(|_| broken("a code of another length".to_owned()))?;
    Ok(u32::from_le_bytes(code))
}

fn broken(what: String) -> Violation {
    Violation::new(Code::ProtocolViolation, format!("shared memory: {what}"))
}

#[cfg(test)]
#[path = "shared_messages_tests.rs"]
mod tests;

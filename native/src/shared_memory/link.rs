//! Messages over shared memory: what a connection's streams are to QUIC. Beside it QUIC goes on, and says who lives.
//!
//! - Who sends has the turn: strictly by priority, equals one after the other, each for `TURN_BYTES` at most.
//! - A message begins when the receiver allows one more. So many of its bytes go unasked as the receiver says; the rest goes
//!   when the receiver has a place for all of it (`Accept`). So a receiver never stops reading, and nothing of a message that
//!   nobody takes is in the way of others.
//! - A message is sent when the peer has read it: what it has not read is lost with the link, and sent again over the next.
//! - Who waits sets `Asleep`, looks once more, and waits for its socket; who published something looks at `Asleep` and writes
//!   a byte there. In this order of theirs (SeqCst) one of both sees the other. Nobody is woken that does not wait.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};

use super::region::{RING_BYTES, Region, Side, Word};
use super::ring::{Frame, Kind, Reader, Writer, frame_bytes};
use crate::quic::send_scheduler::{Permit, SendScheduler};
use crate::runtime::locks::locked;
use crate::settings::MESSAGES_AHEAD;
use crate::wire::{Code, Violation};

/// The reader begins with a part of a chunk while the next is written.
const FRAME_BYTES: usize = 64 * 1024;
/// A collective's chunk: chunks then arrive one after another, and the first is reduced while the next is on its way.
const TURN_BYTES: usize = 512 * 1024;
/// Who waits for room is woken when there is so much: not for every frame.
const ROOM_BYTES: u64 = RING_BYTES as u64 / 4;

pub struct Link {
    region: Arc<Region>,
    side: Side,
    socket: UnixStream,
    /// The peer's process (pidfd_open(2)); None where it cannot be seen, as in another PID namespace.
    process: Option<OwnedFd>,
    /// Of each message the peer takes so much unasked.
    eager_bytes: usize,
    outbound: Mutex<Outbound>,
    /// Messages begin one by one, so that the most urgent is the next that the peer allows.
    openings: Arc<SendScheduler>,
    turns: Arc<SendScheduler>,
    /// There is room, or a message may begin or go on.
    changed: Notify,
    /// Payload bytes.
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
}

struct Outbound {
    writer: Writer,
    /// Messages that have begun and are not whole: at most as many as there are sends.
    open: HashMap<u64, Flow>,
    /// Whole messages that the peer has not read yet, by where they end.
    unread: VecDeque<(u64, oneshot::Sender<()>)>,
    /// Resets, stops and accepts for which there was no room: at most two for every open message.
    answers: VecDeque<(Kind, u64, u32)>,
    begun: u64,
    /// Somebody waits until the peer has read so far.
    blocked: Option<u64>,
    over: bool,
}

#[derive(Default)]
struct Flow {
    accepted: bool,
    stopped: Option<u32>,
}

/// Why a message was not sent.
pub enum Unsent {
    /// The peer wants no more of it.
    Stopped(u32),
    Lost,
    Broken(Violation),
}

/// What a send has come to.
enum Progress {
    Whole(oneshot::Receiver<()>),
    TurnOver,
    NoRoom,
    NotAllowed,
}

/// One message on its way out; dropped before it is whole it is given up.
pub struct Outgoing {
    link: Arc<Link>,
    number: Option<u64>,
    written: usize,
    turn_end: usize,
}

fn process_of(socket: &UnixStream) -> Option<OwnedFd> {
    let number = socket.peer_cred().ok()?.pid()?;
    pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the kernel reads and writes one `pollfd`, and does not wait.
    unsafe { libc::poll(&mut polled, 1, 0) == 1 }
}

impl Link {
    /// A link of which both sides have said what they allow, and the ring that is read here.
    ///
    /// # Errors
    /// The socket cannot be waited for.
    pub fn new(region: Region, side: Side, socket: std::os::unix::net::UnixStream) -> io::Result<(Arc<Self>, Reader)> {
        let region = Arc::new(region);
        let eager = region.word(side.other(), Word::Eager).load(SeqCst);
        let outbound = Outbound {
            writer: Writer::new(region.clone(), side),
            open: HashMap::new(),
            unread: VecDeque::new(),
            answers: VecDeque::new(),
            begun: 0,
            blocked: None,
            over: false,
        };
        let reader = Reader::new(region.clone(), side.other());
        let socket = UnixStream::from_std(socket)?;
        let link = Self {
            region,
            side,
            process: process_of(&socket),
            socket,
            eager_bytes: usize::try_from(eager).unwrap_or(usize::MAX),
            outbound: Mutex::new(outbound),
            openings: SendScheduler::new(1, Arc::default()),
            turns: SendScheduler::new(1, Arc::default()),
            changed: Notify::new(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        };
        Ok((Arc::new(link), reader))
    }

    /// Whether the peer's process is known to have ended. It may as well have let go of the link alone.
    pub fn process_ended(&self) -> bool {
        self.process.as_ref().is_some_and(has_ended)
    }

    /// Say in fresh memory what this side takes unasked.
    pub fn allow_first(region: &Region, side: Side, eager_bytes: u64) {
        region.word(side, Word::Eager).store(eager_bytes, SeqCst);
        region.word(side, Word::Allowed).store(MESSAGES_AHEAD, SeqCst);
        region.word(side, Word::Wanted).store(u64::MAX, SeqCst);
    }

    /// Answer who dialled: for that side the memory is shared from here on. Before anything else is written there.
    pub fn welcome(&self, token: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.socket, token, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Let so many messages of the peer's begin in all.
    pub fn allow(&self, messages: u64) {
        self.region.word(self.side, Word::Allowed).store(messages, SeqCst);
        self.wake();
    }

    /// A frame was released, up to `tail`.
    pub fn released(&self, tail: u64) {
        if tail >= self.region.word(self.side.other(), Word::Wanted).load(SeqCst) {
            self.wake();
        }
    }

    /// The peer answered for one of our messages.
    pub fn answered(&self, frame: Frame, code: u32) {
        let mut outbound = self.lock();
        if let Some(flow) = outbound.open.get_mut(&frame.message) {
            match frame.kind {
                Kind::Accept => flow.accepted = true,
                _ => flow.stopped = Some(code),
            }
            self.changed.notify_waiters();
        }
    }

    /// The peer does not read what it is answered.
    pub fn is_behind(&self) -> bool {
        self.lock().answers.len() as u64 >= MESSAGES_AHEAD
    }

    /// Answer for a message of the peer's, or reset one of ours.
    pub fn answer(&self, kind: Kind, message: u64, code: u32) -> Result<(), Violation> {
        let mut outbound = self.lock();
        if outbound.over {
            return Ok(()); // the link is lost, and not its messages alone: the peer takes them over the next one
        }
        outbound.answers.push_back((kind, message, code));
        self.pass(&mut outbound)
    }

    /// Tell those whose messages the peer has read, and those who wait for room.
    pub fn look(&self) -> Result<(), Violation> {
        let mut outbound = self.lock();
        self.settle(&mut outbound)?;
        self.pass(&mut outbound)
    }

    /// Wait until the peer has written or read something; false where it does not any more. What others do here meanwhile is
    /// theirs to look after.
    pub async fn woken(&self, reader: &Reader) -> Result<bool, Violation> {
        let asleep = self.region.word(self.side, Word::Asleep);
        asleep.store(1, SeqCst);
        if reader.some() || self.lock().rearm(&self.region, self.side)? {
            asleep.store(0, SeqCst);
            return Ok(true);
        }
        let mut bytes = [0; 64];
        loop {
            if self.socket.readable().await.is_err() {
                return Ok(false);
            }
            match self.socket.try_read(&mut bytes) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(false),
            }
        }
    }

    /// Nothing is sent or read here any more: what the peer has not read is lost.
    pub fn end(&self) {
        let mut outbound = self.lock();
        let _ = outbound.settle(); // of a ring that is broken nothing more is believed
        outbound.over = true;
        outbound.unread.clear();
        drop(outbound);
        self.openings.end();
        self.turns.end();
        self.changed.notify_waiters();
    }

    fn settle(&self, outbound: &mut Outbound) -> Result<(), Violation> {
        outbound.settle()?;
        if outbound.blocked.take().is_some() {
            self.changed.notify_waiters();
        }
        Ok(())
    }

    /// Publish what was written, with the answers for which there is room, and say when to be woken.
    fn pass(&self, outbound: &mut Outbound) -> Result<(), Violation> {
        loop {
            let answered = outbound.flush()?;
            outbound.writer.publish();
            self.wake();
            if !outbound.rearm(&self.region, self.side)? {
                return Ok(());
            }
            self.settle(outbound)?;
            if answered {
                return Ok(());
            }
        }
    }

    fn wake(&self) {
        let asleep = self.region.word(self.side.other(), Word::Asleep);
        if asleep.load(SeqCst) == 1 && asleep.swap(0, SeqCst) == 1 {
            // A socket that is full wakes the peer too, and one that is closed has nobody to wake.
            let _ = rustix::net::send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outbound> {
        locked(&self.outbound)
    }
}

impl Outbound {
    /// Write the answers for which there is room. They go before messages.
    fn flush(&mut self) -> Result<bool, Violation> {
        while let Some((kind, message, code)) = self.answers.front().copied() {
            if self.writer.room()? < frame_bytes(4) {
                self.block(ROOM_BYTES);
                return Ok(false);
            }
            self.writer.push(kind, message, &code.to_le_bytes());
            self.answers.pop_front();
        }
        Ok(true)
    }

    /// Whose messages the peer has read.
    fn settle(&mut self) -> Result<(), Violation> {
        let tail = self.writer.tail()?;
        while self.unread.front().is_some_and(|(end, _)| *end <= tail) {
            if let Some((_, read)) = self.unread.pop_front() {
                let _ = read.send(()); // it may have been given up
            }
        }
        Ok(())
    }

    /// Somebody waits for so much room.
    fn block(&mut self, bytes: u64) {
        let at = (self.writer.head() + bytes).saturating_sub(RING_BYTES as u64);
        self.blocked = Some(self.blocked.map_or(at, |before| before.min(at)));
    }

    /// Say when this side wants to be woken. True where that has come already.
    fn rearm(&mut self, region: &Region, side: Side) -> Result<bool, Violation> {
        let last = self.unread.back().map(|(end, _)| *end);
        let wanted = self.blocked.or(last).unwrap_or(u64::MAX);
        region.word(side, Word::Wanted).store(wanted, SeqCst);
        Ok(self.writer.tail()? >= wanted)
    }
}

impl Outgoing {
    pub fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            number: None,
            written: 0,
            turn_end: TURN_BYTES,
        }
    }

    /// Send a message, and wait until the peer has read it.
    pub async fn send(&mut self, level: usize, header: &[u8], payload: &[u8]) -> Result<(), Unsent> {
        let link = self.link.clone();
        let mut opening = Some(link.openings.enter(level, 1, false).await);
        let mut turn = self.turn(level).await;
        loop {
            let changed = link.changed.notified();
            let progress = self.advance(header, payload);
            if self.number.is_some() {
                drop(opening.take());
            }
            match progress? {
                Progress::Whole(read) => {
                    drop(turn);
                    return read.await.map_err(|_| Unsent::Lost);
                }
                Progress::NoRoom => changed.await,
                Progress::NotAllowed => {
                    drop(turn);
                    changed.await;
                    turn = self.turn(level).await;
                }
                Progress::TurnOver => {
                    drop(turn);
                    turn = self.turn(level).await;
                }
            }
        }
    }

    async fn turn(&mut self, level: usize) -> Permit {
        let turn = self.link.turns.enter(level, 1, false).await;
        self.turn_end = self.written + TURN_BYTES;
        turn
    }

    /// Write what may be written now.
    fn advance(&mut self, header: &[u8], payload: &[u8]) -> Result<Progress, Unsent> {
        let link = self.link.clone();
        let mut outbound = link.lock();
        let progress = self.write(&mut outbound, header, payload);
        link.pass(&mut outbound).map_err(Unsent::Broken)?;
        progress
    }

    fn write(&mut self, outbound: &mut Outbound, header: &[u8], payload: &[u8]) -> Result<Progress, Unsent> {
        if outbound.over {
            return Err(Unsent::Lost);
        }
        if !outbound.flush().map_err(Unsent::Broken)? {
            return Ok(Progress::NoRoom);
        }
        let number = match self.number {
            Some(number) => number,
            None => {
                let peer = self.link.side.other();
                let allowed = self.link.region.word(peer, Word::Allowed).load(SeqCst);
                if outbound.begun >= allowed {
                    // More are allowed when the peer has read some.
                    outbound.blocked = Some(outbound.writer.tail().map_err(Unsent::Broken)? + 1);
                    return Ok(Progress::NotAllowed);
                }
                if outbound.writer.room().map_err(Unsent::Broken)? < frame_bytes(header.len()) {
                    outbound.block(ROOM_BYTES);
                    return Ok(Progress::NoRoom);
                }
                let number = outbound.begun;
                outbound.begun += 1;
                outbound.open.insert(number, Flow::default());
                outbound.writer.push(Kind::Begin, number, header);
                *self.number.insert(number)
            }
        };
        while self.written < payload.len() {
            let flow = outbound.open.entry(number).or_default();
            if let Some(code) = flow.stopped {
                return Err(Unsent::Stopped(code));
            }
            let most = if flow.accepted {
                payload.len()
            } else {
                self.link.eager_bytes.min(payload.len())
            };
            if self.written >= most {
                return Ok(Progress::NotAllowed);
            }
            if self.written >= self.turn_end {
                return Ok(Progress::TurnOver);
            }
            let end = most.min(self.turn_end).min(self.written + FRAME_BYTES);
            if outbound.writer.room().map_err(Unsent::Broken)? < frame_bytes(end - self.written) {
                outbound.block(ROOM_BYTES);
                return Ok(Progress::NoRoom);
            }
            outbound.writer.push(Kind::Data, number, &payload[self.written..end]);
            outbound.writer.publish();
            self.link.wake();
            self.link.sent_bytes.fetch_add((end - self.written) as u64, Relaxed);
            self.written = end;
        }
        outbound.open.remove(&number);
        let (read, waits) = oneshot::channel();
        outbound.unread.push_back((outbound.writer.head(), read));
        Ok(Progress::Whole(waits))
    }

    /// Give it up, if it has begun and is not whole.
    pub fn reset(&mut self, code: u32) {
        let begun = self.number.take();
        if let Some(number) = begun.filter(|number| self.link.lock().open.remove(number).is_some()) {
            let _ = self.link.answer(Kind::Reset, number, code); // the reader finds what is broken, too
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.reset(Code::Cancelled as u32);
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;

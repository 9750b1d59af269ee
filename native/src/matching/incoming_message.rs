//! A message on its way in: where its bytes go, and what the reader of its stream is told.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use crate::borrowed_buffers::Destination;
use crate::runtime::locks::locked;
use crate::wire::{Code, Header};

/// Charged for every waiting message, so that a million empty ones cannot fill the memory.
pub(super) const OVERHEAD_BYTES: u64 = 2048;

/// The connection that a message comes over, as far as the matcher needs it.
pub trait Channel: Send + Sync {
    fn id(&self) -> u64;
    /// Whom the store charges: ranks that share a name have a store each.
    fn account(&self) -> String;
    /// Credit that every stream has.
    fn stream_window(&self) -> u64;
    /// The connection's window is at least so much more than at its beginning: it has messages that the store counts. Of a
    /// name with many connections each is raised by a part of the store at most.
    ///
    /// It never shrinks: the stack would only take that back from later data, and grow at once for the next message. A
    /// peer that begins messages and resets them would get more each time.
    fn raise_window(&self, bytes: u64);
    /// The store is full. Streams that wait stay open, so that their number bounds them; through shared memory no more begin.
    fn full(&self);
    /// Takes frames for its control stream, as many as there is room for, and is closed when it has ended.
    fn says(&self) -> mpsc::Sender<Vec<u8>>;
    /// Whether it has ended: what its readers still bring would wait for ever.
    fn ended(&self) -> bool;
}

/// A message on its way in.
pub struct IncomingMessage {
    /// Later messages have higher numbers.
    pub(super) number: u64,
    pub header: Header,
    pub peer: Arc<str>,
    /// The number of its connection, which has ended perhaps: what waits must not keep all that lay unread in it.
    pub(super) connection: u64,
    pub(super) stream_window: u64,
    pub(super) account: String,
    pub(super) state: Mutex<IncomingState>,
    /// The place has changed.
    pub changed: Notify,
}

pub(super) struct IncomingState {
    pub(super) place: Place,
    pub(super) filled: u64,
    pub(super) charged: u64,
    pub(super) complete: bool,
}

pub(super) enum Place {
    /// Not read further than its first bytes, which are here.
    Stalled(Vec<u8>),
    Stored(Vec<u8>),
    Posted {
        operation: u64,
        destination: Destination,
    },
    Refused(Code),
    Delivered,
}

impl IncomingState {
    fn write(&mut self, bytes: &[u8], length: u64) -> bool {
        if self.filled + bytes.len() as u64 > length {
            return false;
        }
        let at = self.filled as usize;
        match &mut self.place {
            Place::Stalled(memory) | Place::Stored(memory) => memory.extend_from_slice(bytes),
            Place::Posted { destination, .. } => destination.write(at, bytes),
            Place::Refused(_) | Place::Delivered => return true,
        }
        self.filled += bytes.len() as u64;
        true
    }
}

/// What the reader of a stream does next.
#[derive(Debug, PartialEq)]
pub enum Next {
    Read,
    Wait,
    Stop(Code),
}

impl IncomingMessage {
    pub fn next(&self) -> Next {
        match self.lock().place {
            Place::Stalled(_) => Next::Wait,
            Place::Stored(_) | Place::Posted { .. } => Next::Read,
            Place::Refused(code) => Next::Stop(code),
            Place::Delivered => Next::Stop(Code::Cancelled),
        }
    }

    /// Take bytes that follow those before; false where there are more than the header said.
    pub fn write(&self, bytes: &[u8]) -> bool {
        self.lock().write(bytes, self.header.length)
    }

    /// Take several pieces as one. The processor lets go of a lock only when all that was written before is in the
    /// memory; with one for each packet the copies wait for each other.
    pub fn write_all(&self, pieces: &[Bytes]) -> bool {
        let mut state = self.lock();
        pieces.iter().all(|piece| state.write(piece, self.header.length))
    }

    pub fn whole(&self) -> bool {
        self.lock().filled == self.header.length
    }

    /// Memory of the engine that it takes while nobody has posted for it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn kept(&self) -> u64 {
        match &self.lock().place {
            Place::Stalled(memory) | Place::Stored(memory) => memory.capacity() as u64,
            _ => 0,
        }
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// What its place in the store costs.
    pub(super) fn whole_charge(&self) -> u64 {
        self.header.length.saturating_add(OVERHEAD_BYTES)
    }

    /// What it costs unread in its stream.
    pub(super) fn stalled_charge(&self) -> u64 {
        self.header.length.min(self.stream_window) + OVERHEAD_BYTES
    }

    /// Its turn among those that wait for room.
    pub(super) fn turn(&self) -> (u64, u64) {
        (self.whole_charge() - self.stalled_charge(), self.number)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, IncomingState> {
        locked(&self.state)
    }
}

//! A ring of frames with one writer and one reader, which are two processes that need not trust each other.
//!
//! Positions count bytes since the beginning, so that full and empty differ. A frame is its length, kind and message in 16
//! bytes, then its content, then nothing up to the next 16: what says where a frame ends never wraps around. The writer
//! publishes a head (release), behind which everything is written; the reader publishes a tail, up to which the memory is
//! the writer's again. Neither believes the other: a head is at most one ring ahead of our tail, a tail is between its last
//! value and our head, and a frame ends before the head.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use super::region::{RING_BYTES, Region, Side, Word};
use crate::wire::{Code, Violation};

const UNIT_BYTES: usize = 16;
const RING: u64 = RING_BYTES as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message begins: its header, as at the front of a stream.
    Begin = 1,
    /// The next bytes of its payload.
    Data = 2,
    /// The sender gives it up, with a code.
    Reset = 3,
    /// The receiver does not want it, with a code.
    Stop = 4,
    /// The receiver takes all of it.
    Accept = 5,
}

impl Kind {
    fn of(number: u32) -> Option<Self> {
        [Self::Begin, Self::Data, Self::Reset, Self::Stop, Self::Accept]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

/// What a frame with so much content takes of the ring.
pub const fn frame_bytes(content: usize) -> usize {
    UNIT_BYTES + content.next_multiple_of(UNIT_BYTES)
}

pub struct Writer {
    region: Arc<Region>,
    side: Side,
    head: u64,
    tail: u64,
}

impl Writer {
    pub fn new(region: Arc<Region>, side: Side) -> Self {
        let (head, tail) = (0, 0);
        Self {
            region,
            side,
            head,
            tail,
        }
    }

    /// Up to where it is written.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Up to where the peer has read.
    pub fn tail(&mut self) -> Result<u64, Violation> {
        let tail = self.region.word(self.side.other(), Word::Tail).load(SeqCst);
        if tail < self.tail || tail > self.head {
            return Err(broken(format!("read up to {tail} of {}", self.head)));
        }
        self.tail = tail;
        Ok(tail)
    }

    pub fn room(&mut self) -> Result<usize, Violation> {
        Ok((RING - (self.head - self.tail()?)) as usize)
    }

    /// Write a frame, for which there is room; the peer sees it with `publish`.
    pub fn push(&mut self, kind: Kind, message: u64, content: &[u8]) {
        assert!(frame_bytes(content.len()) as u64 <= RING - (self.head - self.tail));
        let mut front = [0; UNIT_BYTES];
        front[..4].copy_from_slice(&(content.len() as u32).to_le_bytes());
        front[4..8].copy_from_slice(&(kind as u32).to_le_bytes());
        front[8..].copy_from_slice(&message.to_le_bytes());
        self.copy(self.head, &front);
        self.copy(self.head + UNIT_BYTES as u64, content);
        self.head += frame_bytes(content.len()) as u64;
    }

    pub fn publish(&self) {
        self.region.word(self.side, Word::Head).store(self.head, SeqCst);
    }

    fn copy(&self, position: u64, bytes: &[u8]) {
        let at = (position % RING) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(RING_BYTES - at));
        let ring = self.region.ring(self.side);
        // SAFETY: both parts lie within the ring, which is mapped as long as `region`. No reference to it is made: a peer that
        // reads or writes there meanwhile finds or leaves other bytes, and nothing else.
        unsafe {
            std::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(at), first.len());
            std::ptr::copy_nonoverlapping(rest.as_ptr(), ring, rest.len());
        }
    }
}

/// A frame that was found, as checked.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub kind: Kind,
    pub message: u64,
    pub length: usize,
}

pub struct Reader {
    region: Arc<Region>,
    /// Whose ring it is.
    side: Side,
    head: u64,
    tail: u64,
}

impl Reader {
    pub fn new(region: Arc<Region>, side: Side) -> Self {
        let (head, tail) = (0, 0);
        Self {
            region,
            side,
            head,
            tail,
        }
    }

    /// Whether there is a frame that was not released.
    pub fn some(&self) -> bool {
        self.region.word(self.side, Word::Head).load(SeqCst) != self.tail
    }

    /// The oldest frame that was not released, or None.
    pub fn front(&mut self) -> Result<Option<Frame>, Violation> {
        if self.tail == self.head {
            let head = self.region.word(self.side, Word::Head).load(Acquire);
            if head < self.head || head - self.tail > RING || !head.is_multiple_of(UNIT_BYTES as u64) {
                return Err(broken(format!("wrote up to {head} where {} was read", self.tail)));
            }
            self.head = head;
            if head == self.tail {
                return Ok(None);
            }
        }
        let mut front = [0; UNIT_BYTES];
        self.copy(self.tail, &mut front);
        let [length, kind] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte: usize| front[at + byte])));
        let message = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte: usize| front[8 + byte]));
        let (length, left) = (length as usize, (self.head - self.tail) as usize);
        if length > RING_BYTES || frame_bytes(length) > left {
            return Err(broken(format!("a frame of {length} bytes where {left} are left")));
        }
        let Some(kind) = Kind::of(kind) else {
            return Err(broken(format!("a frame of kind {kind}")));
        };
        Ok(Some(Frame { kind, message, length }))
    }

    /// The content of the front frame, of which the second piece is behind the ring's end. The peer may still change it: read
    /// each byte once.
    pub fn content(&self, frame: Frame) -> [&[u8]; 2] {
        let at = ((self.tail + UNIT_BYTES as u64) % RING) as usize;
        let first = frame.length.min(RING_BYTES - at);
        let ring = self.region.ring(self.side);
        // SAFETY: both pieces lie within the ring, which is mapped as long as `self`, and whose memory is initialised. A peer
        // that writes there although the frame is not released changes what is received from it, and nothing else: nothing is
        // decided by these bytes before they are copied.
        unsafe {
            [
                std::slice::from_raw_parts(ring.add(at), first),
                std::slice::from_raw_parts(ring, frame.length - first),
            ]
        }
    }

    /// The front frame is done with: its memory is the writer's. The peer sees it now.
    pub fn release(&mut self, frame: Frame) -> u64 {
        self.tail += frame_bytes(frame.length) as u64;
        self.region.word(self.side.other(), Word::Tail).store(self.tail, SeqCst);
        self.tail
    }

    fn copy(&self, position: u64, into: &mut [u8; UNIT_BYTES]) {
        let at = (position % RING) as usize;
        // SAFETY: positions are multiples of the unit, as the ring's length is: these bytes lie within it.
        unsafe { std::ptr::copy_nonoverlapping(self.region.ring(self.side).add(at), into.as_mut_ptr(), UNIT_BYTES) };
    }
}

fn broken(what: String) -> Violation {
    Violation::new(Code::ProtocolViolation, format!("shared memory: {what}"))
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;

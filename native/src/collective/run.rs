//! One collective that runs: its memory, its peers, and what others see of how far it is.
//!
//! Whatever may still touch the memory holds the `Run`: the list of those in flight, every payload that is being sent and
//! every buffer that is posted. The last that lets go of it tells Python the end. So the tensors are the caller's again
//! exactly when nothing here can read or write them any more, also after a panic or a closed engine.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::codecs::VALUE_BYTES;
use super::kernels::Kernel;
use super::schedule::{Extent, Kind, Region, Schedule, Step};
use super::unacknowledged::COPIED_BYTES_MAX;
use crate::borrowed_buffers::{Borrowed, Payload, Posted, Span};
use crate::events::{Event, EventQueue};
use crate::wire::{Header, KIND_COLLECTIVE, Key};

/// The bucket of a message is its operation's kind above, and the part below so many bits.
const PART_BITS: u32 = 32;
/// Above the operation's kind is the codec.
const CODEC_SHIFT: u32 = 8;
const SCRATCH_ALIGN: usize = 16;
/// Of a message that carries encoded values.
const ENCODED_DTYPE: &str = "uint8";

/// A member of the group. The own rank has a place in the list too, which nobody looks at.
pub struct Peer {
    /// Its rank of the endpoint.
    pub rank: u32,
    /// As whom the engine knows it.
    pub name: String,
    /// The call in our words to it, and as its messages have to say it.
    pub says: String,
    pub hears: String,
}

/// What a call is, beside its memory and its steps.
pub struct Call {
    /// What Python calls it by.
    pub number: u64,
    pub job: String,
    pub group: String,
    /// The number of the operation in its group, and its kind.
    pub step: u64,
    pub operation: u32,
    pub dtype: String,
    pub item_bytes: usize,
    pub kernel: Option<Kernel>,
    /// By rank of the group.
    pub peers: Vec<Peer>,
    pub rank: u32,
    pub level: usize,
    pub bulk: bool,
    /// Of all collectives of this rank; earlier ones send first.
    pub order: u64,
    /// Addresses in its buffers that no step may touch yet, for what belongs there is still on its way.
    pub missing: Range<usize>,
}

pub struct Run {
    pub call: Call,
    pub schedule: Schedule,
    /// Steps with each peer that wait for the network.
    waiting: Box<[AtomicU32]>,
    bytes_done: AtomicU64,
    complete: AtomicBool,
    /// Whether Python knows of it, and is told its end.
    begun: AtomicBool,
    // Dropped before the end is told.
    buffers: Vec<Borrowed>,
    scratch: Option<Scratch>,
    events: Arc<EventQueue>,
}

impl Run {
    /// Check a schedule against its call, and provide its scratch memory.
    pub fn new(
        call: Call,
        encoded: &[u8],
        buffers: Vec<(Borrowed, bool)>,
        events: Arc<EventQueue>,
    ) -> Result<Self, String> {
        let extents: Vec<Extent> = buffers
            .iter()
            .map(|(buffer, writable)| Extent {
                length: buffer.len(),
                writable: *writable,
            })
            .collect();
        let fits = super::schedule::Call {
            buffers: &extents,
            item_bytes: call.item_bytes,
            reduces: call.kernel.is_some(),
            rank: call.rank,
            size: call.peers.len() as u32,
        };
        let schedule = Schedule::decode(encoded, &fits)?;
        Ok(Self {
            waiting: call.peers.iter().map(|_| AtomicU32::new(0)).collect(),
            bytes_done: AtomicU64::new(0),
            complete: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            buffers: buffers.into_iter().map(|(buffer, _)| buffer).collect(),
            scratch: Scratch::new(schedule.scratch_bytes)?,
            call,
            schedule,
            events,
        })
    }

    /// From now on its end is told.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// It was refused: whoever asked for it knows.
    pub fn never_began(&self) {
        self.begun.store(false, Ordering::Relaxed);
    }

    /// Every step is done.
    pub fn completed(&self) {
        self.complete.store(true, Ordering::Relaxed);
    }

    /// Payload bytes sent (those of large messages acknowledged) and received.
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// The ranks of the group with which a step waits for the network.
    pub fn waits_for(&self) -> Vec<u32> {
        let ranks = 0..self.waiting.len() as u32;
        ranks
            .filter(|rank| self.waiting[*rank as usize].load(Ordering::Relaxed) > 0)
            .collect()
    }

    pub fn peer(&self, step: &Step) -> &Peer {
        &self.call.peers[step.peer as usize]
    }

    /// A step begins to wait for the network.
    pub fn awaits(&self, step: &Step) {
        self.waiting[step.peer as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// It does not wait any more; whether what it waited for has happened.
    pub fn settled(&self, step: &Step, done: bool) {
        self.waiting[step.peer as usize].fetch_sub(1, Ordering::Relaxed);
        if done {
            let bytes = self.schedule.regions(step)[0].len() as u64;
            self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// What a message of a step is matched by, which the rank of the endpoint `from` sends.
    pub fn key(&self, step: &Step, from: u32) -> Key {
        Key {
            kind: KIND_COLLECTIVE,
            group: self.call.group.clone(),
            step: self.call.step,
            bucket: u64::from(u32::from(step.codec) << CODEC_SHIFT | self.call.operation) << PART_BITS
                | u64::from(step.part),
            tag: u64::from(from),
        }
    }

    /// What the messages of each rank, by their tags, have to call it.
    pub fn heard(&self) -> Vec<(u64, String)> {
        let peers = self.call.peers.iter();
        peers.map(|peer| (u64::from(peer.rank), peer.hears.clone())).collect()
    }

    /// The header of what a step sends.
    pub fn header(&self, step: &Step) -> Header {
        let length = self.schedule.regions(step)[0].len();
        Header {
            key: self.key(step, self.call.peers[self.call.rank as usize].rank),
            job: self.call.job.clone(),
            dtype: self.dtype(step).to_owned(),
            shape: vec![(length / if step.codec != 0 { 1 } else { self.call.item_bytes }) as u64],
            length: length as u64,
            call: self.peer(step).says.clone(),
        }
    }

    /// Whether a message is what a step receives: of this call, as long, and of the same type.
    pub fn accepts(&self, step: &Step, header: &Header) -> bool {
        let called = header.call.is_empty() || header.call == self.peer(step).hears;
        called && header.length == self.schedule.regions(step)[0].len() as u64 && header.dtype == self.dtype(step)
    }

    fn dtype(&self, step: &Step) -> &str {
        if step.codec != 0 {
            ENCODED_DTYPE
        } else {
            &self.call.dtype
        }
    }

    /// What a step sends; None where that is nothing.
    pub fn payload(self: &Arc<Self>, step: &Step) -> Option<Arc<Payload>> {
        self.span(step).map(Payload::of)
    }

    /// Whether what a step sends is so small that a copy of it may end the step.
    pub fn copies(&self, step: &Step) -> bool {
        self.schedule.regions(step)[0].len() <= COPIED_BYTES_MAX
    }

    /// A copy of what a step sends; None where that is nothing.
    pub fn copy(&self, step: &Step) -> Option<Arc<Payload>> {
        let region = self.schedule.regions(step)[0];
        let mut copied = vec![0; region.len()];
        // SAFETY: the region lies in its memory, and the copy is as long. Who writes there meanwhile, against the rules,
        // changes what is sent and nothing else.
        unsafe { std::ptr::copy_nonoverlapping(self.address(&region), copied.as_mut_ptr(), region.len()) };
        (!copied.is_empty()).then(|| Payload::owned(copied))
    }

    /// Where a step receives; None where that is nothing.
    pub fn posted(self: &Arc<Self>, step: &Step) -> Option<Posted> {
        assert!(step.kind == Kind::Receive);
        // SAFETY: the schedule was refused where it receives into a buffer that cannot be written, and scratch can be.
        self.span(step).map(|span| unsafe { Posted::of(span) })
    }

    fn span(self: &Arc<Self>, step: &Step) -> Option<Span> {
        let region = self.schedule.regions(step)[0];
        // SAFETY: the region lies in its memory, which is there as long as `self` and is nowhere null.
        (region.len() > 0).then(|| unsafe { Span::new(self.clone(), self.address(&region), region.len()) })
    }

    /// Whether a step touches any of these addresses.
    pub fn touches(&self, step: &Step, addresses: &Range<usize>) -> bool {
        let regions = self.schedule.regions(step).iter();
        !addresses.is_empty()
            && regions
                .map(|region| (self.address(region) as usize, region.len()))
                .any(|(first, length)| length > 0 && first < addresses.end && first + length > addresses.start)
    }

    /// Reduce, copy, encode or decode, as the step says.
    pub fn compute(&self, step: &Step) {
        let regions = self.schedule.regions(step);
        let (target, length) = (self.address(&regions[0]), regions[0].len());
        let sources: Vec<*const u8> = regions[1..].iter().map(|one| self.address(one).cast_const()).collect();
        match (step.kind, &self.call.kernel) {
            (Kind::Reduce { finish }, Some(kernel)) => {
                let divisor = if finish { self.call.peers.len() } else { 1 };
                // SAFETY: the schedule was held against the buffers: all regions are of this length and in their memory,
                // the first can be written, and others are it or do not overlap it. What else writes there meanwhile
                // changes values and nothing else, as with all memory of Python's.
                unsafe { kernel.run(target, &sources, length, divisor) };
            }
            // SAFETY: as above. What a rank keeps may lie in its own place.
            (Kind::Copy, _) => unsafe { std::ptr::copy(sources[0], target, length) },
            (Kind::Encode { codec, finish }, kernel) => {
                let residual = regions.get(2).map(|one| self.address(one));
                let divides_later = !finish && kernel.is_some_and(|kernel| kernel.divides);
                let divisor = if divides_later { self.call.peers.len() } else { 1 };
                // SAFETY: as above: the lengths are the codec's, target and residual can be written, none overlap.
                unsafe { codec.encode(target, sources[0], residual, regions[1].len() / VALUE_BYTES, divisor) };
            }
            // SAFETY: as above.
            (Kind::Decode(codec), _) => unsafe { codec.decode(target, sources[0], length / VALUE_BYTES) },
            _ => unreachable!("schedules that reduce without a kernel are refused, and the rest is not computed"),
        }
    }

    fn address(&self, region: &Region) -> *mut u8 {
        let base = match (self.buffers.get(region.buffer), &self.scratch) {
            (Some(buffer), _) => buffer.address(),
            (None, Some(scratch)) => scratch.address.as_ptr(),
            (None, None) => NonNull::dangling().as_ptr(), // of no bytes
        };
        base.wrapping_add(region.start)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.buffers.clear();
        if *self.begun.get_mut() {
            self.events.push(Event::CollectiveEnded {
                collective: self.call.number,
                complete: *self.complete.get_mut(),
                bytes_done: *self.bytes_done.get_mut(),
            });
        }
    }
}

/// Memory of the engine for what a collective receives in between. Its pages are zero, and taken as they are written.
struct Scratch {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone; who reads and writes it through the address has to prove that it may.
unsafe impl Send for Scratch {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Scratch {}

impl Scratch {
    fn new(length: usize) -> Result<Option<Self>, String> {
        if length == 0 {
            return Ok(None);
        }
        let no_memory = || format!("no memory for {length} bytes of scratch");
        let layout = Layout::from_size_align(length, SCRATCH_ALIGN).map_err(|_| no_memory())?;
        // SAFETY: the layout is not of no bytes.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        Ok(Some(Self { address, layout }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

//! Python's memory, borrowed: payloads to send from and posted buffers to receive into, without the GIL while bytes move.
//!
//! A `PyBuffer` keeps the exporter alive, and it is the exporter's promise to the buffer protocol that the memory stays in
//! place meanwhile (Python, C API, Buffer Protocol): a bytearray refuses to be resized. What exports a torch tensor is an
//! array of its address (`transport/tensors.py`), which keeps the tensor from being collected, and cannot keep that
//! promise for a tensor that is resized: it is for the caller not to do that, as with any backend of torch. Letting go of one needs the GIL, which no thread of the network ever waits for, so
//! a borrowed buffer that is dropped goes to the event thread, which lets go of it before it delivers what came after.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pyo3::buffer::PyBuffer;

use crate::events::{Event, EventQueue};
use crate::quic::send_scheduler::SendScheduler;

/// A buffer of Python's that is handed back through the event thread when it is dropped.
pub struct Borrowed {
    address: *mut u8,
    length: usize,
    buffer: Option<PyBuffer<u8>>,
    queue: Arc<EventQueue>,
}

// SAFETY: the memory behind `address` belongs to the exporter, which `buffer` keeps alive and in place, whatever thread
// looks at it: a view is counted by whom it was taken from, not by thread. `buffer` itself may be moved and dropped
// anywhere (it is `Send`): its drop attaches to the interpreter first, and does nothing where that is gone. The event
// thread is where that happens, for it waits for the GIL so that no other has to.
unsafe impl Send for Borrowed {}
// SAFETY: `&Borrowed` gives out the address and the length, and both never change. What is read and written through
// the address is for whoever does so to prove.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// `buffer` must be contiguous: with a negative stride its address would be that of its last byte.
    pub fn new(buffer: PyBuffer<u8>, queue: Arc<EventQueue>) -> Self {
        assert!(buffer.is_c_contiguous());
        let length = buffer.len_bytes();
        let address = if length == 0 {
            std::ptr::dangling_mut() // an exporter of nothing may give null, which no slice may have
        } else {
            buffer.buf_ptr().cast()
        };
        Self {
            address,
            length,
            buffer: Some(buffer),
            queue,
        }
    }

    pub fn address(&self) -> *mut u8 {
        self.address
    }

    pub fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.queue.push(Event::Release(buffer));
        }
    }
}

/// Bytes next to each other, of memory that its owner keeps where it is.
pub struct Span {
    _owner: Arc<dyn Send + Sync>,
    address: *mut u8,
    length: usize,
}

// SAFETY: an address and a length do not belong to a thread; the owner may be used and dropped on any.
unsafe impl Send for Span {}
// SAFETY: as above, and `&Span` gives both out and changes neither.
unsafe impl Sync for Span {}

impl Span {
    /// # Safety
    /// While `owner` lives `length` bytes from `address` on, which is not null, can be read, and can be written where the
    /// span is posted.
    pub unsafe fn new(owner: Arc<dyn Send + Sync>, address: *mut u8, length: usize) -> Self {
        Self {
            _owner: owner,
            address,
            length,
        }
    }

    fn borrowed(buffer: PyBuffer<u8>, queue: Arc<EventQueue>) -> Self {
        let borrowed = Arc::new(Borrowed::new(buffer, queue));
        let (address, length) = (borrowed.address, borrowed.length);
        // SAFETY: the exporter keeps its memory in place as long as `borrowed` has the view of it.
        unsafe { Self::new(borrowed, address, length) }
    }
}

/// A payload lent for sending.
pub struct Payload {
    span: Span,
}

impl Payload {
    pub fn new(buffer: PyBuffer<u8>, queue: Arc<EventQueue>) -> Arc<Self> {
        Self::of(Span::borrowed(buffer, queue))
    }

    /// Bytes of ours.
    pub fn owned(mut bytes: Vec<u8>) -> Arc<Self> {
        let (address, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a vector that nobody changes keeps its bytes where they are, wherever it is moved itself.
        Self::of(unsafe { Span::new(Arc::new(bytes), address, length) })
    }

    pub fn of(span: Span) -> Arc<Self> {
        Arc::new(Self { span })
    }

    pub fn len(&self) -> usize {
        self.span.length
    }

    /// All of it. Nothing is decided by these bytes, and each is read once for each time that it is sent.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the span's bytes lie next to each other from `address` on, as `Span::new` was promised, and live as long
        // as `self`: the memory is mapped and initialised, and no length is more than `isize::MAX`, for Python's are not. The
        // caller may write to it at the same time, or have posted it to be received into, against the rules of the engine:
        // such a race changes what is sent and nothing else. When the process ends the threads that read are joined while
        // there is an interpreter (`atexit`); where that was not reached, the exporter is still there, for the view of it
        // was never given back.
        unsafe { std::slice::from_raw_parts(self.span.address, self.span.length) }
    }

    /// A part of the payload as the stack takes it, and how much of it the stack has taken, which is to be written
    /// there before the rest is dropped; `scheduler` gets so much back at `level` when the stack lets go of it.
    pub fn piece(
        self: &Arc<Self>,
        start: usize,
        length: usize,
        (scheduler, level): (&Arc<SendScheduler>, usize),
    ) -> (Bytes, Arc<AtomicU64>) {
        assert!(start <= self.len() && length <= self.len() - start);
        let taken = Arc::new(AtomicU64::new(0));
        let piece = Piece {
            payload: self.clone(),
            start,
            length,
            taken: taken.clone(),
            scheduler: scheduler.clone(),
            level,
        };
        (Bytes::from_owner(piece), taken)
    }
}

struct Piece {
    payload: Arc<Payload>,
    start: usize,
    length: usize,
    taken: Arc<AtomicU64>,
    scheduler: Arc<SendScheduler>,
    level: usize,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.payload.bytes()[self.start..self.start + self.length]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.scheduler.give_back(self.level, self.taken.load(Ordering::Relaxed));
    }
}

/// A buffer lent for receiving. Whoever owns this value is the only one here that writes there, unless the caller has
/// posted the same memory twice: two messages are mixed there then.
pub struct Posted {
    span: Span,
}

impl Posted {
    /// `buffer` must be writable.
    pub fn new(buffer: PyBuffer<u8>, queue: Arc<EventQueue>) -> Self {
        assert!(!buffer.readonly());
        // SAFETY: a borrowed buffer that is not read-only can be written.
        unsafe { Self::of(Span::borrowed(buffer, queue)) }
    }

    /// # Safety
    /// The span's memory can be written.
    pub unsafe fn of(span: Span) -> Self {
        Self { span }
    }

    pub(crate) fn len(&self) -> usize {
        self.span.length
    }

    /// Copy bytes to an offset.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at);
        // SAFETY: the range lies within the span, as was just checked, which is writable, as `of` was promised, and lives
        // as long as `self`. `bytes` came from the network into memory of
        // ours, which nobody can post, so the two do not overlap. No reference to these bytes is made: whoever reads or
        // writes them meanwhile, against the rules of the engine, finds other bytes there and nothing else.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.span.address.add(at), bytes.len());
        }
    }
}

/// Where a message's bytes go.
pub enum Destination {
    Lent(Posted),
    Own(Vec<u8>),
}

impl Destination {
    /// Memory of the engine for a message, or None where there is not so much. It is taken page by page as it fills.
    pub fn own(length: u64) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(usize::try_from(length).ok()?).ok()?;
        Some(Self::Own(memory))
    }

    /// Append at `at`, where what came before ends.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::Lent(posted) => posted.write(at, bytes),
            Self::Own(memory) => {
                debug_assert_eq!(memory.len(), at);
                memory.extend_from_slice(bytes);
            }
        }
    }
}

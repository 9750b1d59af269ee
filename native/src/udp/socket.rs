//! A UDP socket that stays the caller's: read and written here, closed by whoever handed it over.
//!
//! So the socket can be given to the broker for its marks, and a forked child can close its copy.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use bytes::BytesMut;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::readiness::Readiness;
use super::refusals::{self, Refusal};
use super::send::Sender;
use crate::runtime::locks::locked;

/// 100 ms at 1 Gbit/s are 12 MB; the kernel grants less to the unprivileged, silently.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
const SEND_BUFFER_BYTES: usize = 2 << 20;
const SEND_BUFFER_BYTES_MIN: usize = 8 << 10;
/// What waits in this host for a slow link waits in the kernel behind this socket, and what is urgent waits behind it.
const SEND_BUFFER: Duration = Duration::from_millis(4);
/// So many reports of datagrams that went before (ICMP) are passed over for one batch: nothing is wrong with the socket.
const REPORTS_MAX: usize = 64;
/// Of hosts that refuse datagrams: more peers do not end at once, and more reports are forged.
const REFUSALS_MAX: usize = 64;
/// The largest payload of UDP over IPv4, of one datagram or of what the kernel cuts into several.
pub const PAYLOAD_BYTES_MAX: usize = 65507;
/// Room for one datagram, or for what the kernel has joined.
const ROOM_BYTES: usize = 1 << 16;
/// Large pieces are read a few at once: 256 KiB are decrypted and copied on while they are in the cache.
const LARGE_AT_ONCE: usize = 4;
const LARGE_BYTES: usize = 8192;
/// Less is copied out, so that the room can be used again at once.
const COPIED_BYTES_MAX: usize = 2048;
const ROOMS_MAX: usize = 16;

pub struct Socket {
    descriptor: RawFd,
    watch: Mutex<Readiness>,
    state: UdpSocketState,
    sender: Sender,
    send_buffer_bytes: AtomicUsize,
    refusals: Mutex<Vec<Refusal>>,
}

impl Socket {
    /// Take a bound UDP socket into use; to be called within the runtime that is going to drive it.
    ///
    /// # Safety
    /// The descriptor stays open until the last reference to the socket is gone.
    pub unsafe fn adopt(descriptor: RawFd) -> io::Result<Self> {
        // SAFETY: the caller keeps the descriptor open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let socket = UdpSockRef::from(&borrowed);
        let state = UdpSocketState::new(socket)?; // makes it non-blocking, and turns on GRO, ECN and path MTU discovery
        // A smaller buffer than asked for still works.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&borrowed), RECEIVE_BUFFER_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&borrowed), SEND_BUFFER_BYTES);
        // SAFETY: the caller keeps the descriptor open.
        let watch = unsafe { Readiness::new(descriptor) }?;
        let sender = Sender::new(borrowed, state.max_gso_segments());
        refusals::keep(borrowed);
        Ok(Self {
            descriptor,
            watch: Mutex::new(watch),
            state,
            sender,
            send_buffer_bytes: AtomicUsize::new(SEND_BUFFER_BYTES),
            refusals: Mutex::default(),
        })
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: `adopt` was promised that the descriptor outlives `self`.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// Keep the send buffer as short as the rate of its paths, in bytes a second, allows. To be called now and then, before
    /// the task waits.
    ///
    /// `limited`: they may carry more, so the buffer does not become shorter.
    pub fn fit(&self, rate: u64, limited: bool) {
        locked(&self.watch).relax();
        let wanted = (rate as f64 * SEND_BUFFER.as_secs_f64()) as usize;
        let wanted = wanted.clamp(SEND_BUFFER_BYTES_MIN, SEND_BUFFER_BYTES);
        let is = self.send_buffer_bytes.load(Ordering::Relaxed);
        if (wanted < is - is / 4 && !limited) || wanted > is + is / 4 {
            self.send_buffer_bytes.store(wanted, Ordering::Relaxed);
            // The kernel doubles what it is told, for its own overhead, of which there is little in large pieces.
            let _ = self
                .state
                .set_send_buffer_size(UdpSockRef::from(&self.borrow()), wanted / 2);
        }
    }

    /// Send, or have the task woken when the kernel has room again (false). What only concerns the path (EMSGSIZE of a
    /// probe, nobody there) is taken for a packet lost on the way.
    pub fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> bool {
        loop {
            if self.sender.send(self.borrow(), transmit).is_ok() {
                return true;
            }
            if !locked(&self.watch).poll_room(cx, || self.take_reports()) {
                return false;
            }
        }
    }

    /// Send what need not arrive.
    pub fn send(&self, transmit: &Transmit<'_>) {
        let _ = self.sender.send(self.borrow(), transmit);
    }

    /// What was refused since it was asked last.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.take_reports();
        std::mem::take(&mut locked(&self.refusals))
    }

    fn take_reports(&self) {
        let mut refusals = locked(&self.refusals);
        refusals::read(self.borrow(), |one| {
            if refusals.len() < REFUSALS_MAX {
                refusals.push(one);
            }
        });
    }

    /// Whether something has come since it was asked last; otherwise the task is woken when it does.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> bool {
        locked(&self.watch).poll_some(cx)
    }

    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// How many datagrams of `size` bytes the kernel takes at once.
    pub fn segments_max(&self, size: usize) -> usize {
        (PAYLOAD_BYTES_MAX / size).clamp(1, self.sender.segments_max())
    }
}

/// Where datagrams are read into.
///
/// Small ones come many at once and are copied out, for a packet that waits to be read must not hold 64 KiB. Where the
/// kernel joins them to large pieces, each of those has a room of its own, in which its packets are decrypted and from
/// which they are delivered.
pub struct Inbox {
    small: Box<[u8]>,
    /// Rooms that were given out, of which the oldest is likely to be free again.
    rooms: VecDeque<BytesMut>,
    large: bool,
}

impl Inbox {
    pub fn new() -> Self {
        Self {
            // Zeroes that the kernel provides when they are touched, which most of them never are.
            small: vec![0; BATCH_SIZE * ROOM_BYTES].into_boxed_slice(),
            rooms: VecDeque::new(),
            large: false,
        }
    }

    /// Read a batch, and tell whether there may be more; `take` is given each piece, which is one datagram or several of
    /// `stride` bytes.
    pub fn read(&mut self, socket: &Socket, take: impl FnMut(&RecvMeta, BytesMut)) -> bool {
        if self.large {
            self.read_large(socket, take)
        } else {
            self.read_small(socket, take)
        }
    }

    fn read_small(&mut self, socket: &Socket, mut take: impl FnMut(&RecvMeta, BytesMut)) -> bool {
        let mut found = [RecvMeta::default(); BATCH_SIZE];
        let mut rooms = self.small.chunks_mut(ROOM_BYTES);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(rooms.next().expect("there are as many")));
        let Some(count) = receive(socket, &mut slices, &mut found) else {
            return false;
        };
        let mut bytes = 0;
        for (one, room) in found[..count].iter().zip(&slices) {
            bytes += one.len;
            take(one, BytesMut::from(&room[..one.len]));
        }
        self.large = bytes / count.max(1) >= LARGE_BYTES;
        count == BATCH_SIZE
    }

    fn read_large(&mut self, socket: &Socket, mut take: impl FnMut(&RecvMeta, BytesMut)) -> bool {
        let mut found = [RecvMeta::default(); LARGE_AT_ONCE];
        let mut rooms: [BytesMut; LARGE_AT_ONCE] = std::array::from_fn(|_| self.room());
        let mut slices = rooms.each_mut().map(|room| IoSliceMut::new(room));
        let Some(count) = receive(socket, &mut slices, &mut found) else {
            self.rooms.extend(rooms);
            return false;
        };
        let mut bytes = 0;
        for (one, room) in found[..count].iter().zip(&mut rooms) {
            bytes += one.len;
            if one.len < COPIED_BYTES_MAX {
                take(one, BytesMut::from(&room[..one.len]));
            } else {
                take(one, room.split_to(one.len));
            }
        }
        self.rooms.extend(rooms);
        self.large = bytes / count.max(1) >= LARGE_BYTES / 2;
        count == LARGE_AT_ONCE
    }

    /// A room that nobody looks at, of `ROOM_BYTES`.
    fn room(&mut self) -> BytesMut {
        if let Some(mut room) = self.rooms.pop_front() {
            room.clear();
            if room.try_reclaim(ROOM_BYTES) {
                // SAFETY: nobody else has a part of it and it begins where it was made, with so much capacity, all of it
                // initialised (`zeroed`): to reclaim moves nothing and allocates nothing.
                unsafe { room.set_len(ROOM_BYTES) };
                return room;
            }
            if self.rooms.len() < ROOMS_MAX {
                self.rooms.push_back(room); // somebody looks at it still
            }
        }
        BytesMut::zeroed(ROOM_BYTES)
    }
}

/// How many datagrams there were; None where there was none.
fn receive(socket: &Socket, into: &mut [IoSliceMut<'_>], found: &mut [RecvMeta]) -> Option<usize> {
    for _ in 0..REPORTS_MAX {
        match socket.state.recv(UdpSockRef::from(&socket.borrow()), into, found) {
            Ok(count) => return Some(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => {}
        }
    }
    None // the socket is being closed
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;

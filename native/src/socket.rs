//! A UDP socket that stays the caller's: read and written here, closed by whoever handed it over.
//!
//! So the socket can be given to the broker for its marks, and a forked child can close its copy.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// 100 ms at 1 Gbit/s are 12 MB; the kernel grants less to the unprivileged, silently.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
const SEND_BUFFER_BYTES: usize = 2 << 20;
/// What the kernel reports of a datagram sent earlier (ICMP): nothing is wrong with the socket.
const ICMP_ERRORS: [i32; 4] = [
    libc::EMSGSIZE,
    libc::ECONNREFUSED,
    libc::EHOSTUNREACH,
    libc::ENETUNREACH,
];

#[derive(Debug)]
struct Descriptor(RawFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

#[derive(Debug)]
pub struct Socket {
    io: AsyncFd<Descriptor>,
    state: UdpSocketState,
    local: SocketAddr,
}

impl Socket {
    /// Take a bound UDP socket into use; to be called within the runtime.
    ///
    /// # Safety
    /// The descriptor stays open until the last reference to the socket is gone.
    pub unsafe fn adopt(descriptor: RawFd, local: SocketAddr) -> io::Result<Arc<Self>> {
        // SAFETY: the caller keeps the descriptor open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let socket = UdpSockRef::from(&borrowed);
        let state = UdpSocketState::new(socket)?; // makes it non-blocking, and turns on GRO, ECN and path MTU discovery
        // A smaller buffer than asked for still works.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&borrowed), RECEIVE_BUFFER_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&borrowed), SEND_BUFFER_BYTES);
        // SAFETY: the caller keeps the descriptor open, and `Descriptor` never changes.
        let io = unsafe { AsyncFd::register(Descriptor(descriptor)) }?;
        Ok(Arc::new(Self { io, state, local }))
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: `adopt` was promised that the descriptor outlives `self`.
        unsafe { BorrowedFd::borrow_raw(self.io.get_ref().0) }
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable {
            socket: self,
            waiting: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // `send` takes what only concerns the path (EMSGSIZE of a probe, nobody there) for a packet lost on the way.
        self.io.try_io(Interest::WRITABLE, |_| {
            self.state.send(UdpSockRef::from(&self.borrow()), transmit)
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.io.poll_read_ready(cx))?;
            let read = guard.try_io(|_| self.state.recv(UdpSockRef::from(&self.borrow()), bufs, meta));
            match read {
                Ok(Err(error)) if error.raw_os_error().is_some_and(|code| ICMP_ERRORS.contains(&code)) => {}
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

type Readiness = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// One connection's wait for room in the socket: each has a waker of its own, of which the socket keeps a list.
struct Writable {
    socket: Arc<Socket>,
    waiting: Option<Readiness>,
}

impl std::fmt::Debug for Writable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Writable").finish_non_exhaustive()
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket.clone();
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::pin(async move {
                socket.io.writable().await?.retain_ready();
                Ok(())
            })
        });
        let result = ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(result)
    }
}

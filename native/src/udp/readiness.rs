//! What wakes a socket's task: what has arrived, and room to send only where that had run out.
//!
//! The kernel tells of room whenever a packet has left, however much room there was. Over a link of 1 Gbit/s that was every
//! second time that a sender woke and every fourth of a receiver's, for nothing. So room is watched for from the first
//! packet on that found none, until none was missed for a while.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
struct Descriptor(RawFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

pub struct Readiness {
    descriptor: RawFd,
    /// None where the kernel would not watch: then whoever asks has to look for himself, again and again.
    io: Option<AsyncFd<Descriptor>>,
    room: bool,
    /// Room was missed since `relax` was called last.
    missed: bool,
}

impl Readiness {
    /// To be called within the runtime of the task, like all of its methods.
    ///
    /// # Safety
    /// The descriptor stays open as long as this lives.
    pub unsafe fn new(descriptor: RawFd) -> io::Result<Self> {
        let mut watch = Self {
            descriptor,
            io: None,
            room: false,
            missed: false,
        };
        watch.set(false)?;
        Ok(watch)
    }

    /// Whether something may have come since it was asked last; otherwise the task is woken when it does.
    pub fn poll_some(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(io) = &self.io else {
            let _ = self.set(self.room);
            return true;
        };
        match io.poll_read_ready(cx) {
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                true
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }

    /// There was no room to send: whether there may be now; otherwise the task is woken when there is.
    ///
    /// `take_reports`: empties the socket's queue of errors. While there is one, the socket counts as ready for ever.
    pub fn poll_room(&mut self, cx: &mut Context<'_>, take_reports: impl FnOnce()) -> bool {
        self.missed = true;
        if !self.room {
            let _ = self.set(true);
        }
        match self.io.as_ref().map(|io| io.poll_write_ready(cx)) {
            Some(Poll::Ready(Ok(mut guard))) => {
                let reported = guard.ready().is_write_closed();
                guard.clear_ready(); // from before: whoever finds none again waits for what comes from here on
                if reported {
                    take_reports();
                    let _ = self.set(true); // what is closed stays so otherwise
                }
                true
            }
            _ => false,
        }
    }

    /// To be called now and then, before the task waits.
    pub fn relax(&mut self) {
        if !std::mem::take(&mut self.missed) && self.room {
            let _ = self.set(false);
        }
    }

    /// Watch for what arrives, and for room or not. What is there already is told of anew.
    fn set(&mut self, room: bool) -> io::Result<()> {
        self.room = room;
        self.io = None; // the kernel does not watch one descriptor twice
        let interest = if room {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        // SAFETY: `new` was promised that the descriptor stays open, and `Descriptor` never changes.
        self.io = Some(unsafe { AsyncFd::register_with_interest(Descriptor(self.descriptor), interest) }?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use std::time::{Duration, Instant};

    use super::super::refusals;
    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn watch(descriptor: &impl AsRawFd) -> Readiness {
        // SAFETY: the test keeps the socket longer than this.
        unsafe { Readiness::new(descriptor.as_raw_fd()) }.unwrap()
    }

    /// How often a task is woken within a moment.
    async fn woken(wakes: &Wakes) -> usize {
        tokio::time::sleep(Duration::from_millis(20)).await;
        wakes.0.swap(0, Ordering::Relaxed)
    }

    /// Whether the kernel has woken the thread for room, be there a task that waits for it or not.
    async fn is_told_of_room(watch: &Readiness) -> bool {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let io = watch.io.as_ref().unwrap();
        io.poll_write_ready(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn what_has_left_wakes_nobody_and_what_has_come_does() {
        let (ours, theirs) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let cx = &mut Context::from_waker(&waker);
        let mut watch = watch(&ours);
        for watched in [false, true, false] {
            if watched {
                watch.set(true).unwrap();
            } else {
                watch.relax();
            }
            assert!(!watch.poll_some(cx));
            ours.send_to(b"out", theirs.local_addr().unwrap()).unwrap();
            theirs.recv(&mut [0; 3]).unwrap();
            assert_eq!(is_told_of_room(&watch).await, watched);
        }
        wakes.0.store(0, Ordering::Relaxed);
        theirs.send_to(b"in", ours.local_addr().unwrap()).unwrap();
        let since = Instant::now();
        while woken(&wakes).await == 0 {
            assert!(since.elapsed() < Duration::from_secs(20));
        }
        assert!(watch.poll_some(cx) && !watch.poll_some(cx));
    }

    #[tokio::test]
    async fn a_report_of_the_kernels_is_no_room_for_ever() {
        let (ours, theirs) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        refusals::keep(ours.as_fd());
        let mut watch = watch(&ours);
        let to = theirs.local_addr().unwrap();
        drop(theirs);
        ours.send_to(b"nobody is there", to).unwrap();
        let cx = &mut Context::from_waker(Waker::noop());
        let mut reports = 0;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(1)).await; // the kernel's word comes with the next turn
            if !watch.poll_room(cx, || refusals::read(ours.as_fd(), |_| reports += 1)) && reports > 0 {
                return;
            }
        }
        panic!("there is always room; {reports} reports");
    }

    #[tokio::test]
    async fn room_is_waited_for_where_there_was_none_and_what_came_meanwhile_is_not_missed() {
        let (ours, theirs) = UnixDatagram::pair().unwrap(); // whose room ends with what the other side has not read
        ours.set_nonblocking(true).unwrap();
        let mut watch = watch(&ours);
        for _ in 0..2 {
            while ours.send(&[0; 100]).is_ok() {}
            theirs.send(b"in").unwrap();
            let waker = Waker::noop();
            assert!(!watch.poll_room(&mut Context::from_waker(waker), || {}));
            theirs.set_nonblocking(true).unwrap();
            while theirs.recv(&mut [0; 100]).is_ok() {}
            let room = poll_fn(|cx| {
                if watch.poll_room(cx, || {}) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            tokio::time::timeout(Duration::from_secs(20), room).await.unwrap();
            for room in [true, false, false] {
                watch.relax();
                assert_eq!(watch.room, room);
            }
            assert!(!is_told_of_room(&watch).await);
            let some = poll_fn(|cx| {
                if watch.poll_some(cx) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            tokio::time::timeout(Duration::from_secs(20), some).await.unwrap();
            ours.recv(&mut [0; 2]).unwrap();
        }
    }
}

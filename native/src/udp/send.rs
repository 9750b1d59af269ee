//! Datagrams on their way out, without undoing what the socket was marked with.
//!
//! Linux takes a packet's TOS, and its priority too, from an IP_TOS control message where it is sent with one (ip(7)),
//! and the priority is what the broker's classes go by. Stacks send such a message with every packet, for ECN. Here a
//! socket that somebody has marked, with a priority or a DSCP, sends none: its packets carry the socket's own TOS, in
//! which ECT(0) was set before. That cannot be taken back for one connection alone, or without the privilege to set the
//! priority again: a peer that does not report marks of congestion still gets marked packets over such a socket. Without
//! marks every connection decides for itself, as RFC 9000 13.4.2 has it.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{IP_PKTINFO, IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPV6_PKTINFO, IPV6_TCLASS, c_int};
use quinn_udp::Transmit;
use socket2::SockAddr;

use crate::runtime::locks::locked;

const ECN_BITS: u8 = 3;
const ECT_0: u8 = 2;
/// How long it may take until a socket's marks are followed.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Room for a TOS, a segment's size and a source address, each in its message.
const CONTROL_BYTES: usize = 128;

/// The memory of control messages, aligned as the kernel's headers are.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// How one socket sends.
pub struct Sender {
    segments_max: AtomicUsize,
    marked: AtomicBool,
    dscp: AtomicU8,
    looked: Mutex<Instant>,
}

impl Sender {
    /// For a socket that is new here: where nobody has marked it yet, its packets say ECT(0).
    pub fn new(socket: BorrowedFd<'_>, segments_max: usize) -> Self {
        let sender = Self {
            segments_max: AtomicUsize::new(segments_max),
            marked: AtomicBool::new(false),
            dscp: AtomicU8::new(0),
            looked: Mutex::new(Instant::now()),
        };
        sender.look(socket);
        if !sender.marked.load(Ordering::Relaxed) {
            // A socket of one family has not the other's option, and needs it not.
            let _ = set(socket, IPPROTO_IP, IP_TOS, c_int::from(ECT_0));
            let _ = set(socket, IPPROTO_IPV6, IPV6_TCLASS, c_int::from(ECT_0));
        }
        sender
    }

    /// How many datagrams the kernel cuts a piece into; 1 where it cannot, which shows only when it is tried.
    pub fn segments_max(&self) -> usize {
        self.segments_max.load(Ordering::Relaxed)
    }

    /// Send one piece.
    ///
    /// # Errors
    /// `WouldBlock` where there is no room. What only concerns the path (a datagram too large for it, nobody there)
    /// is a packet lost on the way.
    pub fn send(&self, socket: BorrowedFd<'_>, transmit: &Transmit<'_>) -> io::Result<()> {
        {
            let mut looked = locked(&self.looked);
            if looked.elapsed() >= LOOK_EVERY {
                *looked = Instant::now();
                self.look(socket);
            }
        }
        let segment = transmit.segment_size.filter(|size| *size < transmit.contents.len());
        let Err(error) = self.send_piece(socket, transmit, transmit.contents, segment) else {
            return Ok(());
        };
        match (error.raw_os_error(), segment) {
            (Some(libc::EAGAIN), _) => Err(error),
            (Some(code @ (libc::EIO | libc::EINVAL)), Some(size)) => {
                if code == libc::EIO {
                    self.segments_max.store(1, Ordering::Relaxed); // the device cannot
                } // else the path is narrower than it was, for one: that is found out by itself
                for datagram in transmit.contents.chunks(size) {
                    let _ = self.send_piece(socket, transmit, datagram, None);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn send_piece(
        &self,
        socket: BorrowedFd<'_>,
        transmit: &Transmit<'_>,
        contents: &[u8],
        segment: Option<usize>,
    ) -> io::Result<()> {
        let destination = SockAddr::from(transmit.destination);
        let mut control = Control([0; CONTROL_BYTES]);
        let mut piece = libc::iovec {
            iov_base: contents.as_ptr().cast_mut().cast(),
            iov_len: contents.len(),
        };
        // SAFETY: all zeroes are a valid `msghdr`, whose pointers are null and lengths 0.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = destination.as_ptr().cast_mut().cast();
        message.msg_namelen = destination.len();
        message.msg_iov = &mut piece;
        message.msg_iovlen = 1;
        let mut notes = Notes::new(&mut control);
        if !self.marked.load(Ordering::Relaxed) {
            let ecn = transmit.ecn.map_or(0, |ecn| ecn as u8);
            let tos = c_int::from(self.dscp.load(Ordering::Relaxed) | ecn);
            match is_v4(transmit.destination) {
                true => notes.add(IPPROTO_IP, IP_TOS, tos),
                false => notes.add(IPPROTO_IPV6, IPV6_TCLASS, tos),
            }
        }
        if let Some(size) = segment {
            notes.add(libc::SOL_UDP, libc::UDP_SEGMENT, size as u16);
        }
        match transmit.src_ip {
            Some(IpAddr::V4(ip)) => notes.add(
                IPPROTO_IP,
                IP_PKTINFO,
                libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr {
                        s_addr: u32::from_ne_bytes(ip.octets()),
                    },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                },
            ),
            Some(IpAddr::V6(ip)) => notes.add(
                IPPROTO_IPV6,
                IPV6_PKTINFO,
                libc::in6_pktinfo {
                    ipi6_ifindex: 0,
                    ipi6_addr: libc::in6_addr { s6_addr: ip.octets() },
                },
            ),
            None => {}
        }
        let length = notes.length;
        if length > 0 {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = length as _;
        }
        let mut reports = 1;
        loop {
            // SAFETY: every pointer of the message is to memory of this function or of its caller that lives on, with
            // the length that stands beside it; the kernel only reads.
            if unsafe { libc::sendmsg(socket.as_raw_fd(), &message, 0) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // ENOBUFS: a queue of this host was full, of which the kernel tells sockets that ask for reports alone.
                Some(libc::EAGAIN | libc::EIO | libc::EINVAL | libc::ENOBUFS) => return Err(error),
                // It may be of a datagram that went before, to whomever (`refusals`).
                _ if reports > 0 => reports -= 1,
                _ => return Err(error),
            }
        }
    }

    /// See whether the socket is marked; who marks it has a descriptor of his own and tells nobody.
    fn look(&self, socket: BorrowedFd<'_>) {
        let priority = get(socket, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap_or(0);
        let tos = get(socket, IPPROTO_IPV6, IPV6_TCLASS)
            .into_iter()
            .chain(get(socket, IPPROTO_IP, IP_TOS))
            .fold(0, |all, tos| all | tos as u8);
        let dscp = tos & !ECN_BITS;
        self.dscp.store(dscp, Ordering::Relaxed);
        self.marked.store(priority != 0 || dscp != 0, Ordering::Relaxed);
    }
}

/// Control messages, written one behind the other.
struct Notes<'a> {
    room: &'a mut Control,
    length: usize,
}

impl<'a> Notes<'a> {
    fn new(room: &'a mut Control) -> Self {
        Self { room, length: 0 }
    }

    fn add<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        // SAFETY: these two only compute.
        let (space, length) = unsafe {
            let size = mem::size_of::<T>() as u32;
            (libc::CMSG_SPACE(size) as usize, libc::CMSG_LEN(size))
        };
        assert!(
            self.length + space <= CONTROL_BYTES,
            "there is room for all that are sent together"
        );
        let header = self.room.0[self.length..].as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: the header begins at a multiple of 8 in memory that is aligned to 8, and `space` bytes from there on,
        // header and value with their padding, are within `room`, as was just checked.
        unsafe {
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = length as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.length += space;
    }
}

fn is_v4(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_ipv4()
}

fn get(socket: BorrowedFd<'_>, level: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut size = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes of `value`.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &mut size) };
    (result == 0).then_some(value)
}

pub(super) fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let size = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes of `value`.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use quinn_udp::EcnCodepoint;

    use super::*;

    /// What arrives: the datagrams, and the TOS of each.
    fn received(socket: &UdpSocket) -> Vec<(Vec<u8>, u8)> {
        let mut found = Vec::new();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        while found.iter().map(|(data, _): &(Vec<u8>, u8)| data.len()).sum::<usize>() < 2500 {
            let mut data = [0u8; 4096];
            let mut control = Control([0; CONTROL_BYTES]);
            let mut piece = libc::iovec {
                iov_base: data.as_mut_ptr().cast(),
                iov_len: data.len(),
            };
            // SAFETY: as in `send_piece`.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            message.msg_iov = &mut piece;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_BYTES as _;
            // SAFETY: the message's memory lives until the call returns, and its lengths are right.
            let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, 0) };
            assert!(length >= 0, "{}", io::Error::last_os_error());
            // SAFETY: the kernel has filled in one control message, whose value is a byte.
            let tos = unsafe { *libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message)) };
            found.push((data[..length as usize].to_vec(), tos));
        }
        found
    }

    fn pair() -> (UdpSocket, UdpSocket) {
        let (from, to) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        set(to.as_fd(), IPPROTO_IP, libc::IP_RECVTOS, 1).unwrap();
        (from, to)
    }

    fn send(sender: &Sender, from: &UdpSocket, to: &UdpSocket, ecn: Option<EcnCodepoint>) {
        let transmit = Transmit {
            destination: to.local_addr().unwrap(),
            ecn,
            contents: &[7; 2500],
            segment_size: Some(1000),
            src_ip: Some(from.local_addr().unwrap().ip()),
        };
        sender.send(from.as_fd(), &transmit).unwrap();
    }

    #[test]
    fn a_piece_is_cut_into_datagrams_and_each_connection_says_whether_it_takes_marks() {
        let (from, to) = pair();
        let sender = Sender::new(from.as_fd(), 64);
        for (ecn, tos) in [(Some(EcnCodepoint::Ect0), 2), (None, 0)] {
            send(&sender, &from, &to, ecn);
            let found = received(&to);
            assert_eq!(
                found.iter().map(|(data, _)| data.len()).collect::<Vec<_>>(),
                [1000, 1000, 500]
            );
            assert!(found.iter().all(|(_, found)| *found == tos), "{found:?}");
        }
    }

    #[test]
    fn a_marked_socket_keeps_its_dscp_and_its_priority_and_still_takes_marks_of_congestion() {
        let (from, to) = pair();
        let sender = Sender::new(from.as_fd(), 64);
        let before = get(from.as_fd(), IPPROTO_IP, IP_TOS).unwrap();
        assert_eq!(before, c_int::from(ECT_0));
        set(from.as_fd(), IPPROTO_IP, IP_TOS, 10 << 2 | before).unwrap();
        set(from.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, 5).unwrap();
        *sender.looked.lock().unwrap() -= LOOK_EVERY;
        send(&sender, &from, &to, None);
        assert!(sender.marked.load(Ordering::Relaxed));
        assert!(received(&to).iter().all(|(_, tos)| *tos == 10 << 2 | ECT_0));
        assert_eq!(get(from.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY), Some(5));
    }

    #[test]
    fn a_piece_that_the_kernel_does_not_cut_is_sent_datagram_by_datagram() {
        let (from, to) = pair();
        let sender = Sender::new(from.as_fd(), 64);
        // Checksums cannot be left out of datagrams that the kernel cuts: EINVAL, as for a path that is too narrow.
        set(from.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        send(&sender, &from, &to, None);
        assert_eq!(received(&to).len(), 3);
        assert_eq!(sender.segments_max(), 64); // that may pass; a device that cannot says EIO
    }
}

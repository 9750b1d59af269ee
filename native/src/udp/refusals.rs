//! Datagrams that their host refused, since no process listens at the port (ICMP and ICMPv6 port unreachable).
//!
//! The kernel keeps such reports beside what has come (ip(7), IP_RECVERR), and tells whoever sends or reads next of each,
//! once, in place of doing what was asked: who gets an error from the socket tries again. Anybody can forge a report; only
//! who has seen the datagram can quote it. A firewall on the way reports the same of what it refuses, from its own address.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{IP_RECVERR, IPPROTO_IP, IPPROTO_IPV6, IPV6_RECVERR};
use socket2::SockAddr;

use super::send::set;

/// Enough to recognise a packet of QUIC by.
const QUOTED_BYTES: usize = 16;
/// Room for the report, with the address of whoever sent it, behind what the socket tells of each datagram.
const CONTROL_BYTES: usize = 256;
/// They wait in the memory of what has come: forged ones, of which there may be many, are read as fast as they come.
const AT_ONCE: usize = 4096;
const PORT_UNREACHABLE: [(u8, u8, u8); 2] = [
    (libc::SO_EE_ORIGIN_ICMP, 3, 3),  // RFC 792
    (libc::SO_EE_ORIGIN_ICMP6, 1, 4), // RFC 4443, 3.1
];

/// Where a datagram went that its host refused, and how it begins.
pub struct Refusal {
    pub to: SocketAddr,
    quoted: [u8; QUOTED_BYTES],
    length: usize,
}

impl Refusal {
    pub fn datagram(&self) -> &[u8] {
        &self.quoted[..self.length]
    }
}

/// Have the kernel keep reports for `read`.
pub fn keep(socket: BorrowedFd<'_>) {
    // A socket of one family has not the other's option, and needs it not.
    let _ = set(socket, IPPROTO_IP, IP_RECVERR, 1);
    let _ = set(socket, IPPROTO_IPV6, IPV6_RECVERR, 1);
}

/// Take the reports that there are.
pub fn read(socket: BorrowedFd<'_>, mut take: impl FnMut(Refusal)) {
    #[repr(C, align(8))]
    struct Control([u8; CONTROL_BYTES]);
    for _ in 0..AT_ONCE {
        let mut quoted = [0u8; QUOTED_BYTES];
        let mut control = Control([0; CONTROL_BYTES]);
        let mut piece = libc::iovec {
            iov_base: quoted.as_mut_ptr().cast(),
            iov_len: quoted.len(),
        };
        let mut refused_by = None;
        // SAFETY: every pointer of the message is to memory that lives until the end of the call, with its length beside
        // it. The kernel writes no more, and says how long the address is.
        let received = unsafe {
            SockAddr::try_init(|address, length| {
                let mut message: libc::msghdr = mem::zeroed();
                message.msg_name = address.cast();
                message.msg_namelen = *length;
                message.msg_iov = &mut piece;
                message.msg_iovlen = 1;
                message.msg_control = control.0.as_mut_ptr().cast();
                message.msg_controllen = CONTROL_BYTES as _;
                let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
                let count = libc::recvmsg(socket.as_raw_fd(), &mut message, flags);
                if count < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                *length = message.msg_namelen;
                refused_by = reporter(&message);
                Ok(count as usize)
            })
        };
        let Ok((count, to)) = received else {
            return; // there are no more
        };
        if let Some(to) = to.as_socket()
            && refused_by == Some(to.ip().to_canonical())
        {
            let length = count.min(QUOTED_BYTES);
            take(Refusal { to, quoted, length });
        }
    }
}

/// Who reports that no process listens at a port; None where it is a report of something else.
///
/// # Safety
/// The kernel has filled the message, with the control messages that its length says.
unsafe fn reporter(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: as promised; the kernel aligns and sizes control messages for these, and behind a report stands the address
    // of whoever sent it.
    unsafe {
        let mut note = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = note.as_ref() {
            let of_six = match (header.cmsg_level, header.cmsg_type) {
                (IPPROTO_IP, IP_RECVERR) => Some(false),
                (IPPROTO_IPV6, IPV6_RECVERR) => Some(true),
                _ => None,
            };
            if let Some(of_six) = of_six {
                let report = libc::CMSG_DATA(note).cast::<libc::sock_extended_err>();
                let said = report.read_unaligned();
                if !PORT_UNREACHABLE.contains(&(said.ee_origin, said.ee_type, said.ee_code)) {
                    return None;
                }
                return Some(if of_six {
                    let by = report.add(1).cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(by.sin6_addr.s6_addr)).to_canonical()
                } else {
                    let by = report.add(1).cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from(by.sin_addr.s_addr.to_ne_bytes()))
                });
            }
            note = libc::CMSG_NXTHDR(message, note);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::*;

    /// What is read within a moment, until there is something.
    fn reports(socket: &UdpSocket) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut found, since) = (Vec::new(), Instant::now());
        while found.is_empty() && since.elapsed() < Duration::from_secs(5) {
            read(socket.as_fd(), |one| found.push((one.to, one.datagram().to_vec())));
        }
        found
    }

    #[test]
    fn a_datagram_to_a_port_that_was_closed_is_reported_with_its_beginning() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (ours, theirs) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            keep(ours.as_fd());
            let to = theirs.local_addr().unwrap();
            ours.send_to(b"somebody is there", to).unwrap();
            drop(theirs);
            read(ours.as_fd(), |one| panic!("{} took it", one.to));
            ours.send_to(b"and now there is nobody", to).unwrap();
            assert_eq!(reports(&ours), [(to, b"and now there is".to_vec())]);
        }
    }

    #[test]
    fn what_else_the_kernel_reports_is_none() {
        let (ours, theirs) = (UdpSocket::bind("[::1]:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
        keep(ours.as_fd());
        // Longer than the path takes, which the kernel itself reports: so much is not cut where it probes.
        set(
            ours.as_fd(),
            IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        )
        .unwrap();
        assert!(ours.send_to(&[0; 65500], theirs.local_addr().unwrap()).is_err());
        read(ours.as_fd(), |one| panic!("{} refused nothing", one.to));
    }
}

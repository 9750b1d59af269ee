//! Which address a peer has, and whether its host says that nobody is there any more.
//!
//! Anybody can forge what a host says (ICMP). It counts where it quotes the identifier by which we address the peer, which
//! only those on the way have seen (RFC 9000 14.2.1).

use std::net::SocketAddr;
use std::time::Instant;

use quinn_proto::Connection;

/// Of the identifiers that both engines give out.
const CID_BYTES: usize = 8;
const LONG_HEADER: u8 = 0x80;

pub struct Path {
    remote: SocketAddr,
    /// By which the peer was addressed last, after the handshake.
    cid: Option<[u8; CID_BYTES]>,
    refused: Option<Instant>,
}

impl Path {
    pub fn new(remote: SocketAddr) -> Self {
        Self {
            remote,
            cid: None,
            refused: None,
        }
    }

    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// A datagram was handled, or time has passed: the peer may have moved.
    pub fn look(&mut self, stack: &Connection) {
        self.remote = stack.remote_address();
    }

    /// This datagram goes to the peer.
    pub fn sent(&mut self, datagram: &[u8]) {
        if let Some(cid) = cid_of(datagram) {
            self.cid = Some(cid);
        }
    }

    /// A host says that nobody took a datagram that begins so; whether it was the peer's.
    pub fn refused(&mut self, to: SocketAddr, datagram: &[u8], now: Instant) -> bool {
        let there = (to.ip().to_canonical(), to.port()) == (self.remote.ip().to_canonical(), self.remote.port());
        let ours = there && self.cid.is_some() && cid_of(datagram) == self.cid;
        if ours {
            self.refused = Some(now);
        }
        ours
    }

    /// When the peer's host said last that nobody is there.
    pub fn refused_at(&self) -> Option<Instant> {
        self.refused
    }
}

/// Whom a datagram is addressed to (RFC 9000 17.3.1); none of a handshake's.
fn cid_of(datagram: &[u8]) -> Option<[u8; CID_BYTES]> {
    let (first, rest) = datagram.split_first()?;
    let cid = rest.first_chunk()?;
    (first & LONG_HEADER == 0).then_some(*cid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_believed_that_quotes_what_was_sent_there() {
        let [home, other] = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 1)));
        let mapped = "[::ffff:127.0.0.1]:1".parse().unwrap();
        let now = Instant::now();
        let mut path = Path::new(home);
        path.sent(b"\xc0handshake");
        assert!(!path.refused(home, b"\xc0handshake", now)); // an identifier that the other side has not chosen
        path.sent(b"\x40identity and more");
        assert!(!path.refused(other, b"\x40identity and more", now));
        assert!(!path.refused(home, b"\x40another! and more", now));
        assert!(!path.refused(home, b"\x40ident", now));
        assert_eq!(path.refused_at(), None);
        assert!(path.refused(mapped, b"\x41identity of another packet", now));
        assert_eq!(path.refused_at(), Some(now));
    }
}

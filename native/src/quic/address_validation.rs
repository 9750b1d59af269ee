//! Which address a peer has, whether it has shown that it is there, and whether its host says that it is not any more.
//!
//! RFC 9000 8.1: an address that has not answered a challenge gets at most three times of what came from it. quinn counts
//! its probes of the path's MTU among that, but does not ask before it sends one, and it has time for one just when
//! nothing else may go. So the driver withholds probes until the address has answered; for the stack they are lost on the
//! way, which is no sign of congestion, and it tries again.
//!
//! quinn tells how many answers came, not whether they answer what we asked. A peer could so vouch for an address that it
//! forges, with an answer that it makes up. That takes a certificate and a whole handshake first, and wins a few probes,
//! of a packet each: quinn itself goes on holding everything else to three times what came from there.
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
    proved: SocketAddr,
    /// Answers to challenges that had come, from wherever, when it was looked last.
    answers: u64,
    /// By which the peer was addressed last, after the handshake.
    cid: Option<[u8; CID_BYTES]>,
    refused: Option<Instant>,
}

impl Path {
    /// Of a connection that begins: its handshake shows that the peer is there.
    pub fn new(remote: SocketAddr) -> Self {
        Self {
            remote,
            proved: remote,
            answers: 0,
            cid: None,
            refused: None,
        }
    }

    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// A datagram from `from` was handled, or time has passed: the peer may have moved, or answered.
    pub fn look(&mut self, stack: &Connection, from: Option<SocketAddr>) {
        let remote = stack.remote_address();
        if remote == self.proved {
            self.remote = remote;
            return;
        }
        self.looked(remote, from, stack.stats().frame_rx.path_response);
    }

    fn looked(&mut self, remote: SocketAddr, from: Option<SocketAddr>, answers: u64) {
        let answered = answers > self.answers;
        if remote == self.remote && from == Some(remote) && answered {
            self.proved = remote;
        }
        (self.remote, self.answers) = (remote, answers);
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

    /// How many probes the stack has made, where the next one must not be sent.
    pub fn probes(&self, stack: &Connection) -> Option<u64> {
        (self.remote != self.proved).then(|| stack.stats().path.sent_plpmtud_probes)
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

    #[test]
    fn an_address_is_proved_by_an_answer_from_there_and_not_by_one_from_the_address_before() {
        let [home, thief] = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 1)));
        let mut path = Path::new(home);
        path.looked(thief, Some(thief), 3); // it was answered often before
        assert_ne!(path.proved, thief);
        path.looked(thief, Some(home), 4);
        path.looked(thief, Some(thief), 4);
        assert_ne!(path.proved, thief);
        path.looked(thief, Some(thief), 5);
        assert_eq!((path.proved, path.remote()), (thief, thief));
    }
}

//! Which address a peer has, and whether it has shown that it is there.
//!
//! RFC 9000 8.1: an address that has not answered a challenge gets at most three times of what came from it. quinn counts
//! its probes of the path's MTU among that, but does not ask before it sends one, and it has time for one just when
//! nothing else may go. So the driver withholds probes until the address has answered; for the stack they are lost on the
//! way, which is no sign of congestion, and it tries again.
//!
//! quinn tells how many answers came, not whether they answer what we asked. A peer could so vouch for an address that it
//! forges, with an answer that it makes up. That takes a certificate and a whole handshake first, and wins a few probes,
//! of a packet each: quinn itself goes on holding everything else to three times what came from there.

use std::net::SocketAddr;

use quinn_proto::Connection;

pub struct Path {
    remote: SocketAddr,
    proved: SocketAddr,
    /// Answers to challenges that had come, from wherever, when it was looked last.
    answers: u64,
}

impl Path {
    /// Of a connection that begins: its handshake shows that the peer is there.
    pub fn new(remote: SocketAddr) -> Self {
        Self {
            remote,
            proved: remote,
            answers: 0,
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

    /// How many probes the stack has made, where the next one must not be sent.
    pub fn probes(&self, stack: &Connection) -> Option<u64> {
        (self.remote != self.proved).then(|| stack.stats().path.sent_plpmtud_probes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

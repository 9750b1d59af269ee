//! Whether what has come is acknowledged at once, or with what comes next.
//!
//! To send an acknowledgement and to be woken by it costs both sides as much as a dozen packets. Where a connection only
//! receives, and much, every fourth lump is enough:
//! - A lump is most of what the kernel joins, and its last packet is full: the sender has more. A send that ends with a
//!   short packet is acknowledged at once, for whoever sent it waits for that; so is all on paths that carry less than a lump
//!   in 2.5 ms (`LUMP_SLOW`), and on one that is in use alone less than 0.8 Gbit/s (`LUMP`).
//! - An acknowledgement waits for `LUMPS` of them, no longer than `WAIT` and what the runtime's timer adds, which rounds up
//!   to a whole millisecond. Where it waited in vain, the sender had nothing more
//!   or may send no more before it hears of that: for `SPAN` nothing waits for more than had come then.
//!
//! A peer asks for prompt acknowledgements with its first packet of data (draft-ietf-quic-ack-frequency). quinn-proto
//! 0.11.19 does not repeat that where it is lost: what was to be sent again is overwritten by whether the wish has changed.
//! Lone packets would be acknowledged after 25 ms for as long as the connection lives. So where streams bring something
//! and no wish has come, a PING goes with the acknowledgement, which takes it along at once.

use std::time::{Duration, Instant};

/// Of the 64 KiB that the kernel joins at most.
pub const LUMP_BYTES_MIN: usize = 48 << 10;
const LUMPS: u32 = 4;
/// At 1 Gbit/s three more lumps take three quarters of that.
const WAIT: Duration = Duration::from_millis(2);
const SPAN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Answering {
    /// Lumps that have come since something was sent, if nothing else has happened.
    lumps: Option<u32>,
    /// Until when an acknowledgement waits, and how many lumps had come when that was looked at last.
    until: Option<(Instant, u32)>,
    /// So many it waited for in vain, and until when no more than so many are waited for.
    vain: Option<(u32, Instant)>,
    asked: bool,
    /// Frames of streams that had come when it was looked last.
    streams: u64,
}

impl Answering {
    /// A piece has come, which is one datagram or several of `stride` bytes.
    pub fn came(&mut self, bytes: usize, stride: usize) {
        let lump = bytes >= LUMP_BYTES_MIN && bytes.is_multiple_of(stride);
        self.lumps = self.lumps.filter(|_| lump).map(|lumps| lumps + 1);
    }

    /// Whether the peer's wish for prompt acknowledgements has come.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// So many wishes and frames of streams have come; whether to answer at once though nobody asked for it.
    pub fn unasked(&mut self, wishes: u64, streams: u64) -> bool {
        self.asked = wishes > 0;
        let before = std::mem::replace(&mut self.streams, streams);
        !self.asked && streams > before
    }

    /// There may be something else to send.
    pub fn hurry(&mut self) {
        self.lumps = None;
    }

    /// A deadline has come, of this or of something else.
    pub fn time_out(&mut self, now: Instant) {
        if let Some((until, lumps)) = self.until
            && until <= now
            && self.lumps == Some(lumps)
        {
            self.vain = Some((lumps, now + SPAN));
        }
        self.hurry();
    }

    /// Whether to wait before something is sent, and until when. None: it is sent now.
    ///
    /// `receives`: this side has nothing to send.
    pub fn wait(&mut self, receives: bool, now: Instant) -> Option<Instant> {
        let most = self
            .vain
            .filter(|(_, until)| now < *until)
            .map_or(LUMPS, |(lumps, _)| lumps);
        if let Some(lumps) = self.lumps
            && receives
            && 0 < lumps
            && lumps < most
        {
            let until = self.until.map_or(now + WAIT, |(until, _)| until);
            if now < until {
                self.until = Some((until, lumps));
                return Some(until);
            }
        }
        (self.lumps, self.until) = (Some(0), None);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1451;
    const LUMP: usize = 42 * PACKET;

    fn sending(now: Instant) -> Answering {
        let mut answering = Answering::default();
        assert_eq!(answering.wait(true, now), None);
        answering
    }

    #[test]
    fn every_fourth_lump_is_acknowledged_while_nothing_else_is_sent() {
        let now = Instant::now();
        let mut answering = sending(now);
        for _ in 0..3 {
            for lump in 0..LUMPS {
                answering.came(LUMP, PACKET);
                let wait = answering.wait(true, now + lump * WAIT / LUMPS);
                assert_eq!(wait, (lump + 1 < LUMPS).then_some(now + WAIT));
            }
        }
        answering.came(LUMP, PACKET);
        assert_eq!(answering.wait(false, now), None);
    }

    #[test]
    fn what_may_be_the_end_of_a_send_is_acknowledged_at_once() {
        let now = Instant::now();
        for pieces in [
            vec![LUMP + 1],
            vec![PACKET],
            vec![20 * PACKET],
            vec![LUMP, PACKET],
            vec![41, LUMP],
        ] {
            let mut answering = sending(now);
            for piece in &pieces {
                answering.came(*piece, PACKET);
            }
            assert_eq!(answering.wait(true, now), None, "{pieces:?}");
        }
        let mut answering = sending(now);
        answering.came(LUMP, PACKET);
        answering.hurry();
        assert_eq!(answering.wait(true, now), None);
    }

    #[test]
    fn what_streams_bring_is_answered_at_once_until_the_peer_has_asked_for_that() {
        let mut answering = Answering::default();
        assert!(answering.unasked(0, 1));
        assert!(!answering.unasked(0, 1)); // a ping of the peer, or an acknowledgement
        assert!(answering.unasked(0, 2) && !answering.is_asked());
        assert!(!answering.unasked(1, 3) && answering.is_asked());
    }

    #[test]
    fn no_more_are_waited_for_than_had_come_where_it_was_in_vain() {
        let now = Instant::now();
        for came in 1..LUMPS {
            let mut answering = sending(now);
            let mut until = None;
            for _ in 0..came {
                answering.came(LUMP, PACKET);
                until = answering.wait(true, now);
            }
            let until = until.unwrap();
            assert_eq!(answering.wait(true, until - WAIT / 4), Some(until)); // looked at for another reason
            answering.time_out(until);
            for (at, most) in [(until, came), (until + SPAN / 2, came), (until + SPAN, LUMPS)] {
                assert_eq!(answering.wait(true, at), None);
                for lump in 1..=most {
                    answering.came(LUMP, PACKET);
                    assert_eq!(answering.wait(true, at).is_some(), lump < most);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_comes_late_has_not_waited_in_vain() {
        let now = Instant::now();
        let mut answering = sending(now);
        answering.came(LUMP, PACKET);
        let until = answering.wait(true, now).unwrap();
        answering.came(LUMP, PACKET); // read in the turn in which the deadline is found to have passed
        answering.time_out(until + WAIT);
        assert_eq!(answering.wait(true, until + WAIT), None);
        answering.came(LUMP, PACKET);
        assert!(answering.wait(true, until + WAIT).is_some());
    }
}

//! Whether what has come is acknowledged at once, or with what comes next.
//!
//! To send an acknowledgement and to be woken by it costs both sides as much as a dozen packets. Where a connection only
//! receives, and much, every fourth batch is enough:
//! - A batch is most of what the kernel joins, and its last packet is full: the sender has more. A send that ends with a
//!   short packet is acknowledged at once, for whoever sent it waits for that; so is all on paths that carry less than a batch
//!   in 2.5 ms (`BATCH_TIME_SLOW`), and on one that is in use alone less than 0.8 Gbit/s (`BATCH_TIME`).
//! - An acknowledgement waits for `BATCHES` of them, no longer than `WAIT` and what the runtime's timer adds, which rounds up
//!   to a whole millisecond. Where it waited in vain, the sender had nothing more
//!   or may send no more before it hears of that: for `SPAN` nothing waits for more than had come then.
//!
//! A peer asks for prompt acknowledgements with its first packet of data (draft-ietf-quic-ack-frequency). quinn-proto
//! 0.11.19 does not repeat that where it is lost: what was to be sent again is overwritten by whether the wish has changed.
//! Lone packets would be acknowledged after 25 ms for as long as the connection lives. So where streams bring something
//! and no wish has come, a PING goes with the acknowledgement, which takes it along at once.

use std::time::{Duration, Instant};

/// Of the 64 KiB that the kernel joins at most.
const BATCH_BYTES_MIN: usize = 48 << 10;
const BATCHES: u32 = 4;
/// At 1 Gbit/s three more batches take three quarters of that.
const WAIT: Duration = Duration::from_millis(2);
const SPAN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct AckPolicy {
    /// Batches that have come since something was sent, if nothing else has happened.
    batches: Option<u32>,
    /// Until when an acknowledgement waits, and how many batches had come when that was looked at last.
    until: Option<(Instant, u32)>,
    /// So many it waited for in vain, and until when no more than so many are waited for.
    vain: Option<(u32, Instant)>,
    asked: bool,
    /// Frames of streams that had come when it was looked last.
    streams: u64,
}

impl AckPolicy {
    /// A piece has come, which is one datagram or several of `stride` bytes.
    pub fn came(&mut self, bytes: usize, stride: usize) {
        let batch = bytes >= BATCH_BYTES_MIN && bytes.is_multiple_of(stride);
        self.batches = self.batches.filter(|_| batch).map(|batches| batches + 1);
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
        self.batches = None;
    }

    /// A deadline has come, of this or of something else.
    pub fn time_out(&mut self, now: Instant) {
        if let Some((until, batches)) = self.until
            && until <= now
            && self.batches == Some(batches)
        {
            self.vain = Some((batches, now + SPAN));
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
            .map_or(BATCHES, |(batches, _)| batches);
        if let Some(batches) = self.batches
            && receives
            && 0 < batches
            && batches < most
        {
            let until = self.until.map_or(now + WAIT, |(until, _)| until);
            if now < until {
                self.until = Some((until, batches));
                return Some(until);
            }
        }
        (self.batches, self.until) = (Some(0), None);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1451;
    const BATCH_TIME: usize = 42 * PACKET;

    fn sending(now: Instant) -> AckPolicy {
        let mut ack_policy = AckPolicy::default();
        assert_eq!(ack_policy.wait(true, now), None);
        ack_policy
    }

    #[test]
    fn every_fourth_batch_is_acknowledged_while_nothing_else_is_sent() {
        let now = Instant::now();
        let mut ack_policy = sending(now);
        for _ in 0..3 {
            for batch in 0..BATCHES {
                ack_policy.came(BATCH_TIME, PACKET);
                let wait = ack_policy.wait(true, now + batch * WAIT / BATCHES);
                assert_eq!(wait, (batch + 1 < BATCHES).then_some(now + WAIT));
            }
        }
        ack_policy.came(BATCH_TIME, PACKET);
        assert_eq!(ack_policy.wait(false, now), None);
    }

    #[test]
    fn what_may_be_the_end_of_a_send_is_acknowledged_at_once() {
        let now = Instant::now();
        for pieces in [
            vec![BATCH_TIME + 1],
            vec![PACKET],
            vec![20 * PACKET],
            vec![BATCH_TIME, PACKET],
            vec![41, BATCH_TIME],
        ] {
            let mut ack_policy = sending(now);
            for piece in &pieces {
                ack_policy.came(*piece, PACKET);
            }
            assert_eq!(ack_policy.wait(true, now), None, "{pieces:?}");
        }
        let mut ack_policy = sending(now);
        ack_policy.came(BATCH_TIME, PACKET);
        ack_policy.hurry();
        assert_eq!(ack_policy.wait(true, now), None);
    }

    #[test]
    fn what_streams_bring_is_answered_at_once_until_the_peer_has_asked_for_that() {
        let mut ack_policy = AckPolicy::default();
        assert!(ack_policy.unasked(0, 1));
        assert!(!ack_policy.unasked(0, 1)); // a ping of the peer, or an acknowledgement
        assert!(ack_policy.unasked(0, 2) && !ack_policy.is_asked());
        assert!(!ack_policy.unasked(1, 3) && ack_policy.is_asked());
    }

    #[test]
    fn no_more_are_waited_for_than_had_come_where_it_was_in_vain() {
        let now = Instant::now();
        for came in 1..BATCHES {
            let mut ack_policy = sending(now);
            let mut until = None;
            for _ in 0..came {
                ack_policy.came(BATCH_TIME, PACKET);
                until = ack_policy.wait(true, now);
            }
            let until = until.unwrap();
            assert_eq!(ack_policy.wait(true, until - WAIT / 4), Some(until)); // looked at for another reason
            ack_policy.time_out(until);
            for (at, most) in [(until, came), (until + SPAN / 2, came), (until + SPAN, BATCHES)] {
                assert_eq!(ack_policy.wait(true, at), None);
                for batch in 1..=most {
                    ack_policy.came(BATCH_TIME, PACKET);
                    assert_eq!(ack_policy.wait(true, at).is_some(), batch < most);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_comes_late_has_not_waited_in_vain() {
        let now = Instant::now();
        let mut ack_policy = sending(now);
        ack_policy.came(BATCH_TIME, PACKET);
        let until = ack_policy.wait(true, now).unwrap();
        ack_policy.came(BATCH_TIME, PACKET); // read in the turn in which the deadline is found to have passed
        ack_policy.time_out(until + WAIT);
        assert_eq!(ack_policy.wait(true, until + WAIT), None);
        ack_policy.came(BATCH_TIME, PACKET);
        assert!(ack_policy.wait(true, until + WAIT).is_some());
    }
}

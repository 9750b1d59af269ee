//! Whether what may be sent now is sent, or a little later as a whole batch.
//!
//! The stack's pacer gives leave for packets one by one, as time passes, and the driver asks at each turn. So behind a burst
//! that had been cut short a packet or two went at each turn, which cost both sides as much as a batch: the receiver is woken
//! by them and takes them for the end of a send, which it acknowledges at once (`ack_policy`), and that is the sender's next
//! turn. Of what was sent in a flow of 1 Gbit/s more than half were such pieces.
//!
//! - Where the pacer has cut something short, its bucket is empty, and what it gives leave for from then on is known: the
//!   stack is asked for whole batches as they become due (`empty`). Time that passes unused counts as long as the pacer keeps
//!   it, so nothing is lost by that; and more than the pacer lets go is never sent at once.
//! - Only on paths of about 0.8 to 1.6 Gbit/s, or from 0.5 on where others that share the socket make batches larger. On slower
//!   ones a whole batch is less than the receiver counts as such, and few packets wait anyway; on faster ones a timer that
//!   comes late would waste leave. Nor over loopback, where processors are what limits; nor where a batch is much of the
//!   window, or something else than the stack paces.
//! - Only while there is more to come: while the stack has not got all of some message (`more`). So the last bytes of a
//!   message do not wait for what nobody writes, nor do messages that fit into the stack at once.
//! - What is new and small goes at once: a message of up to 64 KiB, what this side answers, a deadline, what was lost. The
//!   pacer may refuse that; then it goes on hurrying until as much has left.

use std::time::{Duration, Instant};

use quinn_proto::{Connection, ConnectionStats, Transmit};

use super::ack_policy::BATCH_BYTES_MIN;
use crate::wire::{HEADER_BYTES_MAX, INTEGER_BYTES_MAX};

/// Windows a round trip that the stack's pacer gives leave for.
const GAIN: f64 = 1.25;
/// Its bucket holds what a window a round trip comes to in this, but no more packets than these.
const BURST: Duration = Duration::from_millis(2);
const BURST_PACKETS_MAX: f64 = 256.0;
/// It wants to be asked again when that is full; all other deadlines that sending sets are later.
const PACED: Duration = Duration::from_micros(1600);
/// Batches of a burst and of a window, at least: with fewer the way to the peer and back would run dry.
const BATCHES_OF_BURST: f64 = 2.0;
const BATCHES_OF_WINDOW: f64 = 6.0;
/// A batch is waited for where it takes so long to become due. The timer comes up to a millisecond late (tokio's are that
/// coarse), and the pacer keeps 256 packets, which where a batch takes least are 1.5 ms of leave: more than passes.
const BATCH_TIME_MIN_S: f64 = 250e-6;
const BATCH_TIME_MAX_S: f64 = 800e-6;
/// Of a payload. What is written in so few bytes, with the longest header, is a small message or the rest of one, none of
/// which waits.
const SMALL_BYTES: usize = 64 << 10;

#[derive(Default)]
pub struct Filling {
    /// So many of the next bytes may not wait.
    hurries: usize,
    /// How much of what does not wait had been heard of when that was looked at last.
    heard: u64,
    /// When the pacer's bucket was empty, had nothing been sent since then; None: it has not been.
    empty: Option<Instant>,
    /// The deadline that the pacer has set last.
    paced: Option<Instant>,
}

/// What the stack has to send at once.
pub enum Batch {
    Made(Transmit),
    /// It is asked again then.
    Waits(Instant),
    Nothing,
}

/// What the stack goes by.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Bytes that may be in flight.
    window: u64,
    round_trip: Duration,
    packet_bytes: usize,
    /// Bytes of a whole batch.
    whole: usize,
}

/// What is reckoned with of the pacer: bytes a second, and those that its bucket holds.
#[derive(Clone, Copy, Debug)]
struct Pacer {
    rate: f64,
    burst: f64,
}

impl Limits {
    /// Of a stack, 0 where something else paces.
    fn of(stack: &Connection, segments: usize) -> Self {
        let (congestion, packet_bytes) = (stack.congestion_state(), usize::from(stack.current_mtu()));
        let paces = congestion.metrics().pacing_rate.is_none();
        Self {
            window: if paces { congestion.window() } else { 0 },
            round_trip: stack.rtt(),
            packet_bytes,
            whole: segments * packet_bytes,
        }
    }

    /// Whether so many bytes are less than a whole batch.
    fn short(&self, bytes: usize) -> bool {
        bytes + self.packet_bytes <= self.whole
    }

    /// None where no batch is waited for.
    fn pacer(&self) -> Option<Pacer> {
        let round_trip_s = self.round_trip.as_secs_f64();
        if self.whole < BATCH_BYTES_MIN || round_trip_s == 0.0 {
            return None;
        }
        let (whole, window) = (self.whole as f64, self.window as f64);
        let burst = (window / round_trip_s * BURST.as_secs_f64()).min(BURST_PACKETS_MAX * self.packet_bytes as f64);
        let rate = GAIN * window / round_trip_s;
        let room = burst >= BATCHES_OF_BURST * whole && window >= BATCHES_OF_WINDOW * whole;
        let in_time = (BATCH_TIME_MIN_S * rate..=BATCH_TIME_MAX_S * rate).contains(&whole);
        (room && in_time).then_some(Pacer { rate, burst })
    }
}

impl Filling {
    /// Of a connection whose pacer's bucket is empty at that time.
    #[cfg(test)]
    pub fn held_back(at: Instant) -> Self {
        Self {
            empty: Some(at),
            ..Self::default()
        }
    }

    /// There is something to send that may not wait, of so many bytes.
    pub fn hurry(&mut self, bytes: usize) {
        self.hurries = self.hurries.saturating_add(bytes);
    }

    /// Of so many bytes that were to be written, header and payload, the stack has `taken` these.
    pub fn wrote(&mut self, bytes: usize, taken: usize) {
        if bytes <= INTEGER_BYTES_MAX + HEADER_BYTES_MAX + SMALL_BYTES {
            self.hurry(taken);
        }
    }

    /// A time has come that the stack had as its next `deadline`. The pacer's brings nothing new.
    pub fn time_out(&mut self, deadline: Option<Instant>, now: Instant) {
        if deadline.is_some_and(|at| at <= now) && deadline != self.paced {
            self.hurry(1);
        }
    }

    /// Have the stack write to `packets` what it sends at once, `segments` packets at most.
    ///
    /// `more`: the stack has not got all that there is to send.
    pub fn ask(
        &mut self,
        stack: &mut Connection,
        segments: usize,
        more: bool,
        now: Instant,
        packets: &mut Vec<u8>,
    ) -> Batch {
        if self.may_wait(more)
            && let Some(until) = self.wait(&Limits::of(stack, segments), more, now)
            && !self.is_new(stack)
        {
            return Batch::Waits(until);
        }
        let before = stack.poll_timeout();
        let transmit = stack.poll_transmit(now, segments, packets);
        let made = transmit.as_ref().map_or(0, |transmit| transmit.size);
        let limits = Limits::of(stack, segments);
        let set = stack.poll_timeout().filter(|at| Some(*at) != before);
        let paced = set.filter(|at| *at <= now + PACED && limits.short(made));
        self.made(made, &limits, now, paced);
        transmit.map_or(Batch::Nothing, Batch::Made)
    }

    /// Whether there is something that does not wait and that nobody told of: lost packets, or what is answered.
    fn is_new(&mut self, stack: &Connection) -> bool {
        let ConnectionStats {
            path, frame_rx: came, ..
        } = stack.stats();
        self.hear(path.lost_packets + came.stream + came.ping + came.path_challenge);
        self.hurries > 0 || stack.has_pending_retransmits()
    }

    /// So many packets were lost, and so many frames have come that are answered at once, from the beginning on.
    fn hear(&mut self, count: u64) {
        if std::mem::replace(&mut self.heard, count) != count {
            self.hurry(1);
        }
    }

    fn may_wait(&self, more: bool) -> bool {
        more && self.hurries == 0 && self.empty.is_some()
    }

    /// Until when nothing is sent. None: it is sent now.
    fn wait(&self, limits: &Limits, more: bool, now: Instant) -> Option<Instant> {
        let empty = self.empty.filter(|_| self.may_wait(more))?;
        let wanted = (limits.whole + limits.packet_bytes) as f64; // the pacer keeps a packet's worth
        let due = empty + Duration::from_secs_f64(wanted / limits.pacer()?.rate);
        (now < due).then_some(due)
    }

    /// The stack made so many bytes, none where it had nothing or gave no leave.
    ///
    /// `paced`: the deadline that its pacer has set.
    fn made(&mut self, bytes: usize, limits: &Limits, now: Instant, paced: Option<Instant>) {
        self.paced = paced.or(self.paced);
        self.hurries = self.hurries.saturating_sub(bytes);
        if self.empty.is_none() && paced.is_none() {
            return; // as on paths where the window is what limits
        }
        self.empty = match (limits.pacer(), self.empty) {
            (Some(_), _) if paced.is_some() => Some(now),
            (Some(Pacer { rate, burst }), Some(empty)) => {
                let full = now.checked_sub(Duration::from_secs_f64(burst / rate));
                let since = full.map_or(empty, |full| empty.max(full));
                Some(since + Duration::from_secs_f64(bytes as f64 / rate))
            }
            _ => None,
        };
    }
}

#[cfg(test)]
#[path = "gso_batching_tests.rs"]
mod tests;

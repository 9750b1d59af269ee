//! How much is sent at once, of which connection, and when others have their turn.
//!
//! - What is sent at once is as much as the kernel takes (64 KiB), but no more than the paths of the socket carry in `LUMP`,
//!   all together, for they begin with the same link: an urgent packet cannot pass what has been handed over. Nor more than
//!   the path itself carries in `LUMP_SLOW`. What waits in the kernel is bounded likewise (`Socket::fit`).
//! - On fast paths what is less than a whole one waits for the rest of it (`filling`).
//! - A connection sends `LUMPS_A_TURN`; then acknowledgements are read and the others have their turn.

use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::{Duration, Instant};

use quinn_proto as proto;
use quinn_udp::{EcnCodepoint, Transmit};

use super::State;
use super::driver::Driver;
use crate::connection;
use crate::filling::Lump;
use crate::socket::Socket;

/// At 1 Gbit/s as much as the kernel takes: half of it costs the receiver a sixth more, for waking up.
pub(super) const LUMP: Duration = Duration::from_micros(500);
/// Of bulk, which everything else on the link waits behind.
pub(super) const LUMP_BULK: Duration = Duration::from_micros(250);
/// With fewer the kernel's work for each call is felt: as many are sent at once on paths slower than 200 Mbit/s.
const SEGMENTS_SLOW: usize = 8;
/// But no more than a path carries in this: three lumps wait in front of an urgent packet, two of them in the kernel.
const LUMP_SLOW: Duration = Duration::from_micros(2500);
const LUMPS_A_TURN: usize = 2;
/// How many streams of ours a connection has that sends nothing: its hello's.
const STREAMS_IDLE: usize = 1;

impl Driver {
    /// Send of what is due, each connection in its turn; false where the kernel has no room.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, state: &State) -> bool {
        if let Some(unsent) = self.unsent.take()
            && !self.socket.poll_send(cx, &on_wire(&unsent, &self.packets))
        {
            self.unsent = Some(unsent);
            return false;
        }
        for _ in 0..self.due.len() {
            let Some(handle) = self.due.pop_front() else {
                break;
            };
            let Some(connection) = state.connections.get(&handle) else {
                continue;
            };
            let mut shared = connection.lock();
            let receives = connection.with(&mut shared, |_, stack| stack.streams().send_streams() <= STREAMS_IDLE);
            let waits = shared.answering.wait(receives == Some(true), Instant::now());
            let mut more = waits.is_none();
            let mut fills = None;
            for _ in 0..if more { LUMPS_A_TURN } else { 0 } {
                let made = connection.with(&mut shared, |shared, stack| {
                    self.faults.fault("stack");
                    self.packets.clear();
                    lump(
                        (shared, connection.has_more()),
                        stack,
                        (self.shared.lump, self.rate),
                        &self.socket,
                        &mut self.packets,
                    )
                });
                let transmit = match made.unwrap_or(Lump::Nothing) {
                    Lump::Made(transmit) => transmit,
                    Lump::Waits(until) => {
                        (more, fills) = (false, Some(until));
                        break;
                    }
                    Lump::Nothing => {
                        more = false;
                        break;
                    }
                };
                if !self.socket.poll_send(cx, &on_wire(&transmit, &self.packets)) {
                    self.unsent = Some(transmit);
                    break;
                }
            }
            if shared.untold() && !std::mem::replace(&mut shared.listed, true) {
                self.touched.push(handle); // its tasks have to hear of that
            }
            shared.due = more;
            let deadline = connection.with(&mut shared, |_, stack| stack.poll_timeout()).flatten();
            let deadline = deadline.into_iter().chain(waits).chain(fills).min();
            if deadline != shared.deadline {
                if let Some(before) = std::mem::replace(&mut shared.deadline, deadline) {
                    self.deadlines.remove(&(before, handle.0));
                }
                self.deadlines.extend(deadline.map(|deadline| (deadline, handle.0)));
            }
            connection.tell(&shared);
            if more {
                self.due.push_back(handle);
            }
            if self.unsent.is_some() {
                return false;
            }
        }
        true
    }
}

/// What a connection sends at once, written to `packets`.
///
/// `more`: there is more to come than the stack has. `lump`: how long it may take on paths that carry so many bytes a
/// second together.
fn lump(
    (shared, more): (&mut connection::State, bool),
    stack: &mut proto::Connection,
    (lump, all): (Duration, u64),
    socket: &Socket,
    packets: &mut Vec<u8>,
) -> Lump {
    loop {
        let size = usize::from(stack.current_mtu());
        let rate = shared.rate.bytes_per_s.load(Ordering::Relaxed);
        let segments = segments_in(lump, rate, all, size).min(socket.segments_max(size));
        let probes = shared.path.probes(stack);
        let fills = more && !shared.path.remote().ip().to_canonical().is_loopback();
        let made = shared.filling.ask(stack, segments, fills, Instant::now(), packets);
        if probes.is_none() || probes == shared.path.probes(stack) || !matches!(made, Lump::Made(_)) {
            return made;
        }
        packets.clear(); // a probe that must not be sent
    }
}

/// Datagrams of `size` bytes to send at once on a path of `rate` bytes a second, where all paths of the socket carry `all`;
/// 0 is not known yet.
pub(super) fn segments_in(lump: Duration, rate: u64, all: u64, size: usize) -> usize {
    let in_time = |time: Duration, rate: u64| (rate as f64 * time.as_secs_f64()) as usize / size;
    let most = in_time(LUMP_SLOW, rate);
    let slow = match rate {
        0 => SEGMENTS_SLOW,
        _ => most.clamp(1, SEGMENTS_SLOW),
    };
    slow.max(in_time(lump, rate.max(all)).min(most))
}

pub(super) fn on_wire<'a>(transmit: &proto::Transmit, packets: &'a [u8]) -> Transmit<'a> {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.map(|ecn| match ecn {
            proto::EcnCodepoint::Ect0 => EcnCodepoint::Ect0,
            proto::EcnCodepoint::Ect1 => EcnCodepoint::Ect1,
            proto::EcnCodepoint::Ce => EcnCodepoint::Ce,
        }),
        contents: &packets[..transmit.size],
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}

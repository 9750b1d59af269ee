//! How much is sent at once, of which connection, and when others have their turn.
//!
//! - What is sent at once is bounded by what the paths of the socket carry (`gso_size`).
//! - A connection sends `BATCHES_A_TURN`; then acknowledgements are read and the others have their turn.

use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::{Duration, Instant};

use quinn_proto as proto;

use super::connection;
use super::driver_state::Driver;
use super::endpoint_state::State;
use super::gso_size::{on_wire, segments_in};
use crate::udp::socket::Socket;

const BATCHES_A_TURN: usize = 2;
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
            let waits = shared.ack_policy.wait(receives == Some(true), Instant::now());
            let mut more = waits.is_none();
            for _ in 0..if more { BATCHES_A_TURN } else { 0 } {
                let made = connection.with(&mut shared, |shared, stack| {
                    self.shared.faults.here("stack");
                    self.packets.clear();
                    batch(
                        shared,
                        stack,
                        (self.shared.batch_time, self.rate),
                        &self.socket,
                        &mut self.packets,
                    )
                });
                let Some(transmit) = made.flatten() else {
                    more = false;
                    break;
                };
                shared.path.sent(&self.packets);
                if !self.socket.poll_send(cx, &on_wire(&transmit, &self.packets)) {
                    self.unsent = Some(transmit);
                    break;
                }
            }
            if shared.untold() && !std::mem::replace(&mut shared.listed, true) {
                self.dirty.push(handle); // its tasks have to hear of that
            }
            shared.due = more;
            let deadline = connection.with(&mut shared, |_, stack| stack.poll_timeout()).flatten();
            let deadline = deadline.into_iter().chain(waits).min();
            if deadline != shared.deadline {
                if let Some(before) = std::mem::replace(&mut shared.deadline, deadline) {
                    self.deadlines.remove(&(before, handle.0));
                }
                self.deadlines.extend(deadline.map(|deadline| (deadline, handle.0)));
            }
            connection.take_snapshot(&shared);
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
/// `time`: how long it may take on paths that carry `all` bytes a second together.
fn batch(
    shared: &mut connection::State,
    stack: &mut proto::Connection,
    (time, all): (Duration, u64),
    socket: &Socket,
    packets: &mut Vec<u8>,
) -> Option<proto::Transmit> {
    loop {
        let size = usize::from(stack.current_mtu());
        let rate = shared.rate.bytes_per_s.load(Ordering::Relaxed);
        let segments = segments_in(time, rate, all, size).min(socket.segments_max(size));
        let probes = shared.path.probes(stack);
        let made = stack.poll_transmit(Instant::now(), segments, packets);
        if probes.is_none() || probes == shared.path.probes(stack) || made.is_none() {
            return made;
        }
        packets.clear(); // a probe that must not be sent
    }
}

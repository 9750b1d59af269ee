//! What has come is handed to the connections.

use std::sync::MutexGuard;
use std::task::Context;
use std::time::Instant;

use quinn_proto::{ConnectionHandle, DatagramEvent, EcnCodepoint};

use super::connection::{self, Connection};
use super::driver_state::Driver;
use super::endpoint_state::State;
use super::gso_size::on_wire;

impl Driver {
    /// Read what has come, a batch of it.
    pub(super) fn read(&mut self, cx: &mut Context<'_>, state: &mut State) {
        if !self.look && !self.socket.poll_readable(cx) {
            return;
        }
        let (socket, faults) = (&self.socket, &self.shared.faults);
        let mut now = None;
        let dirty = &mut self.dirty;
        let State {
            proto: endpoint,
            connections,
            incoming,
            ..
        } = state;
        // What comes together is mostly of one connection, which is held as long as that is so.
        let mut held: Option<(ConnectionHandle, &Connection, MutexGuard<'_, connection::State>)> = None;
        let may_be_more = self.inbox.read(socket, |found, mut data| {
            let now = *now.get_or_insert_with(Instant::now);
            let mut of = 0; // connections
            while !data.is_empty() {
                let datagram = data.split_to(found.stride.min(data.len()));
                let ecn = found.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
                let mut answer = Vec::new();
                faults.here("endpoint");
                match endpoint.handle(now, found.addr, found.dst_ip, ecn, datagram, &mut answer) {
                    Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                        if held.as_ref().is_none_or(|(of, ..)| *of != handle) {
                            if let Some((.., mut before)) = held.take()
                                && of > 0
                            {
                                before.ack_policy.hurry();
                            } // and no more than one is held at a time
                            held = connections.get(&handle).map(|one| (handle, one, one.lock()));
                            of += 1;
                        }
                        of = of.max(1);
                        if let Some((_, connection, shared)) = &mut held {
                            connection.with(shared, |shared, stack| {
                                stack.handle_event(event);
                                shared.path.look(stack, Some(found.addr));
                            });
                            if !std::mem::replace(&mut shared.listed, true) {
                                dirty.push(handle);
                            }
                        }
                    }
                    Some(DatagramEvent::NewConnection(dialled)) => {
                        incoming.push_back(dialled);
                        self.shared.dialled.notify_waiters();
                    }
                    Some(DatagramEvent::Response(transmit)) => socket.send(&on_wire(&transmit, &answer)),
                    None => {}
                }
            }
            match &mut held {
                Some((.., shared)) if of == 1 => shared.ack_policy.came(found.len, found.stride),
                Some((.., shared)) if of > 1 => shared.ack_policy.hurry(),
                _ => {}
            }
        });
        drop(held);
        self.look = may_be_more;
    }
}

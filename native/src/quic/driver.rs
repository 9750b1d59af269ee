//! The driver's turns: it reads, lets the tasks run, and sends.
//!
//! Each turn reads a batch of datagrams, hands them to their connections and wakes the tasks that have something to do.
//! Only when those have run does it send, so that what they did goes out together with the acknowledgements.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionHandle, EndpointEvent};

use super::driver_state::Driver;
use super::endpoint_state::State;
use crate::runtime::locks::locked;
use crate::udp::socket::Inbox;

/// What waits in the kernel is kept as short as the rates of the paths allow, which are measured as often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Driver {
    /// Let the time that has come come for the connections.
    fn time_out(&mut self, now: Instant, state: &mut State) {
        while let Some((deadline, handle)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_first();
            let handle = ConnectionHandle(handle);
            if let Some(connection) = state.connections.get(&handle) {
                let mut shared = connection.lock();
                shared.deadline = None;
                shared.ack_policy.time_out(now);
                connection.with(&mut shared, |shared, stack| {
                    stack.handle_timeout(now);
                    shared.path.look(stack, None);
                });
                if !std::mem::replace(&mut shared.listed, true) {
                    self.dirty.push(handle);
                }
            }
        }
    }

    /// Tell the tasks of what is dirty, which is due for sending then. Whether a task was woken.
    pub(super) fn settle(&mut self, state: &mut State) -> bool {
        let mut woken = false;
        for handle in std::mem::take(&mut self.dirty) {
            let Some(connection) = state.connections.get(&handle).cloned() else {
                continue;
            };
            let mut shared = connection.lock();
            shared.listed = false;
            while let Some(event) = connection
                .with(&mut shared, |_, stack| stack.poll_endpoint_events())
                .flatten()
            {
                if let Some(answer) = state.proto.handle_event(handle, event) {
                    connection.with(&mut shared, |_, stack| stack.handle_event(answer));
                }
            }
            connection.run_pending(&mut shared);
            connection.ack_unasked(&mut shared);
            woken |= connection.settle(&mut shared);
            if shared.stack.is_none() {
                // The peer is answered with a stateless reset from now on (RFC 9000 10.3), as for a connection of before.
                state.proto.handle_event(handle, EndpointEvent::drained());
                woken = true;
            }
            connection.take_snapshot(&shared); // what was heard is known though nothing can be sent
            if shared.gone() {
                if let Some(deadline) = shared.deadline.take() {
                    self.deadlines.remove(&(deadline, handle.0));
                }
                state.connections.remove(&handle);
                self.due.retain(|due| *due != handle); // another may get this handle
            } else if !std::mem::replace(&mut shared.due, true) {
                self.due.push_back(handle);
            }
        }
        woken
    }

    /// The endpoint has started over.
    fn forget(&mut self) {
        self.inbox = Inbox::new();
        self.dirty.clear();
        self.due.clear();
        self.deadlines.clear();
        (self.unsent, self.alarm_at) = (None, None);
        (self.look, self.stepped_back) = (true, false);
    }

    /// Read, let the tasks have their turn, send.
    fn turn(&mut self, cx: &mut Context<'_>, state: &mut State) {
        self.look |= !self.stepped_back && !self.due.is_empty(); // acknowledgements come while we send
        self.read(cx, state);
        let now = Instant::now();
        self.time_out(now, state);
        self.look_around(now, state);
        self.shared.dirty.take(cx.waker(), &mut self.dirty);
        let woken = self.settle(state);
        if woken && !std::mem::replace(&mut self.stepped_back, true) {
            cx.waker().wake_by_ref(); // after those that were woken
            return;
        }
        self.stepped_back = false;
        let room = self.send(cx, state);
        let busy = self.look || !self.dirty.is_empty() || (room && !self.due.is_empty());
        if busy || self.arm(cx) || self.socket.poll_readable(cx) {
            self.look = true;
            cx.waker().wake_by_ref();
        }
    }

    /// Ten times a second: hear of who is gone, and fit the socket to the rates of its paths.
    fn look_around(&mut self, now: Instant, state: &State) {
        if now.saturating_duration_since(self.looked_around) < LOOK_EVERY {
            return;
        }
        self.looked_around = now;
        self.hear_refusals(now, state);
        let (mut rate, mut limited) = (0, true);
        self.rate = 0;
        for connection in state.connections.values() {
            let (path, on_link) = {
                let shared = connection.lock();
                (
                    shared.rate.clone(),
                    !shared.path.remote().ip().to_canonical().is_loopback(),
                )
            };
            let most = path.bytes_per_s.load(Ordering::Relaxed);
            rate += most;
            limited &= path.limited.load(Ordering::Relaxed);
            if on_link && path.used.load(Ordering::Relaxed) {
                self.rate += most;
            }
        }
        self.socket.fit(rate, limited);
    }

    /// Take what hosts say of peers that are not there any more.
    fn hear_refusals(&self, now: Instant, state: &State) {
        for refusal in self.socket.refusals() {
            for connection in state.connections.values() {
                let mut shared = connection.lock();
                if shared.path.refused(refusal.to, refusal.datagram(), now) {
                    connection.take_snapshot(&shared);
                    break;
                }
            }
        }
    }

    /// Be woken at the next deadline; whether it has passed already.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((deadline, _)) = self.deadlines.first().copied() else {
            return false;
        };
        if self.alarm_at != Some(deadline) {
            self.alarm.as_mut().reset(deadline.into());
            self.alarm_at = Some(deadline);
        }
        if self.alarm.as_mut().poll(cx).is_ready() {
            self.alarm_at = None;
            return true;
        }
        false
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let shared = this.shared.clone();
        let mut state = shared.lock();
        if let Some(words) = state.hopeless.take() {
            drop(state);
            resume_unwind(Box::new(words)); // and the engine ends
        }
        if std::mem::replace(&mut this.start, state.start) != state.start {
            this.forget();
        }
        shared.dirty.take(cx.waker(), &mut this.dirty); // who leaves something from here on wakes us
        let next_socket = locked(&shared.next_socket).take();
        if let Some(socket) = next_socket {
            state.socket = socket.clone();
            this.socket = socket;
            this.look = true;
            for connection in state.connections.values() {
                connection.move_on();
            }
        }
        if state.guarded(|state| this.turn(cx, state)).is_err() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Driver {
    /// Nobody moves the packets of its connections any more, nor runs what others left.
    fn drop(&mut self) {
        for (_, connection) in self.shared.lock().connections.drain() {
            connection.lose("nobody moves its packets any more");
        }
    }
}

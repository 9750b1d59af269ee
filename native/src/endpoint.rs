//! One socket and its connections: the driver that reads, lets the tasks run, and sends.
//!
//! Each turn of the driver reads a batch of datagrams, hands them to their connections and wakes the tasks that have
//! something to do. Only when those have run does it send, so that what they did goes out together with the
//! acknowledgements. Everything of an endpoint happens on one thread; nothing there waits for Python.
//!
//! - What is sent at once is as much as the kernel takes (64 KiB), but no more than the path carries in `LUMP`: an urgent
//!   packet cannot pass what has been handed over. What waits in the kernel is bounded likewise (`Socket::fit`).
//! - A connection sends `LUMPS_A_TURN`; then acknowledgements are read and the others have their turn.
//! - Where this panics, or quinn's endpoint, all that is known here may be half done: the endpoint starts over
//!   (`State::guarded`) with nothing but its socket.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn_proto::{
    self as proto, ClientConfig, ConnectionHandle, DatagramEvent, EndpointConfig, EndpointEvent,
    HashedConnectionIdGenerator, Incoming, ServerConfig, VarInt,
};
use quinn_udp::{EcnCodepoint, Transmit};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep_until};

use crate::connection::{self, Connection, Touched};
use crate::events::EventQueue;
use crate::guard::{locked, words_of};
use crate::measure::Rate;
use crate::socket::{Inbox, Read, Socket};

/// At 1 Gbit/s as much as the kernel takes: half of it costs the receiver a sixth more, for waking up.
const LUMP: Duration = Duration::from_micros(500);
/// Of bulk, which everything else on the link waits behind.
const LUMP_BULK: Duration = Duration::from_micros(250);
/// With fewer the kernel's work for each call is felt: as many are sent at once on paths slower than 200 Mbit/s.
const SEGMENTS_SLOW: usize = 8;
/// But no more than such a path carries in this: three lumps wait in front of an urgent packet, two of them in the kernel.
const LUMP_SLOW: Duration = Duration::from_micros(2500);
/// A pair is acknowledged at once.
const SEGMENTS_MIN: usize = 2;
const LUMPS_A_TURN: usize = 2;
/// An endpoint that has to start over more often than `STARTS_MAX` times in `STARTS_SPAN` would not stop doing so.
const STARTS_MAX: usize = 5;
const STARTS_SPAN: Duration = Duration::from_secs(10);
/// What waits in the kernel is kept as short as the rates of the paths allow, which are measured as often.
const FIT_EVERY: Duration = Duration::from_millis(100);

pub struct Endpoint {
    shared: Arc<Shared>,
    faults: Arc<EventQueue>,
}

struct Shared {
    lump: Duration,
    touched: Arc<Touched>,
    state: Mutex<State>,
    /// What the driver goes on with at its next turn.
    next_socket: Mutex<Option<Arc<Socket>>>,
    dialled: Notify,
}

struct State {
    socket: Arc<Socket>,
    config: Arc<EndpointConfig>,
    server: Arc<ServerConfig>,
    proto: proto::Endpoint,
    /// When it had to start over of late, and how often ever.
    starts: VecDeque<Instant>,
    start: u64,
    /// It had to too often: why.
    hopeless: Option<String>,
    connections: HashMap<ConnectionHandle, Connection>,
    incoming: VecDeque<Incoming>,
}

/// Somebody who dials us.
pub struct Dialled {
    incoming: Incoming,
    /// How often the endpoint had started over by then: one that does so afterwards knows nothing of this.
    start: u64,
}

impl Dialled {
    pub fn remote_address(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    pub fn remote_address_validated(&self) -> bool {
        self.incoming.remote_address_validated()
    }
}

impl Endpoint {
    /// Serve a socket; what is returned with it has to run as a task of the thread.
    ///
    /// `faults`: what tests ask to panic.
    pub fn new(
        socket: Socket,
        mut config: EndpointConfig,
        server: ServerConfig,
        bulk: bool,
        faults: Arc<EventQueue>,
    ) -> (Self, Driver) {
        let socket = Arc::new(socket);
        // One that starts over has to know the identifiers of before: to others no reset is sent.
        let key = RandomState::new().build_hasher().finish();
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
        let (config, server) = (Arc::new(config), Arc::new(server));
        let state = State {
            proto: fresh(&config, &server, &socket),
            socket: socket.clone(),
            config,
            server,
            starts: VecDeque::new(),
            start: 0,
            hopeless: None,
            connections: HashMap::new(),
            incoming: VecDeque::new(),
        };
        let shared = Arc::new(Shared {
            lump: if bulk { LUMP_BULK } else { LUMP },
            touched: Arc::default(),
            state: Mutex::new(state),
            next_socket: Mutex::default(),
            dialled: Notify::new(),
        });
        let driver = Driver::new(shared.clone(), socket, faults.clone());
        (Self { shared, faults }, driver)
    }

    /// Dial. The driver holds the endpoint nearly all the time: only tasks of its thread ask for it.
    ///
    /// `rate`: what the path delivers, which others keep up to date. Why not, where it cannot.
    pub fn connect(
        &self,
        config: ClientConfig,
        remote: SocketAddr,
        name: &str,
        rate: Arc<Rate>,
    ) -> Result<Connection, String> {
        let mut state = self.shared.lock();
        let (handle, stack) = state
            .guarded(|state| {
                self.faults.fault("dial");
                state.proto.connect(Instant::now(), config, remote, name)
            })?
            .map_err(|error| error.to_string())?;
        Ok(self.shared.keep(&mut state, handle, stack, rate))
    }

    /// Wait for somebody who dials us.
    pub async fn accept(&self) -> Dialled {
        loop {
            let dialled = self.shared.dialled.notified();
            {
                let mut state = self.shared.lock();
                let start = state.start;
                if let Some(incoming) = state.incoming.pop_front() {
                    return Dialled { incoming, start };
                }
            }
            dialled.await;
        }
    }

    /// Begin a connection with somebody who dialled us; None where the first packet was not good, or is not known any more.
    pub fn begin(&self, dialled: Dialled, config: ServerConfig, rate: Arc<Rate>) -> Option<Connection> {
        let mut state = self.shared.lock();
        let incoming = state.known(dialled)?;
        let begun = state.guarded(|state| {
            let mut answer = Vec::new();
            let accepted = state
                .proto
                .accept(incoming, Instant::now(), &mut answer, Some(Arc::new(config)));
            match accepted {
                Ok(begun) => Some(begun),
                Err(error) => {
                    if let Some(transmit) = error.response {
                        state.socket.send(&on_wire(&transmit, &answer));
                    }
                    None
                }
            }
        });
        let (handle, stack) = begun.ok()??;
        Some(self.shared.keep(&mut state, handle, stack, rate))
    }

    /// As if the first packet had been lost.
    pub fn ignore(&self, dialled: Dialled) {
        let mut state = self.shared.lock();
        if let Some(incoming) = state.known(dialled) {
            let _ = state.guarded(|state| state.proto.ignore(incoming));
        }
    }

    /// Have whoever dialled us show first that its address is its own (RFC 9000 8.1.2). It has not been asked before.
    pub fn retry(&self, dialled: Dialled) {
        let mut state = self.shared.lock();
        let Some(incoming) = state.known(dialled) else {
            return;
        };
        let _ = state.guarded(|state| {
            let mut answer = Vec::new();
            match state.proto.retry(incoming, &mut answer) {
                Ok(transmit) => state.socket.send(&on_wire(&transmit, &answer)),
                Err(error) => state.proto.ignore(error.into_incoming()), // its token says that it has been
            }
        });
    }

    /// Go on with another socket: connections that were dialled validate the path from there (RFC 9000 9).
    pub fn rebind(&self, socket: Socket) {
        *locked(&self.shared.next_socket) = Some(Arc::new(socket));
        self.shared.touched.wake();
    }

    /// Close every connection, at the end of all: this alone waits for the driver's turn, whoever asks.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let connections: Vec<Connection> = self.shared.lock().connections.values().cloned().collect();
        for connection in connections {
            connection.close(code, reason);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn keep(
        &self,
        state: &mut State,
        handle: ConnectionHandle,
        stack: proto::Connection,
        rate: Arc<Rate>,
    ) -> Connection {
        let connection = Connection::new(handle, stack, rate, self.touched.clone());
        state.connections.insert(handle, connection.clone());
        connection
    }
}

impl State {
    /// None where quinn's endpoint of now never saw it: its number there is nobody's, or somebody else's.
    fn known(&self, dialled: Dialled) -> Option<Incoming> {
        (dialled.start == self.start).then_some(dialled.incoming)
    }

    /// Let quinn's endpoint and what moves its packets work. Where that panics the connections are lost, a new one takes
    /// its place, and what the panic said is returned.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(|| work(self))).map_err(|panic| {
            let words = words_of(&*panic);
            self.start_over(&words);
            words
        })
    }

    /// Lose the connections of an endpoint that panicked. Their peers are answered with stateless resets from now on.
    fn start_over(&mut self, words: &str) {
        let broken = std::mem::replace(&mut self.proto, fresh(&self.config, &self.server, &self.socket));
        // What is half done may panic once more when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        self.start += 1;
        self.incoming.clear();
        for (_, connection) in self.connections.drain() {
            connection.lose(words);
        }
        let now = Instant::now();
        self.starts
            .retain(|at| now.saturating_duration_since(*at) < STARTS_SPAN);
        self.starts.push_back(now);
        if self.starts.len() > STARTS_MAX {
            self.hopeless = Some(words.to_owned());
        }
    }
}

fn fresh(config: &Arc<EndpointConfig>, server: &Arc<ServerConfig>, socket: &Socket) -> proto::Endpoint {
    proto::Endpoint::new(config.clone(), Some(server.clone()), !socket.may_fragment(), None)
}

/// Moves the packets of an endpoint. Locks are taken in this order: the endpoint, a connection, what is wished or
/// touched.
pub struct Driver {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    /// How often the endpoint had started over when the rest of this was new.
    start: u64,
    inbox: Inbox,
    /// Something may have come: the socket is read without asking first.
    look: bool,
    /// The tasks have had their turn since something was read.
    stepped_back: bool,
    touched: Vec<ConnectionHandle>,
    due: VecDeque<ConnectionHandle>,
    packets: Vec<u8>,
    /// Packets that the kernel had no room for.
    unsent: Option<proto::Transmit>,
    deadlines: BTreeSet<(Instant, usize)>,
    alarm: Pin<Box<Sleep>>,
    alarm_at: Option<Instant>,
    fitted: Instant,
    faults: Arc<EventQueue>,
}

impl Driver {
    fn new(shared: Arc<Shared>, socket: Arc<Socket>, faults: Arc<EventQueue>) -> Self {
        Self {
            shared,
            socket,
            faults,
            start: 0,
            inbox: Inbox::new(),
            look: true,
            stepped_back: false,
            touched: Vec::new(),
            due: VecDeque::new(),
            packets: Vec::new(),
            unsent: None,
            deadlines: BTreeSet::new(),
            alarm: Box::pin(sleep_until(tokio::time::Instant::now())),
            alarm_at: None,
            fitted: Instant::now(),
        }
    }

    /// Read what has come, a batch of it.
    fn read(&mut self, cx: &mut Context<'_>, state: &mut State) {
        if !self.look && !self.socket.poll_readable(cx) {
            return;
        }
        let (socket, faults) = (&self.socket, &self.faults);
        let mut now = None;
        let touched = &mut self.touched;
        let State {
            proto: endpoint,
            connections,
            incoming,
            ..
        } = state;
        // What comes together is mostly of one connection, which is held as long as that is so.
        let mut held: Option<(ConnectionHandle, &Connection, MutexGuard<'_, connection::State>)> = None;
        let read = self.inbox.read(socket, |found, mut data| {
            let now = *now.get_or_insert_with(Instant::now);
            while !data.is_empty() {
                let datagram = data.split_to(found.stride.min(data.len()));
                let ecn = found.ecn.map(|ecn| match ecn {
                    EcnCodepoint::Ect0 => proto::EcnCodepoint::Ect0,
                    EcnCodepoint::Ect1 => proto::EcnCodepoint::Ect1,
                    EcnCodepoint::Ce => proto::EcnCodepoint::Ce,
                });
                let mut answer = Vec::new();
                faults.fault("endpoint");
                match endpoint.handle(now, found.addr, found.dst_ip, ecn, datagram, &mut answer) {
                    Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                        if held.as_ref().is_none_or(|(of, ..)| *of != handle) {
                            drop(held.take()); // no more than one at a time
                            held = connections.get(&handle).map(|one| (handle, one, one.lock()));
                        }
                        if let Some((_, connection, shared)) = &mut held {
                            connection.with(shared, |shared, stack| {
                                stack.handle_event(event);
                                shared.path.look(stack, Some(found.addr));
                            });
                            if !std::mem::replace(&mut shared.listed, true) {
                                touched.push(handle);
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
        });
        drop(held);
        self.look = matches!(read, Read::Full);
    }

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
                connection.with(&mut shared, |shared, stack| {
                    stack.handle_timeout(now);
                    shared.path.look(stack, None);
                });
                if !std::mem::replace(&mut shared.listed, true) {
                    self.touched.push(handle);
                }
            }
        }
    }

    /// Tell the tasks of what is touched, which is due for sending then. Whether a task was woken.
    fn settle(&mut self, state: &mut State) -> bool {
        let mut woken = false;
        for handle in std::mem::take(&mut self.touched) {
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
            connection.grant(&mut shared);
            woken |= connection.settle(&mut shared);
            if shared.stack.is_none() {
                // The peer is answered with a stateless reset from now on (RFC 9000 10.3), as for a connection of before.
                state.proto.handle_event(handle, EndpointEvent::drained());
                woken = true;
            }
            connection.tell(&shared); // what was heard is known though nothing can be sent
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

    /// Send of what is due, each connection in its turn; false where the kernel has no room.
    fn send(&mut self, cx: &mut Context<'_>, state: &State) -> bool {
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
            let mut more = true;
            for _ in 0..LUMPS_A_TURN {
                let made = connection.with(&mut shared, |shared, stack| {
                    self.faults.fault("stack");
                    self.packets.clear();
                    lump(shared, stack, self.shared.lump, &self.socket, &mut self.packets)
                });
                let Some(transmit) = made.flatten() else {
                    more = false;
                    break;
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

    /// The endpoint has started over.
    fn forget(&mut self) {
        self.inbox = Inbox::new();
        self.touched.clear();
        self.due.clear();
        self.deadlines.clear();
        (self.unsent, self.alarm_at) = (None, None);
        (self.look, self.stepped_back) = (true, false);
    }

    /// Read, let the tasks have their turn, send.
    fn turn(&mut self, cx: &mut Context<'_>, state: &mut State) {
        self.look |= !self.due.is_empty(); // acknowledgements come while we send
        self.read(cx, state);
        let now = Instant::now();
        self.time_out(now, state);
        self.fit(now, state);
        self.shared.touched.take(cx.waker(), &mut self.touched);
        let woken = self.settle(state);
        if woken && !std::mem::replace(&mut self.stepped_back, true) {
            cx.waker().wake_by_ref(); // after those that were woken
            return;
        }
        self.stepped_back = false;
        let room = self.send(cx, state);
        let busy = self.look || !self.touched.is_empty() || (room && !self.due.is_empty());
        if busy || self.arm(cx) || self.socket.poll_readable(cx) {
            self.look = true;
            cx.waker().wake_by_ref();
        }
    }

    /// Fit the socket to the rates of its paths, where that is due.
    fn fit(&mut self, now: Instant, state: &State) {
        if now.saturating_duration_since(self.fitted) < FIT_EVERY {
            return;
        }
        self.fitted = now;
        let (mut rate, mut limited) = (0, true);
        for connection in state.connections.values() {
            let path = connection.lock().rate.clone();
            rate += path.bytes_per_s.load(Ordering::Relaxed);
            limited &= path.limited.load(Ordering::Relaxed);
        }
        self.socket.fit(rate, limited);
    }

    /// Be woken at the next deadline; whether it has passed already.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((deadline, _)) = self.deadlines.first().copied() else {
            return false;
        };
        // One that is armed for an earlier time stays: what has been put off is looked at once too often.
        if self.alarm_at.is_none_or(|at| deadline < at) {
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
        shared.touched.take(cx.waker(), &mut this.touched); // who leaves something from here on wakes us
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
    /// Nobody moves the packets of its connections any more, nor grants what others wish.
    fn drop(&mut self) {
        for (_, connection) in self.shared.lock().connections.drain() {
            connection.lose("nobody moves its packets any more");
        }
    }
}

/// What a connection sends at once, written to `packets`.
fn lump(
    shared: &mut connection::State,
    stack: &mut proto::Connection,
    lump: Duration,
    socket: &Socket,
    packets: &mut Vec<u8>,
) -> Option<proto::Transmit> {
    loop {
        let size = usize::from(stack.current_mtu());
        let rate = shared.rate.bytes_per_s.load(Ordering::Relaxed);
        let segments = segments_in(lump, rate, size).min(socket.segments_max(size));
        let probes = shared.path.probes(stack);
        let transmit = stack.poll_transmit(Instant::now(), segments, packets)?;
        if probes.is_none() || probes == shared.path.probes(stack) {
            return Some(transmit);
        }
        packets.clear(); // a probe that must not be sent
    }
}

/// Datagrams of `size` bytes to send at once on a path of `rate` bytes a second; 0 is not known yet.
fn segments_in(lump: Duration, rate: u64, size: usize) -> usize {
    let in_time = |time: Duration| (rate as f64 * time.as_secs_f64()) as usize / size;
    let slow = match rate {
        0 => SEGMENTS_SLOW,
        _ => in_time(LUMP_SLOW).clamp(SEGMENTS_MIN, SEGMENTS_SLOW),
    };
    slow.max(in_time(lump))
}

fn on_wire<'a>(transmit: &proto::Transmit, packets: &'a [u8]) -> Transmit<'a> {
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

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;

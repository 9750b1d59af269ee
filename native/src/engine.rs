//! The engine: endpoints, connections, operations, and the runtime whose threads do the work without the GIL.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{ClientConfig, EndpointConfig, Incoming, ServerConfig, TransportConfig};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::congestion;
use crate::endpoint::Endpoint;
use crate::events::{Event, EventQueue, Failure};
use crate::guard::{self, Task};
use crate::link::{Link, Stage, remote_name};
use crate::mail::Mail;
use crate::measure::{Measure, Measured, ObservedFactory};
use crate::outgoing::Message;
use crate::rate::EndpointRate;
use crate::socket::Socket;
use crate::tls::{Identity, Limits};
use crate::wire::Code;

const TICK: Duration = Duration::from_millis(100);
/// A tick that came so much later was not the network's fault: peers are given that time again.
const HELD_UP: Duration = Duration::from_millis(500);
/// Connections whose peer has not been judged yet; more are ignored, as if their first packet had been lost.
const HALF_OPEN_MAX: usize = 256;
/// With so many of them whoever dials has to show first that its address is its own (RFC 9000 8.1.2): before that
/// nothing is kept for it, so that forged addresses use nothing up.
const UNPROVED_MAX: usize = 32;
/// Connections of one name that have whole windows; n of them have this part of n of one.
const WINDOWS_WHOLE: u64 = 16;
/// Credit that every stream has: 2 MiB at 40 ms round trip are 400 Mbit/s for one message alone.
const STREAM_WINDOW_BYTES: u64 = 2 << 20;
/// So many unposted messages may begin before a posted one could be kept waiting by them.
const STREAMS_IN_WINDOW: u64 = 16;
const WINDOW_BYTES_MIN: u64 = 65536;
/// Of messages that overtake the hello: the windows of the first three round trips are less.
const BEFORE_HELLO_BYTES_MAX: u64 = 1 << 20;
/// A packet of Ethernet without tunnels, whatever we send ourselves.
const DATAGRAM_BYTES_TAKEN_MIN: u16 = 1472;
const GOODBYE_WITHIN: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub struct Settings {
    pub unexpected_bytes_max: u64,
    pub message_bytes_max: u64,
    pub streams_max: u32,
    pub keep_alive: Duration,
    pub dead_after: Duration,
    pub handshake_timeout: Duration,
    pub datagram_bytes: u16,
    pub congestion: String,
    pub protocol: String,
}

impl Settings {
    /// How much a peer may have on this side that has no place: compute and bulk share the store.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes_of(1)
    }

    /// The window of a connection to a name that has so many.
    pub fn window_bytes_of(&self, connections: usize) -> u64 {
        let whole = self.unexpected_bytes_max / 2;
        WINDOW_BYTES_MIN
            .max(whole / WINDOWS_WHOLE.max(connections as u64) * WINDOWS_WHOLE)
            .min(u64::from(u32::MAX))
    }

    pub fn stream_window_bytes(&self) -> u32 {
        STREAM_WINDOW_BYTES.min(self.window_bytes() / STREAMS_IN_WINDOW) as u32
    }
}

/// One socket and who we are on it.
struct Served {
    number: u64,
    endpoint: Endpoint,
    thread: Handle,
    clock: libc::clockid_t,
    identity: Identity,
    hello: Bytes,
    bulk: bool,
    rate: Arc<EndpointRate>,
}

/// A send under way: over which connection, and how to end it.
type Sending = (Arc<Link>, oneshot::Sender<Failure>);

/// What one connection measured.
pub struct LinkStatistics {
    pub number: u64,
    pub peer: Arc<str>,
    pub remote: SocketAddr,
    pub bulk: bool,
    pub rtt: Duration,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub lost_packets: u64,
    pub sent_packets: u64,
    pub path_mtu_bytes: u16,
    pub measured: Measured,
}

pub struct Engine {
    pub settings: Settings,
    pub events: Arc<EventQueue>,
    pub mail: Mail,
    first: Handle,
    over: AtomicBool,
    numbers: AtomicU64,
    endpoints: Mutex<HashMap<u64, Arc<Served>>>,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    sends: Mutex<BTreeMap<u64, Sending>>,
    snapshot: Mutex<Arc<Vec<LinkStatistics>>>,
}

impl Engine {
    /// Start, with the thread of the first endpoint.
    pub fn start(settings: Settings, events: Arc<EventQueue>) -> std::io::Result<(Arc<Self>, Thread)> {
        let first = Thread::start()?;
        let engine = Arc::new(Self {
            mail: Mail::new(settings.unexpected_bytes_max, events.clone()),
            settings,
            events,
            first: first.handle.clone(),
            over: AtomicBool::new(false),
            numbers: AtomicU64::new(1),
            endpoints: Mutex::default(),
            links: Mutex::default(),
            sends: Mutex::default(),
            snapshot: Mutex::default(),
        });
        engine.spawn(tick(engine.clone()));
        Ok((engine, first))
    }

    /// Run a task that belongs to no connection: the engine ends if it panics.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        guard::spawn(&self.first, Task::Engine(self.clone()), future);
    }

    pub fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// A number that no other connection has.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Serve a socket with a thread: all of an endpoint's work is done there, for what passes from one thread to another
    /// waits until that one has been woken.
    ///
    /// # Safety
    /// The descriptor stays open until the engine is closed.
    pub unsafe fn add_endpoint(
        self: &Arc<Self>,
        thread: &Thread,
        number: u64,
        descriptor: RawFd,
        identity: Identity,
        hello: Bytes,
        bulk: bool,
    ) -> std::io::Result<()> {
        let (clock, thread) = (thread.clock, thread.handle.clone());
        let socket = {
            let _runtime = thread.enter();
            // SAFETY: the caller keeps the descriptor open.
            unsafe { Socket::adopt(descriptor) }?
        };
        let server = ServerConfig::with_crypto(identity.server.clone());
        let mut config = EndpointConfig::default();
        // What we can take in, which is also what the peer may probe the path for.
        let taken = self.settings.datagram_bytes.max(DATAGRAM_BYTES_TAKEN_MIN);
        config
            .max_udp_payload_size(taken)
            .expect("more than QUIC's least, as the settings are");
        let (endpoint, mut driver) = {
            let _runtime = thread.enter();
            Endpoint::new(socket, config, server, bulk, self.events.clone())
        };
        let served = Arc::new(Served {
            number,
            endpoint,
            thread,
            clock,
            identity,
            hello,
            bulk,
            rate: Arc::default(),
        });
        locked(&self.endpoints).insert(number, served.clone());
        let events = self.events.clone();
        let drive = poll_fn(move |cx| {
            events.fault("driver");
            Pin::new(&mut driver).poll(cx)
        });
        guard::spawn(&served.thread, Task::Engine(self.clone()), drive);
        let accepts = accept(self.clone(), served.clone());
        guard::spawn(&served.thread, Task::Engine(self.clone()), accepts);
        Ok(())
    }

    /// Serve another socket instead; connections of `moving` know that their path is a new one.
    ///
    /// # Safety
    /// The descriptor stays open until the engine is closed, and so does the one before.
    pub unsafe fn rebind(&self, endpoint: u64, descriptor: RawFd, moving: &[u64]) -> std::io::Result<()> {
        let Some(served) = locked(&self.endpoints).get(&endpoint).cloned() else {
            return Ok(()); // the engine is being closed
        };
        let socket = {
            let _runtime = served.thread.enter();
            // SAFETY: the caller keeps the descriptor open.
            unsafe { Socket::adopt(descriptor) }?
        };
        for link in moving.iter().filter_map(|number| self.link(*number)) {
            link.measure.restart();
        }
        served.endpoint.rebind(socket);
        Ok(())
    }

    /// Whom an endpoint believes has changed: no session of before is resumed.
    pub fn forget_sessions(&self, endpoint: u64) {
        if let Some(served) = locked(&self.endpoints).get(&endpoint) {
            served.identity.forget_sessions();
        }
    }

    /// How often peers that dialled have resumed a session.
    pub fn resumed(&self) -> u64 {
        locked(&self.endpoints)
            .values()
            .map(|served| served.identity.resumed())
            .sum()
    }

    /// Give an endpoint a rate to follow, or take it away.
    pub fn set_rate(&self, endpoint: u64, bits_per_s: Option<u64>) {
        if let Some(served) = locked(&self.endpoints).get(&endpoint) {
            served.rate.give(bits_per_s, Instant::now());
        }
    }

    /// Dial.
    pub fn connect(self: &Arc<Self>, endpoint: u64, number: u64, remote: SocketAddr, expected: Option<&str>) {
        let served = locked(&self.endpoints).get(&endpoint).cloned();
        let name = expected.map_or_else(|| remote_name(remote), str::to_owned);
        let down = |reason: String| {
            self.events.push(Event::Down {
                link: number,
                peer: name.clone(),
                failure: Some(Failure::Lost {
                    peer: name.clone(),
                    reason,
                }),
            });
        };
        let Some(served) = served else {
            return down(format!("there is no endpoint {endpoint}"));
        };
        let measure = Measure::new();
        let mut config = ClientConfig::new(served.identity.client_for(remote, expected));
        config.transport_config(self.transport(&served, &measure));
        // An address as the name keeps the name of the host out of the handshake: who it is, its certificate says.
        let connection = served
            .endpoint
            .connect(config, remote, &remote.ip().to_string(), measure.rate.clone());
        match connection {
            Err(error) => down(format!("{} cannot be dialled from this socket: {error}", remote.ip())),
            Ok(connection) => {
                let (thread, hello) = (served.thread.clone(), served.hello.clone());
                let link = Link::new(self.clone(), thread, number, remote, hello, true, served.bulk, measure);
                if let Some(expected) = expected {
                    link.set_peer(expected);
                }
                locked(&self.links).insert(number, link.clone());
                link.begin_course(connection);
            }
        }
    }

    fn transport(&self, served: &Served, measure: &Arc<Measure>) -> Arc<TransportConfig> {
        let settings = &self.settings;
        let inner = congestion::factory(&settings.congestion, served.bulk, &served.rate, &measure.pace)
            .expect("the name was checked when the engine began");
        let limits = Limits {
            stream_window_bytes: settings.stream_window_bytes(),
            first_window_bytes: settings.window_bytes().min(BEFORE_HELLO_BYTES_MAX) as u32,
            streams_max: settings.streams_max,
            datagram_bytes: settings.datagram_bytes,
            keep_alive: settings.keep_alive,
            // A second line of defence; the tick is the first.
            idle: Duration::from_secs(30).max(2 * settings.dead_after),
        };
        Arc::new(limits.transport(Arc::new(ObservedFactory {
            inner,
            measure: measure.clone(),
            // BBR keeps its window at twice of what it uses; a rate is followed whatever is used.
            follows_use: served.bulk || !["bbr", congestion::RATE].contains(&settings.congestion.as_str()),
            fills_window: !served.bulk && settings.congestion == "bbr",
        })))
    }

    pub fn link(&self, number: u64) -> Option<Arc<Link>> {
        locked(&self.links).get(&number).cloned()
    }

    /// How many connections there are to a name.
    pub fn connections_to(&self, peer: &str) -> usize {
        locked(&self.links)
            .values()
            .filter(|link| &*link.peer() == peer)
            .count()
    }

    /// A connection has ended. Whether it was the last one to its peer that was up.
    pub fn forget(&self, link: &Link, was_up: bool) -> bool {
        let mut links = locked(&self.links);
        links.remove(&link.number);
        let peer = link.peer();
        was_up && !links.values().any(|other| other.is(Stage::Up) && other.peer() == peer)
    }

    /// Send one message over a connection.
    pub fn send(self: &Arc<Self>, connection: u64, message: Message) {
        let operation = message.operation;
        let fail = |message: Message, failure: Failure| {
            drop(message); // let go of the payload first
            self.events.push(Event::Failed { operation, failure });
        };
        let link = self
            .link(connection)
            .filter(|link| link.is(Stage::Up) && !link.closing());
        let Some(link) = link else {
            let failure = Failure::Lost {
                peer: format!("connection {connection}"),
                reason: "it has ended or never was".to_owned(),
            };
            return fail(message, failure);
        };
        let (length, accepted) = (
            message.payload.as_ref().map_or(0, |payload| payload.len() as u64),
            link.message_bytes_max(),
        );
        if length > accepted {
            let failure = Failure::Peer {
                peer: link.peer().to_string(),
                reason: format!("accepts messages of {accepted} bytes; this has {length}"),
                code: 0,
            };
            return fail(message, failure);
        }
        let (abort, aborted) = oneshot::channel();
        locked(&self.sends).insert(operation, (link.clone(), abort));
        link.send(message, aborted);
    }

    pub fn forget_send(&self, operation: u64) {
        locked(&self.sends).remove(&operation);
    }

    /// A send whose task panicked has come to its end.
    pub fn fail_send(&self, operation: u64, failure: Failure) {
        self.forget_send(operation);
        self.events.push(Event::Failed { operation, failure });
    }

    /// Whether a panic left something in the middle that all connections share.
    pub fn half_done(&self) -> bool {
        self.mail.half_done() || self.endpoints.is_poisoned() || self.links.is_poisoned() || self.sends.is_poisoned()
    }

    /// End a send or a post.
    pub fn cancel(&self, operation: u64) {
        let sending = locked(&self.sends).remove(&operation);
        if let Some((link, abort)) = sending {
            let text = format!("the send to {} was cancelled here", link.peer());
            let _ = abort.send(Failure::Cancelled(text)); // it may have ended meanwhile
        } else {
            self.mail.cancel(operation);
        }
    }

    /// What every connection measured at the last tick.
    pub fn statistics(&self) -> Arc<Vec<LinkStatistics>> {
        locked(&self.snapshot).clone()
    }

    /// The processor's time that the thread of each endpoint has used.
    pub fn busy(&self) -> Vec<(u64, f64)> {
        let endpoints = locked(&self.endpoints);
        let used = endpoints
            .values()
            .map(|served| (served.number, cpu_seconds(served.clock)));
        used.filter_map(|(number, used)| Some((number, used?))).collect()
    }

    /// Bytes of datagrams that all living connections have received, as of now.
    pub fn received_bytes(&self) -> u64 {
        let links = locked(&self.links);
        let connections = links.values().filter_map(|link| link.connection());
        let stats = connections.filter_map(|connection| connection.stats());
        stats.map(|stats| stats.udp_rx.bytes).sum()
    }

    /// Fail every operation and close every connection.
    pub fn end(&self, code: Code, failure: Failure, say: &str) {
        self.over.store(true, Ordering::SeqCst);
        for (_, abort) in std::mem::take(&mut *locked(&self.sends)).into_values() {
            let _ = abort.send(failure.clone()); // it may have ended meanwhile
        }
        self.mail.fail_all(&failure);
        let links: Vec<Arc<Link>> = locked(&self.links).values().cloned().collect();
        for link in &links {
            // One that is broken itself must not keep the others from their end.
            let closed = catch_unwind(AssertUnwindSafe(|| {
                if code == Code::NoError {
                    link.disconnect(code as u64, say);
                } else {
                    link.close(code as u64, failure.clone());
                }
            }));
            drop(closed);
        }
    }

    /// Something in here broke: everything ends, and the caller is told why.
    pub fn broke(&self, what: &str) {
        let failure = Failure::Lost {
            peer: "everybody".to_owned(),
            reason: format!("the engine of this process failed: {what}"),
        };
        self.end(Code::Internal, failure, what);
    }

    /// Say goodbye and wait a moment until that has been sent and everything has told its end.
    pub async fn finish(&self) {
        let living: Vec<Arc<Link>> = locked(&self.links).values().cloned().collect();
        self.end(
            Code::NoError,
            Failure::Cancelled("the engine was closed here".to_owned()),
            "goodbye",
        );
        let until = Instant::now() + GOODBYE_WITHIN;
        let said = |link: &Arc<Link>| {
            let stats = link.connection().and_then(|connection| connection.stats());
            stats.is_none_or(|stats| stats.frame_tx.connection_close > 0)
        };
        while Instant::now() < until && !(living.iter().all(said) && locked(&self.links).is_empty()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for served in std::mem::take(&mut *locked(&self.endpoints)).into_values() {
            served.endpoint.close(0u32.into(), b"goodbye");
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that runs tasks, until it is told to end.
pub struct Thread {
    handle: Handle,
    /// The time that it has used on a processor.
    clock: libc::clockid_t,
    end: oneshot::Sender<()>,
    running: thread::JoinHandle<()>,
}

impl Thread {
    pub fn start() -> std::io::Result<Self> {
        // A driver that is busy is always ready: what Python asks for must not wait until it has had many turns.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .global_queue_interval(1)
            .event_interval(8)
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let running = thread::Builder::new().name("hive-quic".to_owned()).spawn(move || {
            let _ = runtime.block_on(ended); // told, or given up
        })?;
        let mut clock = 0;
        // SAFETY: the thread runs, for nothing has told it to end.
        let failed = unsafe { libc::pthread_getcpuclockid(running.as_pthread_t(), &mut clock) };
        if failed != 0 {
            return Err(std::io::Error::from_raw_os_error(failed));
        }
        Ok(Self {
            handle,
            clock,
            end,
            running,
        })
    }

    /// End it; its tasks are dropped where they wait. What it returns is done then.
    pub fn end(self) -> thread::JoinHandle<()> {
        let _ = self.end.send(()); // it may have failed
        self.running
    }
}

/// What a thread's clock shows; None where the thread has ended.
fn cpu_seconds(clock: libc::clockid_t) -> Option<f64> {
    // SAFETY: plain numbers, which the call fills in.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `time` is there to be written.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) } != 0;
    (!failed).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

async fn accept(engine: Arc<Engine>, served: Arc<Served>) {
    loop {
        let incoming = served.endpoint.accept().await;
        engine.events.fault("accept");
        let half_open = {
            let links = locked(&engine.links);
            links.values().filter(|link| link.is(Stage::Handshaking)).count()
        };
        // One that ends before Python has judged it leaves its chain in the queue, where all others would wait behind it.
        let unjudged = half_open.max(engine.events.chains());
        if unjudged >= HALF_OPEN_MAX || engine.over() {
            served.endpoint.ignore(incoming);
        } else if unjudged >= UNPROVED_MAX && !incoming.remote_address_validated() {
            served.endpoint.retry(incoming);
        } else {
            begin(&engine, &served, incoming);
        }
    }
}

/// Somebody dials us.
fn begin(engine: &Arc<Engine>, served: &Served, incoming: Incoming) {
    let remote = incoming.remote_address();
    let measure = Measure::new();
    let mut config = ServerConfig::with_crypto(served.identity.server.clone());
    config.transport_config(engine.transport(served, &measure));
    let Some(connection) = served.endpoint.begin(incoming, config, measure.rate.clone()) else {
        return; // its first packet was not good
    };
    let (number, thread, hello) = (engine.number(), served.thread.clone(), served.hello.clone());
    let link = Link::new(
        engine.clone(),
        thread,
        number,
        remote,
        hello,
        false,
        served.bulk,
        measure,
    );
    locked(&engine.links).insert(number, link.clone());
    engine.events.push(Event::Accepted {
        link: number,
        endpoint: served.number,
        remote: (remote.ip().to_string(), remote.port()),
    });
    link.begin_course(connection);
}

async fn tick(engine: Arc<Engine>) {
    let mut before = Instant::now();
    while !engine.over() {
        tokio::time::sleep(TICK).await;
        engine.events.fault("tick");
        let now = Instant::now();
        let late = now.saturating_duration_since(before).saturating_sub(TICK);
        before = now;
        let held_up = if late > HELD_UP { late } else { Duration::ZERO };
        let links: Vec<Arc<Link>> = locked(&engine.links).values().cloned().collect();
        let mut snapshot = Vec::with_capacity(links.len());
        for link in links {
            link.tick(now, held_up);
            if link.is(Stage::Up) {
                snapshot.extend(statistics_of(&link));
            }
        }
        *locked(&engine.snapshot) = Arc::new(snapshot);
    }
}

fn statistics_of(link: &Link) -> Option<LinkStatistics> {
    let stats = link.connection()?.stats()?;
    Some(LinkStatistics {
        number: link.number,
        peer: link.peer(),
        remote: link.remote(),
        bulk: link.bulk,
        rtt: stats.path.rtt,
        sent_bytes: stats.udp_tx.bytes,
        received_bytes: stats.udp_rx.bytes,
        lost_packets: stats.path.lost_packets,
        sent_packets: stats.path.sent_packets,
        path_mtu_bytes: stats.path.current_mtu,
        measured: link.measure.read(),
    })
}

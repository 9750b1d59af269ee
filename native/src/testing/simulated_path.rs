//! Two endpoints with a path between them, in reckoned time: no sockets and no clock, only the stack as it is set up here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::crypto::{ClientConfig as ClientCrypto, ServerConfig as ServerCrypto};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, EndpointEvent, Event,
    ServerConfig, Transmit,
};

use crate::congestion::path_measurement::PathMeasurement;
use crate::quic::transport_config::{endpoint_config, transport};
use crate::settings::Settings;

/// Datagrams that a side may send at once.
const SEGMENTS: usize = 43;
const SEED: [u8; 32] = [7; 32];

pub const DIALS: usize = 0;
pub const IS_DIALLED: usize = 1;
const ADDRESSES: [([u8; 4], u16); 2] = [([127, 0, 0, 1], 1), ([127, 0, 0, 1], 2)];

/// One side, which has at most one connection.
pub struct Side {
    endpoint: Endpoint,
    address: SocketAddr,
    config: Option<ServerConfig>,
    /// Whoever dials has to show first that its address is its own.
    pub asks_for_proof: bool,
    pub connection: Option<(ConnectionHandle, Connection)>,
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests look at it"))]
    pub measure: Arc<PathMeasurement>,
    /// What has happened to the connection, in its order.
    pub events: Vec<Event>,
}

pub struct Pair {
    pub now: Instant,
    /// One way.
    pub delay: Duration,
    pub sides: [Side; 2],
    /// By when they arrive, and in which order they were sent: to whom, what.
    flying: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
}

impl Pair {
    /// One side dials the other.
    pub fn new(
        settings: &Settings,
        delay: Duration,
        dials: Arc<dyn ClientCrypto>,
        is_dialled: Arc<dyn ServerCrypto>,
    ) -> Self {
        let now = Instant::now();
        let addresses = ADDRESSES.map(SocketAddr::from);
        let measures = [PathMeasurement::new(), PathMeasurement::new()];
        let transports = measures.each_ref().map(|measure| transport(settings, false, measure));
        let mut server = ServerConfig::with_crypto(is_dialled);
        server.transport_config(transports[IS_DIALLED].clone());
        let mut client = ClientConfig::new(dials);
        client.transport_config(transports[DIALS].clone());
        let [config, other_config] = [0, 1].map(|_| seeded(endpoint_config(settings)));
        let mut endpoint = Endpoint::new(config, None, true, None);
        let connection = endpoint
            .connect(now, client, addresses[IS_DIALLED], "127.0.0.1")
            .expect("it can be dialled");
        let other = Endpoint::new(other_config, Some(Arc::new(server.clone())), true, None);
        let [measure, other_measure] = measures;
        let side = |endpoint, at: usize, config, connection, measure| Side {
            endpoint,
            address: addresses[at],
            config,
            asks_for_proof: false,
            connection,
            measure,
            events: Vec::new(),
        };
        Self {
            now,
            delay,
            sides: [
                side(endpoint, DIALS, None, Some(connection), measure),
                side(other, IS_DIALLED, Some(server), None, other_measure),
            ],
            flying: BTreeMap::new(),
            sent: 0,
        }
    }

    /// The connection of a side, which has one.
    #[cfg(test)]
    pub fn stack(&mut self, side: usize) -> &mut Connection {
        &mut self.sides[side].connection.as_mut().expect("it has a connection").1
    }

    /// Send what may be sent now; `wire` may change each datagram, and says what becomes of it: by how much later than
    /// others it arrives, which is never where that is nothing, and twice where it is two times.
    fn send(&mut self, wire: &mut impl FnMut(usize, Instant, &mut Vec<u8>) -> Vec<Duration>) {
        for from in [DIALS, IS_DIALLED] {
            let mut packets = Vec::new();
            loop {
                packets.clear();
                let Some(transmit) = self.sides[from].ask(self.now, &mut packets) else {
                    break;
                };
                self.fly(1 - from, &transmit, &packets, wire);
            }
        }
    }

    fn fly(
        &mut self,
        to: usize,
        transmit: &Transmit,
        packets: &[u8],
        wire: &mut impl FnMut(usize, Instant, &mut Vec<u8>) -> Vec<Duration>,
    ) {
        let packets = &packets[..transmit.size];
        for datagram in packets.chunks(transmit.segment_size.unwrap_or(packets.len())) {
            let mut datagram = datagram.to_vec();
            let arrives = self.now + self.delay;
            for late in wire(1 - to, self.now, &mut datagram) {
                self.put(arrives + late, to, datagram.clone());
            }
        }
    }

    /// Have a datagram arrive.
    pub fn put(&mut self, at: Instant, to: usize, datagram: Vec<u8>) {
        self.sent += 1;
        self.flying.insert((at, self.sent), (to, datagram));
    }

    /// Let both sides work until then; `wire` is asked about each datagram, with who sends it and when.
    pub fn run(&mut self, until: Instant, mut wire: impl FnMut(usize, Instant, &mut Vec<u8>) -> Vec<Duration>) {
        loop {
            self.send(&mut wire);
            let arrives = self.flying.keys().next().map(|(at, _)| *at);
            let wanted = self.sides.iter_mut().filter_map(|side| {
                let (_, stack) = side.connection.as_mut()?;
                stack.poll_timeout()
            });
            let Some(next) = wanted.chain(arrives).min().filter(|next| *next <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            for side in &mut self.sides {
                if let Some((_, stack)) = &mut side.connection
                    && stack.poll_timeout().is_some_and(|at| at <= self.now)
                {
                    stack.handle_timeout(self.now);
                }
            }
            while let Some(first) = self.flying.first_entry()
                && first.key().0 <= self.now
            {
                let (to, datagram) = first.remove();
                self.arrive(to, datagram, &mut wire);
            }
        }
    }

    fn arrive(
        &mut self,
        to: usize,
        datagram: Vec<u8>,
        wire: &mut impl FnMut(usize, Instant, &mut Vec<u8>) -> Vec<Duration>,
    ) {
        let (now, from, mut answer) = (self.now, self.sides[1 - to].address, Vec::new());
        let side = &mut self.sides[to];
        let mut said = None;
        match side
            .endpoint
            .handle(now, from, None, None, BytesMut::from(&datagram[..]), &mut answer)
        {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((known, stack)) = &mut side.connection
                    && *known == handle
                {
                    stack.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(dialled)) => match (&side.connection, &side.config) {
                (None, Some(_)) if side.asks_for_proof && !dialled.remote_address_validated() => {
                    said = side.endpoint.retry(dialled, &mut answer).ok();
                }
                (None, Some(config)) => {
                    let config = Some(Arc::new(config.clone()));
                    match side.endpoint.accept(dialled, now, &mut answer, config) {
                        Ok(connection) => side.connection = Some(connection),
                        Err(error) => said = error.response,
                    }
                }
                _ => side.endpoint.ignore(dialled),
            },
            Some(DatagramEvent::Response(transmit)) => said = Some(transmit),
            None => {}
        }
        if let Some(transmit) = said {
            self.fly(1 - to, &transmit, &answer, wire);
        }
    }
}

impl Side {
    /// What is sent at once now.
    fn ask(&mut self, now: Instant, packets: &mut Vec<u8>) -> Option<Transmit> {
        self.settle();
        let (_, stack) = self.connection.as_mut()?;
        stack.poll_transmit(now, SEGMENTS, packets)
    }

    /// Tell the endpoint what its connection has to say, and keep what has happened.
    fn settle(&mut self) {
        let Some((handle, stack)) = &mut self.connection else {
            return;
        };
        while let Some(event) = stack.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                stack.handle_event(answer);
            }
        }
        self.events.extend(std::iter::from_fn(|| stack.poll()));
        if stack.is_drained() {
            self.endpoint.handle_event(*handle, EndpointEvent::drained());
            self.connection = None;
        }
    }
}

fn seeded(mut config: EndpointConfig) -> Arc<EndpointConfig> {
    config.rng_seed(Some(SEED));
    Arc::new(config)
}

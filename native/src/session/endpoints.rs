//! Endpoints of an engine: the sockets that it serves, the connections that are dialled from them and to them.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{ClientConfig, ServerConfig, TransportConfig, VarInt};

use super::context::Registry;
use super::engine::Engine;
use super::peer_session::{PeerSession, Setup, Stage, remote_name};
use super::served_endpoint::ServedEndpoint;
use crate::congestion::path_measurement::PathMeasurement;
use crate::events::{Event, Failure};
use crate::quic::endpoint::Endpoint;
use crate::quic::endpoint_state::Dialled;
use crate::quic::tls::Identity;
use crate::quic::transport_config::{endpoint_config, transport};
use crate::runtime::locks::locked;
use crate::runtime::supervision;
use crate::runtime::thread::Thread;
use crate::udp::socket::Socket;
use crate::wire::Code;

// Of first packets: the rule and its reasons are in `transport/engine/admission.py`.
const HALF_OPEN_MAX: usize = 256;
const HALF_OPEN_PER_SOURCE_MAX: usize = 64;
const UNPROVED_MAX: usize = 32;
const UNPROVED_WITHIN: Duration = Duration::from_secs(3);

impl Engine {
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
        let thread = thread.handle.clone();
        let socket = {
            let _runtime = thread.enter();
            // SAFETY: the caller keeps the descriptor open.
            unsafe { Socket::adopt(descriptor) }?
        };
        let server = ServerConfig::with_crypto(identity.server.clone());
        let config = endpoint_config(&self.context.settings);
        let (endpoint, mut driver) = {
            let _runtime = thread.enter();
            Endpoint::new(socket, config, server, bulk, self.context.faults.clone())
        };
        let served = Arc::new(ServedEndpoint {
            number,
            endpoint,
            thread,
            identity,
            hello,
            bulk,
        });
        locked(&self.endpoints).insert(number, served.clone());
        let faults = self.context.faults.clone();
        let drive = poll_fn(move |cx| {
            faults.here("driver");
            Pin::new(&mut driver).poll(cx)
        });
        supervision::spawn(&served.thread, self.clone(), drive);
        let accepts = accept(self.clone(), served.clone());
        supervision::spawn(&served.thread, self.clone(), accepts);
        Ok(())
    }

    /// Serve another socket instead; connections of `moving` know that their path is a new one. False where there is no such
    /// endpoint.
    ///
    /// # Safety
    /// The descriptor stays open until the engine is closed, and so does the one before.
    pub unsafe fn rebind(&self, endpoint: u64, descriptor: RawFd, moving: &[u64]) -> std::io::Result<bool> {
        let Some(served) = locked(&self.endpoints).get(&endpoint).cloned() else {
            return Ok(false);
        };
        let socket = {
            let _runtime = served.thread.enter();
            // SAFETY: the caller keeps the descriptor open.
            unsafe { Socket::adopt(descriptor) }?
        };
        for session in moving.iter().filter_map(|number| self.session(*number)) {
            session.measure.restart();
        }
        served.endpoint.rebind(socket);
        Ok(true)
    }

    /// Dial. False where the engine has ended for good: nobody will be told how it ends.
    pub fn connect(self: &Arc<Self>, endpoint: u64, number: u64, remote: SocketAddr, expected: Option<&str>) -> bool {
        let served = locked(&self.endpoints).get(&endpoint).cloned();
        let name = expected.map_or_else(|| remote_name(remote), str::to_owned);
        let fail = |reason: String| {
            let (peer, lost) = (name.clone(), name.clone());
            let failure = Some(Failure::Lost { peer: lost, reason });
            self.context.events.push(Event::Down {
                connection: number,
                peer,
                failure,
            })
        };
        let Some(served) = served else {
            return fail(format!("there is no endpoint {endpoint}"));
        };
        let measure = PathMeasurement::new();
        let mut config = ClientConfig::new(served.identity.client.clone());
        config.transport_config(self.transport(&served, &measure));
        let rate = measure.rate.clone();
        let (thread, hello) = (served.thread.clone(), served.hello.clone());
        let patience = self.context.settings.handshake_timeout;
        let setup = Setup {
            number,
            remote,
            dialled: true,
            bulk: served.bulk,
            hello,
            patience,
            thread,
            measure,
        };
        let session = PeerSession::new(self.context.clone(), self.clone(), setup);
        if let Some(expected) = expected {
            session.set_peer(expected);
        }
        {
            // Before the end they are told of it, for `end` and `let_go` look here when it is known.
            let mut sessions = locked(&self.sessions);
            if self.over() {
                drop(sessions);
                return fail("the engine has ended".to_owned());
            }
            sessions.insert(number, session.clone());
        }
        session.dial(move || {
            // An address as the name keeps the name of the host out of the handshake: who it is, its certificate says.
            let name = remote.ip().to_string();
            let connection = served.endpoint.connect(config, remote, &name, rate);
            connection.map_err(|error| format!("{name} cannot be dialled from this socket: {error}"))
        });
        true
    }

    fn transport(&self, served: &ServedEndpoint, measure: &Arc<PathMeasurement>) -> Arc<TransportConfig> {
        transport(&self.context.settings, served.bulk, measure)
    }
}

async fn accept(engine: Arc<Engine>, served: Arc<ServedEndpoint>) {
    loop {
        let dialled = served.endpoint.accept().await;
        engine.context.faults.here("accept");
        let source = source_of(dialled.remote_address());
        let (half_open, of_source) = {
            let sessions = locked(&engine.sessions);
            let half_open = sessions
                .values()
                .filter(|session| !session.dialled && session.is(Stage::Handshaking));
            half_open.fold((0, 0), |(all, same), session| {
                (all + 1, same + usize::from(source_of(session.remote()) == source))
            })
        };
        // One that ends before Python has judged it leaves its chain in the queue, where all others would wait behind it.
        let unjudged = half_open.max(engine.context.events.chains());
        let proved = dialled.remote_address_validated();
        if unjudged >= HALF_OPEN_MAX || of_source >= HALF_OPEN_PER_SOURCE_MAX || engine.over() {
            served.endpoint.ignore(dialled);
        } else if proved || unjudged < UNPROVED_MAX {
            begin(&engine, &served, dialled, proved);
        } else {
            served.endpoint.retry(dialled);
        }
    }
}

/// As whom an address is counted: IPv4 itself, of IPv6 its network.
fn source_of(remote: SocketAddr) -> IpAddr {
    match remote.ip().to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        own => own,
    }
}

/// Somebody dials us.
fn begin(engine: &Arc<Engine>, served: &ServedEndpoint, dialled: Dialled, proved: bool) {
    let remote = dialled.remote_address();
    let measure = PathMeasurement::new();
    let mut config = ServerConfig::with_crypto(served.identity.server.clone());
    config.transport_config(engine.transport(served, &measure));
    let Some(connection) = served.endpoint.begin(dialled, config, measure.rate.clone()) else {
        return; // its first packet was not good
    };
    let (number, thread, hello) = (engine.number(), served.thread.clone(), served.hello.clone());
    let patience = engine.context.settings.handshake_timeout;
    let setup = Setup {
        number,
        remote,
        dialled: false,
        bulk: served.bulk,
        hello,
        patience: if proved {
            patience
        } else {
            patience.min(UNPROVED_WITHIN)
        },
        thread,
        measure,
    };
    let session = PeerSession::new(engine.context.clone(), engine.clone(), setup);
    {
        let mut sessions = locked(&engine.sessions); // as in `connect`
        if engine.over() {
            return connection.close(VarInt::from_u32(Code::NoError as u32), b"");
        }
        sessions.insert(number, session.clone());
    }
    engine.context.events.push(Event::Accepted {
        connection: number,
        endpoint: served.number,
        remote: (remote.ip().to_string(), remote.port()),
    });
    session.start(connection);
}

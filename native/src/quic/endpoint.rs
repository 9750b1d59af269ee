//! One socket and its connections: they are dialled and taken from here, and end here.
//!
//! What moves their packets is the `driver`, with how it reads (`datagrams_in`) and what it sends when (`datagrams_out`).
//! Everything of an endpoint happens on one thread; nothing there waits for Python.
//!
//! Where the driver panics, or quinn's endpoint, all that is known here may be half done: the endpoint starts over
//! (`State::guarded`) with nothing but its socket.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quinn_proto::{ClientConfig, EndpointConfig, HashedConnectionIdGenerator, ServerConfig, VarInt};
use tokio::sync::Notify;

use super::connection::Connection;
use super::driver_state::Driver;
use super::endpoint_state::{Dialled, Shared, State, fresh};
use super::gso_size::{BATCH_TIME, BATCH_TIME_BULK, on_wire};
use crate::congestion::path_measurement::DeliveryRate;
use crate::runtime::fault_injection::Faults;
use crate::runtime::locks::locked;
use crate::udp::socket::Socket;

pub struct Endpoint {
    shared: Arc<Shared>,
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
        faults: Arc<Faults>,
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
            batch_time: if bulk { BATCH_TIME_BULK } else { BATCH_TIME },
            dirty: Arc::default(),
            state: Mutex::new(state),
            next_socket: Mutex::default(),
            dialled: Notify::new(),
            faults,
        });
        let driver = Driver::new(shared.clone(), socket);
        (Self { shared }, driver)
    }

    /// Dial. The driver holds the endpoint nearly all the time: only tasks of its thread ask for it.
    ///
    /// `rate`: what the path delivers, which others keep up to date. Why not, where it cannot.
    pub fn connect(
        &self,
        config: ClientConfig,
        remote: SocketAddr,
        name: &str,
        rate: Arc<DeliveryRate>,
    ) -> Result<Connection, String> {
        let mut state = self.shared.lock();
        let (handle, stack) = state
            .guarded(|state| {
                self.shared.faults.here("dial");
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
    pub fn begin(&self, dialled: Dialled, config: ServerConfig, rate: Arc<DeliveryRate>) -> Option<Connection> {
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
        self.shared.dirty.wake();
    }

    /// Close every connection, at the end of all: this alone waits for the driver's turn, whoever asks.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let connections: Vec<Connection> = self.shared.lock().connections.values().cloned().collect();
        for connection in connections {
            connection.close(code, reason);
        }
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;

//! What the tasks and the driver of an endpoint share, and how it starts over where quinn's endpoint has panicked.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use quinn_proto::{self as proto, ConnectionHandle, EndpointConfig, Incoming, ServerConfig};
use tokio::sync::Notify;

use super::connection::Connection;
use super::dirty_list::DirtyList;
use crate::congestion::path_measurement::DeliveryRate;
use crate::runtime::fault_injection::Faults;
use crate::runtime::locks::{locked, words_of};
use crate::udp::socket::Socket;

/// An endpoint that has to start over more often than `STARTS_MAX` times in `STARTS_SPAN` would not stop doing so.
const STARTS_MAX: usize = 5;
const STARTS_SPAN: Duration = Duration::from_secs(10);

pub(super) struct Shared {
    pub(super) batch_time: Duration,
    pub(super) dirty: Arc<DirtyList>,
    pub(super) state: Mutex<State>,
    /// What the driver goes on with at its next turn.
    pub(super) next_socket: Mutex<Option<Arc<Socket>>>,
    pub(super) dialled: Notify,
    /// What tests ask to panic.
    pub(super) faults: Arc<Faults>,
}

pub(super) struct State {
    pub(super) socket: Arc<Socket>,
    pub(super) config: Arc<EndpointConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) proto: proto::Endpoint,
    /// When it had to start over of late, and how often ever.
    pub(super) starts: VecDeque<Instant>,
    pub(super) start: u64,
    /// It had to too often: why.
    pub(super) hopeless: Option<String>,
    pub(super) connections: HashMap<ConnectionHandle, Connection>,
    pub(super) incoming: VecDeque<Incoming>,
}

/// Somebody who dials us.
pub struct Dialled {
    pub(super) incoming: Incoming,
    /// How often the endpoint had started over by then: one that does so afterwards knows nothing of this.
    pub(super) start: u64,
}

impl Dialled {
    pub fn remote_address(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    pub fn remote_address_validated(&self) -> bool {
        self.incoming.remote_address_validated()
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(super) fn keep(
        &self,
        state: &mut State,
        handle: ConnectionHandle,
        stack: proto::Connection,
        rate: Arc<DeliveryRate>,
    ) -> Connection {
        let connection = Connection::new(handle, stack, rate, self.dirty.clone());
        state.connections.insert(handle, connection.clone());
        connection
    }
}

impl State {
    /// None where quinn's endpoint of now never saw it: its number there is nobody's, or somebody else's.
    pub(super) fn known(&self, dialled: Dialled) -> Option<Incoming> {
        (dialled.start == self.start).then_some(dialled.incoming)
    }

    /// Let quinn's endpoint and what moves its packets work. Where that panics the connections are lost, a new one takes
    /// its place, and what the panic said is returned.
    pub(super) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(|| work(self))).map_err(|panic| {
            let words = words_of(&*panic);
            self.start_over(&words);
            words
        })
    }

    /// Lose the connections of an endpoint that panicked. Their peers are answered with stateless resets from now on.
    pub(super) fn start_over(&mut self, words: &str) {
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

pub(super) fn fresh(config: &Arc<EndpointConfig>, server: &Arc<ServerConfig>, socket: &Socket) -> proto::Endpoint {
    proto::Endpoint::new(config.clone(), Some(server.clone()), !socket.may_fragment(), None)
}

//! What moves the packets of an endpoint goes on with from turn to turn.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::{self as proto, ConnectionHandle};
use tokio::time::{Sleep, sleep_until};

use super::endpoint_state::Shared;
use crate::udp::socket::{Inbox, Socket};

/// Moves the packets of an endpoint: in turns (`driver`), in which it reads (`datagrams_in`) and sends (`datagrams_out`).
///
/// Locks are taken in this order: the endpoint, a connection, its pending commands or the dirty list.
pub struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) socket: Arc<Socket>,
    /// How often the endpoint had started over when the rest of this was new.
    pub(super) start: u64,
    pub(super) inbox: Inbox,
    /// Something may have come: the socket is read without asking first.
    pub(super) look: bool,
    /// The tasks have had their turn since something was read.
    pub(super) stepped_back: bool,
    pub(super) dirty: Vec<ConnectionHandle>,
    pub(super) due: VecDeque<ConnectionHandle>,
    pub(super) packets: Vec<u8>,
    /// Packets that the kernel had no room for.
    pub(super) unsent: Option<proto::Transmit>,
    pub(super) deadlines: BTreeSet<(Instant, usize)>,
    pub(super) alarm: Pin<Box<Sleep>>,
    pub(super) alarm_at: Option<Instant>,
    pub(super) looked_around: Instant,
    /// What the paths that are in use have delivered of late, in bytes a second: those that may share the link.
    pub(super) rate: u64,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Self {
        Self {
            shared,
            socket,
            start: 0,
            inbox: Inbox::new(),
            look: true,
            stepped_back: false,
            dirty: Vec::new(),
            due: VecDeque::new(),
            packets: Vec::new(),
            unsent: None,
            deadlines: BTreeSet::new(),
            alarm: Box::pin(sleep_until(tokio::time::Instant::now())),
            alarm_at: None,
            looked_around: Instant::now(),
            rate: 0,
        }
    }
}

//! What waits: posts for messages and messages for posts, by peer and key, found without walking over all of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::holds::Held;
use super::incoming_message::IncomingMessage;
use crate::borrowed_buffers::Posted;
use crate::events::Failure;
use crate::wire::{Header, Key};

/// A buffer that waits for a message; None is memory of the engine.
pub struct Post {
    pub operation: u64,
    pub key: Key,
    pub buffer: Option<Posted>,
}

pub(super) struct PeerQueues {
    pub(super) peer: Arc<str>,
    pub(super) posts: HashMap<Key, VecDeque<Post>>,
    pub(super) arrivals: HashMap<Key, Waiting>,
    pub(super) attached: HashMap<u64, Arc<IncomingMessage>>,
    pub(super) accounts: HashMap<String, Account>,
    pub(super) held: Held,
    pub(super) store_bytes_max: u64,
}

/// The messages with one key that nobody has posted for. There is always one.
#[derive(Default)]
pub(super) struct Waiting {
    /// By their numbers, which is the order in which they came.
    pub(super) incomplete: BTreeMap<u64, Arc<IncomingMessage>>,
    pub(super) complete: VecDeque<Arc<IncomingMessage>>,
}

impl Waiting {
    pub(super) fn first(&self) -> Option<&Arc<IncomingMessage>> {
        self.complete.front().or_else(|| self.incomplete.values().next())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.incomplete.is_empty() && self.complete.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<IncomingMessage>> {
        self.complete.iter().chain(self.incomplete.values())
    }

    pub(super) fn remove(&mut self, message: &Arc<IncomingMessage>) {
        if self.incomplete.remove(&message.number).is_some() {
            return;
        }
        // Posts take the first, for which this is no search; the rest go by whole keys (`discard`), first to last.
        if let Some(at) = self.complete.iter().position(|other| Arc::ptr_eq(other, message)) {
            self.complete.remove(at);
        }
    }
}

/// What a rank of a peer has in the store.
#[derive(Default)]
pub(super) struct Account {
    pub(super) charged: u64,
    /// Messages that wait for room, by how much more than their charge each needs, then by their numbers.
    pub(super) stalled: BTreeMap<(u64, u64), Arc<IncomingMessage>>,
}

pub(super) struct Queues {
    /// What one account may have in the store, where there are few of them.
    store_bytes_max: u64,
    pub(super) by_peer: HashMap<Arc<str>, PeerQueues>,
    /// The peer and key of every post that has not ended.
    pub(super) open: HashMap<u64, (Arc<str>, Key)>,
    /// Steps before which a group's messages are dropped, each with the age of its rule.
    pub(super) floors: HashMap<String, (u64, u64)>,
    /// The latest operation of each group that has begun here.
    pub(super) begun: HashMap<String, u64>,
    /// Operations that run here, by group and number: what the messages of each sender (by tag) say of the call.
    pub(super) expected: HashMap<(String, u64), Vec<(u64, String)>>,
    /// Messages that came before their collectives asked for them, since that was last looked at.
    pub(super) early: Vec<Weak<IncomingMessage>>,
    /// Of messages and rules, so that it is known which was first.
    pub(super) numbers: u64,
    /// Why every post fails from now on: the engine has ended.
    pub(super) over: Option<Failure>,
}

impl Queues {
    pub(super) fn new(store_bytes_max: u64) -> Self {
        Self {
            store_bytes_max,
            by_peer: HashMap::new(),
            open: HashMap::new(),
            floors: HashMap::new(),
            begun: HashMap::new(),
            expected: HashMap::new(),
            early: Vec::new(),
            numbers: 0,
            over: None,
        }
    }

    pub(super) fn peer_queues(&mut self, peer: &str) -> &mut PeerQueues {
        if !self.by_peer.contains_key(peer) {
            let peer: Arc<str> = peer.into();
            let fresh = PeerQueues {
                peer: peer.clone(),
                posts: HashMap::new(),
                arrivals: HashMap::new(),
                attached: HashMap::new(),
                accounts: HashMap::new(),
                held: Held::default(),
                store_bytes_max: self.store_bytes_max,
            };
            self.by_peer.insert(peer, fresh);
        }
        self.by_peer.get_mut(peer).expect("it was put there just now")
    }

    pub(super) fn floor(&self, group: &str) -> u64 {
        self.floors.get(group).map_or(0, |(step, _)| *step)
    }

    /// An operation of a group begins here, perhaps again.
    pub(super) fn begins(&mut self, group: &str, step: u64) {
        if !self.has_begun(group, step) {
            self.begun.insert(group.to_owned(), step);
            self.by_peer.values_mut().for_each(|one| one.held.release(group, step));
        }
    }

    /// Whether an operation has begun here, or a later one.
    pub(super) fn has_begun(&self, group: &str, step: u64) -> bool {
        self.begun.get(group).is_some_and(|latest| *latest >= step)
    }

    /// Whether an operation that runs here asks for a message in time.
    pub(super) fn expects(&self, header: &Header) -> bool {
        let key = &header.key;
        let Some(calls) = self.expected.get(&(key.group.clone(), key.step)) else {
            return false;
        };
        let said = calls.iter().find(|(tag, _)| *tag == key.tag);
        said.is_some_and(|(_, call)| header.call.is_empty() || header.call == *call)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

//! Who gets which message: posts and arrivals of every peer, matched by key, and the store for what nobody asked for yet.
//!
//! The rules are those of `transport/engine/aioquic/matching.py`; what differs is how a peer is held back: a
//! message that the store has no room for is left unread in the stack, where its stream's window bounds it; and what comes
//! before its collective is announced only if it still waits a moment later.
//!
//! - A message takes the oldest post with its key when its header is known, else it is stored.
//! - A post takes the message with its key that was complete first, else the oldest incomplete one.
//! - A message is stored whole while no more than half of the store is taken; one that fits a stream's window, while
//!   there is room at all; a control message even a little beyond. Any other waits (`Place::Stalled`), charged with
//!   the window that it may fill. What becomes free goes to those that need least, equals in turn.
//! - Ranks that share a name have a store each, which becomes smaller where there are more than `STORES_WHOLE` of them:
//!   a rank is only what a peer says of itself.
//!
//! A peer decides how many messages wait, with which keys, and when they are given up. So nothing that it can cause
//! walks over all of them: one arrival, completion or reset costs the same whatever waits.
//!
//! Locks are taken in this order: the matcher, a message, whatever the stack has. A reader of a stream holds its message
//! alone while it copies, so that a buffer is never written once its post has been withdrawn.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::incoming_message::{Channel, IncomingMessage, IncomingState, Place};
use super::queues::{PeerQueues, Post, Queues};
use crate::borrowed_buffers::Destination;
use crate::events::{Arrived, Event, EventQueue, Failure};
use crate::runtime::fault_injection::Faults;
use crate::runtime::locks::locked;
use crate::wire::{Code, Header, KIND_COLLECTIVE};

/// After so long a message is announced that waits for its collective here: of two ranks one is always the first, and to
/// tell Python of it each time takes as long as a small collective.
pub const COLLECTIVE_LATE: Duration = Duration::from_millis(20);

/// Of an engine.
pub struct Matcher {
    pub(super) events: Arc<EventQueue>,
    pub(super) faults: Arc<Faults>,
    pub(super) queues: Mutex<Queues>,
    /// A message has come before its collective.
    early: Notify,
}

impl Matcher {
    pub fn new(store_bytes_max: u64, events: Arc<EventQueue>, faults: Arc<Faults>) -> Self {
        Self {
            events,
            faults,
            queues: Mutex::new(Queues::new(store_bytes_max)),
            early: Notify::new(),
        }
    }

    /// Announce what has come before its collective and waits for it longer than usual, for ever.
    pub async fn announce_late(&self) {
        loop {
            self.early.notified().await;
            tokio::time::sleep(COLLECTIVE_LATE).await;
            let mut queues = self.lock();
            for message in std::mem::take(&mut queues.early) {
                if let Some(message) = message.upgrade()
                    && matches!(message.lock().place, Place::Stored(_))
                    && !queues.expects(&message.header)
                {
                    self.announce(&message);
                }
            }
        }
    }

    /// A message's header is known: find it a place.
    pub fn arrived(&self, peer: &Arc<str>, header: Header, channel: &dyn Channel) -> Arc<IncomingMessage> {
        let mut queues = self.lock();
        let message = Arc::new(IncomingMessage {
            number: queues.number(),
            account: channel.account(),
            peer: peer.clone(),
            connection: channel.id(),
            stream_window: channel.stream_window(),
            state: Mutex::new(IncomingState {
                place: Place::Delivered,
                filled: 0,
                charged: 0,
                complete: false,
            }),
            changed: Notify::new(),
            header,
        });
        self.faults.here("matcher");
        let key = &message.header.key;
        if channel.ended() {
            message.lock().place = Place::Refused(Code::Cancelled);
            return message;
        }
        if !key.group.is_empty() && key.step < queues.floor(&key.group) {
            message.lock().place = Place::Refused(Code::Discarded);
            return message;
        }
        let begun = queues.has_begun(&key.group, key.step);
        let peer_queues = queues.peer_queues(peer);
        let Some(posts) = peer_queues.posts.get_mut(key) else {
            peer_queues.store(&message, begun, channel);
            return message;
        };
        let post = posts.pop_front().expect("empty queues are removed");
        if posts.is_empty() {
            peer_queues.posts.remove(key);
        }
        let operation = post.operation;
        if !self.attach(peer_queues, &message, post) {
            queues.open.remove(&operation);
        }
        message
    }

    /// Wait for a message, or take one that waits. False where the engine has ended for good: nobody will be told how it
    /// ends.
    pub fn post(&self, peer: &str, post: Post) -> bool {
        let mut queues = self.lock();
        if let Some(failure) = queues.over.clone() {
            drop(queues);
            let operation = post.operation;
            drop(post); // let go of the buffer first
            return self.fail(operation, failure);
        }
        if post.key.kind == KIND_COLLECTIVE {
            queues.begins(&post.key.group, post.key.step);
        }
        let peer_queues = queues.peer_queues(peer);
        let entry = (peer_queues.peer.clone(), post.key.clone());
        let operation = post.operation;
        if self.offer(peer_queues, post) {
            queues.open.insert(operation, entry);
        } else {
            queues.open.remove(&operation);
        }
        true
    }

    /// Every byte of a message and its end are there.
    pub fn completed(&self, message: &Arc<IncomingMessage>) {
        let mut queues = self.lock();
        let mut state = message.lock();
        match std::mem::replace(&mut state.place, Place::Delivered) {
            Place::Posted { operation, destination } => {
                drop(state);
                queues.peer_queues(&message.peer).attached.remove(&operation);
                queues.open.remove(&operation);
                self.tell_received(operation, message, destination);
            }
            Place::Stored(memory) | Place::Stalled(memory) => {
                state.place = Place::Stored(memory);
                state.complete = true;
                drop(state);
                let peer_queues = queues.peer_queues(&message.peer);
                if let Some(account) = peer_queues.accounts.get_mut(&message.account) {
                    account.stalled.remove(&message.turn());
                }
                if let Some(waiting) = peer_queues.arrivals.get_mut(&message.header.key)
                    && waiting.incomplete.remove(&message.number).is_some()
                {
                    waiting.complete.push_back(message.clone());
                }
                if message.header.key.kind != KIND_COLLECTIVE {
                    self.announce(message);
                } else if !queues.expects(&message.header) {
                    queues.early.push(Arc::downgrade(message));
                    self.early.notify_one();
                }
            }
            refused => state.place = refused,
        }
    }

    /// The store holds as much for an account as it may: no new streams.
    pub fn full(&self, peer: &str, account: &str) -> bool {
        let queues = self.lock();
        let peer_queues = queues.by_peer.get(peer);
        peer_queues.is_some_and(|peer_queues| {
            let charged = peer_queues.accounts.get(account).map_or(0, |account| account.charged);
            charged >= peer_queues.store_bytes()
        })
    }

    /// Memory taken by all that waits from a peer.
    pub fn held(&self, peer: &str) -> u64 {
        let queues = self.lock();
        queues.by_peer.get(peer).map_or(0, |peer_queues| {
            peer_queues.accounts.values().map(|one| one.charged).sum()
        })
    }

    /// An operation of a group runs here, and asks for its messages in time: those of a sender (by its tag) that call it
    /// what is given here are not announced.
    pub fn expect(&self, group: &str, step: u64, calls: Vec<(u64, String)>) {
        let mut queues = self.lock();
        queues.begins(group, step);
        queues.expected.insert((group.to_owned(), step), calls);
    }

    /// It has ended.
    pub fn expect_no_more(&self, group: &str, step: u64) {
        self.lock().expected.remove(&(group.to_owned(), step));
    }

    /// Whether a panic left something in the middle.
    pub fn half_done(&self) -> bool {
        self.queues.is_poisoned()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        locked(&self.queues)
    }

    pub(super) fn fail(&self, operation: u64, failure: Failure) -> bool {
        self.events.push(Event::Failed { operation, failure })
    }

    fn announce(&self, message: &IncomingMessage) {
        self.events.push(Event::Announced {
            peer: message.peer.clone(),
            header: message.header.clone(),
        });
    }

    fn tell_received(&self, operation: u64, message: &IncomingMessage, destination: Destination) {
        let payload = match destination {
            Destination::Lent(posted) => {
                drop(posted); // let go of before the event is told
                Arrived::Posted
            }
            Destination::Own(memory) => Arrived::Own(memory),
        };
        self.events.push(Event::Received {
            operation,
            peer: message.peer.clone(),
            header: message.header.clone(),
            payload,
            connection: message.connection,
        });
    }

    /// Give a post the message that waits for it, or let it wait. Whether it is still open afterwards.
    pub(super) fn offer(&self, peer_queues: &mut PeerQueues, post: Post) -> bool {
        let Some(waiting) = peer_queues.arrivals.get(&post.key) else {
            peer_queues.posts.entry(post.key.clone()).or_default().push_back(post);
            return true;
        };
        let message = waiting.first().expect("empty queues are removed").clone();
        peer_queues.remove(&message);
        self.attach(peer_queues, &message, post)
    }

    /// Join a message and a post. Whether the post is still open afterwards.
    fn attach(&self, peer_queues: &mut PeerQueues, message: &Arc<IncomingMessage>, post: Post) -> bool {
        let Post { operation, buffer, .. } = post;
        let length = message.header.length;
        let mut state = message.lock();
        // Memory of the engine is for what is small; whoever knows what comes has room for it.
        let room = buffer
            .as_ref()
            .map_or(peer_queues.store_bytes_max, |posted| posted.len() as u64);
        let refused = (length > room).then(|| Failure::Peer {
            peer: message.peer.to_string(),
            reason: format!("sent {length} bytes where {room} were expected"),
            code: Code::BufferTooSmall as u64,
        });
        if let Some(failure) = refused {
            state.place = Place::Refused(Code::BufferTooSmall);
            drop(state);
            message.changed.notify_one();
            drop(buffer);
            if !message.header.call.is_empty() {
                self.announce(message); // what it was meant for says more than its length
            }
            self.fail(operation, failure);
            return false;
        }
        let held = match std::mem::replace(&mut state.place, Place::Delivered) {
            Place::Stored(memory) | Place::Stalled(memory) => memory,
            _ => Vec::new(),
        };
        let destination = match buffer {
            Some(mut posted) => {
                posted.write(0, &held);
                Some(Destination::Lent(posted))
            }
            None if held.capacity() as u64 >= length => Some(Destination::Own(held)),
            None => Destination::own(length).map(|mut destination| {
                destination.write(0, &held);
                destination
            }),
        };
        let Some(destination) = destination else {
            state.place = Place::Refused(Code::BufferTooSmall);
            drop(state);
            message.changed.notify_one();
            let failure = Failure::Peer {
                peer: message.peer.to_string(),
                reason: format!("sent {length} bytes, more than there is memory for"),
                code: 0,
            };
            self.fail(operation, failure);
            return false;
        };
        if state.complete {
            drop(state);
            self.tell_received(operation, message, destination);
            return false;
        }
        state.place = Place::Posted { operation, destination };
        drop(state);
        peer_queues.attached.insert(operation, message.clone());
        message.changed.notify_one();
        true
    }
}

#[cfg(test)]
#[path = "matcher_tests.rs"]
mod tests;

//! Who gets which message: posts and arrivals of every peer, matched by key, and the store for what nobody asked for yet.
//!
//! The rules are those of `transport/engine/mailbox.py`; what differs is how a peer is held back: a message that the
//! store has no room for is left unread in the stack, where its stream's window bounds it.
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
//! Locks are taken in this order: the mail, a slot, whatever the stack has. A reader of a stream holds its slot alone
//! while it copies, so that a buffer is never written once its post has been withdrawn.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::incoming_message::{Channel, Place, Slot, SlotState};
use super::queues::{Boxes, Mailbox, Post};
use crate::borrowed_buffers::Destination;
use crate::events::{Arrived, Event, EventQueue, Failure};
use crate::runtime::fault_injection::Faults;
use crate::runtime::locks::locked;
use crate::wire::{Code, Header};

/// The mail of an engine.
pub struct Mail {
    pub(super) events: Arc<EventQueue>,
    pub(super) faults: Arc<Faults>,
    pub(super) boxes: Mutex<Boxes>,
}

impl Mail {
    pub fn new(store_bytes_max: u64, events: Arc<EventQueue>, faults: Arc<Faults>) -> Self {
        Self {
            events,
            faults,
            boxes: Mutex::new(Boxes::new(store_bytes_max)),
        }
    }

    /// A message's header is known: find it a place.
    pub fn arrived(&self, peer: &Arc<str>, header: Header, channel: Arc<dyn Channel>) -> Arc<Slot> {
        let mut boxes = self.lock();
        let slot = Arc::new(Slot {
            number: boxes.number(),
            account: channel.account(),
            peer: peer.clone(),
            channel,
            state: Mutex::new(SlotState {
                place: Place::Delivered,
                filled: 0,
                charged: 0,
                widened: 0,
                complete: false,
            }),
            changed: Notify::new(),
            header,
        });
        self.faults.here("mail");
        let key = &slot.header.key;
        if slot.channel.ended() {
            slot.lock().place = Place::Refused(Code::Cancelled);
            return slot;
        }
        if !key.group.is_empty() && key.step < boxes.floor(&key.group) {
            slot.lock().place = Place::Refused(Code::Discarded);
            return slot;
        }
        let mailbox = boxes.mailbox(peer);
        let Some(posts) = mailbox.posts.get_mut(key) else {
            mailbox.store(&slot);
            return slot;
        };
        let post = posts.pop_front().expect("empty queues are removed");
        if posts.is_empty() {
            mailbox.posts.remove(key);
        }
        let operation = post.operation;
        if !self.attach(mailbox, &slot, post) {
            boxes.open.remove(&operation);
        }
        slot
    }

    /// Wait for a message, or take one that waits. False where the engine has ended for good: nobody will be told how it
    /// ends.
    pub fn post(&self, peer: &str, post: Post) -> bool {
        let mut boxes = self.lock();
        if let Some(failure) = boxes.over.clone() {
            drop(boxes);
            let operation = post.operation;
            drop(post); // let go of the buffer first
            return self.fail(operation, failure);
        }
        let mailbox = boxes.mailbox(peer);
        let entry = (mailbox.peer.clone(), post.key.clone());
        let operation = post.operation;
        if self.offer(mailbox, post) {
            boxes.open.insert(operation, entry);
        } else {
            boxes.open.remove(&operation);
        }
        true
    }

    /// Every byte of a message and its end are there.
    pub fn completed(&self, slot: &Arc<Slot>) {
        let mut boxes = self.lock();
        let mut state = slot.lock();
        slot.narrow(&mut state);
        match std::mem::replace(&mut state.place, Place::Delivered) {
            Place::Posted { operation, destination } => {
                drop(state);
                boxes.mailbox(&slot.peer).attached.remove(&operation);
                boxes.open.remove(&operation);
                self.tell_received(operation, slot, destination);
            }
            Place::Stored(memory) | Place::Stalled(memory) => {
                state.place = Place::Stored(memory);
                state.complete = true;
                drop(state);
                let mailbox = boxes.mailbox(&slot.peer);
                if let Some(account) = mailbox.accounts.get_mut(&slot.account) {
                    account.stalled.remove(&slot.turn());
                }
                if let Some(waiting) = mailbox.arrivals.get_mut(&slot.header.key)
                    && waiting.incomplete.remove(&slot.number).is_some()
                {
                    waiting.complete.push_back(slot.clone());
                }
                self.events.push(Event::Announced {
                    peer: slot.peer.clone(),
                    header: slot.header.clone(),
                });
            }
            refused => state.place = refused,
        }
    }

    /// The store holds as much for an account as it may: no new streams.
    pub fn full(&self, peer: &str, account: &str) -> bool {
        let boxes = self.lock();
        let mailbox = boxes.by_peer.get(peer);
        mailbox.is_some_and(|mailbox| {
            let charged = mailbox.accounts.get(account).map_or(0, |account| account.charged);
            charged >= mailbox.store_bytes()
        })
    }

    /// Memory taken by all that waits from a peer.
    pub fn held(&self, peer: &str) -> u64 {
        let boxes = self.lock();
        boxes
            .by_peer
            .get(peer)
            .map_or(0, |mailbox| mailbox.accounts.values().map(|one| one.charged).sum())
    }

    /// Whether a panic left something in the middle.
    pub fn half_done(&self) -> bool {
        self.boxes.is_poisoned()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Boxes> {
        locked(&self.boxes)
    }

    pub(super) fn fail(&self, operation: u64, failure: Failure) -> bool {
        self.events.push(Event::Failed { operation, failure })
    }

    fn tell_received(&self, operation: u64, slot: &Slot, destination: Destination) {
        let payload = match destination {
            Destination::Lent(posted) => {
                drop(posted); // let go of before the event is told
                Arrived::Posted
            }
            Destination::Own(memory) => Arrived::Own(memory),
        };
        self.events.push(Event::Received {
            operation,
            peer: slot.peer.clone(),
            header: slot.header.clone(),
            payload,
            link: slot.channel.id(),
        });
    }

    /// Give a post the message that waits for it, or let it wait. Whether it is still open afterwards.
    pub(super) fn offer(&self, mailbox: &mut Mailbox, post: Post) -> bool {
        let Some(waiting) = mailbox.arrivals.get(&post.key) else {
            mailbox.posts.entry(post.key.clone()).or_default().push_back(post);
            return true;
        };
        let slot = waiting.first().expect("empty queues are removed").clone();
        mailbox.remove(&slot);
        self.attach(mailbox, &slot, post)
    }

    /// Join a message and a post. Whether the post is still open afterwards.
    fn attach(&self, mailbox: &mut Mailbox, slot: &Arc<Slot>, post: Post) -> bool {
        let Post { operation, buffer, .. } = post;
        let length = slot.header.length;
        let mut state = slot.lock();
        let refused = match &buffer {
            Some(posted) if length > posted.len() as u64 => Some(Failure::Peer {
                peer: slot.peer.to_string(),
                reason: format!("sent {length} bytes where {} were expected", posted.len()),
                code: Code::BufferTooSmall as u64,
            }),
            _ => None,
        };
        if let Some(failure) = refused {
            state.place = Place::Refused(Code::BufferTooSmall);
            drop(state);
            slot.changed.notify_one();
            drop(buffer);
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
            slot.changed.notify_one();
            let failure = Failure::Peer {
                peer: slot.peer.to_string(),
                reason: format!("sent {length} bytes, more than there is memory for"),
                code: 0,
            };
            self.fail(operation, failure);
            return false;
        };
        if state.complete {
            drop(state);
            self.tell_received(operation, slot, destination);
            return false;
        }
        state.place = Place::Posted { operation, destination };
        let charged = mailbox.accounts.get(&slot.account).map_or(0, |account| account.charged);
        if charged > mailbox.store_bytes() / 2 {
            // Others fill the connection's window: this one's bytes have their place, and are not of them.
            state.widened = length.min(slot.channel.stream_window()) as i64;
            slot.channel.widen(state.widened);
        }
        drop(state);
        mailbox.attached.insert(operation, slot.clone());
        slot.changed.notify_one();
        true
    }
}

#[cfg(test)]
#[path = "matcher_tests.rs"]
mod tests;

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

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::buffers::{Destination, Posted};
use crate::events::{Arrived, Event, EventQueue, Failure};
use crate::wire::{Code, Header, Key};

/// Charged for every waiting message, so that a million empty ones cannot fill the memory.
const OVERHEAD_BYTES: u64 = 2048;
/// Groups whose abandoned steps are remembered; the oldest rule is forgotten.
const DISCARD_RULES_MAX: usize = 1024;
/// Of one name; n of them have this part of n of a store, so that 256 hold 20 times what one may, not 256 times.
const STORES_WHOLE: u64 = 4;
const KIND_CONTROL: u8 = 0;

/// The connection that a message comes over, as far as the mail needs it.
pub trait Channel: Send + Sync {
    fn id(&self) -> u64;
    /// Whom the store charges: ranks that share a name have a store each.
    fn account(&self) -> String;
    /// Credit that every stream has.
    fn stream_window(&self) -> u64;
    /// The connection's window grows by so much (or shrinks): messages in it that have their place elsewhere.
    fn widen(&self, bytes: i64);
    /// The store is full: no new streams for now.
    fn close_doors(&self);
    /// Whether it has ended: what its readers still bring would wait for ever.
    fn ended(&self) -> bool;
}

/// A message on its way in.
pub struct Slot {
    /// Later messages have higher numbers.
    number: u64,
    pub header: Header,
    pub peer: Arc<str>,
    channel: Arc<dyn Channel>,
    account: String,
    state: Mutex<SlotState>,
    /// The place has changed.
    pub changed: Notify,
}

struct SlotState {
    place: Place,
    filled: u64,
    charged: u64,
    widened: i64,
    complete: bool,
}

enum Place {
    /// Not read further than its first bytes, which are here.
    Stalled(Vec<u8>),
    Stored(Vec<u8>),
    Posted {
        operation: u64,
        destination: Destination,
    },
    Refused(Code),
    Delivered,
}

/// What the reader of a stream does next.
#[derive(Debug, PartialEq)]
pub enum Next {
    Read,
    Wait,
    Stop(Code),
}

impl Slot {
    pub fn next(&self) -> Next {
        match self.lock().place {
            Place::Stalled(_) => Next::Wait,
            Place::Stored(_) | Place::Posted { .. } => Next::Read,
            Place::Refused(code) => Next::Stop(code),
            Place::Delivered => Next::Stop(Code::Cancelled),
        }
    }

    /// Take bytes that follow those before; false where there are more than the header said.
    pub fn write(&self, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        if state.filled + bytes.len() as u64 > self.header.length {
            return false;
        }
        let at = state.filled as usize;
        match &mut state.place {
            Place::Stalled(memory) | Place::Stored(memory) => memory.extend_from_slice(bytes),
            Place::Posted { destination, .. } => destination.write(at, bytes),
            Place::Refused(_) | Place::Delivered => return true,
        }
        state.filled += bytes.len() as u64;
        true
    }

    pub fn whole(&self) -> bool {
        self.lock().filled == self.header.length
    }

    /// Memory of the engine that it takes while nobody has posted for it.
    #[cfg(feature = "fuzzing")]
    pub fn kept(&self) -> u64 {
        match &self.lock().place {
            Place::Stalled(memory) | Place::Stored(memory) => memory.capacity() as u64,
            _ => 0,
        }
    }

    #[cfg(feature = "fuzzing")]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// What its place in the store costs.
    fn whole_charge(&self) -> u64 {
        self.header.length.saturating_add(OVERHEAD_BYTES)
    }

    /// What it costs unread in its stream.
    fn stalled_charge(&self) -> u64 {
        self.header.length.min(self.channel.stream_window()) + OVERHEAD_BYTES
    }

    /// Its turn among those that wait for room.
    fn turn(&self) -> (u64, u64) {
        (self.whole_charge() - self.stalled_charge(), self.number)
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection's window no longer counts this message's bytes as elsewhere.
    fn narrow(&self, state: &mut SlotState) {
        if state.widened != 0 {
            self.channel.widen(-state.widened);
            state.widened = 0;
        }
    }
}

/// A buffer that waits for a message; None is memory of the engine.
pub struct Post {
    pub operation: u64,
    pub key: Key,
    pub buffer: Option<Posted>,
}

struct Mailbox {
    peer: Arc<str>,
    posts: HashMap<Key, VecDeque<Post>>,
    arrivals: HashMap<Key, Waiting>,
    attached: HashMap<u64, Arc<Slot>>,
    accounts: HashMap<String, Account>,
}

/// The messages with one key that nobody has posted for. There is always one.
#[derive(Default)]
struct Waiting {
    /// By their numbers, which is the order in which they came.
    incomplete: BTreeMap<u64, Arc<Slot>>,
    complete: VecDeque<Arc<Slot>>,
}

impl Waiting {
    fn first(&self) -> Option<&Arc<Slot>> {
        self.complete.front().or_else(|| self.incomplete.values().next())
    }

    fn is_empty(&self) -> bool {
        self.incomplete.is_empty() && self.complete.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.complete.iter().chain(self.incomplete.values())
    }

    fn remove(&mut self, slot: &Arc<Slot>) {
        if self.incomplete.remove(&slot.number).is_some() {
            return;
        }
        // Posts take the first, for which this is no search; the rest go by whole keys (`discard`), first to last.
        if let Some(at) = self.complete.iter().position(|other| Arc::ptr_eq(other, slot)) {
            self.complete.remove(at);
        }
    }
}

/// What a rank of a peer has in the store.
#[derive(Default)]
struct Account {
    charged: u64,
    /// Messages that wait for room, by how much more than their charge each needs, then by their numbers.
    stalled: BTreeMap<(u64, u64), Arc<Slot>>,
}

/// The mail of an engine.
pub struct Mail {
    store_bytes_max: u64,
    events: Arc<EventQueue>,
    boxes: Mutex<Boxes>,
}

#[derive(Default)]
struct Boxes {
    by_peer: HashMap<Arc<str>, Mailbox>,
    /// The peer and key of every post that has not ended.
    open: HashMap<u64, (Arc<str>, Key)>,
    /// Steps before which a group's messages are dropped, each with the age of its rule.
    floors: HashMap<String, (u64, u64)>,
    /// Of messages and rules, so that it is known which was first.
    numbers: u64,
}

impl Boxes {
    fn mailbox(&mut self, peer: &str) -> &mut Mailbox {
        if !self.by_peer.contains_key(peer) {
            let peer: Arc<str> = peer.into();
            let fresh = Mailbox {
                peer: peer.clone(),
                posts: HashMap::new(),
                arrivals: HashMap::new(),
                attached: HashMap::new(),
                accounts: HashMap::new(),
            };
            self.by_peer.insert(peer, fresh);
        }
        self.by_peer.get_mut(peer).expect("it was put there just now")
    }

    fn floor(&self, group: &str) -> u64 {
        self.floors.get(group).map_or(0, |(step, _)| *step)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl Mail {
    pub fn new(store_bytes_max: u64, events: Arc<EventQueue>) -> Self {
        Self {
            store_bytes_max,
            events,
            boxes: Mutex::default(),
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
        self.events.fault("mail");
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
            self.store(mailbox, &slot);
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

    /// Wait for a message, or take one that waits.
    pub fn post(&self, peer: &str, post: Post) {
        let mut boxes = self.lock();
        let mailbox = boxes.mailbox(peer);
        let entry = (mailbox.peer.clone(), post.key.clone());
        let operation = post.operation;
        if self.offer(mailbox, post) {
            boxes.open.insert(operation, entry);
        } else {
            boxes.open.remove(&operation);
        }
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

    /// The peer gave a message up in the middle.
    pub fn reset(&self, slot: &Arc<Slot>, reason: &str) {
        let mut boxes = self.lock();
        let mut state = slot.lock();
        slot.narrow(&mut state);
        let place = std::mem::replace(&mut state.place, Place::Refused(Code::Cancelled));
        drop(state);
        let Some(mailbox) = boxes.by_peer.get_mut(&slot.peer) else {
            return; // its connection had ended
        };
        if let Place::Posted { operation, destination } = place {
            mailbox.attached.remove(&operation);
            boxes.open.remove(&operation);
            drop(destination);
            let text = format!("{} gave the message up: {reason}", slot.peer);
            self.fail(operation, Failure::Cancelled(text));
        } else {
            self.remove(mailbox, slot);
        }
    }

    /// A connection ended: its half messages are gone, and the posts they had taken are first in line again.
    ///
    /// `last`: no other connection to the peer is left, and every post for it fails with what is given.
    pub fn disconnected(&self, peer: &str, channel: u64, last: Option<Failure>) {
        let mut boxes = self.lock();
        let boxes = &mut *boxes;
        let Some(mailbox) = boxes.by_peer.get_mut(peer) else {
            return;
        };
        let mut freed: Vec<Post> = Vec::new();
        mailbox.attached.retain(|operation, slot| {
            if slot.channel.id() != channel {
                return true;
            }
            let mut state = slot.lock();
            slot.narrow(&mut state);
            let place = std::mem::replace(&mut state.place, Place::Refused(Code::Cancelled));
            drop(state);
            if let Place::Posted { destination, .. } = place {
                freed.push(Post {
                    operation: *operation,
                    key: slot.header.key.clone(),
                    buffer: match destination {
                        Destination::Lent(posted) => Some(posted),
                        Destination::Own(_) => None,
                    },
                });
            }
            slot.changed.notify_one();
            false
        });
        let gone: Vec<Arc<Slot>> = mailbox
            .arrivals
            .values()
            .flat_map(|waiting| waiting.incomplete.values())
            .filter(|slot| slot.channel.id() == channel)
            .cloned()
            .collect();
        for slot in gone {
            slot.lock().place = Place::Refused(Code::Cancelled);
            slot.changed.notify_one();
            self.remove(mailbox, &slot);
        }
        freed.sort_by_key(|post| post.operation);
        let mut ended = Vec::new();
        for post in freed.into_iter().rev() {
            let operation = post.operation;
            if mailbox.arrivals.contains_key(&post.key) {
                // sent again already, over another connection
                if !self.offer(mailbox, post) {
                    ended.push(operation);
                }
            } else {
                mailbox.posts.entry(post.key.clone()).or_default().push_front(post);
            }
        }
        if let Some(failure) = last {
            let mut posts: Vec<Post> = mailbox.posts.drain().flat_map(|(_, posts)| posts).collect();
            posts.sort_by_key(|post| post.operation);
            for post in posts {
                ended.push(post.operation);
                drop(post.buffer);
                self.fail(post.operation, failure.clone());
            }
            if mailbox.arrivals.is_empty() && mailbox.attached.is_empty() {
                boxes.by_peer.remove(peer);
            }
        }
        for operation in ended {
            boxes.open.remove(&operation);
        }
    }

    /// Withdraw a post; a message that it had taken is refused. Whether there was one.
    pub fn cancel(&self, operation: u64) -> bool {
        let mut boxes = self.lock();
        let Some((peer, _)) = boxes.open.get(&operation) else {
            return false;
        };
        let text = format!("the receive from {peer} was cancelled here");
        self.withdraw(&mut boxes, operation, Failure::Cancelled(text))
    }

    /// End every post: the engine ends.
    pub fn fail_all(&self, failure: &Failure) {
        let mut boxes = self.lock();
        let mut open: Vec<u64> = boxes.open.keys().copied().collect();
        open.sort_unstable();
        for operation in open {
            self.withdraw(&mut boxes, operation, failure.clone());
        }
    }

    /// Drop waiting messages of a group's earlier steps, and those that come later.
    pub fn discard(&self, group: &str, before_step: u64) {
        let mut boxes = self.lock();
        let before_step = before_step.max(boxes.floor(group));
        let age = boxes.number();
        boxes.floors.insert(group.to_owned(), (before_step, age));
        if boxes.floors.len() > DISCARD_RULES_MAX {
            let oldest = boxes.floors.iter().min_by_key(|(_, (_, age))| *age);
            if let Some(oldest) = oldest.map(|(group, _)| group.clone()) {
                boxes.floors.remove(&oldest);
            }
        }
        for mailbox in boxes.by_peer.values_mut() {
            let old: Vec<Arc<Slot>> = mailbox
                .arrivals
                .iter()
                .filter(|(key, _)| key.group == group && key.step < before_step)
                .flat_map(|(_, waiting)| waiting.all().cloned())
                .collect();
            for slot in old {
                slot.lock().place = Place::Refused(Code::Discarded);
                slot.changed.notify_one();
                self.remove(mailbox, &slot);
            }
        }
    }

    /// The store holds as much for an account as it may: no new streams.
    pub fn full(&self, peer: &str, account: &str) -> bool {
        let boxes = self.lock();
        let mailbox = boxes.by_peer.get(peer);
        mailbox.is_some_and(|mailbox| {
            let charged = mailbox.accounts.get(account).map_or(0, |account| account.charged);
            charged >= self.store_of(mailbox)
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

    /// How much one account of a peer may have in the store.
    fn store_of(&self, mailbox: &Mailbox) -> u64 {
        let accounts = mailbox.accounts.len() as u64;
        if accounts <= STORES_WHOLE {
            self.store_bytes_max
        } else {
            self.store_bytes_max / accounts * STORES_WHOLE
        }
    }

    /// Whether a panic left something in the middle.
    pub fn half_done(&self) -> bool {
        self.boxes.is_poisoned()
    }

    fn lock(&self) -> MutexGuard<'_, Boxes> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, operation: u64, failure: Failure) {
        self.events.push(Event::Failed { operation, failure });
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

    fn withdraw(&self, boxes: &mut Boxes, operation: u64, failure: Failure) -> bool {
        let Some((peer, key)) = boxes.open.remove(&operation) else {
            return false;
        };
        let mailbox = boxes.mailbox(&peer);
        if let Some(slot) = mailbox.attached.remove(&operation) {
            let mut state = slot.lock();
            slot.narrow(&mut state);
            drop(std::mem::replace(&mut state.place, Place::Refused(Code::Cancelled)));
            drop(state);
            slot.changed.notify_one();
        } else if let Some(posts) = mailbox.posts.get_mut(&key) {
            posts.retain(|post| post.operation != operation);
            if posts.is_empty() {
                mailbox.posts.remove(&key);
            }
        }
        self.fail(operation, failure);
        true
    }

    /// Give a post the message that waits for it, or let it wait. Whether it is still open afterwards.
    fn offer(&self, mailbox: &mut Mailbox, post: Post) -> bool {
        let Some(waiting) = mailbox.arrivals.get(&post.key) else {
            mailbox.posts.entry(post.key.clone()).or_default().push_back(post);
            return true;
        };
        let slot = waiting.first().expect("empty queues are removed").clone();
        self.remove(mailbox, &slot);
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
        if charged > self.store_of(mailbox) / 2 {
            // Others fill the connection's window: this one's bytes have their place, and are not of them.
            state.widened = length.min(slot.channel.stream_window()) as i64;
            slot.channel.widen(state.widened);
        }
        drop(state);
        mailbox.attached.insert(operation, slot.clone());
        slot.changed.notify_one();
        true
    }

    /// Keep a message that nobody has posted for.
    fn store(&self, mailbox: &mut Mailbox, slot: &Arc<Slot>) {
        let charged = mailbox.accounts.entry(slot.account.clone()).or_default().charged;
        let store = self.store_of(mailbox);
        let length = slot.header.length;
        let window = slot.channel.stream_window();
        let room = if slot.header.key.kind == KIND_CONTROL && length <= window {
            store + store / 8
        } else if length <= window {
            store
        } else {
            store / 2
        };
        let account = mailbox.accounts.entry(slot.account.clone()).or_default();
        let mut state = slot.lock();
        let mut memory = Vec::new();
        if charged.saturating_add(slot.whole_charge()) <= room && memory.try_reserve_exact(length as usize).is_ok() {
            state.charged = slot.whole_charge();
            state.place = Place::Stored(memory);
        } else {
            state.charged = slot.stalled_charge();
            state.place = Place::Stalled(Vec::new());
            if charged + state.charged <= store {
                // What may lie unread in its stream is charged to the store, not to the connection's window.
                state.widened = length.min(window) as i64;
                slot.channel.widen(state.widened);
            }
            account.stalled.insert(slot.turn(), slot.clone());
        }
        let total = charged + state.charged;
        account.charged = total;
        drop(state);
        let waiting = mailbox.arrivals.entry(slot.header.key.clone()).or_default();
        waiting.incomplete.insert(slot.number, slot.clone());
        if total >= store {
            slot.channel.close_doors();
        }
    }

    /// Take a message out of the store; what has become free goes to those of its account that wait for room, in turn.
    fn remove(&self, mailbox: &mut Mailbox, slot: &Arc<Slot>) {
        if let Some(waiting) = mailbox.arrivals.get_mut(&slot.header.key) {
            waiting.remove(slot);
            if waiting.is_empty() {
                mailbox.arrivals.remove(&slot.header.key);
            }
        }
        let freed = {
            let mut state = slot.lock();
            slot.narrow(&mut state);
            std::mem::take(&mut state.charged)
        };
        let Some(account) = mailbox.accounts.get_mut(&slot.account) else {
            return;
        };
        account.stalled.remove(&slot.turn());
        account.charged -= freed.min(account.charged);
        if account.charged == 0 {
            mailbox.accounts.remove(&slot.account); // with it nothing waits: every message is charged
            return;
        }
        let room = self.store_of(mailbox) / 2;
        let Some(account) = mailbox.accounts.get_mut(&slot.account) else {
            return;
        };
        while let Some(first) = account.stalled.first_entry()
            && unstall(first.get(), &mut account.charged, room)
        {
            first.remove();
        }
    }
}

/// Give a message a place in the store, where `charged` leaves enough of `room`.
fn unstall(slot: &Slot, charged: &mut u64, room: u64) -> bool {
    let mut state = slot.lock();
    let charge = slot.whole_charge();
    let more = charge.saturating_sub(state.charged);
    if charged.saturating_add(more) > room {
        return false;
    }
    let place = std::mem::replace(&mut state.place, Place::Delivered);
    let Place::Stalled(mut memory) = place else {
        state.place = place;
        return true;
    };
    if memory.try_reserve_exact(slot.header.length as usize).is_err() {
        state.place = Place::Stalled(memory);
        return false;
    }
    state.place = Place::Stored(memory);
    state.charged = charge;
    *charged += more;
    slot.narrow(&mut state);
    drop(state);
    slot.changed.notify_one();
    true
}

#[cfg(test)]
#[path = "mail_tests.rs"]
mod tests;

//! The store: whether a message has room in it, and who gets what becomes free.

use std::sync::Arc;

use super::incoming_message::{Channel, IncomingMessage, Place};
use super::queues::PeerQueues;
use crate::wire::KIND_CONTROL;

/// Of one name; n of them have this part of n of a store, so that 256 hold 20 times what one may, not 256 times.
const STORES_WHOLE: u64 = 4;

impl PeerQueues {
    /// How much one account may have in the store.
    pub(super) fn store_bytes(&self) -> u64 {
        let accounts = self.accounts.len() as u64;
        if accounts <= STORES_WHOLE {
            self.store_bytes_max
        } else {
            self.store_bytes_max / accounts * STORES_WHOLE
        }
    }

    /// Keep a message that nobody has posted for.
    ///
    /// `begun`: its operation has begun here.
    pub(super) fn store(&mut self, message: &Arc<IncomingMessage>, begun: bool, channel: &dyn Channel) {
        let charged = self.accounts.entry(message.account.clone()).or_default().charged;
        let store = self.store_bytes();
        let length = message.header.length;
        let window = message.stream_window;
        let room = if message.header.key.kind == KIND_CONTROL && length <= window {
            store + store / 8
        } else if length <= window {
            store
        } else {
            store / 2
        };
        let account = self.accounts.entry(message.account.clone()).or_default();
        let mut state = message.lock();
        let mut memory = Vec::new();
        if charged.saturating_add(message.whole_charge()) <= room && memory.try_reserve_exact(length as usize).is_ok() {
            state.charged = message.whole_charge();
            state.place = Place::Stored(memory);
        } else {
            state.charged = message.stalled_charge();
            state.place = Place::Stalled(Vec::new());
            if charged + state.charged <= store {
                // What may lie unread in its stream is charged to the store, not to the connection's window.
                channel.raise_window(charged + state.charged);
            }
            account.stalled.insert(message.turn(), message.clone());
        }
        let total = charged + state.charged;
        account.charged = total;
        let crowded = total > store / 2 || matches!(state.place, Place::Stalled(_));
        drop(state);
        if crowded && !begun {
            self.held.hold(message, channel);
        }
        let waiting = self.arrivals.entry(message.header.key.clone()).or_default();
        waiting.incomplete.insert(message.number, message.clone());
        if total >= store {
            channel.full();
        }
    }

    /// Take a message out of the store; what has become free goes to those of its account that wait for room, in turn.
    pub(super) fn remove(&mut self, message: &Arc<IncomingMessage>) {
        if let Some(waiting) = self.arrivals.get_mut(&message.header.key) {
            waiting.remove(message);
            if waiting.is_empty() {
                self.arrivals.remove(&message.header.key);
            }
        }
        let freed = std::mem::take(&mut message.lock().charged);
        let Some(account) = self.accounts.get_mut(&message.account) else {
            return;
        };
        account.stalled.remove(&message.turn());
        account.charged -= freed.min(account.charged);
        if account.charged == 0 {
            self.accounts.remove(&message.account); // with it nothing waits: every message is charged
            return;
        }
        let room = self.store_bytes() / 2;
        let Some(account) = self.accounts.get_mut(&message.account) else {
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
fn unstall(message: &IncomingMessage, charged: &mut u64, room: u64) -> bool {
    let mut state = message.lock();
    let charge = message.whole_charge();
    let more = charge.saturating_sub(state.charged);
    if charged.saturating_add(more) > room {
        return false;
    }
    let place = std::mem::replace(&mut state.place, Place::Delivered);
    let Place::Stalled(mut memory) = place else {
        state.place = place;
        return true;
    };
    if memory.try_reserve_exact(message.header.length as usize).is_err() {
        state.place = Place::Stalled(memory);
        return false;
    }
    state.place = Place::Stored(memory);
    state.charged = charge;
    *charged += more;
    drop(state);
    message.changed.notify_one();
    true
}

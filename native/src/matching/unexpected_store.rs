//! The store: whether a message has room in it, and who gets what becomes free.

use std::sync::Arc;

use super::incoming_message::{Place, Slot};
use super::queues::Mailbox;

/// Of one name; n of them have this part of n of a store, so that 256 hold 20 times what one may, not 256 times.
const STORES_WHOLE: u64 = 4;
const KIND_CONTROL: u8 = 0;

impl Mailbox {
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
    pub(super) fn store(&mut self, slot: &Arc<Slot>) {
        let charged = self.accounts.entry(slot.account.clone()).or_default().charged;
        let store = self.store_bytes();
        let length = slot.header.length;
        let window = slot.channel.stream_window();
        let room = if slot.header.key.kind == KIND_CONTROL && length <= window {
            store + store / 8
        } else if length <= window {
            store
        } else {
            store / 2
        };
        let account = self.accounts.entry(slot.account.clone()).or_default();
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
        let waiting = self.arrivals.entry(slot.header.key.clone()).or_default();
        waiting.incomplete.insert(slot.number, slot.clone());
        if total >= store {
            slot.channel.close_doors();
        }
    }

    /// Take a message out of the store; what has become free goes to those of its account that wait for room, in turn.
    pub(super) fn remove(&mut self, slot: &Arc<Slot>) {
        if let Some(waiting) = self.arrivals.get_mut(&slot.header.key) {
            waiting.remove(slot);
            if waiting.is_empty() {
                self.arrivals.remove(&slot.header.key);
            }
        }
        let freed = {
            let mut state = slot.lock();
            slot.narrow(&mut state);
            std::mem::take(&mut state.charged)
        };
        let Some(account) = self.accounts.get_mut(&slot.account) else {
            return;
        };
        account.stalled.remove(&slot.turn());
        account.charged -= freed.min(account.charged);
        if account.charged == 0 {
            self.accounts.remove(&slot.account); // with it nothing waits: every message is charged
            return;
        }
        let room = self.store_bytes() / 2;
        let Some(account) = self.accounts.get_mut(&slot.account) else {
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

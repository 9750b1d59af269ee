//! Collectives that have not begun here, and take so much of the store that their sender was asked to hold them back.
//!
//! A chunk of a collective that this rank has not called yet is acknowledged all the same, for it fits what every stream
//! may send. So the sender learns nothing by itself, and sends on until the store and the connection's window are full:
//! then nothing else gets through. The receiver says so before that, when more than half of the store is taken, and lets
//! them go on when they begin here, or are over.
//!
//! The ranks of a group begin its operations in the same order: with one that has not begun, later ones wait too. One that
//! has begun is never held back: it may wait for the very message that would be.

use std::collections::HashMap;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use super::incoming_message::{Channel, IncomingMessage};
use crate::wire::{Hold, KIND_COLLECTIVE};

/// Of one connection, of those that have not ended and of frames that wait to be sent. Beyond that nobody is held back.
pub const HOLDS_MAX: usize = 1024;

/// Of one peer, by connection, group and step: room to take it back there.
#[derive(Default)]
pub(super) struct Held(HashMap<(u64, String, u64), OwnedPermit<Vec<u8>>>);

impl Held {
    /// Ask for one that has not begun, over the connection that has brought a message of it.
    pub(super) fn hold(&mut self, message: &IncomingMessage, channel: &dyn Channel) {
        let key = &message.header.key;
        let held = (message.connection, key.group.clone(), key.step);
        if key.kind != KIND_COLLECTIVE || self.0.contains_key(&held) {
            return;
        }
        let says: Sender<Vec<u8>> = channel.says();
        if let Ok(release) = says.clone().try_reserve_owned()
            && says.try_send(frame(&key.group, key.step, true)).is_ok()
        {
            self.0.insert(held, release);
        }
    }

    /// A group's operations to this one have begun here, or are over.
    pub(super) fn release(&mut self, group: &str, last: u64) {
        let due = self.0.extract_if(|(_, held, step), _| held == group && *step <= last);
        for ((_, _, step), release) in due {
            release.send(frame(group, step, false));
        }
    }

    /// A connection has ended, and with it what was said there.
    pub(super) fn forget(&mut self, connection: u64) {
        self.0.retain(|(over, _, _), _| *over != connection);
    }
}

fn frame(group: &str, step: u64, waits: bool) -> Vec<u8> {
    let group = group.to_owned();
    Hold { group, step, waits }.frame()
}

//! What ends early: messages that are given up, connections that are lost, posts that are withdrawn, steps that are over.

use std::sync::Arc;

use super::incoming_message::{Place, Slot};
use super::matcher::Mail;
use super::queues::{Boxes, Post};
use crate::borrowed_buffers::Destination;
use crate::events::Failure;
use crate::wire::Code;

/// Groups whose abandoned steps are remembered; the oldest rule is forgotten.
const DISCARD_RULES_MAX: usize = 1024;

impl Mail {
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
            mailbox.remove(slot);
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
            mailbox.remove(&slot);
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

    /// End every post, and those that come later: the engine ends.
    pub fn fail_all(&self, failure: &Failure) {
        let mut boxes = self.lock();
        boxes.over = Some(failure.clone());
        let mut open: Vec<u64> = boxes.open.keys().copied().collect();
        open.sort_unstable();
        for operation in open {
            self.withdraw(&mut boxes, operation, failure.clone());
        }
    }

    /// Let go of all that waits, and so of the connections that it came over, which hold the engine: it has ended, and
    /// nobody takes it any more.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut self.lock().by_peer);
        drop(gone); // behind the lock: connections may go with it
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
                mailbox.remove(&slot);
            }
        }
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
}

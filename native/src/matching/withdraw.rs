//! What ends early: messages that are given up, connections that are lost, posts that are withdrawn, steps that are over.

use std::sync::Arc;

use super::incoming_message::{IncomingMessage, Place};
use super::matcher::Matcher;
use super::queues::{Post, Queues};
use crate::borrowed_buffers::Destination;
use crate::events::Failure;
use crate::wire::Code;

/// Groups whose abandoned steps are remembered; the oldest rule is forgotten.
const DISCARD_RULES_MAX: usize = 1024;

impl Matcher {
    /// The peer gave a message up in the middle.
    pub fn reset(&self, message: &Arc<IncomingMessage>, reason: &str) {
        let mut queues = self.lock();
        let mut state = message.lock();
        let place = std::mem::replace(&mut state.place, Place::Refused(Code::Cancelled));
        drop(state);
        let Some(peer_queues) = queues.by_peer.get_mut(&message.peer) else {
            return; // its connection had ended
        };
        if let Place::Posted { operation, destination } = place {
            peer_queues.attached.remove(&operation);
            queues.open.remove(&operation);
            drop(destination);
            let text = format!("{} gave the message up: {reason}", message.peer);
            self.fail(operation, Failure::Cancelled(text));
        } else {
            peer_queues.remove(message);
        }
    }

    /// A connection ended: its half messages are gone, and the posts they had taken are first in line again.
    ///
    /// `last`: no other connection to the peer is left, and every post for it fails with what is given.
    pub fn disconnected(&self, peer: &str, connection: u64, last: Option<Failure>) {
        let mut queues = self.lock();
        let queues = &mut *queues;
        let Some(peer_queues) = queues.by_peer.get_mut(peer) else {
            return;
        };
        peer_queues.held.forget(connection);
        let mut freed: Vec<Post> = Vec::new();
        peer_queues.attached.retain(|operation, message| {
            if message.connection != connection {
                return true;
            }
            let mut state = message.lock();
            let place = std::mem::replace(&mut state.place, Place::Refused(Code::Cancelled));
            drop(state);
            if let Place::Posted { destination, .. } = place {
                freed.push(Post {
                    operation: *operation,
                    key: message.header.key.clone(),
                    buffer: match destination {
                        Destination::Lent(posted) => Some(posted),
                        Destination::Own(_) => None,
                    },
                });
            }
            message.changed.notify_one();
            false
        });
        let gone: Vec<Arc<IncomingMessage>> = peer_queues
            .arrivals
            .values()
            .flat_map(|waiting| waiting.incomplete.values())
            .filter(|message| message.connection == connection)
            .cloned()
            .collect();
        for message in gone {
            message.lock().place = Place::Refused(Code::Cancelled);
            message.changed.notify_one();
            peer_queues.remove(&message);
        }
        freed.sort_by_key(|post| post.operation);
        let mut ended = Vec::new();
        for post in freed.into_iter().rev() {
            let operation = post.operation;
            if peer_queues.arrivals.contains_key(&post.key) {
                // sent again already, over another connection
                if !self.offer(peer_queues, post) {
                    ended.push(operation);
                }
            } else {
                peer_queues.posts.entry(post.key.clone()).or_default().push_front(post);
            }
        }
        if let Some(failure) = last {
            let mut posts: Vec<Post> = peer_queues.posts.drain().flat_map(|(_, posts)| posts).collect();
            posts.sort_by_key(|post| post.operation);
            for post in posts {
                ended.push(post.operation);
                drop(post.buffer);
                self.fail(post.operation, failure.clone());
            }
            if peer_queues.arrivals.is_empty() && peer_queues.attached.is_empty() {
                queues.by_peer.remove(peer);
            }
        }
        for operation in ended {
            queues.open.remove(&operation);
        }
    }

    /// Withdraw a post; a message that it had taken is refused. Whether there was one.
    pub fn cancel(&self, operation: u64) -> bool {
        let mut queues = self.lock();
        let Some((peer, _)) = queues.open.get(&operation) else {
            return false;
        };
        let text = format!("the receive from {peer} was cancelled here");
        self.withdraw(&mut queues, operation, Failure::Cancelled(text))
    }

    /// End every post, and those that come later: the engine ends.
    pub fn fail_all(&self, failure: &Failure) {
        let mut queues = self.lock();
        queues.over = Some(failure.clone());
        let mut open: Vec<u64> = queues.open.keys().copied().collect();
        open.sort_unstable();
        for operation in open {
            self.withdraw(&mut queues, operation, failure.clone());
        }
    }

    /// Let go of all that waits: the engine has ended, and nobody takes it any more.
    pub fn clear(&self) {
        self.lock().by_peer.clear();
    }

    /// Drop waiting messages of a group's earlier steps, and those that come later. 0 forgets this, and takes them all.
    pub fn discard(&self, group: &str, before_step: u64) {
        let mut queues = self.lock();
        if before_step == 0 {
            queues.floors.remove(group);
            queues.begun.remove(group);
            queues
                .by_peer
                .values_mut()
                .for_each(|one| one.held.release(group, u64::MAX));
            return;
        }
        let before_step = before_step.max(queues.floor(group));
        let age = queues.number();
        queues.floors.insert(group.to_owned(), (before_step, age));
        if queues.floors.len() > DISCARD_RULES_MAX {
            let oldest = queues.floors.iter().min_by_key(|(_, (_, age))| *age);
            if let Some(oldest) = oldest.map(|(group, _)| group.clone()) {
                queues.floors.remove(&oldest);
            }
        }
        for peer_queues in queues.by_peer.values_mut() {
            peer_queues.held.release(group, before_step - 1);
            let old: Vec<Arc<IncomingMessage>> = peer_queues
                .arrivals
                .iter()
                .filter(|(key, _)| key.group == group && key.step < before_step)
                .flat_map(|(_, waiting)| waiting.all().cloned())
                .collect();
            for message in old {
                message.lock().place = Place::Refused(Code::Discarded);
                message.changed.notify_one();
                peer_queues.remove(&message);
            }
        }
    }

    fn withdraw(&self, queues: &mut Queues, operation: u64, failure: Failure) -> bool {
        let Some((peer, key)) = queues.open.remove(&operation) else {
            return false;
        };
        let peer_queues = queues.peer_queues(&peer);
        if let Some(message) = peer_queues.attached.remove(&operation) {
            let mut state = message.lock();
            drop(std::mem::replace(&mut state.place, Place::Refused(Code::Cancelled)));
            drop(state);
            message.changed.notify_one();
        } else if let Some(posts) = peer_queues.posts.get_mut(&key) {
            posts.retain(|post| post.operation != operation);
            if posts.is_empty() {
                peer_queues.posts.remove(&key);
            }
        }
        self.fail(operation, failure);
        true
    }
}

//! Small messages that count as sent when the connection has them: a copy is kept until the peer has acknowledged it.
//!
//! To wait for the acknowledgement costs a small collective as much time again as the message itself, and who only sends,
//! as the root of a broadcast, could not begin the next one for a round trip. A large one is sent from the caller's
//! memory, which is lent until then, and its last acknowledgement takes a small part of its time.
//! The copy is what is sent again when the connection is lost, perhaps after the collective has ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use bytes::Bytes;

use super::send_queue::Sending;
use crate::borrowed_buffers::Payload;
use crate::session::transmit::Message;

/// A copy takes 3 us and a wake-up 20.
pub const COPIED_BYTES_MAX: usize = 32 << 10;
/// With headers, to all ranks: as far as collectives that have ended may be ahead of the network. It takes a tenth of a
/// second at 10 Mbit/s, about as long as until the broker is told that a burst is over (`transport/broker/bursts.py`), and
/// less at 1 Mbit/s than a rank that leaves waits for acknowledgements (`transport/runtime.py`).
pub const KEPT_BYTES_MAX: usize = 128 << 10;

struct Kept {
    header: Bytes,
    payload: Option<Arc<Payload>>,
    level: usize,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.header.len() + self.payload.as_ref().map_or(0, |payload| payload.len())
    }
}

#[derive(Default)]
pub struct Unacknowledged {
    /// By collective and step.
    kept: HashMap<(u64, u32), Kept>,
    bytes: usize,
    drained: Vec<Sender<()>>,
}

impl Unacknowledged {
    pub fn has_room(&self) -> bool {
        self.bytes < KEPT_BYTES_MAX
    }

    pub fn keep(&mut self, sending: &Sending, message: &Message) {
        let kept = Kept {
            header: message.header.clone(),
            payload: message.payload.clone(),
            level: message.level,
        };
        self.bytes += kept.bytes();
        self.kept.insert((sending.collective, sending.step), kept);
    }

    pub fn has(&self, collective: u64, step: u32) -> bool {
        self.kept.contains_key(&(collective, step))
    }

    /// The message once more, as another operation.
    pub fn again(&self, sending: &Sending, operation: u64) -> Option<Message> {
        let kept = self.kept.get(&(sending.collective, sending.step))?;
        Some(Message {
            operation,
            header: kept.header.clone(),
            payload: kept.payload.clone(),
            level: kept.level,
        })
    }

    /// The peer has it, or never will. Whether it was kept.
    pub fn settled(&mut self, collective: u64, step: u32) -> bool {
        let kept = self.kept.remove(&(collective, step));
        self.bytes -= kept.as_ref().map_or(0, Kept::bytes);
        self.tell_drained();
        kept.is_some()
    }

    /// Tell `drained` when nothing is kept, which may be now.
    pub fn drain(&mut self, drained: Sender<()>) {
        self.drained.push(drained);
        self.tell_drained();
    }

    fn tell_drained(&mut self) {
        if self.kept.is_empty() {
            for drained in self.drained.drain(..) {
                let _ = drained.send(()); // nobody may wait any more
            }
        }
    }
}

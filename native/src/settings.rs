//! What an engine is told when it starts, and the windows that follow from it.

use std::time::Duration;

/// Connections of one name that have whole windows; n of them have this part of n of one.
const WINDOWS_WHOLE: u64 = 16;
/// Credit that every stream has: 2 MiB at 40 ms round trip are 400 Mbit/s for one message alone.
const STREAM_WINDOW_BYTES: u64 = 2 << 20;
/// So many unposted messages may begin before a posted one could be kept waiting by them.
const STREAMS_IN_WINDOW: u64 = 16;
/// Messages that may begin in shared memory before the reader has seen one of them: in a whole window each has 512 KiB
/// unasked, a collective's chunk.
pub const MESSAGES_AHEAD: u64 = 64;
const WINDOW_BYTES_MIN: u64 = 65536;

#[derive(Clone, Debug)]
pub struct Settings {
    pub unexpected_bytes_max: u64,
    pub message_bytes_max: u64,
    pub streams_max: u32,
    pub keep_alive: Duration,
    pub dead_after: Duration,
    pub handshake_timeout: Duration,
    pub datagram_bytes: u16,
    pub congestion: String,
    pub protocol: String,
    /// Whether memory is shared with peers of this host.
    pub shared_memory: bool,
}

impl Settings {
    /// How much a peer may have on this side that has no place: compute and bulk share the store.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes_of(1)
    }

    /// The window of a connection to a name that has so many.
    pub fn window_bytes_of(&self, connections: usize) -> u64 {
        let whole = self.unexpected_bytes_max / 2;
        WINDOW_BYTES_MIN
            .max(whole / WINDOWS_WHOLE.max(connections as u64) * WINDOWS_WHOLE)
            .min(u64::from(u32::MAX))
    }

    /// What of each message goes through shared memory unasked, to a name that has so many connections.
    pub fn eager_bytes_of(&self, connections: usize) -> u64 {
        self.window_bytes_of(connections) / MESSAGES_AHEAD
    }

    pub fn stream_window_bytes(&self) -> u32 {
        STREAM_WINDOW_BYTES.min(self.window_bytes() / STREAMS_IN_WINDOW) as u32
    }
}

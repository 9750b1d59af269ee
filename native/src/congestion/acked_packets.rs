//! What a controller gathers from the packets that acknowledgements name, until it is told that they have ended.

use std::time::Instant;

#[derive(Clone, Debug, Default)]
pub struct AckedPackets {
    /// The least: of the packets that an acknowledgement names, the last one sent is the one whose round trip it shows.
    pub rtt_s: Option<f64>,
    pub bytes: u64,
    /// Of those: while the application had no more.
    pub limited_bytes: u64,
}

impl AckedPackets {
    pub fn add(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool) {
        // The stack takes `now` before it reads a batch, so that a packet may seem to have been acknowledged at once.
        let rtt_s = now.saturating_duration_since(sent).as_secs_f64();
        if rtt_s > 0.0 {
            self.rtt_s = Some(self.rtt_s.map_or(rtt_s, |least_s| least_s.min(rtt_s)));
        }
        self.bytes += bytes;
        self.limited_bytes += if app_limited { bytes } else { 0 };
    }
}

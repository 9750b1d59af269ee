//! What is looked at while a connection lives: whether its peer does, whether streams may come, whether a rate lets it send.

use std::time::{Duration, Instant};

use super::peer_session::{PeerSession, Stage};
use super::tick::TICK;
use crate::wire::Code;

/// A peer that lives is heard once in the time after which an idle one says so, and a round trip.
const ROUND_TRIP: Duration = Duration::from_millis(250);

impl PeerSession {
    /// Ten times a second: notice a silent peer, and let new streams come where they were held back.
    pub fn tick(&self, now: Instant, held_up: Duration) {
        let Some(connection) = self.connection() else {
            return;
        };
        if !self.is(Stage::Up) {
            return;
        }
        self.measure.tick(now);
        let Some(stats) = connection.stats() else {
            return; // its end is being told
        };
        let frames = &stats.frame_rx;
        // Only packets that are the peer's are taken apart into frames: a forged one proves nothing.
        let heard = frames.acks
            + frames.stream
            + frames.ping
            + frames.max_data
            + frames.max_stream_data
            + frames.max_streams_uni
            + frames.reset_stream
            + frames.stop_sending
            + frames.crypto
            + frames.data_blocked
            + frames.stream_data_blocked
            + frames.streams_blocked_uni
            + frames.new_connection_id
            + frames.retire_connection_id
            + frames.path_challenge
            + frames.path_response
            + frames.immediate_ack
            + frames.ack_frequency;
        let (silent, patience, refused) = {
            let mut state = self.lock();
            if heard != state.frames_heard {
                state.frames_heard = heard;
                state.heard_at = now;
            } else {
                state.heard_at += held_up; // nobody could have been heard
            }
            // A peer hears of us after the same time again, however long the way is: who answers only what it hears is
            // silent for a round trip more, which a full buffer makes seconds.
            if stats.udp_tx.datagrams != state.datagrams_sent {
                (state.datagrams_sent, state.sent_at) = (stats.udp_tx.datagrams, now);
            } else if now.saturating_duration_since(state.sent_at) >= self.context.settings.keep_alive {
                state.sent_at = now;
                connection.ping();
            }
            // Both are known to a tick.
            let refused = connection.refused_at().is_some_and(|at| at + 2 * TICK > state.heard_at);
            (now.saturating_duration_since(state.heard_at), state.dead_after, refused)
        };
        if refused && silent > patience.min(self.context.settings.keep_alive + ROUND_TRIP) {
            let reason = format!("its process has ended: nobody listens at {} any more", self.remote());
            self.close(Code::Dead as u64, self.gone(reason));
        } else if silent > patience {
            let (silent_s, patience_s) = (silent.as_secs_f64(), patience.as_secs_f64());
            let reason = format!("nothing heard for {silent_s:.1} s (dead after {patience_s} s)");
            self.close(Code::Dead as u64, self.silent(reason));
        }
    }
}

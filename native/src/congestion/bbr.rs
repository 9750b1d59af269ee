//! quinn's BBR, told of what it can measure by.
//!
//! It takes the bytes of each acknowledged packet, divided by the time since the one before was, for a sample of what the
//! path delivers, and believes the largest sample. Packets that are acknowledged together have no time between them, and
//! the first of them gets all of it: what it finds depends on how acknowledgements are batched, by the peer, on the way,
//! and where they are read, and can be several times the rate or half of it. Here it is told of them, and of what was sent,
//! a least round trip at a time. Then a sample is what was delivered in that time.
//!
//! It means to forget samples after ten round trips, and never does, nor the least round trip (quinn-proto 0.11): where a
//! link falls, or its route becomes longer, its window stays what it was.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics};

#[derive(Default)]
pub struct SpannedBbrConfig(Arc<BbrConfig>);

impl ControllerFactory for SpannedBbrConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(SpannedBbr {
            inner: self.0.clone().build(now, current_mtu),
            span: Duration::ZERO,
            sent: Span::default(),
            acked: Span::default(),
            limited_bytes: 0,
            latest: None,
            largest: None,
        })
    }
}

/// Bytes of a while.
#[derive(Clone, Default)]
struct Span {
    began: Option<Instant>,
    bytes: u64,
}

impl Span {
    /// All bytes since the span began, once it is over; the next one begins then.
    fn close(&mut self, now: Instant, length: Duration) -> Option<u64> {
        let open = |began| now.saturating_duration_since(began) < length;
        if self.bytes == 0 || self.began.is_some_and(open) {
            return None;
        }
        self.began = Some(now);
        Some(std::mem::take(&mut self.bytes))
    }
}

struct SpannedBbr {
    inner: Box<dyn Controller>,
    span: Duration,
    sent: Span,
    acked: Span,
    /// Of those that were acknowledged: when these were, the application had nothing more to send.
    limited_bytes: u64,
    latest: Option<(Instant, RttEstimator)>,
    largest: Option<u64>,
}

impl Controller for SpannedBbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.sent.bytes += bytes;
        if let Some(bytes) = self.sent.close(now, self.span) {
            self.inner.on_sent(now, bytes, last_packet_number);
        }
    }

    fn on_ack(&mut self, _now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acked.bytes += bytes;
        self.limited_bytes += if app_limited { bytes } else { 0 };
        self.latest = Some((sent, *rtt));
        self.span = rtt.min();
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.largest = self.largest.max(largest);
        let Some((sent, rtt)) = self.latest else {
            return;
        };
        let Some(bytes) = self.acked.close(now, self.span) else {
            return;
        };
        let limited = 2 * std::mem::take(&mut self.limited_bytes) > bytes;
        self.inner.on_ack(now, sent, bytes, limited, &rtt);
        self.inner.on_end_acks(now, in_flight, app_limited, self.largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            span: self.span,
            sent: self.sent.clone(),
            acked: self.acked.clone(),
            limited_bytes: self.limited_bytes,
            latest: self.latest,
            largest: self.largest,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_batches_is_told_in_spans_of_the_same_rate() {
        let (began, length) = (Instant::now(), Duration::from_millis(10));
        let mut span = Span::default();
        let mut told = Vec::new();
        for milliseconds in 0..100 {
            for _ in 0..[0, 50, 1, 1][milliseconds % 4] {
                span.bytes += 1000;
            }
            let now = began + Duration::from_millis(milliseconds as u64);
            told.extend(span.close(now, length).map(|bytes| (milliseconds, bytes)));
        }
        let rates: Vec<f64> = told
            .windows(2)
            .map(|pair| pair[1].1 as f64 / (pair[1].0 - pair[0].0) as f64)
            .collect();
        // 13 packets a millisecond; a span has two or three of the batches.
        assert!(
            rates.len() > 6 && rates.iter().all(|rate| (9e3..17e3).contains(rate)),
            "{told:?}"
        );
    }
}

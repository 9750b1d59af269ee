//! What a connection measures of its path, taken where the congestion controller hears of every packet.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use super::acked_packets::AckedPackets;
use super::recent_least::{MIN_RTT_WINDOW, RecentLeast};
use crate::runtime::locks::locked;

const RATE_SPAN: Duration = Duration::from_millis(100);
const RATE_KEPT: f64 = 0.97;

/// A connection's own measurements. Times are of the last acknowledgement.
#[derive(Clone, Debug)]
pub struct PathSample {
    pub rtt_latest: Duration,
    pub rtt_min: Duration,
    pub window: u64,
    pub in_flight: u64,
    pub delivered: u64,
    pub rate_bits_per_s: u64,
    pub application_limited: bool,
}

#[derive(Debug)]
struct State {
    told: PathSample,
    base: RecentLeast,
    span: Option<(Instant, u64)>,
    span_limited: bool,
}

/// Shared between the controller, which writes, and whoever reads statistics.
#[derive(Debug)]
pub struct PathMeasurement {
    state: Mutex<State>,
    /// How much of the congestion window is in use: what is in flight when acknowledgements come, at most the window.
    /// Where no packet is ever lost the window itself grows without end.
    pub used: Arc<AtomicU64>,
    pub rate: Arc<DeliveryRate>,
    /// The path is a new one since the last packet was sent.
    restart: AtomicBool,
}

/// What the path has delivered of late.
#[derive(Debug)]
pub struct DeliveryRate {
    /// The most; what was more fades by half in 2 s of sending. 0: nothing yet.
    pub bytes_per_s: AtomicU64,
    /// It may carry more, for there was less to send.
    pub limited: AtomicBool,
    /// Something was delivered in the last span.
    pub used: AtomicBool,
}

impl Default for DeliveryRate {
    fn default() -> Self {
        Self {
            bytes_per_s: AtomicU64::new(0),
            limited: AtomicBool::new(true),
            used: AtomicBool::new(false),
        }
    }
}

impl PathMeasurement {
    pub fn new() -> Arc<Self> {
        let state = State {
            told: PathSample {
                rtt_latest: Duration::ZERO,
                rtt_min: Duration::ZERO,
                window: 0,
                in_flight: 0,
                delivered: 0,
                rate_bits_per_s: 0,
                application_limited: true,
            },
            base: RecentLeast::default(),
            span: None,
            span_limited: true,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            used: Arc::default(),
            rate: Arc::default(),
            restart: AtomicBool::new(false),
        })
    }

    pub fn read(&self) -> PathSample {
        self.lock().told.clone()
    }

    /// Close the rate's span if it is long enough, also while nothing is acknowledged.
    pub fn tick(&self, now: Instant) {
        let mut state = self.lock();
        state.span_limited |= state.told.in_flight == 0;
        self.close_span(&mut state, now);
    }

    fn close_span(&self, state: &mut State, now: Instant) {
        if state.close_span(now) {
            let kept = if state.told.application_limited { 1.0 } else { RATE_KEPT };
            let before = self.rate.bytes_per_s.load(Ordering::Relaxed) as f64 * kept;
            let most = (state.told.rate_bits_per_s / 8).max(before as u64);
            self.rate.bytes_per_s.store(most, Ordering::Relaxed);
            self.rate
                .limited
                .store(state.told.application_limited, Ordering::Relaxed);
            self.rate.used.store(state.told.rate_bits_per_s > 0, Ordering::Relaxed);
        }
    }

    /// The path is a new one: forget what the old one taught, with the next packet that is sent.
    pub fn restart(&self) {
        self.restart.store(true, Ordering::SeqCst);
    }

    /// The first path, or another one than before, of which nothing is known.
    fn begin_path(&self, window: u64) {
        self.lock().begin_path(window);
        self.rate.forget();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl DeliveryRate {
    fn forget(&self) {
        self.bytes_per_s.store(0, Ordering::Relaxed);
        self.limited.store(true, Ordering::Relaxed);
        self.used.store(false, Ordering::Relaxed);
    }
}

impl State {
    fn begin_path(&mut self, window: u64) {
        self.base = RecentLeast::default();
        (self.told.window, self.told.rtt_min) = (window, Duration::ZERO); // nothing is known of it yet
    }

    /// Whether a span came to its end.
    fn close_span(&mut self, now: Instant) -> bool {
        let Some((since, bytes)) = self.span else {
            self.span = Some((now, self.told.delivered));
            return false;
        };
        let span = now.saturating_duration_since(since);
        if span < RATE_SPAN {
            return false;
        }
        let bits = (self.told.delivered - bytes) as f64 * 8.0;
        self.told.rate_bits_per_s = (bits / span.as_secs_f64()) as u64;
        self.told.application_limited = self.span_limited;
        self.span_limited = false;
        self.span = Some((now, self.told.delivered));
        true
    }

    fn note_rtt(&mut self, rtt_s: f64, now: Instant) {
        self.base.add(rtt_s, now, MIN_RTT_WINDOW);
        self.told.rtt_latest = Duration::from_secs_f64(rtt_s);
        self.told.rtt_min = Duration::from_secs_f64(self.base.least());
    }
}

/// A controller that also writes down what it hears.
pub struct Observed {
    inner: Box<dyn Controller>,
    measure: Arc<PathMeasurement>,
    factory: Arc<dyn ControllerFactory + Send + Sync>,
    mtu: u16,
    /// Packets that were sent before say nothing of this path (RFC 9000 9.4).
    began: Instant,
    acks: AckedPackets,
    in_flight: u64,
    fills_window: bool,
}

impl Observed {
    fn restart(&mut self, now: Instant) {
        self.inner = self.factory.clone().build(now, self.mtu);
        self.began = now;
        self.acks.rtt_s = None;
        self.measure.begin_path(self.inner.metrics().congestion_window);
    }
}

pub struct ObservedFactory {
    pub inner: Arc<dyn ControllerFactory + Send + Sync>,
    pub measure: Arc<PathMeasurement>,
    /// The window is what has to be in flight, and does not grow beyond that by itself.
    pub fills_window: bool,
}

impl ControllerFactory for ObservedFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.inner.clone().build(now, current_mtu);
        self.measure.begin_path(inner.metrics().congestion_window);
        Box::new(Observed {
            inner,
            measure: self.measure.clone(),
            factory: self.inner.clone(),
            mtu: current_mtu,
            began: now,
            acks: AckedPackets::default(),
            in_flight: 0,
            fills_window: self.fills_window,
        })
    }
}

impl Observed {
    /// A window of which less than half is in use does not grow, whatever keeps it from being used (RFC 9002 7.8): where
    /// nothing is lost it would become so large that the first loss would not be felt.
    fn unused(&self) -> bool {
        !self.fills_window && self.in_flight < self.inner.window() / 2
    }
}

impl Controller for Observed {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        if self.measure.restart.load(Ordering::Relaxed) && self.measure.restart.swap(false, Ordering::SeqCst) {
            self.restart(now);
        }
        self.inner.on_sent(now, bytes, last_packet_number);
        self.in_flight += bytes;
        self.measure.lock().told.in_flight += bytes;
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        if sent < self.began {
            self.acks.bytes += bytes;
            return;
        }
        self.inner.on_ack(now, sent, bytes, app_limited || self.unused(), rtt);
        self.acks.add(now, sent, bytes, app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        let mut state = self.measure.lock();
        let acks = std::mem::take(&mut self.acks);
        if let Some(rtt_s) = acks.rtt_s {
            state.note_rtt(rtt_s, now);
        }
        state.told.delivered += acks.bytes;
        state.told.window = self.inner.metrics().congestion_window;
        // Where packets are lost, what is in flight is wanted twice: a piece of a message of which one packet was lost
        // stays for another round trip or two. BBR's window is twice what the path holds already.
        let used = if self.fills_window {
            state.told.window
        } else {
            2 * state.told.in_flight.min(state.told.window)
        };
        self.measure.used.store(used, Ordering::Relaxed);
        state.told.in_flight = in_flight;
        self.in_flight = in_flight;
        state.span_limited |= acks.limited_bytes > 0 || app_limited;
        self.measure.close_span(&mut state, now);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        if sent >= self.began {
            self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
        }
        let mut state = self.measure.lock();
        state.told.in_flight = state.told.in_flight.saturating_sub(lost_bytes);
        self.in_flight = state.told.in_flight;
        state.told.window = self.inner.metrics().congestion_window;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
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
            measure: self.measure.clone(),
            factory: self.factory.clone(),
            mtu: self.mtu,
            began: self.began,
            acks: self.acks.clone(),
            in_flight: self.in_flight,
            fills_window: self.fills_window,
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
    use quinn_proto::congestion::CubicConfig;

    #[test]
    fn a_window_that_is_not_half_used_does_not_grow() {
        let now = Instant::now();
        for fills_window in [false, true] {
            let factory = ObservedFactory {
                inner: Arc::new(CubicConfig::default()),
                measure: PathMeasurement::new(),
                fills_window,
            };
            let controller = Arc::new(factory).build(now, 1200).into_any();
            let mut controller = controller.downcast::<Observed>().unwrap();
            assert_eq!(controller.unused(), !fills_window);
            controller.on_sent(now, controller.window() / 2, 0);
            assert!(!controller.unused());
            controller.on_end_acks(now, controller.window() / 2 - 1, false, Some(0));
            assert_eq!(controller.unused(), !fills_window);
        }
    }

    #[test]
    fn of_another_path_no_rate_is_known() {
        let measure = PathMeasurement::new();
        measure.rate.bytes_per_s.store(1 << 30, Ordering::Relaxed);
        measure.rate.limited.store(false, Ordering::Relaxed);
        measure.rate.used.store(true, Ordering::Relaxed);
        let factory = ObservedFactory {
            inner: Arc::new(CubicConfig::default()),
            measure: measure.clone(),
            fills_window: true,
        };
        Arc::new(factory).build(Instant::now(), 1200);
        assert_eq!(measure.rate.bytes_per_s.load(Ordering::Relaxed), 0);
        assert!(measure.rate.limited.load(Ordering::Relaxed));
        assert!(!measure.rate.used.load(Ordering::Relaxed));
    }

    #[test]
    fn the_least_round_trip_is_of_the_last_one_to_two_spans() {
        let measure = PathMeasurement::new();
        let began = Instant::now();
        let mut state = measure.lock();
        // Seconds since the beginning, the round trip that is seen then, and the least one that is told, in ms.
        let told = [
            (0, 20, 20),
            (1, 5, 5),
            (9, 30, 5),
            (11, 30, 5),
            (19, 40, 5),
            (22, 40, 30),
            (60, 50, 50),
        ];
        for (at, rtt, least) in told {
            state.note_rtt(
                Duration::from_millis(rtt).as_secs_f64(),
                began + Duration::from_secs(at),
            );
            assert_eq!(state.told.rtt_min, Duration::from_millis(least), "after {at} s");
            assert_eq!(state.told.rtt_latest, Duration::from_millis(rtt));
        }
        state.begin_path(12_000);
        state.note_rtt(0.090, began + Duration::from_secs(61));
        assert_eq!(state.told.rtt_min, Duration::from_millis(90), "of another path");
    }

    #[test]
    fn the_rate_of_a_path_fades_only_while_it_is_full() {
        let measure = PathMeasurement::new();
        let began = Instant::now();
        let mut state = measure.lock();
        for (spans, bytes, limited) in [(0, 0, true), (1, 1_000_000, false), (2, 0, true), (3, 0, false)] {
            state.told.delivered += bytes;
            state.span_limited = limited;
            measure.close_span(&mut state, began + RATE_SPAN * spans);
            let rate = measure.rate.bytes_per_s.load(Ordering::Relaxed);
            assert_eq!(rate, [0, 10_000_000, 10_000_000, 9_700_000][spans as usize]);
            assert_eq!(measure.rate.used.load(Ordering::Relaxed), bytes > 0, "span {spans}");
        }
    }
}

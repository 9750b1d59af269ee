//! What QUIC is told of an endpoint and of each connection.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{EndpointConfig, TransportConfig};

use super::tls::Limits;
use crate::congestion;
use crate::congestion::path_measurement::{ObservedFactory, PathMeasurement};
use crate::settings::Settings;

/// Of messages that overtake the hello: the windows of the first three round trips are less.
const BEFORE_HELLO_BYTES_MAX: u64 = 1 << 20;
/// A packet of Ethernet without tunnels, whatever we send ourselves.
const DATAGRAM_BYTES_TAKEN_MIN: u16 = 1472;

pub fn endpoint_config(settings: &Settings) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    // What we can take in, which is also what the peer may probe the path for.
    let taken = settings.datagram_bytes.max(DATAGRAM_BYTES_TAKEN_MIN);
    config
        .max_udp_payload_size(taken)
        .expect("more than QUIC's least, as the settings are");
    config
}

/// What a connection of ours is like; `measure` hears how it goes.
pub fn transport(settings: &Settings, bulk: bool, measure: &Arc<PathMeasurement>) -> Arc<TransportConfig> {
    let inner = congestion::factory(&settings.congestion, bulk).expect("the name was checked when the engine began");
    let limits = Limits {
        stream_window_bytes: settings.stream_window_bytes(),
        first_window_bytes: settings.window_bytes().min(BEFORE_HELLO_BYTES_MAX) as u32,
        streams_max: settings.streams_max,
        datagram_bytes: settings.datagram_bytes,
        // A second line of defence; the tick is the first.
        idle: Duration::from_secs(30).max(2 * settings.dead_after),
    };
    Arc::new(limits.transport(Arc::new(ObservedFactory {
        inner,
        measure: measure.clone(),
        // BBR keeps its window at twice of what it uses.
        fills_window: !bulk && settings.congestion == congestion::BBR,
    })))
}

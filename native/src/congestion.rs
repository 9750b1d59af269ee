//! The controllers by name.

mod acked_packets;
mod auto;
mod bbr;
mod delay_bound;
mod loss_tolerant_cubic;
mod min_rtt;
pub mod pacer;
pub mod path_measurement;
pub mod rate_share;

use std::sync::Arc;

use quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};

use self::auto::AutoConfig;
use self::bbr::SpannedBbrConfig;
use self::delay_bound::DelayBoundConfig;
use self::pacer::Pacer;
use self::rate_share::EndpointRate;

/// The controllers that a configuration can name.
pub const NAMES: [&str; 4] = [AUTO, "cubic", "reno", BBR];
/// CUBIC that tolerates random loss, below the endpoint's rate where there is one.
pub const AUTO: &str = "auto";
pub const BBR: &str = "bbr";

/// The factory for a name of `NAMES`, or for bulk.
///
/// `rate` is what `AUTO` follows, `pace` what it holds a connection's packets back by.
pub fn factory(
    name: &str,
    bulk: bool,
    rate: &Arc<EndpointRate>,
    pace: &Arc<Pacer>,
) -> Option<Arc<dyn ControllerFactory + Send + Sync>> {
    if bulk {
        return Some(Arc::new(DelayBoundConfig));
    }
    match name {
        "cubic" => Some(Arc::new(CubicConfig::default())),
        "reno" => Some(Arc::new(NewRenoConfig::default())),
        BBR => Some(Arc::new(SpannedBbrConfig::default())),
        AUTO => Some(Arc::new(AutoConfig {
            rate: rate.clone(),
            pace: pace.clone(),
        })),
        _ => None,
    }
}

#[cfg(test)]
mod bottleneck_tests;
#[cfg(test)]
mod pacing_tests;

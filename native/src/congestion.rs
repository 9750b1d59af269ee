//! The controllers by name.

mod acked_packets;
mod bbr;
mod delay_bound;
mod loss_tolerant_cubic;
pub mod path_measurement;
mod recent_least;

use std::sync::Arc;

use quinn_proto::congestion::{ControllerFactory, CubicConfig};

use self::bbr::SpannedBbrConfig;
use self::delay_bound::DelayBoundConfig;
use self::loss_tolerant_cubic::LossTolerantCubicConfig;

/// The controllers that a configuration can name.
pub const NAMES: [&str; 3] = [AUTO, "cubic", BBR];
/// CUBIC that tolerates random loss.
pub const AUTO: &str = "auto";
pub const BBR: &str = "bbr";

/// The factory for a name of `NAMES`, or for bulk.
pub fn factory(name: &str, bulk: bool) -> Option<Arc<dyn ControllerFactory + Send + Sync>> {
    if bulk {
        return Some(Arc::new(DelayBoundConfig));
    }
    match name {
        "cubic" => Some(Arc::new(CubicConfig::default())),
        BBR => Some(Arc::new(SpannedBbrConfig::default())),
        AUTO => Some(Arc::new(LossTolerantCubicConfig)),
        _ => None,
    }
}

#[cfg(test)]
mod bottleneck_tests;
#[cfg(test)]
mod pacing_tests;
